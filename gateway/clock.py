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
from heapq import heapify, heappop, heappush
from typing import Any, Final, Protocol

__all__ = ["Alarm", "Alarms", "Clock", "SystemClock", "dated_token", "settled", "wait_until"]

# Event loops count in whole milliseconds or better and may fire a hair early.
_TICK_S = 0.002
# Below this many places it is not worth while to look for those that were given up.
_LEAST_ROOM: Final = 64


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


def dated_token(clock: Clock) -> str:
    """Return 32 hexadecimal digits that sort by time, for names in an index: 48 bits of milliseconds, 80 random ones.

    Names that were made after each other stand beside each other, so that writing them down touches the end of the
    index and not a page for each, however many there are (docs/adr/0186). Nobody can guess one.

    Source: RFC 9562, section 5.7 (UUID version 7), without its version and variant.
    """
    return f"{clock.at():012x}{clock.token()[12:]}"


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
        self._place: Place | None = None

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
            self._alarms.give_up(self._place)
            self._place, self._at = None, math.inf


Place = list[Any]
"""[when, number, `Alarm` or future]; None for the last once it was given up. The number keeps these from being compared."""


class Alarms:
    """The time bounds of many on one timer of the event loop: timers of their own would take four times the memory.

    A heap by time. Most bounds never pass, and giving a place up only empties it: what is empty is cleared out when there
    are twice as many places as were in use the last time.
    """

    __slots__ = ("_loop", "_numbers", "_places", "_room", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._places: list[Place] = []
        self._numbers = itertools.count()
        self._room = _LEAST_ROOM
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(place[2] is not None for place in self._places)

    def __repr__(self) -> str:
        return f"<Alarms of {len(self)} bounds>"

    def bound(self, future: asyncio.Future[None], limit_s: float) -> Place:
        """Have a future that is the caller's own fail with `TimeoutError` if it is not done in so many seconds.

        Whoever waits for it gives the place up in `finally`.
        """
        return self.add(self._loop.time() + limit_s, future)

    def add(self, when: float, what: Alarm | asyncio.Future[None]) -> Place:
        """Return a new place: an alarm looks, a future fails at `when`, on the loop's own clock."""
        places, place = self._places, [when, next(self._numbers), what]
        if len(places) >= self._room:
            self._clear_out()
        heappush(places, place)
        if places[0] is place:
            self._start(when)
        return place

    def give_up(self, place: Place) -> None:
        """Whoever has the place does not want to look any more. May be repeated, also once its time has come."""
        place[2] = None

    def _clear_out(self) -> None:
        places = self._places
        places[:] = [place for place in places if place[2] is not None]
        heapify(places)
        self._room = max(_LEAST_ROOM, 2 * len(places))

    def _look(self, alarm: Alarm, now: float) -> None:
        try:
            alarm.look(now)
        except Exception as error:
            self._loop.call_exception_handler({"message": "what an alarm rang for has failed", "exception": error})

    def _start(self, when: float) -> None:
        timer = self._timer
        if timer is not None:
            timer.cancel()
        self._timer = self._loop.call_at(when, self._fire)

    def _fire(self) -> None:
        self._timer, now, places = None, self._loop.time(), self._places
        while places and places[0][0] <= now + _TICK_S:
            what: Alarm | asyncio.Future[None] | None = heappop(places)[2]
            if isinstance(what, Alarm):
                self._look(what, now)
            elif what is not None and not what.done():
                what.set_exception(TimeoutError())
        if self._timer is None and places:
            self._start(places[0][0])
