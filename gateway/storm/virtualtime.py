"""An event loop whose time is a number: nobody ever waits, and the same seed always gives the same storm.

When nothing is ready, the loop's clock jumps to the next timer. Everything that runs on the loop runs on that time,
`asyncio.timeout`, `loop.time` and aiolimiter included, so the gateway's own classes need no stand-ins.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["VirtualClock", "VirtualLoop", "run"]

T = TypeVar("T")

# Where UTC stands at the beginning, in milliseconds: any fixed moment.
_EPOCH_MS = 1_700_000_000_000
# The largest float below 1: a draw that gives the whole of a bound.
_ALMOST_ONE = 1.0 - 2.0**-53


class _Jump(selectors.SelectSelector):
    """A selector that never looks at the world, but moves the time on by as long as it was to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError(f"everybody waits for somebody else at {self.now:.3f} s of virtual time")
        if timeout > 0:
            self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time, from 0. Sockets, threads and signals are never served."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        """Return virtual seconds."""
        return self._jump.now


class VirtualClock:
    """A `gateway.clock.Clock` on a virtual loop, with seeded chance.

    `jitter` chooses the draws: `full` is uniform, `none` always the highest (backoff without jitter), `zero` always 0.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: int, jitter: str = "full") -> None:
        self._loop = loop
        self._random = random.Random(seed)  # noqa: S311 - jitter, not secrets
        self._fixed = {"none": _ALMOST_ONE, "zero": 0.0}.get(jitter)

    def now(self) -> float:
        """Return virtual seconds."""
        return self._loop.time()

    def at(self) -> int:
        """Return UTC milliseconds, from a fixed moment."""
        return _EPOCH_MS + round(self._loop.time() * 1000)

    def draw(self) -> float:
        """Return a draw from [0, 1)."""
        return self._random.random() if self._fixed is None else self._fixed

    def token(self) -> str:
        """Return 32 hexadecimal digits."""
        return f"{self._random.getrandbits(128):032x}"

    async def sleep(self, delay_s: float) -> None:
        """Wait in virtual time."""
        await asyncio.sleep(delay_s)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time.

    Raises:
        RuntimeError: everybody waits and no timer is left.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
