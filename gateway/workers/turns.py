"""Many runs, a few at a time: a sweep goes over as many in one pass of the event loop as keep no call waiting. And the tasks
that workers start for runs, one for each.

What a worker does in a sweep costs some ten to a hundred microseconds a run, so that a hundred thousand runs in one go
would hold every call for seconds. Here each pass takes `TOGETHER` at most, and calls get their turn in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from gateway.journal.trajectories import TOGETHER

__all__ = ["Drivers", "Turns", "in_turn"]

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


class Drivers:
    """A task for each run that has to be driven on, never two for one run.

    Args:
        what: is done to a run, in a word, for the names of the tasks.
        names: says which runs to look at.
        needs: whether a run needs a task now.
        drive: drives a run until it needs nothing more.
        ended: told when a task has ended by itself: the run's name, and its error if it had one.
    """

    def __init__(
        self,
        what: str,
        names: Callable[[], list[str]],
        needs: Callable[[str], bool],
        drive: Callable[[str], Coroutine[Any, Any, None]],
        ended: Callable[[str, BaseException | None], object],
    ) -> None:
        self._what = what
        self._needs = needs
        self._drive = drive
        self._told = ended
        self._turns = Turns(names, self.wake)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def run_once(self) -> int:
        """Start a task for each run that needs one and has none, a few in each pass of the event loop. Repeatable.

        Returns how many were started in this pass.
        """
        return self._turns.run_once()

    def wake(self, name: str) -> bool:
        """Start the task of a run if it needs one and has none. Returns whether it was started."""
        if self._is_closed or name in self._tasks or not self._needs(name):
            return False
        task = asyncio.get_running_loop().create_task(self._drive(name), name=f"{self._what} {name}")
        self._tasks[name] = task
        task.add_done_callback(partial(self._ended, name))
        return True

    async def close(self) -> None:
        """Cancel all, and start nothing more. May be repeated."""
        self._is_closed = True
        self._turns.stop()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(name, None)
        if not task.cancelled():
            self._told(name, task.exception())
