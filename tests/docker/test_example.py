"""The example of docker/compose.yaml: its three parts as processes, and its files as they stand."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from gateway.config.source import ManifestSource
from gateway.demo.process import free_port
from tests.gateway.harness import serving
from tests.helm.tools import ROOT
from tests.lacking import lacking

EXAMPLE = ROOT / "docker" / "example"
COMPOSE = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())


async def test_the_agents_run_is_undone(tmp_path: Path) -> None:
    """The very files that compose mounts; only host names are other ones here."""
    port = free_port()
    tool = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLE / "tool.py"),
        env={**os.environ, "PORT": str(port)},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        text = (EXAMPLE / "manifest.yaml").read_text().replace("http://tool:8000", f"http://127.0.0.1:{port}")
        async with serving(tmp_path, port, text) as running:
            url = running.gateway.listen
            agent = await asyncio.create_subprocess_exec(
                sys.executable, str(EXAMPLE / "agent.py"),
                env={**os.environ, "SEAWALL_URL": url, "HOLDS_BASE_URL": f"{url}/holds"}, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            told, _ = await agent.communicate()
        assert agent.returncode == 0, told
        assert told.decode().splitlines()[-1] == "aborted_clean - there now: []"
        assert "there now: ['h1', 'h2']" in told.decode()
    finally:
        tool.kill()
        await tool.wait()


def test_compose_names_what_there_is() -> None:
    """Targets, files and the manifest exist; the networks are the fence that the one switch needs."""
    ManifestSource(EXAMPLE / "manifest.yaml", is_offline=True).load()
    stages = (ROOT / "docker" / "Containerfile").read_text()
    for service in COMPOSE["services"].values():
        assert f" AS {service['build']['target']}\n" in stages
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        for part in service.get("entrypoint", []):
            assert not part.startswith("/example/") or (ROOT / "docker" / part.lstrip("/")).is_file()
    assert all(network["internal"] for network in COMPOSE["networks"].values())
    assert COMPOSE["services"]["agent"]["networks"] == ["agents"]


def test_the_containerfile_is_clean() -> None:
    """hadolint, with every exception written beside its line."""
    program = shutil.which("hadolint") or str(Path(sys.executable).with_name("hadolint"))
    if not Path(program).exists():
        lacking("the Containerfile's lint: no hadolint (extra `k8s`)")
    subprocess.run([program, str(ROOT / "docker" / "Containerfile")], check=True)


def test_the_images_lock_is_part_of_the_projects_lock() -> None:
    """One set of versions, tested and shipped; every line with a hash and none with a host."""
    whole = (ROOT / "requirements.lock").read_text()
    for name in ("requirements.lock", "build.lock"):
        text = (ROOT / "docker" / name).read_text()
        pins = [line.split(" ")[0] for line in text.splitlines() if "==" in line and not line.startswith((" ", "#"))]
        assert pins
        assert not [pin for pin in pins if f"{pin} " not in whole and f"{pin};" not in whole]
        assert text.count("--hash=sha256:") >= len(pins)
        assert "://" not in text
