"""Time and randomness, for those allowed to ask for them.

Stages and workers take a `Clock`; tests and the storm lab hand them one that they turn by hand. `core/` never sees it.
"""

from __future__ import annotations

import asyncio
import math
import random
import secrets
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Alarm", "Bounds", "Clock", "SystemClock", "settled", "wait_until"]

# Event loops count in whole milliseconds or better and may fire a hair early.
_TICK_S = 0.002
# Bounds that follow each other closely are looked at together.
_GRAIN_S = 0.010


class Clock(Protocol):
    """What a stage may ask about time and chance."""

    def now(self) -> float:
        """Return monotonic seconds; only differences mean anything."""

    def at(self) -> int:
        """Return UTC as whole milliseconds since the epoch, for records."""

    def draw(self) -> float:
        """Return a draw from [0, 1), for jitter."""

    def token(self) -> str:
        """Return 128 fresh random bits as 32 hexadecimal digits, for identifiers."""

    async def sleep(self, delay_s: float) -> None:
        """Wait `delay_s` seconds."""


class SystemClock:
    """The machine's own clock and random source."""

    def __init__(self) -> None:
        self._random = random.Random()  # noqa: S311 - jitter, not secrets

    now = staticmethod(time.monotonic)
    """Return monotonic seconds; not a method of its own, since every call asks a dozen times."""

    def at(self) -> int:
        """Return UTC milliseconds."""
        return time.time_ns() // 1_000_000

    def draw(self) -> float:
        """Return a draw from [0, 1)."""
        return self._random.random()

    def token(self) -> str:
        """Return 32 hexadecimal digits from the system's secure source."""
        return secrets.token_hex(16)

    async def sleep(self, delay_s: float) -> None:
        """Wait on the event loop."""
        await asyncio.sleep(delay_s)


async def wait_until(clock: Clock, future: asyncio.Future[None], when: float) -> bool:
    """Wait for `future`, but not beyond `when`, monotonic seconds. Return whether it is done.

    The future is left alone, also when this is cancelled.
    """
    timer = asyncio.ensure_future(clock.sleep(max(0.0, when - clock.now())))
    try:
        await asyncio.wait((future, timer), return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
    return future.done()


async def settled(future: asyncio.Future[None], limit_s: float) -> bool:
    """Wait for `future`, but no longer than `limit_s` seconds of the loop's time. Return whether it is done.

    What `asyncio.wait` does for one future, at a third of its price. The future is left alone, also when this is cancelled.
    """
    if future.done():
        return True
    loop = future.get_loop()
    waiter = loop.create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    future.add_done_callback(wake)
    timer = loop.call_later(limit_s, wake)
    try:
        await waiter
    finally:
        timer.cancel()
        future.remove_done_callback(wake)
    return future.done()


class Alarm:
    """A time bound that moves with every message: moving it is an assignment, not a timer.

    One timer of the event loop is kept for all bounds that follow each other. It is left where it is while the bound only
    moves away, and looks again when it fires, so a busy connection makes about one timer per bound instead of one per call.

    Args:
        loop: the running loop.
        ring: called, once, when the bound has passed.
    """

    __slots__ = ("_at", "_due", "_handle", "_loop", "_ring")

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], object]) -> None:
        self._loop = loop
        self._ring = ring
        self._due: float | None = None
        self._at = 0.0
        self._handle: asyncio.TimerHandle | None = None

    def set(self, due: float) -> None:
        """Ring at `due`, on the loop's own clock, instead of when it was set to ring before."""
        self._due = due
        if self._handle is None:
            self._start(due)
        elif due < self._at:
            self._handle.cancel()
            self._start(due)

    def clear(self) -> None:
        """Do not ring. The timer may stay, and does nothing when it fires."""
        self._due = None

    def stop(self) -> None:
        """Do not ring, and take the timer away. May be repeated."""
        self._due = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _start(self, due: float) -> None:
        self._at = due
        self._handle = self._loop.call_at(due, self._fire)

    def _fire(self) -> None:
        self._handle = None
        if self._due is None:
            return
        if self._loop.time() < self._due - _TICK_S:
            self._start(self._due)
            return
        self._due = None
        self._ring()


class Bounds:
    """Time bounds of many waits, with one timer of the event loop for all of them.

    Most waits are over long before their bound, so a bound costs an entry in a dict and no timer. A wait may end a
    hundredth of a second late.
    """

    __slots__ = ("_alarm", "_dues", "_first", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._alarm = Alarm(loop, self._ring)
        self._dues: dict[asyncio.Future[None], float] = {}
        self._first = math.inf

    def __repr__(self) -> str:
        return f"<Bounds of {len(self._dues)} waits>"

    def put(self, future: asyncio.Future[None], limit_s: float) -> None:
        """Have a future that is the caller's own fail with `TimeoutError` if it is not done in so many seconds.

        Whoever puts it waits for it, and takes it off in `finally`.
        """
        due = self._dues[future] = self._loop.time() + limit_s
        if due < self._first:
            self._look_at(due)

    def take_off(self, future: asyncio.Future[None]) -> None:
        """The future is done, or nobody waits for it any more. May be repeated."""
        self._dues.pop(future, None)

    def _look_at(self, when: float) -> None:
        self._first = when
        self._alarm.set(when)

    def _ring(self) -> None:
        self._first = math.inf
        now = self._loop.time()
        left: list[float] = []
        for future, due in self._dues.items():
            if due > now + _TICK_S:
                left.append(due)
            elif not future.done():
                future.set_exception(TimeoutError())
        if left:
            self._look_at(max(min(left), now + _GRAIN_S))
