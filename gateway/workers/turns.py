"""Many runs, a few at a time: a sweep goes over as many in one pass of the event loop as keep no call waiting.

What a worker does in a sweep costs some ten to a hundred microseconds a run, so that a hundred thousand runs in one go
would hold every call for seconds. Here each pass takes `TOGETHER` at most, and calls get their turn in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from gateway.journal.trajectories import TOGETHER

__all__ = ["Turns", "in_turn"]

T = TypeVar("T")


async def in_turn(items: Sequence[T]) -> AsyncIterator[T]:
    """Yield the items in order; after each `TOGETHER` the event loop does everything else that is due."""
    for start in range(0, len(items), TOGETHER):
        if start:
            await asyncio.sleep(0)
        for item in items[start : start + TOGETHER]:
            yield item


class Turns:
    """Starts something for each of many names, `TOGETHER` in each pass of the event loop."""

    def __init__(self, names: Callable[[], list[str]], start: Callable[[str], bool]) -> None:
        """`names` says whom there is to look at; `start` returns whether there was something to start."""
        self._names = names
        self._start = start
        self._queue: list[str] = []
        self._is_going_on = False

    def run_once(self) -> int:
        """Start what there is to start, the rest in the passes after this one. Returns how many were started at once.

        Repeatable: a round that is under way goes on, and there is never more than one.
        """
        if self._is_going_on:
            return 0
        self._queue = self._names()
        return self._go_on()

    def stop(self) -> None:
        """Start nothing more of this round."""
        self._queue = []

    def _go_on(self) -> int:
        due = self._queue[-TOGETHER:]
        del self._queue[-TOGETHER:]
        self._is_going_on = bool(self._queue)
        started = sum(map(self._start, due))
        if self._is_going_on:
            asyncio.get_running_loop().call_soon(self._go_on)
        return started
