"""The image: small, shell-less, restricted, and alive again after kill -9 with everything it had promised."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gateway import __version__
from gateway.demo.process import free_port
from tests.containers.engine import BASES, GUARD, IMAGE, REVISION, Podman, build_environment
from tests.gateway.harness import Client, write_manifest
from tests.helm.tools import ROOT
from tests.origin import Answer, Origin

JSON = ((b"Content-Type", b"application/json"),)
LIMIT_BYTES = 80_000_000


class Contained:
    """The gateway in a container, on a folder that outlives it."""

    def __init__(self, podman: Podman, folder: Path, port: int) -> None:
        self.podman = podman
        self.name = f"seawall-test-{uuid.uuid4().hex[:8]}"
        self.configuration, self.data = folder / "etc", folder / "data"
        for place in (self.configuration, self.data):
            place.mkdir()
        write_manifest(self.configuration, port)
        os.chown(self.data, 65532, 65532)
        self.listen, self.metrics = free_port(), free_port()

    async def start(self) -> Client:
        """Start it and return a client once it is ready, as the image's own health check has it."""
        await self.podman.serve(
            self.name, {self.configuration: "/etc/seawall:ro", self.data: "/var/lib/seawall"},
            "serve", "--manifest=/etc/seawall/manifest.yaml", "--data=/var/lib/seawall/journal",
            f"--listen=127.0.0.1:{self.listen}", f"--metrics=127.0.0.1:{self.metrics}",
            "--control=unix:/run/seawall/control.sock", "--drain=5s", "--telemetry-log-level=error",
        )  # fmt: skip
        async with asyncio.timeout(60):
            while (await self.ask()).returncode:
                state = await self.podman.run_beside("inspect", "--format", "{{.State.Status}}", self.name)
                assert state.stdout.strip() == "running", self.podman.run("logs", self.name).stderr
        return Client(f"http://127.0.0.1:{self.listen}")

    async def ask(self) -> subprocess.CompletedProcess[str]:
        """Run the health check."""
        arguments = ("health", "--control", "unix:/run/seawall/control.sock")
        return await self.podman.run_beside("exec", self.name, "seawall", *arguments, is_checked=False)

    async def kill(self) -> None:
        """SIGKILL, and forget the container; the folder stays."""
        await self.podman.run_beside("kill", "--signal", "KILL", self.name)
        await self.podman.remove(self.name)


@pytest_asyncio.fixture
async def origin() -> AsyncIterator[Origin]:
    async with Origin(honours_keys=True) as origin:
        origin.default = Answer(201, b'{"id": "h"}', JSON)
        yield origin


@pytest_asyncio.fixture
async def contained(podman: Podman, tmp_path: Path, origin: Origin) -> AsyncIterator[Contained]:
    contained = Contained(podman, tmp_path, origin.port)
    try:
        yield contained
    finally:
        await podman.remove(contained.name)


def test_the_image_is_small_and_says_what_it_is(podman: Podman) -> None:
    """Every byte in it is attack surface and pull time."""
    (image,) = json.loads(podman.run("image", "inspect", IMAGE).stdout)
    assert image["Size"] < LIMIT_BYTES
    assert image["Config"]["User"] == "65532:65532"
    assert image["Config"]["Entrypoint"] == ["/usr/local/bin/seawall"]
    assert image["Labels"]["org.opencontainers.image.version"] == __version__
    assert image["Labels"]["org.opencontainers.image.revision"] == REVISION
    assert image["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert image["Healthcheck"]["Test"] == ["CMD", "/usr/local/bin/seawall", "health"]


def test_another_revision_is_another_label(podman: Podman) -> None:
    """A build that keeps the steps of an earlier one must not keep its labels, else the image says it is another."""
    name, revision = "localhost/seawall-labelled", uuid.uuid4().hex
    environment = build_environment() | {"NAME": name, "REVISION": revision}
    try:
        subprocess.run(
            ["docker/build", *BASES], cwd=ROOT, env=environment, check=True, capture_output=True, timeout=300
        )
        (image,) = json.loads(podman.run("image", "inspect", f"{name}:{__version__}").stdout)
        assert image["Labels"]["org.opencontainers.image.revision"] == revision
    finally:
        podman.run("rmi", f"{name}:{__version__}", f"{name}-guard:{__version__}", is_checked=False)


def test_there_is_no_shell_and_no_package_manager(podman: Podman) -> None:
    """What is not there cannot be used by whoever gets in."""
    for program in ("/bin/sh", "/bin/bash", "/usr/bin/apt-get", "/usr/bin/dpkg", "/usr/bin/perl", "/usr/bin/pip"):
        tried = podman.run("run", "--rm", "--network", "none", "--entrypoint", program, IMAGE, is_checked=False)
        assert tried.returncode != 0
        assert "no such file" in tried.stderr.lower()


@pytest.mark.parametrize(
    "arguments", [("--version",), ("serve", "--help"), ("inject", "--help"), ("webhook", "--help"), ("schema",)]
)
def test_every_command_runs_in_it(podman: Podman, arguments: tuple[str, ...]) -> None:
    """Packages were left out of it; nothing that is used may be among them."""
    done = podman.run("run", "--rm", "--network", "none", "--read-only", "--cap-drop", "all", IMAGE, *arguments)
    assert done.stdout


def test_the_bill_of_materials_names_what_is_in_it(podman: Podman) -> None:
    """Versions are those of the lock; what was left out is not in the bill."""
    code = "import sys; sys.stdout.write(open('/opt/seawall/sbom.cdx.json').read())"
    done = podman.run("run", "--rm", "--network", "none", "--entrypoint", "/usr/bin/python3.11", IMAGE, "-c", code)
    bill = json.loads(done.stdout)
    found = {component["name"].lower().replace("_", "-"): component["version"] for component in bill["components"]}
    assert found.pop("seawall") == __version__
    lock = (ROOT / "docker" / "requirements.lock").read_text()
    assert {"aiohttp", "pydantic", "uvloop"} <= found.keys()
    assert not [name for name, version in found.items() if f"{name}=={version} " not in lock]
    assert "pygments" not in found


def test_the_guard_is_nft_and_nothing_else(podman: Podman) -> None:
    """It runs with NET_ADMIN, so that it must be able to do one thing alone."""
    assert "nftables" in podman.run("run", "--rm", "--network", "none", GUARD, "--version").stdout
    (image,) = json.loads(podman.run("image", "inspect", GUARD).stdout)
    assert image["Size"] < 10_000_000


async def test_it_serves_under_the_restricted_profile(contained: Contained, origin: Origin) -> None:
    """Read-only root, uid 65532, no capability, no new privileges, seccomp on; and a call goes through."""
    agent = await contained.start()
    assert (await agent.send("POST", "/pay/holds", {"n": 1}, run="r1")).status == 201
    code = (
        "import json;s=dict(l.split(':',1) for l in open('/proc/1/status'));"
        "print(json.dumps([s[k].split()[0] for k in ('Uid','Gid','CapEff','CapBnd','NoNewPrivs','Seccomp')]))"
    )
    facts = await contained.podman.run_beside("exec", contained.name, "/usr/bin/python3.11", "-c", code)
    assert json.loads(facts.stdout) == ["65532", "65532", "0" * 16, "0" * 16, "1", "2"]
    write = "open('/opt/seawall/x','w')"
    tried = await contained.podman.run_beside(
        "exec", contained.name, "/usr/bin/python3.11", "-c", write, is_checked=False
    )
    assert "Read-only file system" in tried.stderr
    await contained.podman.run_beside("stop", "--time", "20", contained.name)
    state = await contained.podman.run_beside("inspect", "--format", "{{.State.ExitCode}}", contained.name)
    assert state.stdout.strip() == "0"
    assert origin.ledger.total == 1


async def test_killed_under_load_it_recovers_on_its_volume(contained: Contained, origin: Origin) -> None:
    """Every effect at most once, every acknowledged step committed, and every run undone to the last hold."""
    acknowledged: set[int] = set()

    async def one(agent: Client, number: int) -> None:
        try:
            answer = await agent.send("POST", "/pay/holds", {"n": number}, run=f"r{number % 5}", key=f"k{number}")
        except (OSError, asyncio.IncompleteReadError):
            return
        if answer.status == 201:
            acknowledged.add(number)

    for cycle in range(2):
        agent = await contained.start()
        calls = [asyncio.create_task(one(agent, number)) for number in range(cycle * 20, cycle * 20 + 40)]
        async with asyncio.timeout(30):
            await origin.wait(lambda cycle=cycle: origin.ledger.total >= cycle * 20 + 10)  # type: ignore[misc]
        await contained.kill()
        await asyncio.gather(*calls)
    agent = await contained.start()
    for number in range(60):
        await one(agent, number)
    assert acknowledged == set(range(60))
    assert origin.ledger.by_key() == {f"k{number}": 1 for number in range(60)}
    for run in range(5):
        await agent.send("POST", f"/seawall/v1/trajectories/r{run}/abort", {"reason": "enough"})
        async with asyncio.timeout(30):
            while (await agent.send("GET", f"/seawall/v1/trajectories/r{run}")).json["state"] != "aborted_clean":
                pass
    cancels = [request.key for request in origin.requests if request.path == "/holds/h/cancel"]
    assert len(set(cancels)) == 60
    assert all(origin.ledger.effects(key) == 1 for key in cancels)
