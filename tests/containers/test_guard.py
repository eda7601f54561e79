"""The egress guard, for real: the chart's rules, the guard's image, a pod's network namespace, two users and an outside."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.engine import GUARD, Podman
from tests.helm.objects import named
from tests.helm.tools import CHART, Helm

CONNECT = (
    "import os,socket,sys,time\n"
    "socket.getaddrinfo('127.0.0.1', 1)\n"
    "os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))\n"
    "began=time.monotonic()\n"
    "try:\n    socket.create_connection((sys.argv[2], int(sys.argv[3])), 3).close(); print('connected')\n"
    "except OSError as error:\n    print('refused' if time.monotonic()-began < 1 else 'timed out')\n"
)
SERVE = (
    "import os,socket,sys\n"
    "socket.getaddrinfo('127.0.0.1', 1)\n"
    "os.setuid(int(sys.argv[1])); s=socket.create_server((sys.argv[2], int(sys.argv[3])))\n"
    "print('up', flush=True)\n"
    "while True:\n    c,_=s.accept(); c.sendall(b'hello'); c.close()\n"
)


class Namespaces:
    """A pod and an outside, joined by one cable."""

    def __init__(self) -> None:
        mark = uuid.uuid4().hex[:6]
        self.pod, self.outside = f"sw-pod-{mark}", f"sw-out-{mark}"
        self._served: list[subprocess.Popen[str]] = []
        for name in (self.pod, self.outside):
            self._ip("netns", "add", name)
            self._ip("-n", name, "link", "set", "lo", "up")
        self._ip(
            "link", "add", f"a{mark}", "netns", self.pod, "type", "veth", "peer", f"b{mark}", "netns", self.outside
        )
        for name, device, address in ((self.pod, f"a{mark}", "10.77.0.1"), (self.outside, f"b{mark}", "10.77.0.2")):
            self._ip("-n", name, "address", "add", f"{address}/24", "dev", device)
            self._ip("-n", name, "link", "set", device, "up")

    def serve(self, place: str, uid: int, address: str, port: int) -> None:
        command = ["nsenter", f"--net=/run/netns/{place}", sys.executable, "-c", SERVE, str(uid), address, str(port)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._served.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"

    def connect(self, place: str, uid: int, address: str, port: int) -> str:
        command = ["nsenter", f"--net=/run/netns/{place}", sys.executable, "-c", CONNECT, str(uid), address, str(port)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def close(self) -> None:
        for process in self._served:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for name in (self.pod, self.outside):
            subprocess.run(["ip", "netns", "delete", name], check=True)

    @staticmethod
    def _ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True)


@pytest.fixture
def namespaces(images: None) -> Iterator[Namespaces]:
    found = Namespaces()
    try:
        yield found
    finally:
        found.close()


def test_only_the_gateway_leaves_the_pod(podman: Podman, namespaces: Namespaces, tmp_path: Path) -> None:
    """The agent is refused at once, and not after a timeout; probes from outside still get their answers."""
    agent, gateway, pod, outside = 10001, 65532, namespaces.pod, namespaces.outside
    namespaces.serve(outside, 0, "10.77.0.2", 7001)
    namespaces.serve(pod, gateway, "127.0.0.1", 8080)
    namespaces.serve(pod, agent, "10.77.0.1", 9000)
    assert namespaces.connect(pod, agent, "10.77.0.2", 7001) == "connected"

    helm = Helm("4", tmp_path)
    objects = helm.template("-f", CHART / "ci" / "sidecar-values.yaml")
    (tmp_path / "guard.nft").write_text(named(objects, "ConfigMap", "r-seawall")["data"]["guard.nft"])
    as_the_chart = ("--read-only", "--cap-drop", "all", "--cap-add", "NET_ADMIN", "--security-opt", "no-new-privileges")
    mount = ("-v", f"{tmp_path}:/etc/seawall:ro")
    for _ in range(2):  # an init container may run again
        podman.run(
            "run",
            "--rm",
            "--network",
            f"ns:/run/netns/{pod}",
            *as_the_chart,
            *mount,
            GUARD,
            "-f",
            "/etc/seawall/guard.nft",
        )

    assert namespaces.connect(pod, agent, "10.77.0.2", 7001) == "refused"
    assert namespaces.connect(pod, 0, "10.77.0.2", 7001) == "refused"
    assert namespaces.connect(pod, gateway, "10.77.0.2", 7001) == "connected"
    assert namespaces.connect(pod, agent, "127.0.0.1", 8080) == "connected"
    assert namespaces.connect(outside, 0, "10.77.0.1", 9000) == "connected"
