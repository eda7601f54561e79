"""Parks runs that nobody has used for a while, so that a hundred thousand that wait for their agents take little memory.

As long as few runs are awake there is nothing to gain, and none is parked. Packing one takes a tenth of a millisecond, so
each pass of the event loop does a few, and each second some hundreds: all that idle are parked within minutes.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.clock import Clock
from gateway.journal.trajectories import Trajectories

__all__ = ["Parker"]

IDLE_S: Final = 60.0
"""A run without a call for so long is parked; agents that think for a minute pay a fraction of a millisecond."""

AWAKE_KEPT: Final = 1_000
"""Runs that may be awake without any being parked: they take six megabytes."""

_LOOKED_AT: Final = 5_000
_PACKED: Final = 500
"""Runs looked at, and packed, every `interval_s` at most."""

_LOOKED_AT_TOGETHER: Final = 500
_PACKED_TOGETHER: Final = 5
"""The same in one pass of the event loop: one or two milliseconds."""


class Parker:
    """Runs every `interval_s`."""

    def __init__(
        self,
        trajectories: Trajectories,
        clock: Clock,
        *,
        idle_s: float = IDLE_S,
        awake_kept: int = AWAKE_KEPT,
        interval_s: float = 1.0,
    ) -> None:
        """`idle_s`: a run without a call for so long is parked; `awake_kept`: unless so few are awake."""
        self._trajectories = trajectories
        self._clock = clock
        self._idle_s = idle_s
        self._awake_kept = awake_kept
        self._interval_s = interval_s
        self._queue: list[str] = []

    async def run(self) -> None:
        """Park until cancelled."""
        while True:
            await self._clock.sleep(self._interval_s)
            await self.run_once(self._clock.now())

    async def run_once(self, now: float) -> int:
        """Park some of the runs that are idle, a few in each pass of the event loop. Returns how many. Repeatable."""
        if not self._queue and self._has_many():
            self._queue = self._trajectories.awake_names()
        looked_at = parked = packed = 0
        while self._queue and looked_at < _LOOKED_AT and packed < _PACKED and self._has_many():
            name = self._queue.pop()
            looked_at += 1
            if self._trajectories.is_idle(name, now - self._idle_s):
                packed += 1
                parked += self._trajectories.park(name)
                is_turn_over = packed % _PACKED_TOGETHER == 0
            else:
                is_turn_over = looked_at % _LOOKED_AT_TOGETHER == 0
            if is_turn_over:
                await asyncio.sleep(0)
        if parked:
            self._trajectories.shrink()
        return parked

    def _has_many(self) -> bool:
        return self._trajectories.awake > self._awake_kept
