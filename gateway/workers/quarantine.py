"""Locks a run (or an agent) away: suspended, its credentials revoked, its calls cut, its artifacts tainted.

The four stages are independent: each starts at the trigger, none waits for another, and each tells how long after the
trigger it was done. What is ours takes effect in the very pass of the event loop that the trigger came in: from there on no
call of the run leaves, those under way are broken off, and nobody else may touch what it made. What is others' (a process
to freeze, an issuer to be told) follows as fast as they answer, and is tried once.

The record on disk comes last. A quarantine that the disk cannot take holds all the same (`journal/containment.py`), and
after a restart everything that was in force is put in force again before calls are taken.

Source: seed 000, "The four-stage quarantine protocol", "Containment latency".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.clock import Clock, settled
from gateway.core.call import Call
from gateway.core.containment import (
    Measure,
    Quarantine,
    QuarantineMeasured,
    QuarantineSet,
    Trigger,
    artifact_view,
    clear,
    contain,
    lift,
    quarantine_view,
)
from gateway.core.outcome import Refusal
from gateway.core.records import TrajectoryFrozen
from gateway.core.saga import QUARANTINED
from gateway.journal import JournalUnavailable
from gateway.journal.containment import ContainmentLog
from gateway.journal.trajectories import Run, Trajectories
from gateway.stages.flights import Flights
from gateway.telemetry import Telemetry

__all__ = ["Contained", "Quarantiner", "Subject"]

_log = logging.getLogger("gateway")

PATIENCE_S = 5.0
"""How long whoever lifts or clears something waits for the disk."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a quarantine is about: a run of an agent, or (`run` empty) an agent. `labels` are the run's own."""

    run: str
    agent: str
    labels: dict[str, str]
    quarantine: str


@dataclass(frozen=True, slots=True)
class Contained:
    """A quarantine in force. `done` is over once every stage is done and all of it is on disk."""

    quarantine: Quarantine
    done: asyncio.Task[None]


Outside = Callable[[Subject], Awaitable[str]]
"""Does its part of a stage at somebody else's, and returns what it did, for people. Any exception is told as a problem."""


class Quarantiner:
    """Contains and lifts.

    Attributes:
        suspend, resume: hooks that stop a process and let it go on, by name.
        revoke: takes credentials away; the first part at once (returns how many), the second at their issuers.
        sever: further things to cut, such as tunnels; each returns how many.
    """

    def __init__(
        self, log: ContainmentLog, trajectories: Trajectories, flights: Flights, clock: Clock, telemetry: Telemetry
    ) -> None:
        self.suspend: Callable[[], dict[str, Outside]] = dict
        self.resume: Callable[[], dict[str, Outside]] = dict
        self.revoke_here: list[Callable[[Subject], int]] = []
        self.revoke_outside: dict[str, Outside] = {}
        self.sever: list[Callable[[Subject], int]] = []
        self._log = log
        self._trajectories = trajectories
        self._flights = flights
        self._clock = clock
        self._telemetry = telemetry
        self._tasks: set[asyncio.Task[None]] = set()

    # --- containing

    def contain(
        self, *, run: str = "", agent: str = "", since: int = 0, trigger: Trigger, by: str, reason: str
    ) -> Contained | Refusal | None:
        """Contain a run or an agent, at once; None where it is contained already. Must be called on the event loop.

        Args:
            run: its name. Its agent's other runs stay free, unless it is one that nobody named: its agent could only go on
                in the next such run, so it is kept out too.
            agent: all its runs, present and future.
            since: the run's step from which on what it made is tainted.
            trigger: what kind of thing found it.
            by: which rule, person or detector.
            reason: for people; it is journaled.
        """
        began = self._clock.now()
        known = self._trajectories.get(run) if run else None
        if known is not None and known.state.is_implicit:
            agent = known.state.agent
        records = contain(
            self._log.state, run=run, agent=agent, since=since, trigger=trigger, by=by, reason=reason[:2000]
        )
        if isinstance(records, Refusal):
            return records
        if not records:
            return None
        (told,) = records
        assert isinstance(told, QuarantineSet)
        subject = self._subject(told)
        waiting = self._start(Measure.SUSPEND, self.suspend(), subject, began)
        written = self._log.record(records)  # in force from here: nothing leaves, nothing tainted is touched
        self._measured(Measure.TAINT, subject, began, self._tainted(told.quarantine))
        revoked = sum(one(subject) for one in self.revoke_here)
        cut = self._sever(subject)
        self._measured(Measure.SEVER, subject, began, f"{cut} cut")
        self._telemetry.quarantined(trigger.value, cut)
        if self.revoke_outside and revoked:
            waiting += self._start(Measure.REVOKE, self.revoke_outside, subject, began)
        else:
            self._measured(Measure.REVOKE, subject, began, f"{revoked} leases")
        if not self.suspend():
            self._measured(Measure.SUSPEND, subject, began, "nothing is configured")
        _log.warning(
            "quarantined",
            extra={"event": "quarantined", "quarantine": told.quarantine, "run": run, "agent": subject.agent, "by": by},
        )
        done = asyncio.get_running_loop().create_task(_all([written, *waiting]))
        self._tasks.add(done)
        done.add_done_callback(self._tasks.discard)
        return Contained(self._log.state.quarantines[told.quarantine], done)

    def on_rule(self, call: Call, by: str, reason: str) -> None:
        """Contain the run of a call that a rule holds for; one that has no run yet makes its agent the subject.

        Nobody knows since when the run has been bad, so all that it made is tainted.
        """
        run = self._trajectories.at_hand(call)
        if run is None:
            self.contain(agent=call.agent, trigger=Trigger.RULE, by=by, reason=reason)
        else:
            self.contain(run=run.state.id, trigger=Trigger.RULE, by=by, reason=reason)

    def on_stray(self, agent: str, run: str, why: str) -> None:
        """Contain whoever called a host that is no tool's: its run, or without one that is known, the agent."""
        is_known = bool(run) and self._trajectories.get(run) is not None
        self.contain(
            run=run if is_known else "",
            agent="" if is_known else agent,
            trigger=Trigger.RULE,
            by="forward.unknown_hosts",
            reason=why,
        )

    def _sever(self, subject: Subject) -> int:
        """Freeze the runs first, so that whatever is cut meets a closed door, then cut."""
        told = self._log.state.quarantines[subject.quarantine].told
        tasks = self._tasks_of(told)
        for run in [*self._runs(told), *tasks]:
            self._freeze(run, told)
        state = self._log.state
        cut = self._flights.cut(lambda call: state.holds(call.trajectory, call.agent) is not None)
        subjects = [subject, *(self._subject_of(run, subject.quarantine) for run in tasks)]
        return cut + sum(one(each) for each in subjects for one in self.sever)

    def _subject(self, told: QuarantineSet) -> Subject:
        known = self._trajectories.get(told.run) if told.run else None
        if known is None:
            return Subject(told.run, told.agent, {}, told.quarantine)
        return self._subject_of(known, told.quarantine)

    @staticmethod
    def _subject_of(run: Run, quarantine: str) -> Subject:
        return Subject(run.state.id, run.state.agent, dict(run.state.labels), quarantine)

    def _runs(self, told: QuarantineSet) -> list[Run]:
        run = self._trajectories.get(told.run) if told.run else None
        others = self._trajectories.of_agent(told.agent) if told.agent else []
        return others if run is None or run in others else [run, *others]

    def _tasks_of(self, told: QuarantineSet) -> list[Run]:
        """The tasks that a quarantined run has handed on, as far as somebody is at them."""
        names = self._log.state.held_tasks(told.quarantine)
        return [run for run in map(self._trajectories.get, names) if run is not None]

    def _freeze(self, run: Run, told: QuarantineSet) -> None:
        state = run.state
        if (
            run.is_lost
            or state.is_over
            or state.incident == QUARANTINED
            or (state.version == 0 and run.opening is None)
        ):
            return
        is_its_own = state.id == told.run or state.agent == told.agent
        whose = "" if is_its_own else f"The task comes from {told.run or told.agent}, which is quarantined: "
        detail = f"{whose}{told.reason.rstrip('.')} ({told.quarantine})."
        frozen = TrajectoryFrozen(incident=QUARANTINED, detail=detail, by=told.by)
        # An append that fails makes the run lost, and a lost run is frozen again when it is read (`enforce_on`).
        self._trajectories.record(run, [frozen]).add_done_callback(_retrieved)

    def _tainted(self, quarantine: str) -> str:
        marked = self._log.state.lineage.marked(quarantine)
        reached = self._log.state.lineage.contaminated(quarantine)
        return f"{len(marked)} artifacts, {len(reached)} other runs"

    # --- what others do

    def _start(
        self, measure: Measure, parts: dict[str, Outside], subject: Subject, began: float
    ) -> list[asyncio.Future[None]]:
        if not parts:
            return []
        task = asyncio.get_running_loop().create_task(self._outside(measure, parts, subject, began))
        return [task]

    async def _outside(self, measure: Measure, parts: dict[str, Outside], subject: Subject, began: float) -> None:
        answers = await asyncio.gather(*(_told(name, part, subject) for name, part in parts.items()))
        said = "; ".join(text for text, _ in answers if text)
        problems = "; ".join(problem for _, problem in answers if problem) or None
        self._measured(measure, subject, began, said, problems)
        if problems is not None:
            self._telemetry.background_failed(f"quarantine {subject.quarantine}, {measure}", RuntimeError(problems))

    def _measured(
        self, measure: Measure, subject: Subject, began: float, detail: str, problem: str | None = None
    ) -> None:
        seconds = self._clock.now() - began
        us = round(seconds * 1_000_000)
        self._telemetry.quarantine_stage_done(measure.value, seconds)
        self._log.record([
            QuarantineMeasured(
                quarantine=subject.quarantine, measure=measure.value, us=us, detail=detail, problem=problem
            )
        ])  # fmt: skip

    # --- afterwards

    async def lift(self, quarantine: str, by: str, reason: str) -> Refusal | None:
        """End a quarantine: its marks are taken back, its process goes on unless another quarantine holds it still. Its run
        stays frozen until somebody releases or closes it. Lifting twice changes nothing.

        Raises:
            JournalUnavailable: it is lifted, and that is not on disk yet.
        """
        records = lift(self._log.state, quarantine, by, reason[:2000])
        if isinstance(records, Refusal):
            return records
        if records:
            written = self._log.record(records)
            for subject in self._let_go(self._log.state.quarantines[quarantine]):
                for name, part in self.resume().items():
                    _, problem = await _told(name, part, subject)
                    if problem is not None:
                        self._telemetry.background_failed(f"lifting {quarantine}", RuntimeError(problem))
            await _durable(written)
        return None

    def _let_go(self, over: Quarantine) -> list[Subject]:
        """Return whom nothing holds any more now that a quarantine is over: its own subject, and those of quarantines that
        were lifted while this one kept them stopped."""
        state = self._log.state
        earlier = [
            one for one in state.quarantines.values() if one is not over and one.lifted and one.lifted_at >= over.at
        ]
        own = self._subject(over.told)
        subjects = [own, *(each for each in (self._subject(one.told) for one in earlier) if _is_same(own, each))]
        free = {(each.run, each.agent): each for each in subjects if state.holds(each.run, each.agent) is None}
        return list(free.values())

    async def clear(self, artifact: str, by: str, reason: str) -> Refusal | None:
        """Clear an artifact. Who may say so is for the caller to know. Clearing twice changes nothing.

        Raises:
            JournalUnavailable: it is cleared, and that is not on disk yet.
        """
        records = clear(self._log.state, artifact, by, reason[:2000])
        if isinstance(records, Refusal):
            return records
        await _durable(self._log.record(records))
        return None

    def enforce(self) -> None:
        """Freeze every open run that is quarantined: after a restart, before calls are taken. Repeatable."""
        for quarantine in self._log.state.quarantines.values():
            if quarantine.is_in_force:
                for run in [*self._runs(quarantine.told), *self._tasks_of(quarantine.told)]:
                    self._freeze(run, quarantine.told)

    def enforce_on(self, run: Run) -> None:
        """Freeze a run that was just read, if it is quarantined: the write that was to freeze it may have failed."""
        name = self._log.state.holds(run.state.id, run.state.agent)
        if name is not None:
            self._freeze(run, self._log.state.quarantines[name].told)

    def is_quarantined(self, run: str, agent: str) -> str | None:
        """Return the quarantine that a run or its agent is under, or None."""
        return self._log.state.holds(run, agent)

    # --- showing

    def views(self, *, is_all: bool = False) -> list[dict[str, object]]:
        """Return the quarantines in force, or all of them, the oldest first."""
        state = self._log.state
        return [quarantine_view(state, one) for one in state.quarantines.values() if is_all or one.is_in_force]

    def view(self, name: str) -> dict[str, object] | None:
        """Return one quarantine."""
        found = self._log.state.quarantines.get(name)
        return None if found is None else quarantine_view(self._log.state, found)

    def artifacts(self, *, is_all: bool = False) -> list[dict[str, object]]:
        """Return the artifacts that are or were marked, or all that are known."""
        known = self._log.state.lineage.artifacts.values()
        return [artifact_view(one) for one in known if is_all or one.marks]

    def graph(self, run: str) -> dict[str, object]:
        """Return what a run read and made, and what was made from that: edges in order, and the artifacts they join."""
        lineage = self._log.state.lineage
        edges = lineage.around(run)
        names = sorted({edge.artifact for edge in edges})
        return {
            "trajectory": run,
            "artifacts": [artifact_view(lineage.artifacts[name]) for name in names],
            "edges": [
                {"run": edge.run, "agent": edge.agent, "step": edge.step, "operation": edge.operation,
                 "artifact": edge.artifact, "does": "writes" if edge.is_write else "reads", "at": edge.at,
                 "epoch": edge.epoch, "digest": edge.digest}
                for edge in edges
            ],
        }  # fmt: skip

    def statistics(self) -> dict[str, object]:
        """Return figures."""
        state = self._log.state
        return {
            "quarantined_runs": len(state.runs),
            "quarantined_agents": len(state.agents),
            "in_force": sum(one.is_in_force for one in state.quarantines.values()),
            "artifacts": len(state.lineage.artifacts),
            "artifact_edges": len(state.lineage),
        }

    async def close(self) -> None:
        """Wait for what is under way, but not long. May be repeated."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=2.0)
        for task in self._tasks:
            task.cancel()


async def _told(name: str, part: Outside, subject: Subject) -> tuple[str, str | None]:
    try:
        return f"{name}: {await part(subject)}", None
    except Exception as error:
        return "", f"{name}: {error}"


async def _durable(written: asyncio.Future[None]) -> None:
    if not await settled(written, PATIENCE_S):
        raise JournalUnavailable(
            f"it holds, but the disk has not taken the record of it for {PATIENCE_S:g} s; it is written once that works"
        )


async def _all(waiting: list[asyncio.Future[None]]) -> None:
    await asyncio.gather(*waiting)


def _retrieved(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()


def _is_same(one: Subject, other: Subject) -> bool:
    return (bool(one.run) and one.run == other.run) or (bool(one.agent) and one.agent == other.agent)
