"""Time and randomness, for those allowed to ask for them.

Stages and workers take a `Clock`; tests and the storm lab hand them one that they turn by hand. `core/` never sees it.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from typing import Protocol

__all__ = ["Clock", "SystemClock", "wait_until"]


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

    def now(self) -> float:
        """Return `time.monotonic()`."""
        return time.monotonic()

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
