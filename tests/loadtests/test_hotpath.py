"""What a call costs, counted and not timed: these counts are the same on every machine, so they can be held to."""

from __future__ import annotations

import asyncio
import cProfile
import pstats
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from loadtests.hotpath import run
from loadtests.wire import WORKLOADS

CALLS = 160


class Counting(asyncio.SelectorEventLoop):
    """An event loop that counts what is expensive."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks = self.timers = 0

    def create_task(self, coroutine: Coroutine[Any, Any, Any], **settings: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        self.tasks += 1
        return super().create_task(coroutine, **settings)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, **settings: Any) -> asyncio.TimerHandle:  # type: ignore[override]
        self.timers += 1
        return super().call_at(when, callback, *args, **settings)


def counted(workload: str, calls: int) -> tuple[int, int, int]:
    """Return the tasks, timers and Python calls of a run."""
    loop, profiler = Counting(), cProfile.Profile()
    try:
        loop.run_until_complete(run(WORKLOADS[workload], calls, warm_up=80, profiler=profiler))
    finally:
        loop.close()
    return loop.tasks, loop.timers, pstats.Stats(profiler).total_calls  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("workload", "tasks", "timers", "calls"), [("read", 1, 0, 560), ("write", 1, 0, 1090), ("refused", 0.1, 0, 210)]
)
def test_a_call_costs_no_more_than_it_may(workload: str, tasks: float, timers: int, calls: int) -> None:
    """One task a call, for a refusal none (the first of a run takes two); no timer; a bounded number of Python calls.

    The last leaves room for a line here and there and for no further stage: what a call does not use it may not pay for.
    `loadtests.opcodes` shows in which function a call has grown.
    """
    few, many = counted(workload, CALLS), counted(workload, 3 * CALLS)
    grown = [(more - less) / (2 * CALLS) for less, more in zip(few, many, strict=True)]
    assert grown[0] == pytest.approx(tasks, abs=0.1)
    assert grown[1] == pytest.approx(timers, abs=0.1)
    assert grown[2] <= calls, grown
