"""What time alone makes due: approvals that nobody decided, or nobody used, run out; work that broke off is taken up again.

Each pass is bounded work over the runs that need attention; whatever is done is a record, so doing it twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.clock import Clock
from gateway.core.approval import expired
from gateway.journal import JournalError
from gateway.journal.trajectories import Trajectories
from gateway.telemetry import Telemetry
from gateway.workers.turns import in_turn

__all__ = ["Escalator"]

_SLICE = 1000


class Escalator:
    """Runs every `interval_s`."""

    def __init__(
        self,
        trajectories: Trajectories,
        clock: Clock,
        telemetry: Telemetry,
        *,
        interval_s: float = 1.0,
        resume: Callable[[], object] = lambda: None,
    ) -> None:
        """`resume` starts again, at each pass, the work on runs that broke off."""
        self._trajectories = trajectories
        self._clock = clock
        self._telemetry = telemetry
        self._interval_s = interval_s
        self._resume = resume
        self._queue: list[str] = []

    async def run(self) -> None:
        """Do the duties until cancelled."""
        while True:
            await self._clock.sleep(self._interval_s)
            try:
                await self.run_once(self._clock.at())
            except JournalError as error:
                self._telemetry.background_failed("the escalator", error)

    async def run_once(self, at: int) -> int:
        """Do each duty once, at a time in UTC milliseconds. Returns how many runs were changed. Repeatable."""
        self._resume()
        if not self._queue:
            self._queue = self._trajectories.attentive_names()
        due = self._queue[-_SLICE:]
        del self._queue[-_SLICE:]
        return sum([self._tend(name, at) async for name in in_turn(due)])

    def _tend(self, name: str, at: int) -> bool:
        run = self._trajectories.get(name)
        if run is None or run.is_lost:
            return False
        records = expired(run.state.approvals, at)
        if records:
            self._trajectories.record(run, records)
        return bool(records)
