"""The whole gateway in this process, with agents and a tool that are not sockets: what a call costs in our own code.

Every transport is a fake that answers in the next pass of the event loop, and the journal is the one in memory, so nothing
of the kernel, the disk or another process is in the figure. That makes it repeatable: `loadtests.instructions` counts the
instructions of exactly this.
"""

from __future__ import annotations

import asyncio
import contextlib
import cProfile
import gc
import pstats
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import click
import uvloop

from gateway.app import Gateway
from gateway.core.server import JournalBackend, JournalSettings, ServerSettings
from gateway.egress.connection import Connection
from gateway.egress.credentials import LeasedEgress
from gateway.egress.direct import DirectEgress
from gateway.journal import trajectories
from gateway.telemetry import Telemetry
from loadtests.systems import manifest_for
from loadtests.wire import WORKLOADS, Workload, answer_to, number_of, take_message

__all__ = ["AGENTS", "CARRIED", "Agent", "Profiler", "Rig", "Tool", "main", "run", "standing", "watched"]

AGENTS = 8
CALLS_PER_RUN = 20
_AT_A_TIME = 800
_PREFIXES = {"read": b"/bench", "write": b"/bench", "refused": b"/dead"}
CARRIED = sorted(_PREFIXES)
"""The workloads that can be run here; the others of the benchmark need sockets."""


class Profiler(Protocol):
    """Something that watches the calls, and nothing before and after them."""

    def enable(self) -> None: ...

    def disable(self) -> None: ...


class _Transport(asyncio.Transport):
    """Takes what is written to `on_write`; never full, never read from."""

    def __init__(self, on_write: Callable[[bytes], None], quiet: socket.socket) -> None:
        super().__init__({"socket": quiet, "peername": ("127.0.0.1", 1)})
        self._on_write = on_write
        self._is_closing = False

    def write(self, data: Any) -> None:
        self._on_write(data)

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self._is_closing = True

    abort = close


class Tool:
    """A connection to a tool that answers each request in the next pass of the loop."""

    def __init__(self, egress: DirectEgress, name: str, quiet: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self.egress, self.quiet = egress, quiet
        pool = egress._routes[name].pool
        self._connection = Connection(self._loop, pool._alarms, pool._forget)
        self._connection.connection_made(_Transport(self.take, quiet))
        pool._idle[self._connection] = None

    def take(self, data: bytes) -> None:
        """Take a request."""
        message = take_message(data)
        assert message is not None
        self.answer(number_of(message[0], message[1]))

    def answer(self, number: bytes) -> None:
        """Answer the call with this number."""
        self._loop.call_soon(self._connection.data_received, answer_to(number))


class Agent:
    """An agent that calls again as soon as it is answered."""

    def __init__(self, gateway: Gateway, workload: Workload, index: int, quiet: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._workload, self._index, self.calls_per_run = workload, index, CALLS_PER_RUN
        self._number, self._left = index * 10_000_000, 0
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._connection = gateway._front._accepted()
        self._connection.connection_made(_Transport(self._answered, quiet))

    def begin_again(self, first: int = 0) -> None:
        """Go on with the call after the one with this number, whether it was made before or not."""
        self._number = self._index * 10_000_000 + first

    def start(self, calls: int) -> asyncio.Future[None]:
        self._left, self._done = calls, self._loop.create_future()
        self._loop.call_soon(self._send)
        return self._done

    def _send(self) -> None:
        self._number += 1
        run = b"run-%d-%d" % (self._index, self._number // self.calls_per_run)
        prefix = _PREFIXES[self._workload.name]
        self._connection.data_received(self._workload.request(prefix, run, self._number))

    def _answered(self, data: bytes) -> None:
        head, _, body = data.partition(b"\r\n\r\n")
        if not self._workload.is_right(head, body, self._number):
            self._done.set_exception(RuntimeError(f"wrong answer: {data[:300]!r}"))
            return
        self._left -= 1
        if self._left:
            self._loop.call_soon(self._send)
        else:
            self._done.set_result(None)


async def run(
    workload: Workload, calls: int, *, batches: int = 1, warm_up: int = 400, profiler: Profiler | None = None
) -> float:
    """Make calls in batches and return the CPU seconds of the fastest batch, warm-up and start not counted.

    Under a `profiler` nothing happens because time has passed: what waits to be recorded is written at the end of each
    batch, and the workers that wake by the clock are stopped. So a slow machine counts what a fast one does.
    """
    async with standing(workload, is_still=profiler is not None) as rig:
        await rig.call(warm_up)
        gc.disable()
        try:
            return min([await _batch(rig, calls, profiler) for _ in range(batches)])
        finally:
            gc.enable()


async def _batch(rig: Rig, calls: int, profiler: Profiler | None) -> float:
    gc.collect()
    started = time.process_time()
    if profiler is None:
        await rig.call(calls)
    else:
        await watched(rig, calls, profiler)
    return time.process_time() - started


async def watched(rig: Rig, calls: int, profiler: Profiler) -> None:
    """Make calls under a profiler, and all that is left to be recorded of them, but nothing of those before."""
    rig.gateway._trajectories.flush_refusals()
    profiler.enable()
    await rig.call(calls)
    rig.gateway._trajectories.flush_refusals()
    profiler.disable()


@dataclass(frozen=True, slots=True)
class Rig:
    """A gateway, its agents, and the connections to its tool."""

    gateway: Gateway
    agents: Sequence[Agent]
    tools: Sequence[Tool]

    async def call(self, calls: int) -> None:
        """Make so many calls, the agents at the same time."""
        await asyncio.gather(*(agent.start(calls // len(self.agents)) for agent in self.agents))

    async def call_for_long(self, calls: int) -> None:
        """Make so many calls, some at a time, and replace the tool's connections that were idle and closed meanwhile."""
        first = self.tools[0]
        for start in range(0, calls, _AT_A_TIME):
            idle = first.egress._routes["bench"].pool._idle
            for _ in range(sum(one.is_usable for one in idle), AGENTS):
                Tool(first.egress, "bench", first.quiet)
            await self.call(min(_AT_A_TIME, calls - start))


@contextlib.asynccontextmanager
async def standing(
    workload: Workload,
    *,
    is_still: bool,
    backend: JournalBackend = JournalBackend.MEMORY,
    more_tools: str = "",
    telemetry: Telemetry | None = None,
    data: Path | None = None,
) -> AsyncIterator[Rig]:
    """Give a gateway with agents that make this workload's calls.

    `is_still`: nothing happens in it because time has passed. `more_tools`: further entries of the manifest's tools.
    `data`: the journal's folder, if it is not to be a new one.
    """
    waiting = _reads_written_by_hand() if is_still else contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as folder, socket.socket() as nobody, waiting:
        ends = socket.socketpair()
        nobody.bind(("127.0.0.1", 0))
        manifest = Path(folder) / "bench.yaml"
        manifest.write_text(manifest_for(9000, nobody.getsockname()[1]) + more_tools)
        gateway = Gateway(
            ServerSettings(
                manifest=str(manifest),
                data=str(data or Path(folder) / "data"),
                listen="127.0.0.1:0",
                control="127.0.0.1:0",
                watch=False,
                journal=JournalSettings(backend=backend),
            ),
            telemetry=telemetry,
        )
        await gateway.start()
        if is_still:
            await _stop_workers(gateway)
        try:
            egress = cast(DirectEgress, cast(LeasedEgress, gateway._egress._http).inner)
            egress._new_route(gateway.catalog().tools["bench"])
            tools = [Tool(egress, "bench", ends[0]) for _ in range(AGENTS)]
            agents = [Agent(gateway, workload, index, ends[0]) for index in range(AGENTS)]
            if workload.name == "refused":
                await _open_the_breaker(gateway)
            yield Rig(gateway, agents, tools)
        finally:
            await gateway.stop()
            for end in ends:
                end.close()


@contextlib.contextmanager
def _reads_written_by_hand() -> Iterator[None]:
    usual, trajectories.READS_S = trajectories.READS_S, 3600.0
    try:
        yield
    finally:
        trajectories.READS_S = usual


async def _stop_workers(gateway: Gateway) -> None:
    workers = list(gateway._tasks)
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)


async def _open_the_breaker(gateway: Gateway) -> None:
    for number in range(4):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.listen.rpartition(":")[2]))
        writer.write(WORKLOADS["refused"].request(b"/dead", b"prime-%d" % number, number))
        await reader.read(1)
        writer.close()


@click.command()
@click.argument("workload", type=click.Choice(CARRIED))
@click.argument("calls", type=click.IntRange(min=AGENTS))
@click.option("--batches", type=click.IntRange(min=1), default=1, help="Make them so often, and take the fastest.")
@click.option("--profile", is_flag=True, help="Show where the time goes, function by function.")
def main(workload: str, calls: int, batches: int, profile: bool) -> None:
    """Make CALLS calls in this process and print what one costs."""
    profiler = cProfile.Profile() if profile else None
    seconds = uvloop.run(run(WORKLOADS[workload], calls, batches=batches, profiler=profiler))
    if profiler is not None:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(60)
    click.echo(f"{workload}: {seconds / (calls // AGENTS * AGENTS) * 1e6:.1f} us of CPU per call")


if __name__ == "__main__":
    main()
