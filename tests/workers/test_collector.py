"""The cycle collector: old objects are left alone while many runs are live, and cycles do go while few are."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from gateway.workers.collector import Collector, tune
from tests.fakes import FakeClock


class Knot:
    """Part of a cycle of one."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def tuned() -> Iterator[None]:
    """The collector as a gateway sets it up, and afterwards as it was."""
    before = gc.get_threshold()
    tune()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_what_stays_is_looked_at_once_however_much_it_is(tuned: None) -> None:
    """With a hundred thousand live runs a look at all of them takes a large part of a second."""
    looks: list[int] = []

    def looked(phase: str, told: dict[str, int]) -> None:
        if phase == "start":
            looks.append(told["generation"])

    gc.callbacks.append(looked)
    try:
        kept = [[number] for number in range(200_000)]
    finally:
        gc.callbacks.remove(looked)
    assert len(kept) == 200_000
    assert {0} == set(looks), "never one at what has been looked at"
    assert len(looks) == len(kept) // gc.get_threshold()[0]
    assert gc.get_count()[0] <= gc.get_threshold()[0]


def test_what_is_there_at_the_start_is_never_looked_at(tuned: None) -> None:
    assert gc.get_freeze_count() > 10_000


def test_cycles_go_while_few_runs_are_live() -> None:
    gc.collect()
    Knot()
    found = Collector(lambda: 3, FakeClock()).run_once()
    assert found is not None
    assert found >= 1


def test_nobody_looks_while_many_runs_are_live() -> None:
    assert Collector(lambda: 100_000, FakeClock()).run_once() is None


async def test_somebody_looks_twice_an_hour_however_many_runs_are_live() -> None:
    """What little ends in cycles must not pile up for ever."""
    clock = FakeClock()
    collector = Collector(lambda: 201, clock)
    looks: list[bool] = []
    for _ in range(60):
        await clock.advance(60.0)
        looks.append(collector.run_once() is not None)
    assert looks.count(True) == 2


async def test_it_looks_once_a_minute() -> None:
    clock, asked = FakeClock(), list[int]()

    def live() -> int:
        asked.append(1)
        return 100_000

    task = asyncio.ensure_future(Collector(live, clock).run())
    await clock.advance(59.0)
    assert not asked
    await clock.advance(61.0)
    assert len(asked) == 2
    task.cancel()
