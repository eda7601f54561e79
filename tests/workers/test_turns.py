"""No sweep holds the event loop for more than a few runs, however many there are: counted, not timed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from gateway.core.codes import Code
from gateway.core.records import Record
from gateway.core.saga import Freeze, Open
from gateway.journal import trajectories
from gateway.journal.memory import MemoryJournal
from gateway.journal.trajectories import TOGETHER, Run, Trajectories
from gateway.telemetry import Telemetry
from gateway.workers.janitor import Janitor
from gateway.workers.turns import Turns, in_turn
from tests.fakes import FakeClock

RUNS = 500


class Passes:
    """What is done in each pass of the event loop."""

    def __init__(self) -> None:
        self.counts = [0]

    def note(self) -> None:
        self.counts[-1] += 1

    @asynccontextmanager
    async def counted(self) -> AsyncIterator[None]:
        """Count pass by pass while inside."""
        loop = asyncio.get_running_loop()
        is_over = False

        def next_pass() -> None:
            self.counts.append(0)
            if not is_over:
                loop.call_soon(next_pass)

        self.counts = [0]
        next_pass()
        yield
        is_over = True


class Desk:
    """Many open runs, and a count of those that are recorded to in each pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        self.passes = Passes()
        self.runs = Trajectories(MemoryJournal(), self.clock, Telemetry(), salt=b"s" * 32)
        self.janitor = Janitor(self.runs, self.clock, Telemetry())
        record = self.runs.record

        def counting(run: Run, records: Sequence[Record], *, lazy: bool = False) -> asyncio.Future[None]:
            self.passes.note()
            return record(run, records, lazy=lazy)

        monkeypatch.setattr(self.runs, "record", counting)

    async def open(self, **settings: object) -> list[Run]:
        opening = Open(agent="ann", **settings)  # type: ignore[arg-type]
        opened = []
        for number in range(RUNS):
            run = await self.runs.named(f"r{number}", opening)
            assert isinstance(run, Run)
            self.runs.decide(run, opening, lazy=True)
            opened.append(run)
        await self.runs.journal.flush()
        return opened

    def is_fair(self) -> bool:
        return sum(self.passes.counts) == RUNS and max(self.passes.counts) <= TOGETHER


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(RUNS):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come true")


async def test_abandoned_runs_are_ended_a_few_in_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch)
    await desk.open(ttl_s=1.0, on_abandon="commit")
    async with desk.passes.counted():
        assert await desk.janitor.run_once(desk.clock.now() + 2.0) == RUNS
    assert desk.is_fair(), desk.passes.counts


async def test_refusals_are_counted_into_the_audit_a_few_in_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch)
    await desk.open()
    for number in range(RUNS):
        desk.runs.note_refusal(f"r{number}", Code.CIRCUIT_OPEN, "pay", "hold")
    async with desk.passes.counted():
        await desk.janitor.run_once(desk.clock.now())
    assert desk.is_fair(), desk.passes.counts


async def test_reads_that_wait_are_written_a_few_in_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectories, "READS_S", 0.0)
    desk = Desk(monkeypatch)
    opened = await desk.open()
    for run in opened:
        desk.runs.note_read(run, ("pay", "list", "GET", "/", "success", 200))
    async with desk.passes.counted():
        await until(lambda: sum(desk.passes.counts) == RUNS)
    assert desk.is_fair(), desk.passes.counts


async def test_a_round_starts_a_few_in_a_pass_and_each_once() -> None:
    passes, started = Passes(), list[str]()
    names = [f"r{number}" for number in range(RUNS)]

    def start(name: str) -> bool:
        passes.note()
        started.append(name)
        return True

    turns = Turns(lambda: list(names), start)
    async with passes.counted():
        assert turns.run_once() == TOGETHER
        assert turns.run_once() == 0, "one round at a time"
        await until(lambda: len(started) == RUNS)
    assert max(passes.counts) <= TOGETHER
    assert sorted(started) == sorted(names)


async def test_a_round_that_is_stopped_starts_nothing_more() -> None:
    started: list[str] = []
    turns = Turns(lambda: [f"r{number}" for number in range(RUNS)], lambda name: started.append(name) is None)
    turns.run_once()
    turns.stop()
    await asyncio.sleep(0)
    assert len(started) == TOGETHER


async def test_items_keep_their_order() -> None:
    assert [item async for item in in_turn(range(RUNS))] == list(range(RUNS))


async def test_who_is_told_of_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch)
    for run in await desk.open():
        await desk.runs.decided(run, Freeze(incident="X", detail="y"))
    first, second = desk.runs.noticed(300), desk.runs.noticed(300)
    assert set(first + second) == {f"r{number}" for number in range(RUNS)}
