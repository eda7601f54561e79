"""How the image comes about: from bases pinned by digest, and with the same bytes wherever and whenever it is built."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway import __version__
from gateway.demo.process import free_port
from tests.containers.engine import BASES, GUARD, IMAGE, Podman, build_environment
from tests.helm.tools import ROOT
from tests.lacking import lacking

CONTEXT = ("config", "docker", "gateway", "policies", "loadtests/scenarios")
FILES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".dockerignore")


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A registry on loopback: `127.0.0.1:PORT`."""
    program = shutil.which("docker-registry")
    if program is None:
        lacking("bases by digest: no docker-registry; tests/containers/setup installs it")
    port = free_port()
    (tmp_path / "registry.yml").write_text(
        f"version: 0.1\nlog: {{level: error}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n"
        f"storage: {{filesystem: {{rootdirectory: {tmp_path / 'registry'}}}}}\n"
    )
    with subprocess.Popen(
        [program, "serve", str(tmp_path / "registry.yml")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            _wait(f"http://127.0.0.1:{port}/v2/", process)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            assert process.poll() is None, "the registry ended"
            assert time.monotonic() < until, "the registry does not answer"
            time.sleep(0.05)
        else:
            return


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """The sources in another folder, with other times."""
    folder = tmp_path / "sources"
    for name in CONTEXT:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"), copy_function=_copy)
    for name in FILES:
        _copy(str(ROOT / name), str(folder / name))
    (folder / "docker" / "pins").unlink(missing_ok=True)
    return folder


def _copy(source: str, target: str) -> str:
    shutil.copyfile(source, target)
    shutil.copymode(source, target)
    os.utime(target, (1_700_000_000, 1_700_000_000))
    return target


def test_pinned_bases_give_the_same_bytes_again(podman: Podman, registry: str, elsewhere: Path) -> None:
    """The tags are resolved once and written down; a build from that file, with nothing kept from an earlier one, in
    another folder, gives the very images that the tests of this folder run."""
    names = []
    for base in BASES:
        names.append(f"{registry}/{base.removeprefix('localhost/')}")
        podman.run("push", "--quiet", "--tls-verify=false", base, f"docker://{names[-1]}")
    environment = build_environment() | {"PIN_FLAGS": "--tls-verify=false"}
    told = subprocess.run(
        [elsewhere / "docker" / "pin", *names], env=environment, capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 0, told.stderr
    pins = (elsewhere / "docker" / "pins").read_text()
    assert told.stdout == pins
    for name, line in zip(names, pins.splitlines(), strict=True):
        assert line.split("=", 1)[1].startswith(f"{name}@sha256:")

    again = "localhost/seawall-again"
    environment |= {"NAME": again, "BUILD_FLAGS": "--no-cache --tls-verify=false"}
    try:
        built = subprocess.run(
            [elsewhere / "docker" / "build"], env=environment, capture_output=True, text=True, timeout=600
        )
        assert built.returncode == 0, built.stderr
        assert "not pinned" not in built.stderr
        for first, second in ((IMAGE, again), (GUARD, f"{again}-guard")):
            assert content_of(podman, f"{second}:{__version__}") == content_of(podman, first)
    finally:
        podman.run("rmi", f"{again}:{__version__}", f"{again}-guard:{__version__}", is_checked=False)


def content_of(podman: Podman, image: str) -> object:
    """Return the digests of an image's layers and its settings: all of it but how its steps are commented."""
    (found,) = json.loads(podman.run("image", "inspect", image).stdout)
    return found["RootFS"], found["Config"], found["Created"]


def test_an_unknown_base_is_not_pinned(registry: str, elsewhere: Path, podman: Podman) -> None:
    """Nothing is written, so that the next build does not rest on half of it."""
    environment = {**os.environ, "PIN_FLAGS": "--tls-verify=false"}
    told = subprocess.run(
        [elsewhere / "docker" / "pin", f"{registry}/nobody:1", f"{registry}/nothing:1"],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert told.returncode != 0
    assert "manifest unknown" in told.stderr
    assert not (elsewhere / "docker" / "pins").exists()
