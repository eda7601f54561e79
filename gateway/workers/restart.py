"""Takes up, at start, what the process before left: folds the open runs, classifies each, freezes what cannot be carried.

Nothing is decided here that the normal road would not decide: what is in doubt goes to the settler, what is being undone to
the unwinder, each through the same queues and breakers as any call. Doing it twice changes nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

from gateway.core.outcome import Refusal
from gateway.core.restart import Standing, classify, drift
from gateway.core.saga import Freeze
from gateway.core.tool import Catalog
from gateway.journal.trajectories import Trajectories

__all__ = ["recover"]

_TOGETHER = 500
"""Runs frozen by one wait for the disk: a tool that left the manifest may freeze them all. Below the journal's queue."""


async def recover(trajectories: Trajectories, catalog: Catalog) -> Mapping[Standing, int]:
    """Return how many open runs there are of each class.

    Raises:
        JournalCorrupt: a record cannot be read, or cannot follow the ones before it; names it.
        JournalUnavailable: the journal cannot be read or written.
    """
    found: Counter[Standing] = Counter()
    freezing: list[asyncio.Future[None]] = []
    for run in await trajectories.recover():
        missing = drift(run.state, catalog)
        if missing is not None:
            frozen = trajectories.decide(run, Freeze(
                incident="MANIFEST_DRIFT",
                detail=f"{missing[0].upper()}{missing[1:]}, which is no longer in the manifest. Put it back and release "
                "the run, or close it."))  # fmt: skip
            freezing += [] if isinstance(frozen, Refusal) else [frozen]
            if len(freezing) >= _TOGETHER:
                await asyncio.gather(*freezing)
                freezing.clear()
        found[classify(run.state)] += 1
    await asyncio.gather(*freezing)
    return found
