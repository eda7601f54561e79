"""Time and randomness, for those allowed to ask for them.

Stages and workers take a `Clock`; tests and the storm lab hand them one that they turn by hand. `core/` never sees it.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import secrets
import time
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, Protocol

__all__ = ["Alarm", "Alarms", "Clock", "SystemClock", "settled", "shielded", "wait_until"]

# Event loops count in whole milliseconds or better and may fire a hair early.
_TICK_S = 0.002


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


def shielded(future: asyncio.Future[None]) -> asyncio.Future[None]:
    """Return a future that ends as `future` does and may be cancelled without touching it.

    What `asyncio.shield` does for a future of the running loop, at half its price.
    """
    outer: asyncio.Future[None] = future.get_loop().create_future()
    future.add_done_callback(partial(_pass_on, outer))
    return outer


def _pass_on(outer: asyncio.Future[None], inner: asyncio.Future[None]) -> None:
    if outer.done():
        if not inner.cancelled():
            inner.exception()  # nobody is left to hear of it
    elif inner.cancelled():
        outer.cancel()
    elif (error := inner.exception()) is not None:
        outer.set_exception(error)
    else:
        outer.set_result(None)


class Ringing(Protocol):
    """What is told that a bound has passed."""

    def ring(self) -> None:
        """Do what is due then."""


class Alarm:
    """A time bound that moves with every message: moving it is an assignment, not a timer.

    One place among the `Alarms` is kept for all bounds that follow each other. It is left where it is while the bound only
    moves away, and looks again when its time comes, so a busy connection takes about one per bound instead of one per call.

    Args:
        alarms: those that it belongs to.
        owner: its `ring` is called, once, when the bound has passed.
    """

    __slots__ = ("_alarms", "_at", "_due", "_owner", "_place")

    def __init__(self, alarms: Alarms, owner: Ringing) -> None:
        self._alarms = alarms
        self._owner = owner
        self._due: float | None = None
        self._at = math.inf
        self._place: _Place | None = None

    def set(self, due: float) -> None:
        """Ring at `due`, on the loop's own clock, instead of when it was set to ring before."""
        self._due = due
        if due < self._at:
            self._take_place(due)

    def clear(self) -> None:
        """Do not ring. The place may stay, and nothing happens when its time comes."""
        self._due = None

    def stop(self) -> None:
        """Do not ring, and give the place up. May be repeated."""
        self._due = None
        self._give_up_place()

    def look(self, now: float) -> None:
        """Ring if the bound has passed, else take a new place. For `Alarms`: its time has come, and the place is gone."""
        self._place, self._at, due = None, math.inf, self._due
        if due is None:
            return
        if now < due - _TICK_S:
            self._take_place(due)
            return
        self._due = None
        self._owner.ring()

    def _take_place(self, at: float) -> None:
        self._give_up_place()
        self._place, self._at = self._alarms.add(at, self), at

    def _give_up_place(self) -> None:
        if self._place is not None:
            self._alarms.remove(self._place)
            self._place, self._at = None, math.inf


_Place = list[Any]
"""[when, number, alarm]; None in place of the alarm once it was given up. The number keeps alarms from being compared."""


class Alarms:
    """The time bounds of many on one timer of the event loop: timers of their own would take four times the memory.

    A heap by time. Places that were given up are cleared out when they are the most.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._places: list[_Place] = []
        self._numbers = itertools.count()
        self._given_up = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._places) - self._given_up

    def add(self, when: float, alarm: Alarm) -> _Place:
        """Return a new place: `alarm` looks at `when`."""
        place: _Place = [when, next(self._numbers), alarm]
        heappush(self._places, place)
        if self._places[0] is place:
            self._start(when)
        return place

    def remove(self, place: _Place) -> None:
        """Give a place up."""
        place[2] = None
        self._given_up += 1
        if self._given_up > _GIVEN_UP_KEPT and self._given_up * 2 > len(self._places):
            self._places = [one for one in self._places if one[2] is not None]
            heapify(self._places)
            self._given_up = 0

    def _start(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._fire)

    def _fire(self) -> None:
        self._timer, now = None, self._loop.time()
        while self._places and self._places[0][0] <= now + _TICK_S:
            alarm: Alarm | None = heappop(self._places)[2]
            if alarm is None:
                self._given_up -= 1
                continue
            try:
                alarm.look(now)
            except Exception as error:
                self._loop.call_exception_handler({"message": "what an alarm rang for has failed", "exception": error})
        if self._timer is None and self._places:
            self._start(self._places[0][0])


_GIVEN_UP_KEPT = 64
