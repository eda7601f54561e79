"""Memory of a call that waits for its tool, as Python's allocator counts it: the same on every run and every machine.

    python -m loadtests.waiting --top 30         # exit code 1: a call has grown beyond its limit
    python -m loadtests.waiting --write          # take the figures over into limits.json

The gateway of `loadtests.hotpath` with its journal on disk, each call in a run of its own on connections of its own; the
tool holds its answers. Some calls wait already when counting begins, so that no free list hides what a call takes. The
connections are fakes and are made before: what the system and the event loop take for real ones, `loadtests.inflight` tells.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import tracemalloc
from collections import Counter
from collections.abc import Sequence

import click
import uvloop

from gateway.core.server import JournalBackend
from gateway.egress.credentials import LeasedEgress
from gateway.egress.direct import DirectEgress
from loadtests import limits
from loadtests.hotpath import AGENTS, Agent, Rig, Tool, standing
from loadtests.process import ROOT
from loadtests.wire import WORKLOADS, Workload, number_of, take_message

__all__ = ["CARRIED", "KIND", "Waiting", "count"]

KIND = "waiting"
CARRIED = ("read", "write")
FIRST, MORE = 200, 400
_LARGE = 4096
_OTHERS = 1_000
"""From this index on agents are ours; the rig has its own."""


class _Patient(Tool):
    """Holds the one call that it gets until `release`."""

    def __init__(self, egress: DirectEgress, quiet: socket.socket, arrivals: asyncio.Semaphore) -> None:
        super().__init__(egress, "bench", quiet)
        self._arrivals = arrivals
        self._number = b""

    def take(self, data: bytes) -> None:
        message = take_message(data)
        assert message is not None
        self._number = number_of(message[0], message[1])
        self._arrivals.release()

    def release(self) -> None:
        """Answer the call, if there is one."""
        if self._number:
            self.answer(self._number)


class Waiting:
    """Calls that wait, each on connections of its own."""

    def __init__(self, rig: Rig, workload: Workload, calls: int) -> None:
        self._rig, self._workload = rig, workload
        self._arrivals = asyncio.Semaphore(0)
        self._ends = socket.socketpair()
        egress = rig.gateway._egress._http
        inner = egress.inner if isinstance(egress, LeasedEgress) else egress
        assert isinstance(inner, DirectEgress)
        self._tools = [_Patient(inner, self._ends[0], self._arrivals) for _ in range(calls)]
        self._agents = [Agent(rig.gateway, workload, _OTHERS + index, self._ends[0]) for index in range(calls)]
        self._answers: list[asyncio.Future[None]] = []

    async def begin(self, calls: int) -> None:
        """Have so many more calls made; return once all of them wait at the tool, and the journal has nothing to do."""
        there = len(self._answers)
        self._answers += [agent.start(1) for agent in self._agents[there : there + calls]]
        for _ in range(calls):
            await self._arrivals.acquire()
        await self._rig.gateway._journal.flush()
        await self._rig.gateway._journal.meta(KIND, b"")  # the writing thread lets go of its last batch
        gc.collect()

    async def end(self) -> None:
        """Have all of them answered; each answer is compared."""
        for tool in self._tools:
            tool.release()
        await asyncio.gather(*self._answers)
        for end in self._ends:
            end.close()


async def _count(workload: Workload) -> tuple[float, Sequence[tuple[str, float, float]]]:
    async with standing(workload, is_still=True, backend=JournalBackend.SQLITE) as rig:
        await rig.call(AGENTS * 20)
        waiting = Waiting(rig, workload, FIRST + MORE)
        tracemalloc.start()
        try:
            await waiting.begin(FIRST)
            before = tracemalloc.take_snapshot()
            await waiting.begin(MORE)
            after = tracemalloc.take_snapshot()
        finally:
            tracemalloc.stop()
        await waiting.end()
    ours = [tracemalloc.Filter(False, tracemalloc.__file__), tracemalloc.Filter(False, __file__)]
    places = _grown(before.filter_traces(ours), after.filter_traces(ours))
    return sum(size for _, size, _ in places), places


def _grown(before: tracemalloc.Snapshot, after: tracemalloc.Snapshot) -> list[tuple[str, float, float]]:
    """Return the places whose bytes differ, those that differ most first, with bytes and blocks a call.

    Large blocks count where there is one for every other call at least. The rest are tables of the process, such as the
    set of all tasks: they grow by doubling, for whichever call comes then, and depend on what was in them before.
    """
    sizes, blocks = Counter[tuple[str, bool]](), Counter[tuple[str, bool]]()
    for snapshot, sign in ((before, -1), (after, 1)):
        for trace in snapshot.traces:
            kind = (str(trace.traceback[0]).removeprefix(f"{ROOT}/"), trace.size >= _LARGE)
            sizes[kind] += sign * trace.size
            blocks[kind] += sign
    counted = Counter[str]()
    for (place, is_large), size in sizes.items():
        if not is_large or blocks[place, True] >= MORE / 2:
            counted[place] += size
    return [
        (place, size / MORE, (blocks[place, False] + blocks[place, True]) / MORE)
        for place, size in sorted(counted.items(), key=lambda item: -abs(item[1]))
        if size
    ]


def count(workload: str) -> tuple[float, Sequence[tuple[str, float, float]]]:
    """Return the bytes of a waiting call of a workload, and its places: where they were allocated, bytes, objects."""
    return uvloop.run(_count(WORKLOADS[workload]))


@click.command()
@click.argument("workloads", nargs=-1, type=click.Choice(CARRIED))
@click.option(
    "--top", type=click.IntRange(min=0), default=0, help="Show so many places, those with the most bytes first."
)
@click.option("--write", is_flag=True, help="Take the figures over as limits of this Python instead of judging them.")
def main(workloads: tuple[str, ...], top: int, write: bool) -> None:
    """Count the bytes of a waiting call of each of the WORKLOADS. Exit code 1: one has grown."""
    counted = {}
    for workload in workloads or CARRIED:
        counted[workload], places = count(workload)
        click.echo(f"{workload}: {counted[workload]:,.0f} bytes a waiting call")
        for place, size, objects in sorted(places, key=lambda one: -one[1])[:top]:
            click.echo(f"{size:8.1f} {objects:6.2f}  {place}")
    limits.conclude(KIND, limits.version(), counted, write=write)


if __name__ == "__main__":
    main()
