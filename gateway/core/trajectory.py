"""The state of a run, and how records fold into it.

`evolve` changes the state it is given and returns it, because a run of a thousand steps would otherwise cost a million
copies; who needs the old state folds again. What leads to records is `core/saga.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import assert_never

from gateway.core.manifest import Tier
from gateway.core.records import (
    CompensationCompleted,
    CompensationIntended,
    CompensationRefused,
    CompensationSkipped,
    ReadObserved,
    ReadsObserved,
    Record,
    RecoveryFailed,
    RefusalsObserved,
    SavepointTaken,
    StepCommitted,
    StepFailed,
    StepInDoubt,
    StepIntended,
    TrajectoryAborted,
    TrajectoryCommitted,
    TrajectoryFrozen,
    TrajectoryOpened,
    TrajectoryRewound,
    UnwindingStarted,
)
from gateway.core.tool import BoundRequest

__all__ = ["IllegalRecord", "Phase", "Step", "StepState", "Trajectory", "evolve", "fold"]


class Phase(StrEnum):
    """Where a run stands. The strings are the `state` of the runs API."""

    PREPARING = "preparing"
    FINALIZING = "finalizing"
    SUCCEEDED = "succeeded"
    COMPENSATING = "compensating"
    ABORTED_CLEAN = "aborted_clean"
    FROZEN = "frozen"


class StepState(StrEnum):
    """Where a step stands. The strings are the `state` of a step in the runs API."""

    INTENDED = "intended"
    COMMITTED = "committed"
    FAILED = "failed"
    IN_DOUBT = "in_doubt"
    COMPENSATING = "compensating"
    COMPENSATED = "compensated"
    SKIPPED = "skipped"
    COMPENSATION_FAILED = "compensation_failed"


class IllegalRecord(ValueError):
    """A record that cannot follow the ones before it: the journal contradicts itself, or the code does."""


@dataclass(slots=True)
class Step:
    """One step.

    Attributes:
        intended, order: stream versions of its intent and of its end, as far as the agent could know of it: its outcome,
            or the record of the doubt, which a later settling does not move. A step happened before another if its
            `order` is below the other's `intended`; else both ran at the same time.
        intended_at, doubted_at: UTC milliseconds.
        doubt: how the call that is in doubt went wrong.
        undo_turn: 2 once the compensator is sent for the second and last time.
        skipped: why unwinding sent nothing for it.
    """

    number: int
    tool: str
    operation: str
    tier: Tier
    action: str
    fingerprint: str
    occurrence: int
    key: str
    state: StepState
    order: int
    is_idempotent: bool = False
    is_delivered: bool = False
    caller: str | None = None
    compensator: BoundRequest | None = None
    unbound: str | None = None
    bad: str | None = None
    detail: str = ""
    is_residue: bool = False
    intended_at: int = 0
    intended: int = 0
    doubted_at: int = 0
    doubt: str = ""
    undo_turn: int = 1
    skipped: str | None = None

    @property
    def is_to_undo(self) -> bool:
        """Whether unwinding has anything to say about it yet: undo it, or record why not."""
        if self.state is StepState.FAILED:
            return self.skipped is None
        return self.state in (StepState.COMMITTED, StepState.COMPENSATING, StepState.IN_DOUBT)


@dataclass(slots=True)
class Trajectory:
    """The state of one run.

    Attributes:
        version: records folded so far; the `expected` of the next append.
        actions, callers: latest step of each action digest and of each caller's key.
        in_flight, in_doubt, unbound: numbers of the steps that are so, for the pivot's gate in constant time.
        pivot: the pivot step from its intent on, unless it failed.
        undelivered: steps whose results the agent has not got yet.
        newly_delivered: delivered since the last record, to ride on the next one.
        savepoints: stream version of each by name, in order.
        rewinding: savepoint that the present unwinding stops at; None if it undoes the run.
        recovery_failures: how often in a row settling or undoing broke off.
    """

    id: str
    agent: str = ""
    phase: Phase = Phase.PREPARING
    version: int = 0
    opened_at: int = 0
    changed_at: int = 0
    is_implicit: bool = False
    on_abandon: str = "escalate"
    on_stuck: str = "stop"
    ttl_s: float | None = None
    labels: dict[str, str] = field(default_factory=dict)
    savepoints: dict[str, int] = field(default_factory=dict)
    rewinding: str | None = None
    recovery_failures: int = 0
    steps: dict[int, Step] = field(default_factory=dict)
    actions: dict[str, int] = field(default_factory=dict)
    callers: dict[str, int] = field(default_factory=dict)
    in_flight: set[int] = field(default_factory=set)
    in_doubt: set[int] = field(default_factory=set)
    unbound: set[int] = field(default_factory=set)
    undelivered: set[int] = field(default_factory=set)
    newly_delivered: list[int] = field(default_factory=list)
    pivot: int | None = None
    reads: int = 0
    refusals: int = 0
    reason: str = ""
    incident: str = ""

    @property
    def is_open(self) -> bool:
        """Whether something may still happen in it."""
        return self.phase not in (Phase.SUCCEEDED, Phase.ABORTED_CLEAN)

    @property
    def undone_since(self) -> int:
        """The stream version that an unwinding goes back to: steps intended later are undone."""
        return 0 if self.rewinding is None else self.savepoints[self.rewinding]

    def delivered(self, number: int) -> None:
        """Note that the agent has a step's result; it is written with the next record of the run."""
        step = self.steps.get(number)
        if step is not None and not step.is_delivered:
            step.is_delivered = True
            self.undelivered.discard(number)
            self.newly_delivered.append(number)


def fold(trajectory_id: str, records: Iterable[tuple[Record, int]]) -> Trajectory:
    """Return the state of a run from all its records, each with its time (UTC milliseconds).

    Raises:
        IllegalRecord: a record cannot follow the ones before it; names the record.
    """
    state = Trajectory(id=trajectory_id)
    for record, at in records:
        evolve(state, record, at)
    return state


def evolve(state: Trajectory, record: Record, at: int) -> Trajectory:
    """Fold one record into the state. Changes `state` and returns it.

    Raises:
        IllegalRecord: the record cannot follow the ones before it; the state is unchanged.
    """
    try:
        _apply(state, record, at)
    except KeyError as error:
        raise IllegalRecord(
            f"record {state.version + 1} of run {state.id}, {type(record).__name__}, names step {error}, which is not there"
        ) from error
    state.version += 1
    state.changed_at = at
    return state


def _apply(state: Trajectory, record: Record, at: int) -> None:
    match record:
        case TrajectoryOpened():
            _expect(state, record, state.version == 0)
            state.agent, state.is_implicit, state.opened_at = record.agent, record.is_implicit, at
            state.on_abandon, state.ttl_s, state.labels = record.on_abandon, record.ttl_s, record.labels
            state.on_stuck = record.on_stuck
        case StepIntended():
            _intended(state, record, at)
        case StepCommitted():
            _committed(state, record)
        case StepFailed():
            step = _take(state, record.step, record, StepState.INTENDED, StepState.IN_DOUBT)
            step.state, step.detail, step.is_delivered = StepState.FAILED, record.detail, True
            step.compensator, step.unbound = record.compensator, record.unbound
            step.order, state.recovery_failures = max(step.order, state.version + 1), 0
            if state.pivot == step.number:
                state.pivot = None
        case StepInDoubt():
            step = _take(state, record.step, record, StepState.INTENDED)
            step.state, step.detail = StepState.IN_DOUBT, record.detail
            step.order, step.doubted_at, step.doubt = state.version + 1, at, record.fault
            state.in_doubt.add(step.number)
        case ReadObserved():
            state.reads += 1
        case ReadsObserved():
            state.reads += len(record.reads)
        case RefusalsObserved():
            state.refusals += sum(count for *_, count in record.refusals)
        case UnwindingStarted():
            is_widened = state.phase is Phase.COMPENSATING and state.rewinding is not None and record.savepoint is None
            _expect(state, record, state.phase in (Phase.PREPARING, Phase.FROZEN) or is_widened)
            _expect(state, record, record.savepoint is None or record.savepoint in state.savepoints)
            state.phase, state.reason, state.rewinding = Phase.COMPENSATING, record.reason, record.savepoint
        case SavepointTaken():
            _expect(state, record, state.phase is Phase.PREPARING)
            state.savepoints.pop(record.name, None)
            state.savepoints[record.name] = state.version + 1
        case TrajectoryRewound():
            _expect(state, record, state.phase is Phase.COMPENSATING and state.rewinding == record.savepoint)
            kept = state.savepoints[record.savepoint]
            state.savepoints = {name: at_ for name, at_ in state.savepoints.items() if at_ <= kept}
            state.phase, state.reason, state.rewinding = Phase.PREPARING, "", None
        case RecoveryFailed():
            state.recovery_failures += 1
        case CompensationIntended():
            _compensating(state, record)
        case CompensationCompleted():
            state.steps[record.step].state = StepState.COMPENSATED
            state.recovery_failures = 0
        case CompensationSkipped():
            step = state.steps[record.step]
            if step.state is not StepState.FAILED:
                step.state, step.detail = StepState.SKIPPED, record.reason
            step.skipped, step.is_residue = record.reason, record.is_residue
            state.in_doubt.discard(step.number)
        case CompensationRefused():
            step = state.steps[record.step]
            step.state, step.detail, step.is_residue = StepState.COMPENSATION_FAILED, record.detail, True
            state.in_doubt.discard(step.number)
        case TrajectoryAborted():
            _expect(state, record, state.phase is Phase.COMPENSATING and state.rewinding is None)
            state.phase = Phase.ABORTED_CLEAN
        case TrajectoryCommitted():
            _expect(state, record, state.phase in (Phase.PREPARING, Phase.FINALIZING))
            state.phase = Phase.SUCCEEDED
        case TrajectoryFrozen():
            state.phase, state.incident, state.reason = Phase.FROZEN, record.incident, record.detail
        case _ as never:
            assert_never(never)


def _intended(state: Trajectory, record: StepIntended, at: int) -> None:
    tier = Tier(record.tier)
    _expect(state, record, state.phase in (Phase.PREPARING, Phase.FINALIZING))
    _expect(state, record, record.step == len(state.steps) + 1)
    _expect(state, record, tier is not Tier.PIVOT or state.pivot is None)
    for number in record.delivered:
        step = state.steps[number]
        step.is_delivered = True
        state.undelivered.discard(number)
    if record.delivered:
        state.newly_delivered = [n for n in state.newly_delivered if n not in record.delivered]
    state.steps[record.step] = Step(
        number=record.step,
        tool=record.tool,
        operation=record.operation,
        tier=tier,
        action=record.action,
        fingerprint=record.fingerprint,
        occurrence=record.occurrence,
        key=record.key,
        state=StepState.INTENDED,
        order=state.version + 1,
        is_idempotent=record.is_idempotent,
        caller=record.caller,
        intended_at=at,
        intended=state.version + 1,
    )
    state.in_flight.add(record.step)
    state.actions[record.action] = record.step
    if record.caller is not None:
        state.callers[record.caller] = record.step
    if tier is Tier.PIVOT:
        state.pivot = record.step


def _committed(state: Trajectory, record: StepCommitted) -> None:
    step = _take(state, record.step, record, StepState.INTENDED, StepState.IN_DOUBT)
    if step.state is StepState.INTENDED:
        step.order = state.version + 1
    step.state, state.recovery_failures = StepState.COMMITTED, 0
    step.compensator, step.unbound, step.bad, step.detail = record.compensator, record.unbound, record.bad, ""
    state.undelivered.add(step.number)
    if step.unbound is not None:
        state.unbound.add(step.number)
    if step.number == state.pivot and state.phase is Phase.PREPARING:
        state.phase = Phase.FINALIZING


def _compensating(state: Trajectory, record: CompensationIntended) -> None:
    step = state.steps[record.step]
    is_first = step.state is StepState.COMMITTED or (step.state is StepState.FAILED and step.compensator is not None)
    is_blind = step.state is StepState.IN_DOUBT and record.compensator is not None
    is_second = step.state is StepState.COMPENSATING and record.round > step.undo_turn
    _expect(state, record, state.phase is Phase.COMPENSATING and (is_first or is_blind or is_second))
    if record.compensator is not None:
        step.compensator = record.compensator
    step.state, step.undo_turn = StepState.COMPENSATING, record.round
    state.in_doubt.discard(step.number)


def _take(state: Trajectory, number: int, record: Record, *legal: StepState) -> Step:
    step = state.steps[number]
    _expect(state, record, step.state in legal)
    state.in_flight.discard(number)
    state.in_doubt.discard(number)
    return step


def _expect(state: Trajectory, record: Record, is_legal: bool) -> None:
    if not is_legal:
        raise IllegalRecord(
            f"record {state.version + 1} of run {state.id}, {type(record).__name__}, cannot follow: the run is {state.phase}"
        )
