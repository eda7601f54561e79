"""What idle runs take: bytes a run with its name and its place in the table, and how long parking them holds the event loop.

    python -m loadtests.idle                # 100,000 runs of five writes; exit code 1: above 500 bytes, or 10 ms
    python -m loadtests.idle --count        # the bytes of a few hundred, the same on every run; seconds
    python -m loadtests.idle --write        # take those over into limits.json

A whole gateway with its journal on disk. For the count, agents and a tool that are not sockets (`loadtests.hotpath`) make
five writes in each run; a hundred thousand are given what those leave behind, steps with their compensators and the
watchdog's states, since the disk would take an hour for half a million writes. Then nobody calls, all are parked, the
workers go on, and some are called once more.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from hashlib import blake2b

import click
import uvloop

from gateway.app import Gateway
from gateway.core.records import RecordedReply
from gateway.core.saga import Begin, Complete, Open
from gateway.core.server import JournalBackend
from gateway.core.tool import BoundRequest, Operation
from gateway.core.trajectory import Step, Trajectory
from gateway.core.watchdog import Ended, Watchdog, action_hash, inverse
from gateway.journal.trajectories import Run, Trajectories
from gateway.workers.collector import tune
from gateway.workers.parker import Parker
from loadtests import limits
from loadtests.hotpath import AGENTS, Rig, standing
from loadtests.process import rss_bytes
from loadtests.stalls import Pulse, taken
from loadtests.wire import WRITE

__all__ = ["KIND", "LIMIT_BYTES", "Idle", "count", "measure"]

KIND = "idle"
LIMIT_BYTES = 500
LIMIT_MS = 10.0
STEPS = 5
CALLED = 2_000
COUNTED = 400
_AWAKE_S = 0.5


async def _open(rig: Rig, runs: int) -> None:
    """Have so many runs of five writes made."""
    await rig.call_for_long(runs * STEPS)
    trajectories = rig.gateway._trajectories
    await trajectories.journal.flush()
    await trajectories.journal.meta(KIND, b"")  # the writing thread lets go of its last batch


def _from_the_first(rig: Rig) -> None:
    for agent in rig.agents:
        agent.calls_per_run = STEPS
        agent._number += STEPS - 1  # so that each run is begun with its first call


async def _park_all(rig: Rig) -> None:
    parker = Parker(rig.gateway._trajectories, rig.gateway._clock, idle_s=0.0, awake_kept=0)
    while await parker.run_once(rig.gateway._clock.now()):
        await asyncio.sleep(0)


async def _while_called(rig: Rig, something: Coroutine[object, object, None]) -> None:
    """Do something, and have a call made by each agent now and then, or connections that idle would be closed."""
    doing = asyncio.ensure_future(something)
    while not (await asyncio.wait((doing,), timeout=_AWAKE_S))[0]:
        await rig.call_for_long(AGENTS)
    doing.result()


async def _count() -> tuple[float, Counter[str]]:
    before = _of_runs()
    async with standing(WRITE, is_still=True, backend=JournalBackend.SQLITE) as rig:
        _from_the_first(rig)
        await _open(rig, COUNTED)
        await _park_all(rig)
        return table_bytes(rig.gateway._trajectories), _of_runs() - before


def _of_runs() -> Counter[str]:
    """Count what there is of runs in this process, whosever it is."""
    gc.collect()
    return Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, (Run, Trajectory, Step, Watchdog)))


def count() -> tuple[float, Counter[str]]:
    """Return the bytes of a run of five writes that is parked, and what is left of it otherwise, which is to be nothing."""
    return uvloop.run(_count())


def table_bytes(trajectories: Trajectories) -> float:
    """Return the bytes of a parked run with its name and its place in the table, rounded up as the allocator does it."""
    packed = trajectories._parking._packed
    each = sum(_allocated(sys.getsizeof(name)) + _allocated(sys.getsizeof(data)) for name, data in packed.items())
    return (sys.getsizeof(packed) + each) / max(1, len(packed))


def _allocated(size: int) -> int:
    return (size + 15) & ~15


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """What was measured: bytes a run, resident memory a run, and the passes of the loop meanwhile."""

    runs: int
    parked: int
    run_bytes: float
    resident_awake: float
    resident_parked: float
    pulses: dict[str, Pulse]

    @property
    def longest_ms(self) -> float:
        """The longest that the loop was held, by its own thread or by the collector."""
        return 1000 * max(pulse.held_s for pulse in self.pulses.values())

    def lines(self) -> Iterator[str]:
        """Return the figures as text."""
        yield f"{self.runs:,} runs of {STEPS} writes, {self.parked:,} parked: {self.run_bytes:,.0f} bytes a run"
        yield f"resident: {self.resident_awake:,.0f} bytes a run awake, {self.resident_parked:,.0f} parked"
        for name, pulse in self.pulses.items():
            look_ms = 1000 * max(pulse.collector_s.values(), default=0.0)
            yield f"{name}: {pulse}; longest look of the collector {look_ms:.1f} ms"


async def measure(runs: int, seconds: float) -> Idle:
    """Return what so many runs take, and how long the loop is held while they are parked, idle, and some called again."""
    pulses = {name: Pulse() for name in ("opening", "parking", "idle", "calling them again")}
    async with standing(WRITE, is_still=False, backend=JournalBackend.SQLITE) as rig:
        tune()
        trajectories = rig.gateway._trajectories
        trajectories._max_open += runs
        _one_call_a_run(rig, 9_000_000)
        await rig.call_for_long(AGENTS * 100)
        before = rss_bytes([os.getpid()])
        with pulses["opening"].felt():
            await _while_called(rig, _open_directly(rig.gateway, runs))
        awake = rss_bytes([os.getpid()])
        with pulses["parking"].felt():
            await _while_called(rig, _park_all(rig))
        parked, size, resident = len(trajectories._parking), table_bytes(trajectories), rss_bytes([os.getpid()])
        with pulses["idle"].felt():
            await _while_called(rig, asyncio.sleep(seconds))
        _one_call_a_run(rig, 0)
        with pulses["calling them again"].felt():
            await rig.call_for_long(min(runs // AGENTS * AGENTS, CALLED))
    return Idle(
        runs=runs,
        parked=parked,
        run_bytes=size,
        resident_awake=(awake - before) / runs,
        resident_parked=(resident - before) / runs,
        pulses=pulses,
    )


def _one_call_a_run(rig: Rig, first: int) -> None:
    for agent in rig.agents:
        agent.calls_per_run = 1
        agent.begin_again(first)


async def _open_directly(gateway: Gateway, count: int) -> None:
    """Open the runs that the agents would, each with what five writes leave behind, as fast as the journal takes it."""
    trajectories, operation = gateway._trajectories, gateway.catalog().tools["bench"].operations["hold"]
    for number in range(count):
        index, nth = number % AGENTS, number // AGENTS + 1
        run = await trajectories.named(f"run-{index}-{index * 10_000_000 + nth}", Open(agent="127.0.0.1"))
        assert isinstance(run, Run), run
        dog = run.watch = Watchdog(gateway.catalog().watchdog)
        for step in range(1, STEPS + 1):
            _write(trajectories, run, dog, operation, number * STEPS + step)
        del run, dog
        if number % 2:
            await taken(gateway)
    await trajectories.journal.flush()


def _write(trajectories: Trajectories, run: Run, dog: Watchdog, operation: Operation, number: int) -> None:
    """Do to a run what a write does to it."""
    step, action = len(run.state.steps) + 1, digest(number)
    undo = BoundRequest("bench", "POST", f"/v1/holds/{number:012d}/cancel")
    begin = Begin("bench", operation, action.hex(), digest(-number).hex(), "POST", "/v1/holds", trajectories.salt)
    trajectories.decide(run, begin, lazy=True)
    trajectories.decide(run, Complete(step=step, reply=RecordedReply(status=201), compensator=undo), lazy=True)
    run.state.delivered(step)
    dog.acted(action, None, Ended.DONE, is_change=True, number=step)
    after = dog.effects.changed(("bench", "POST", "/v1/holds", action), inverse(undo), action_hash(action), step)
    dog.state_is(after, "net effect", laps=2)


def digest(number: int) -> bytes:
    """Return a digest as calls have it."""
    return blake2b(b"%d" % number, digest_size=16).digest()


@click.command()
@click.option("--runs", type=click.IntRange(AGENTS), default=100_000, show_default=True, help="Live runs.")
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True, help="How long nobody calls.")
@click.option("--count", "is_count", is_flag=True, help="Only count the bytes of a few hundred.")
@click.option("--write", is_flag=True, help="Take that count over as the limit of this Python.")
def main(runs: int, seconds: float, is_count: bool, write: bool) -> None:
    """Measure what idle runs take. Exit code 1: more than is allowed."""
    if is_count or write:
        size, left = count()
        click.echo(
            f"{size:,.0f} bytes a run that is parked" + "".join(f"; {n} of {kind} left" for kind, n in left.items())
        )
        limits.conclude(KIND, limits.version(), {"parked": size}, write=write)
        return
    idle = uvloop.run(measure(runs, seconds))
    for line in idle.lines():
        click.echo(line)
    sys.exit(idle.run_bytes > LIMIT_BYTES or idle.longest_ms > LIMIT_MS)


if __name__ == "__main__":
    main()
