"""How fast a quarantine takes hold, seen from outside: by the tool whose connections close, and by agents who are refused.

A gateway in a process of its own. In each round a run has writes and a stream under way at the tool; then it is quarantined
over the control port, and another agent reads what it made. Three things are timed from the moment the order is handed to
the kernel: when the tool has seen the last of the run's connections close (`severed`), when the answer to a peer's read of
the tainted file comes back as a refusal (`peers`: how long after the order the first refusal came), and what the gateway
itself says each stage took (`stages`). A second trigger is a rule: the run's own forbidden call, timed in the same way.

    python -m loadtests.containment --rounds 100 --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

from loadtests.process import Cores, pin, python, start

MANIFEST = """
version: 1
domains:
  tools: {{concurrency: 64, queue: 64, timeouts: {{connect: 5s, first_byte: 20s, idle: 20s, total: 30s}}}}
tools:
  files:
    upstream: http://127.0.0.1:{port}
    domain: tools
    operations:
      put: {{match: "PUT /files/{{name}}", tier: reversible, artifacts: {{writes: ["'file:' + params.name"]}}}}
      get: {{match: "GET /files/{{name}}", tier: read, artifacts: {{reads: ["'file:' + params.name"]}}}}
      work: {{match: "POST /job/{{n}}", tier: reversible}}
  leak: {{upstream: "http://127.0.0.1:{port}", domain: tools}}
rules:
  exfiltration: {{effect: quarantine, when: "true", tools: [leak]}}
"""
WRITES = 4


class _Tool(asyncio.Protocol):
    """Answers `/files/…` at once, begins a stream at `/stream`, never answers `/job/…`, and notes when each closed."""

    def __init__(self, hanging: dict[asyncio.Protocol, float], arrived: list[str]) -> None:
        self._hanging, self._arrived = hanging, arrived

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        target = data.split(b" ", 2)[1]
        if target.startswith(b"/job/"):
            self._hanging[self] = 0.0
        elif target == b"/stream":
            self._hanging[self] = 0.0
            self._transport.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        else:
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        self._arrived.append(target.decode())

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._hanging:
            self._hanging[self] = time.perf_counter()


class _Agent:
    """One connection, one request at a time, the answer's head only."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def open(self) -> None:
        self._streams = await asyncio.open_connection("127.0.0.1", self._port)

    def send(self, method: str, target: str, run: str, body: bytes = b"") -> float:
        """Hand the request to the kernel and return when."""
        assert self._streams is not None
        kind = "Content-Type: application/json\r\n" if body else ""
        name = f"Seawall-Trajectory: {run}\r\n" if run else ""
        head = f"{method} {target} HTTP/1.1\r\nHost: x\r\n{name}{kind}Content-Length: {len(body)}\r\n\r\n"
        self._streams[1].write(head.encode() + body)
        return time.perf_counter()

    async def status(self) -> int:
        assert self._streams is not None
        head = await self._streams[0].readuntil(b"\r\n\r\n")
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                self.body = await self._streams[0].readexactly(int(line[15:]))
        return int(head.split(b" ", 2)[1])

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def round_of(number: int, listen: int, control: int, tool: tuple[dict[asyncio.Protocol, float], list[str]], *,
                   by_rule: bool) -> dict[str, object]:  # fmt: skip
    """Play one round and return its figures, in milliseconds."""
    hanging, arrived = tool
    hanging.clear()
    arrived.clear()
    run, name = f"bad-{number}", f"f{number}"
    agents = [_Agent(listen) for _ in range(WRITES + 3)]
    operator = _Agent(control)
    for agent in (*agents, operator):
        await agent.open()
    try:
        agents[-1].send("PUT", f"/files/files/{name}", run, b'"x"')
        assert await agents[-1].status() == 200
        for n, agent in enumerate(agents[:WRITES]):
            agent.send("POST", f"/files/job/{n}", run, b'{"n": %d}' % n)
        agents[WRITES].send("GET", "/files/stream", run)
        assert await agents[WRITES].status() == 200
        while len(arrived) < WRITES + 2:
            await asyncio.sleep(0.001)
        if by_rule:
            began = agents[-1].send("POST", "/leak/out", run, b'{"secret": 1}')
        else:
            order = json.dumps({"trajectory": run, "principal": "bench", "reason": "x"}).encode()
            began = operator.send("POST", "/api/v1/quarantine", "", order)
        peer = agents[-2]
        while True:
            peer.send("GET", f"/files/files/{name}", f"peer-{number}")
            if await peer.status() == 423:
                blocked = time.perf_counter()
                break
        while not all(hanging.values()):
            await asyncio.sleep(0)
        severed = max(hanging.values())
        answer = await (agents[-1] if by_rule else operator).status()
        assert answer == (423 if by_rule else 201), answer
        stages = {} if by_rule else {k: v["ms"] for k, v in json.loads(operator.body)["stages"].items()}
        return {"severed": (severed - began) * 1e3, "peers": (blocked - began) * 1e3, "stages": stages}
    finally:
        for agent in (*agents, operator):
            agent.close()


def _summary(values: list[float]) -> dict[str, float]:
    values = sorted(values)
    return {
        "p50": round(values[len(values) // 2], 3),
        "p90": round(values[int(len(values) * 0.9)], 3),
        "p99": round(values[int(len(values) * 0.99)], 3),
        "max": round(values[-1], 3),
    }


async def measure(rounds: int, folder: Path) -> dict[str, object]:
    """Return the figures of so many rounds by each trigger, in milliseconds."""
    hanging: dict[asyncio.Protocol, float] = {}
    arrived: list[str] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Tool(hanging, arrived), "127.0.0.1", 0)
    manifest = folder / "manifest.yaml"
    manifest.write_text(MANIFEST.format(port=server.sockets[0].getsockname()[1]))
    cores = Cores.of_this_machine()
    pin(0, cores.load)
    gateway = start(
        "gateway",
        python("gateway", "serve", "--manifest", str(manifest), "--data", str(folder / "data"),
               "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"),
        core=cores.system,
        folder=folder,
    )  # fmt: skip
    control = int(json.loads((folder / "gateway.out").read_text().splitlines()[0])["control"].rpartition(":")[2])
    try:
        told: dict[str, object] = {"rounds": rounds, "writes_in_flight": WRITES, "streams": 1}
        for trigger in ("operator", "rule"):
            found = [
                await round_of(n, gateway.port, control, (hanging, arrived), by_rule=trigger == "rule")
                for n in range(*((0, rounds) if trigger == "operator" else (rounds, 2 * rounds)))
            ]
            figures: dict[str, object] = {
                key: _summary([float(str(one[key])) for one in found]) for key in ("severed", "peers")
            }
            if trigger == "operator":
                figures["stages"] = {
                    stage: _summary([one["stages"][stage] for one in found])  # type: ignore[index]
                    for stage in ("taint", "sever", "revoke", "suspend")
                }
            told[trigger] = figures
        return told
    finally:
        gateway.stop()
        server.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--dir", default=None)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        told = asyncio.run(measure(arguments.rounds, Path(folder)))
    if arguments.json:
        print(json.dumps(told, indent=2))
        return
    for trigger in ("operator", "rule"):
        figures = told[trigger]
        assert isinstance(figures, dict)
        for key in ("severed", "peers"):
            print(f"by {trigger:<9} {key:<8} {figures[key]}")
        for stage, values in figures.get("stages", {}).items():
            print(f"             {stage:<8} {values}")


if __name__ == "__main__":
    main()
