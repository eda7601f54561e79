"""How long the event loop is held at most while very many runs are live.

    python -m loadtests.stalls                       # exit code 1: it was held for more than 10 ms
    python -m loadtests.stalls --python-collector    # the same under Python's own settings of its collector

A whole gateway with its journal on disk and all its workers, in this process. Runs with a step in each are opened; some of
them are abandoned, and ended while an agent calls without pause, metrics are scraped every second, and the journal's chain
is noted in a checkpoint. What counts is the CPU time that the loop's thread spends in one pass, which neither a busy machine
nor a slow disk adds to; the time on the clock is told, too.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import click
import uvloop

from gateway.app import Gateway
from gateway.core.records import RecordedReply
from gateway.core.saga import Begin, Complete, Open
from gateway.core.server import JournalBackend
from gateway.journal.trajectories import Run
from gateway.workers.collector import tune
from loadtests.figures import Histogram
from loadtests.hotpath import Rig, standing
from loadtests.wire import READ

__all__ = ["Pulse", "Stalls", "measure", "open_runs", "taken"]

LIMIT_MS = 10.0
_TOGETHER = 10
"""Runs opened in one pass: what agents do, not the gateway, so that few milliseconds of a pass are its own load."""

_AWAKE_S = 1.0
_ABANDONED = 20
"""One run in so many is abandoned."""


@dataclass(slots=True)
class Pulse:
    """Each pass of the event loop: what it took.

    Attributes:
        passes: CPU time of the loop's thread in each, in nanoseconds. There are millions in a minute, so they are counted
            and not kept.
        longest_s: of these, the longest.
        clock_s: the longest on the clock.
        collector_s: by generation, the longest look of the cycle collector.
        looks: by generation, how often it looked.
    """

    passes: Histogram = field(default_factory=Histogram)
    longest_s: float = 0.0
    clock_s: float = 0.0
    collector_s: dict[int, float] = field(default_factory=dict)
    looks: Counter[int] = field(default_factory=Counter)
    _is_on: bool = False
    _cpu: float = 0.0
    _clock: float = 0.0
    _look: float = 0.0

    @contextmanager
    def felt(self) -> Iterator[None]:
        """Measure every pass while inside."""
        loop = asyncio.get_running_loop()
        self._is_on, self._cpu, self._clock = True, time.thread_time(), time.perf_counter()
        gc.callbacks.append(self._looked)
        loop.call_soon(self._beat, loop)
        try:
            yield
        finally:
            self._is_on = False
            gc.callbacks.remove(self._looked)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_on:
            return
        cpu, clock = time.thread_time(), time.perf_counter()
        self.passes.record(round((cpu - self._cpu) * 1e9))
        self.longest_s = max(self.longest_s, cpu - self._cpu)
        self.clock_s = max(self.clock_s, clock - self._clock)
        self._cpu, self._clock = time.thread_time(), time.perf_counter()
        loop.call_soon(self._beat, loop)

    def __str__(self) -> str:
        return (
            f"{self.passes.counts.total():,} passes of the loop; CPU of its thread: longest {self.longest_s * 1000:.1f} ms, "
            f"p99.9 {self.passes.percentile(0.999) / 1e6:.1f} ms"
        )

    @property
    def held_s(self) -> float:
        """The longest that the loop was held, by its own thread or by the collector, which stops every thread."""
        return max(self.longest_s, *self.collector_s.values(), 0.0)

    def _looked(self, phase: str, told: dict[str, int]) -> None:
        if phase == "start":
            self._look = time.thread_time()
            return
        generation = told["generation"]
        self.looks[generation] += 1
        took = time.thread_time() - self._look
        self.collector_s[generation] = max(self.collector_s.get(generation, 0.0), took)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """What was measured: passes of the loop, and how the longest came about."""

    runs: int
    calls: int
    ended: int
    opening: Pulse
    serving: Pulse

    @property
    def longest_ms(self) -> float:
        """The longest that the loop was held: by its own thread, or by the collector, which stops every thread."""
        return 1000 * max(self.opening.held_s, self.serving.held_s)

    def lines(self) -> Iterator[str]:
        """Return the figures as text."""
        yield f"{self.runs:,} live runs, {self.ended:,} ended meanwhile, {self.calls:,} calls"
        for name, pulse in (("opening them", self.opening), ("serving", self.serving)):
            yield (f"{name}: {pulse}; longest on the clock {pulse.clock_s * 1000:.1f} ms")
            for generation, seconds in sorted(pulse.collector_s.items()):
                yield (
                    f"  collector, generation {generation}: {pulse.looks[generation]:,} looks, "
                    f"longest {seconds * 1000:.1f} ms"
                )


async def open_runs(gateway: Gateway, count: int, *, is_any_abandoned: bool = False) -> None:
    """Open runs with a committed step in each, a few in each pass of the loop; some may be abandoned after a second."""
    operation = gateway.catalog().tools["bench"].operations["hold"]
    trajectories = gateway._trajectories
    trajectories._max_open += count  # room for those of the calls that are made meanwhile
    for number in range(count):
        is_abandoned = is_any_abandoned and number % _ABANDONED == 0
        opening = Open(agent="ann", ttl_s=1.0 if is_abandoned else None, on_abandon="commit")
        run = await trajectories.named(f"live-{number}", opening)
        assert isinstance(run, Run), run
        begin = Begin(
            tool="bench",
            operation=operation,
            action=f"{number:064x}",
            fingerprint=f"{number:064x}",
            method="POST",
            target="/v1/holds",
            salt=trajectories.salt,
        )
        trajectories.decide(run, begin, lazy=True)
        trajectories.decide(run, Complete(step=1, reply=RecordedReply(status=200)), lazy=True)
        if number % _TOGETHER == _TOGETHER - 1:
            await taken(gateway)
    await trajectories.journal.flush()


async def taken(gateway: Gateway) -> None:
    """Let the journal catch up: a queue without an end is not what is measured."""
    await asyncio.sleep(0)
    while (await gateway._journal.stats()).queued > 2000:
        await asyncio.sleep(0.001)


async def measure(runs: int, seconds: float, *, is_tuned: bool = True) -> Stalls:
    """Return how long the loop was held while runs were opened, and while all was done that is done for them."""
    opening, serving = Pulse(), Pulse()
    async with standing(READ, is_still=False, backend=JournalBackend.SQLITE) as rig:
        if is_tuned:
            tune()
        with opening.felt():
            opened = asyncio.get_running_loop().create_task(open_runs(rig.gateway, runs, is_any_abandoned=True))
            while not (await asyncio.wait((opened,), timeout=_AWAKE_S))[0]:
                await rig.agents[0].start(1)  # or connections that idle would be closed
            opened.result()
        with serving.felt():
            calls = await _serve(rig, seconds)
        ended = sum(rig.gateway._trajectories.get(f"live-{number}") is None for number in range(runs))
    return Stalls(runs=runs, calls=calls, ended=ended, opening=opening, serving=serving)


async def _serve(rig: Rig, seconds: float) -> int:
    loop = asyncio.get_running_loop()
    until, calls = loop.time() + seconds, 0
    scraping = loop.create_task(_scrape(rig.gateway))
    checkpoint = loop.create_task(rig.gateway._journal.checkpoint())  # type: ignore[attr-defined]
    while loop.time() < until:
        await rig.agents[0].start(50)
        calls += 50
    scraping.cancel()
    await asyncio.wait((scraping, checkpoint))
    checkpoint.result()
    return calls


async def _scrape(gateway: Gateway) -> None:
    while True:
        gateway._telemetry.metrics.render()
        await asyncio.sleep(1.0)


@click.command()
@click.option("--runs", type=click.IntRange(1), default=100_000, show_default=True, help="Live runs.")
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True, help="How long calls are made.")
@click.option("--python-collector", is_flag=True, help="Leave the cycle collector as Python sets it up.")
@click.option("--limit-ms", type=float, default=LIMIT_MS, show_default=True, help="The longest that is allowed.")
def main(runs: int, seconds: float, python_collector: bool, limit_ms: float) -> None:
    """Measure how long the event loop is held at most. Exit code 1: longer than is allowed."""
    stalls = uvloop.run(measure(runs, seconds, is_tuned=not python_collector))
    for line in stalls.lines():
        click.echo(line)
    sys.exit(stalls.longest_ms > limit_ms)


if __name__ == "__main__":
    main()
