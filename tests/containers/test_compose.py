"""docker/compose.yaml, as it stands: built by compose, run by one command, its networks the only way between its parts."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
import uuid
from collections.abc import Iterator

import pytest

from tests.containers.engine import BASES, Podman, build_environment
from tests.helm.tools import ROOT

UP = ("up", "--abort-on-container-exit", "--exit-code-from", "agent")


class Compose:
    """One project of compose, in a network namespace of its own: its bridges and addresses exist in there alone."""

    def __init__(self, podman: Podman) -> None:
        self.project = f"seawall-test-{uuid.uuid4().hex[:8]}"
        self.environment = {
            **build_environment(), **podman.environment, "CONTAINERS_CONF": str(podman.bridged),
            "BUILD_BASE": BASES[0], "RUN_BASE": BASES[1],
        }  # fmt: skip

    def run(self, *arguments: str, flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        command = ["podman-compose", "-p", self.project, *flags, "-f", "docker/compose.yaml", *arguments]
        return subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=400)

    def run_apart(self, script: str) -> tuple[int, str]:
        """Run a script of the shell where there is loopback and nothing else, `$compose` being the command.

        Returns its exit code and what it told: in a file, since what answers names in there lives longer than the script and
        would keep a pipe open.
        """
        compose = f"podman-compose -p {self.project} -f docker/compose.yaml"
        command = ["unshare", "--net", "sh", "-euc", f"ip link set lo up\ncompose='{compose}'\n{script}"]
        with tempfile.TemporaryFile("w+") as told:
            done = subprocess.run(command, cwd=ROOT, env=self.environment, stdout=told, stderr=told, timeout=200)
            told.seek(0)
            return done.returncode, told.read()


@pytest.fixture
def compose(podman: Podman) -> Iterator[Compose]:
    compose = Compose(podman)
    try:
        yield compose
    finally:
        compose.run_apart("$compose down -v")


def test_one_command_runs_agent_gateway_and_tool(compose: Compose) -> None:
    """The agent holds two things, gives up, and the tool has nothing left; its exit code is the command's. While all three
    are there, the agent does not reach the tool except through the gateway."""
    environment = compose.environment
    flags = "--layers --format docker --network host --pull-never --timestamp 1764374400"
    if certificate := environment.get("PIP_CERT"):
        flags += f" --volume {certificate}:/build-ca.crt:ro --build-arg PIP_CERT=/build-ca.crt"
    built = compose.run("build", "gateway", flags=(f"--podman-build-args={flags}",))
    assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-3000:]

    around = (
        "import socket\n"
        "try:\n    socket.create_connection(('tool', 8000), 3)\n"
        "except OSError:\n    print('no way around')\n"
    )
    where = f"--network {compose.project}_agents --entrypoint /usr/bin/python3.11 localhost/seawall-example"
    code, told = compose.run_apart(
        f"code=0; timeout 90 $compose {' '.join(UP)} || code=$?\n"
        f"timeout 30 podman --runtime runc run --rm {where} -c {shlex.quote(around)}\n"
        "exit $code"
    )
    assert code == 0, told[-5000:]
    lines = told.splitlines()
    assert "there now: ['h1', 'h2']" in lines
    assert "aborted_clean - there now: []" in lines
    assert "no way around" in lines
