"""Python's cycle collector, kept from holding calls: it looks at young objects only, at old ones while there are few.

A live run is some dozens of objects that stay. Python looks at all that stay whenever a quarter more has come, and with a
hundred thousand runs one such look takes a large part of a second, in which no call is served. Nothing is lost by not
looking: a call leaves no cycles behind, and what is not in a cycle is freed at once without the collector. What little ends
in cycles all the same (errors with their tracebacks, connections of the control plane) is looked for here, as long as few
runs are live and a look is short.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

from gateway.clock import Clock

__all__ = ["Collector", "tune"]

_YOUNG, _MIDDLE, _NEVER = 2_500, 1, 1_000_000_000
_FEW_RUNS = 200


def tune() -> None:
    """Set the collector up for a gateway that has just started: what is there stays, old objects are left to `Collector`.

    Each object is looked at once or twice, and a look covers three times `_YOUNG` objects at most: a few milliseconds on a
    slow machine. Python's own settings come back to old ones again and again, which costs a tenth of a call's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)


class Collector:
    """Runs every `interval_s`."""

    def __init__(self, live: Callable[[], int], clock: Clock, *, interval_s: float = 60.0) -> None:
        """`live` tells how many runs are live."""
        self._live = live
        self._clock = clock
        self._interval_s = interval_s

    async def run(self) -> None:
        """Look for cycles until cancelled."""
        while True:
            await self._clock.sleep(self._interval_s)
            self.run_once()

    def run_once(self) -> int | None:
        """Free what is in cycles, unless too many runs are live. Returns how many objects that was; None: nobody looked."""
        return gc.collect() if self._live() <= _FEW_RUNS else None
