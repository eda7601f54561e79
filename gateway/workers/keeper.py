"""Looks after a sealed journal: tells checkpoints, follows the key ring, prunes what is past its retention.

A checkpoint goes to a file beside the data folder and, as one log line, to wherever logs go: somebody who cuts off the end
of the journal would have to reach there too. Pruning is one bounded batch a pass, so commits wait for milliseconds at most.
"""

from __future__ import annotations

import logging

from gateway.clock import Clock
from gateway.journal import JournalError, Keepable
from gateway.telemetry import Telemetry

__all__ = ["Keeper"]

_log = logging.getLogger("gateway")

_ROWS = 10_000
"""A checkpoint is told after so many rows, though its time has not come."""

_REST_S = 600.0
"""Pause between two looks for runs past their retention, once none is left."""


class Keeper:
    """Runs every `interval_s`."""

    def __init__(
        self,
        journal: Keepable,
        clock: Clock,
        telemetry: Telemetry,
        *,
        checkpoint_s: float = 60.0,
        retention_s: float | None = None,
        archive: str | None = None,
        interval_s: float = 2.0,
    ) -> None:
        """`retention_s`: how long closed runs are kept; None: for ever. `archive`: where they go then."""
        self._journal = journal
        self._clock = clock
        self._telemetry = telemetry
        self._checkpoint_s = checkpoint_s
        self._retention_s = retention_s
        self._archive = archive
        self._interval_s = interval_s
        self._told_s = clock.now()
        self._prune_from_s = clock.now()
        self._problems: dict[str, str] = {}

    async def run(self) -> None:
        """Do the duties until cancelled."""
        while True:
            await self._clock.sleep(self._interval_s)
            await self.run_once(self._clock.now())

    async def run_once(self, now: float) -> None:
        """Do each duty that is due; one that fails is reported once and does not keep the others. Repeatable."""
        for duty in (self._follow_keys, self._tell, self._prune):
            try:
                await duty(now)
                self._problems.pop(duty.__name__, None)
            except JournalError as error:
                if self._problems.get(duty.__name__) != str(error):
                    self._telemetry.background_failed("the journal's keeper", error)
                self._problems[duty.__name__] = str(error)

    async def _follow_keys(self, now: float) -> None:
        if self._journal.reload_keys():
            _log.info("another key seals from now on", extra={"event": "key_rotated"})

    async def _tell(self, now: float) -> None:
        if self._journal.untold == 0 or (now - self._told_s < self._checkpoint_s and self._journal.untold < _ROWS):
            return
        self._told_s = now
        note = await self._journal.checkpoint()
        if note is not None:
            _log.info("checkpoint", extra={"event": "checkpoint", "note": note})

    async def _prune(self, now: float) -> None:
        if self._retention_s is None or now < self._prune_from_s:
            return
        self._prune_from_s = now + _REST_S
        done = await self._journal.prune(self._clock.at() - round(self._retention_s * 1000), self._archive)
        if done.bodies:
            await self._journal.sweep(done.bodies)
        if done.runs:
            _log.info("pruned", extra={"event": "pruned", "runs": done.runs, "records": done.records})
        if done.is_more:
            self._prune_from_s = now
