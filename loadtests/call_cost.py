"""What the journal costs a call: the same gateway, the same calls, with its journal on disk and without one.

A gateway in a process of its own, a tool that answers after 20 ms, and callers who call again as soon as they have their
answer. Each call is a write with a compensator: its intent is durable before it leaves, its outcome before it is answered.
Rounds alternate between the two, so that both meet the same neighbours on the machine.

    python -m loadtests.call_cost --json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil

__all__ = ["BACKENDS", "compare", "sample"]

BACKENDS = ("memory", "sqlite")
CALLERS = (1, 32, 128)
DELAY_S = 0.020
MANIFEST = """
version: 1
domains:
  tools: {{concurrency: 512, queue: 1024, timeouts: {{connect: 5s, first_byte: 20s, idle: 20s, total: 30s}}}}
tools:
  pay:
    upstream: http://127.0.0.1:{port}
    domain: tools
    operations:
      hold:
        match: POST /holds
        tier: compensable
        compensator: {{request: "POST /holds/1/cancel"}}
"""


class _Tool(asyncio.Protocol):
    """Answers each request after `DELAY_S`; one request at a time on a connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, separator, rest = self._data.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        if separator and len(rest) >= length:
            self._data = rest[length:]
            asyncio.get_running_loop().call_later(DELAY_S, self._answer)

    def _answer(self) -> None:
        assert isinstance(self._transport, asyncio.Transport)
        if not self._transport.is_closing():
            self._transport.write(b'HTTP/1.1 201 Created\r\nContent-Length: 11\r\n\r\n{"id":"h1"}')


@contextlib.asynccontextmanager
async def _gateway(folder: Path, port: int, backend: str) -> AsyncIterator[tuple[int, psutil.Process]]:
    manifest = folder / "manifest.yaml"
    manifest.write_text(MANIFEST.format(port=port))
    command = [
        sys.executable, "-m", "gateway", "serve", "--manifest", str(manifest), "--data", str(folder / "data"),
        "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--journal-backend", backend, "--drain", "1s",
        "--telemetry-log-level", "error",
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        told = json.loads(await process.stdout.readline())
        yield int(told["listen"].rpartition(":")[2]), psutil.Process(process.pid)
    finally:
        process.terminate()
        await process.wait()


async def sample(port: int, process: psutil.Process, callers: int, seconds: float, name: str) -> dict[str, float]:
    """Return latencies in milliseconds, calls a second and CPU microseconds a call."""
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    async def call(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        turn = 0
        while turn == 0 or time.perf_counter() < end:
            started = time.perf_counter()
            body = b'{"amount": %d}' % (turn * 1_000 + number)
            run = f"{name}-{number}-{turn // 20}"
            head = (
                f"POST /pay/holds HTTP/1.1\r\nHost: x\r\nSeawall-Trajectory: {run}\r\nContent-Length: {len(body)}\r\n"
            )
            writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line[15:]) for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length:")
            )
            await reader.readexactly(length)
            if not answer.startswith(b"HTTP/1.1 201"):
                raise RuntimeError(answer.decode("latin-1"))
            latencies.append(time.perf_counter() - started)
            turn += 1
        writer.close()

    times, started = process.cpu_times(), time.perf_counter()
    await asyncio.gather(*(call(number) for number in range(callers)))
    took, after = time.perf_counter() - started, process.cpu_times()
    latencies.sort()
    cpu = after.user + after.system - times.user - times.system
    count = len(latencies)
    return {
        "p50_ms": latencies[count // 2] * 1e3,
        "p99_ms": latencies[int(count * 0.99)] * 1e3,
        "calls_per_s": count / took,
        "cpu_us": cpu / count * 1e6,
    }


async def compare(
    base: Path, seconds: float, rounds: int, callers: tuple[int, ...] = CALLERS
) -> list[dict[str, object]]:
    """Return a row for each number of callers and backend: medians over the rounds."""
    loop = asyncio.get_running_loop()
    tool = await loop.create_server(_Tool, "127.0.0.1", 0)
    port = tool.sockets[0].getsockname()[1]
    samples: dict[tuple[int, str], list[dict[str, float]]] = {}
    async with contextlib.AsyncExitStack() as stack:
        gateways = {}
        for backend in BACKENDS:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=base)))
            gateways[backend] = await stack.enter_async_context(_gateway(folder, port, backend))
            await sample(*gateways[backend], 8, seconds / 2, "warm")
        for turn in range(rounds):
            for count in callers:
                for backend in BACKENDS if turn % 2 else reversed(BACKENDS):
                    made = await sample(*gateways[backend], count, seconds, f"{turn}-{count}")
                    samples.setdefault((count, backend), []).append(made)
    tool.close()
    return [_row(count, backend, samples) for count in callers for backend in BACKENDS]


def _row(count: int, backend: str, samples: dict[tuple[int, str], list[dict[str, float]]]) -> dict[str, object]:
    """Medians over the rounds; what the journal adds is taken within each round, where both had the same neighbours."""
    made, without = samples[count, backend], samples[count, "memory"]
    added = [one["p50_ms"] - other["p50_ms"] for one, other in zip(made, without, strict=True)]
    cpu = [one["cpu_us"] - other["cpu_us"] for one, other in zip(made, without, strict=True)]
    return {
        "callers": count,
        "journal": backend,
        **{name: round(statistics.median(each[name] for each in made), 2) for name in made[0]},
        "added_p50_ms": round(statistics.median(added), 2),
        "added_cpu_us": round(statistics.median(cpu)),
        # On a machine that others use, the best round is the nearest to what the journal itself costs.
        "best_p50_ms": round(min(each["p50_ms"] for each in made), 2),
        "best_cpu_us": round(min(each["cpu_us"] for each in made)),
    }


def show(rows: list[dict[str, object]]) -> None:
    lines: list[list[object]] = [list(rows[0]), *(list(row.values()) for row in rows)]
    for line in lines:
        print("  ".join(f"{value!s:>12}" for value in line))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=Path(), help="a folder on the disk to measure")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each sample")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = asyncio.run(compare(options.dir, options.seconds, options.rounds))
    print(json.dumps(rows, indent=2)) if options.json else show(rows)


if __name__ == "__main__":
    main()
