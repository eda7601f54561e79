"""Python's cycle collector, kept from holding calls: it looks at young objects only, at old ones while there are few.

A live run is some dozens of objects that stay. Python looks at all that stay whenever a quarter more has come, and with a
hundred thousand runs one such look takes a large part of a second, in which no call is served. Nothing is lost by not
looking: a call leaves no cycles behind, and what is not in a cycle is freed at once without the collector. What little ends
in cycles all the same (errors with their tracebacks, connections of the control plane) is looked for here: each minute while
few runs are live and a look is short, and twice an hour whatever it takes, so that nothing piles up for ever.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

from gateway.clock import Clock

__all__ = ["Collector", "tune"]

_YOUNG, _NEVER = 5_000, 1_000_000_000
_FEW_RUNS = 200
_AT_LATEST_S = 1_800.0


def tune() -> None:
    """Set the collector up for a gateway that has just started: what is there stays, old objects are left to `Collector`.

    Each object that stays is looked at once, and a look covers `_YOUNG` objects: a few milliseconds on a slow machine. Fewer
    are held by 64 writes under way; else each wave of them would be looked at and found alive, a tenth of their time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _NEVER, _NEVER)


class Collector:
    """Runs every `interval_s`."""

    def __init__(self, live: Callable[[], int], clock: Clock, *, interval_s: float = 60.0) -> None:
        """`live` tells how many runs are live."""
        self._live = live
        self._clock = clock
        self._interval_s = interval_s
        self._looked_s = clock.now()

    async def run(self) -> None:
        """Look for cycles until cancelled."""
        while True:
            await self._clock.sleep(self._interval_s)
            self.run_once()

    def run_once(self) -> int | None:
        """Free what is in cycles, unless many runs are live and that was done half an hour ago at most.

        Returns how many objects that was; None: nobody looked.
        """
        now = self._clock.now()
        if self._live() > _FEW_RUNS and now - self._looked_s < _AT_LATEST_S:
            return None
        self._looked_s = now
        return gc.collect()
