"""Small duties that recur: closes runs that nobody closes, tells of leases that are over, writes what could not be written,
counts refusals into the audit.

Each pass is bounded work over the live runs that are due; nothing here touches the disk on behalf of a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.clock import Clock
from gateway.core.gate import lease_problems
from gateway.core.manifest import TimeoutSettings
from gateway.core.packet import is_overdue
from gateway.core.saga import Abort, Commit, Doubt, Freeze
from gateway.core.tool import Catalog
from gateway.core.trajectory import OVERDUE_FAULT, Phase
from gateway.journal import JournalError
from gateway.journal.trajectories import Run, Trajectories
from gateway.telemetry import Telemetry
from gateway.workers.turns import in_turn

__all__ = ["OVERDUE", "Janitor"]

OVERDUE = 2.0
"""Times its timeout after which a step is not "still running" but needs recovery (seed 003, section 3)."""

_SLICE = 1000
"""Runs looked at every `interval_s`, a few in each pass of the event loop, however many runs are open."""


class Janitor:
    """Runs every `interval_s`."""

    def __init__(
        self,
        trajectories: Trajectories,
        clock: Clock,
        telemetry: Telemetry,
        *,
        idle_s: float = 300.0,
        interval_s: float = 1.0,
        catalog: Callable[[], Catalog] = lambda: Catalog({}, {}),
    ) -> None:
        """`idle_s`: an implicit run without a call for so long closes itself."""
        self._catalog = catalog
        self._trajectories = trajectories
        self._clock = clock
        self._telemetry = telemetry
        self._idle_s = idle_s
        self._interval_s = interval_s
        self._queue: list[str] = []

    async def run(self) -> None:
        """Do the duties until cancelled."""
        while True:
            await self._clock.sleep(self._interval_s)
            try:
                await self.run_once(self._clock.now())
            except (TimeoutError, JournalError) as error:
                self._telemetry.background_failed("the janitor", error)

    async def run_once(self, now: float) -> int:
        """Do each duty once. Returns how many runs it closed, aborted or froze. Repeatable."""
        for _ in self._trajectories.flushing():
            await asyncio.sleep(0)
        if self._trajectories.has_aside and self._trajectories.journal.is_healthy:
            try:
                await self._trajectories.write_aside()
            except JournalError as error:  # one run that cannot be read keeps nobody else waiting
                self._telemetry.background_failed("writing what was set aside", error)
        if not self._queue:
            self._queue = self._trajectories.names()
        due = self._queue[-_SLICE:]
        del self._queue[-_SLICE:]
        return sum([self._tend(name, now) async for name in in_turn(due)])

    def _tend(self, name: str, now: float) -> bool:
        run = self._trajectories.due(name, now)
        if run is None:
            return False  # it is over, or parked, and its time has not come
        state = run.state
        if state.in_flight and not run.is_lost:
            self._give_up_overdue(run)
        if state.leases and state.phase is Phase.PREPARING and not run.is_lost:
            self._note_stale_leases(run)
        if run.is_lost or run.busy:
            return False
        if state.version == 0 or state.is_implicit:
            if now - run.touched_s < self._idle_s:
                return False
            if state.staged and state.phase is Phase.PREPARING and state.pivot is None:
                detail = f"Nobody has called for {self._idle_s:g} s, and what was staged has no pivot to be sent with."
                self._trajectories.decide(run, Freeze(incident="ABANDONED", detail=detail))
                return True
            return self._trajectories.close_if_done(run, by="idle", forget=True)
        if state.task is not None and is_overdue(state, self._trajectories.at()):
            return self._abandon(run, "the task runs for more than twice its deadline: it needs recovery")
        if state.ttl_s is None or now - run.touched_s < state.ttl_s or state.is_closing:
            return False
        return self._abandon(run)

    def _give_up_overdue(self, run: Run) -> None:
        """A step that runs longer than twice its timeout is not waited for any more: it needs recovery."""
        at = self._trajectories.at()
        for number in sorted(run.state.in_flight - run.state.released):
            step = run.state.steps[number]
            tool = self._catalog().tools.get(step.tool)
            operation = None if tool is None else tool.operations.get(step.operation)
            limit_s = OVERDUE * (TimeoutSettings().total if operation is None else operation.timeouts.total)
            if at - step.intended_at > limit_s * 1000:
                detail = f"it ran for more than {limit_s:g} s, {OVERDUE:g} times its timeout: it needs recovery"
                self._trajectories.decide(run, Doubt(step=number, fault=OVERDUE_FAULT, detail=detail))

    def _note_stale_leases(self, run: Run) -> None:
        """What is over cannot be had back by waiting: say so once, before somebody runs into the pivot's gate."""
        over = lease_problems(run.state, self._trajectories.at())
        if len(over) > run.leases_over:
            self._telemetry.leases_over(run.state.id, over)
        run.leases_over = len(over)

    def _abandon(self, run: Run, why: str = "") -> bool:
        """Nobody has touched a named run for its time to live, or ended it in time: do what it was opened with."""
        state = run.state
        if state.phase not in (Phase.PREPARING, Phase.FINALIZING):
            return False
        is_late = bool(why)
        why = why or f"abandoned: no call for {state.ttl_s:g} s"
        if state.on_abandon == "commit" and not (state.in_flight or state.in_doubt):
            self._trajectories.decide(run, Commit(by="ttl"))
        elif state.on_abandon == "unwind" and not state.is_past_pivot:
            self._trajectories.decide(run, Abort(reason=why, by="ttl"))
        else:
            incident = "NEEDS_RECOVERY" if is_late else "ABANDONED"
            incident = "POST_PIVOT_STALLED" if state.pivot is not None else incident
            detail = f"{why[0].upper()}{why[1:]}." if is_late else f"The run was {why}."
            self._trajectories.decide(run, Freeze(incident=incident, detail=detail))
        return True
