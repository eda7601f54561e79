"""Stand-ins that tests share: a clock turned by hand."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Awaitable
from typing import TypeVar

__all__ = ["FakeClock"]

T = TypeVar("T")


class FakeClock:
    """A `gateway.clock.Clock` whose time only moves when told, with the sleepers waiting in order.

    `advance(s)` lets time pass; `finish(awaitable)` jumps from sleeper to sleeper until the awaitable is done, so a test
    of minutes takes milliseconds. Between jumps the event loop runs until nobody is ready.
    """

    def __init__(self, now: float = 1_000.0, at: int = 1_700_000_000_000, seed: int = 0) -> None:
        self._now = now
        self._at_origin = at - round(now * 1000)
        self._random = random.Random(seed)
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    def at(self) -> int:
        return self._at_origin + round(self._now * 1000)

    def draw(self) -> float:
        return self._random.random()

    def token(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    async def sleep(self, delay_s: float) -> None:
        if delay_s <= 0:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + delay_s, next(self._order), future))
        await future

    def shift_wall_clock(self, seconds: float) -> None:
        """Let UTC jump while monotonic time goes on."""
        self._at_origin += round(seconds * 1000)

    def turn(self, seconds: float) -> None:
        """Let time pass for code that does not wait; sleepers stay asleep until the loop is next settled."""
        self._now += seconds

    @property
    def sleeping(self) -> int:
        """How many are asleep."""
        return sum(not future.done() for _, _, future in self._sleepers)

    async def settle(self) -> None:
        """Return when nobody is ready to run at the present time."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0)
            if not loop._ready:  # type: ignore[attr-defined]
                return

    async def advance(self, seconds: float) -> None:
        """Let time pass, waking sleepers one by one in order."""
        end = self._now + seconds
        await self.settle()
        while (when := self._next()) is not None and when <= end:
            self._wake(when)
            await self.settle()
        self._now = max(self._now, end)

    async def finish(self, awaitable: Awaitable[T], within_s: float = 1e6) -> T:
        """Return the result of `awaitable`, turning the clock as far as it takes."""
        task = asyncio.ensure_future(awaitable)
        end = self._now + within_s
        await self.settle()
        while not task.done():
            when = self._next()
            if when is None or when > end:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                raise AssertionError(f"still waiting at {self._now:.3f} with nobody asleep before {end:.3f}")
            self._wake(when)
            await self.settle()
        return task.result()

    def _next(self) -> float | None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    def _wake(self, when: float) -> None:
        _, _, future = heapq.heappop(self._sleepers)
        self._now = max(self._now, when)
        future.set_result(None)
