"""An event loop without a world: time jumps to the next timer, and what is ready runs in an order drawn from the seed."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
import warnings
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["Crash", "Deadlock", "Livelock", "SimLoop"]

HANDLED_MOST = 200_000
"""Callbacks of one life: tens of times what the longest schedule takes."""


class Crash(BaseException):
    """The process ends here."""


class Deadlock(AssertionError):
    """Nobody is ready and nobody waits for time: something waits for what never comes."""


class Livelock(AssertionError):
    """Everybody is busy for ever: something is tried again and again that never comes off."""


class SimLoop(asyncio.BaseEventLoop):
    """Runs one callback at a time; before the one numbered `crash_at` the process ends.

    `interrupt` is called before the callback numbered `interrupt_at`. Every await of every task is a border between two
    callbacks, so a crash can fall on each of them.
    """

    def __init__(self, rng: random.Random, now: float, crash_at: int | None = None) -> None:
        super().__init__()
        self._rng = rng
        self._time = now
        self.handled = 0
        self.crash_at = crash_at
        self.interrupt_at: int | None = None
        self.interrupt: Callable[[], None] = lambda: None
        self.on_time: Callable[[float], None] = lambda now: None
        self.set_exception_handler(lambda loop, context: None)

    def time(self) -> float:
        return self._time

    def _process_events(self, event_list: object) -> None: ...

    def _write_to_self(self) -> None: ...

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False
        if not ready:
            if not scheduled:
                raise Deadlock("nobody is ready and nobody waits for time")
            self._time = max(self._time, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self._time:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            if timer._cancelled:
                self._timer_cancelled_count -= 1
            else:
                ready.append(timer)
        if not ready:
            return
        handle = self._drawn(ready)
        if handle._cancelled:
            return
        self.handled += 1
        if self.handled == self.crash_at:
            raise Crash
        if self.handled > HANDLED_MOST:
            raise Livelock(f"after {HANDLED_MOST} callbacks the process is still busy with {handle!r:.300}")
        if self.handled == self.interrupt_at:
            self.interrupt()
        self.on_time(self._time)
        handle._run()

    def _drawn(self, ready: deque[Any]) -> Any:
        """Take one of what is ready; but those whom one future wakes stay in their order, as every event loop has them."""
        if len(ready) == 1:
            return ready.popleft()
        place = self._rng.randrange(len(ready))
        args = ready[place]._args
        if args and isinstance(args[0], asyncio.Future):
            place = next(n for n, other in enumerate(ready) if other._args and other._args[0] is args[0])
        drawn = ready[place]
        del ready[place]
        return drawn

    def run(self, main: Coroutine[Any, Any, None], on_end: Callable[[], None]) -> None:
        """Run `main` to its end, or to the crash (raises `Crash`).

        `on_end` cuts the process off from the world; then its tasks are dropped without doing anything more.
        """
        task = self.create_task(main)
        try:
            self.run_until_complete(task)
        finally:
            on_end()
            with warnings.catch_warnings():
                # What a dropped task still tries to start in its `finally` is never awaited, and need not be.
                warnings.simplefilter("ignore", RuntimeWarning)
                for left in asyncio.all_tasks(self):
                    left._log_destroy_pending = False  # type: ignore[attr-defined]
                    with contextlib.suppress(BaseException):
                        left.get_coro().close()  # type: ignore[union-attr]
            self.close()
