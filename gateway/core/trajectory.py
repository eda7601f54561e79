"""The state of a run, and how records fold into it.

`evolve` changes the state it is given and returns it, because a run of a thousand steps would otherwise cost a million
copies; who needs the old state folds again. What leads to records is `core/saga.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, assert_never

from gateway.core.approval import Approval, ApprovalState, fold_approval
from gateway.core.circles import Circles, fold_circles
from gateway.core.manifest import Tier
from gateway.core.records import (
    ApprovalDecided,
    ApprovalExpired,
    ApprovalRequested,
    BudgetTightened,
    ChildOpened,
    ChildSettled,
    CompensationCompleted,
    CompensationIntended,
    CompensationRefused,
    CompensationSkipped,
    ContentBlocked,
    GatePassed,
    IncidentAcknowledged,
    LeaseEnded,
    LeaseTaken,
    LoopInterrupted,
    MetricsReported,
    NoticesDelivered,
    PlanAdopted,
    PolicyObserved,
    ReadObserved,
    ReadsObserved,
    Record,
    RecoveryFailed,
    RefusalsObserved,
    SavepointTaken,
    StateReported,
    StepCommitted,
    StepDeferred,
    StepFailed,
    StepInDoubt,
    StepIntended,
    StepReleased,
    StepResolved,
    StepStaged,
    TaskAccepted,
    TaskEnded,
    TrajectoryAborted,
    TrajectoryClosed,
    TrajectoryClosing,
    TrajectoryCommitted,
    TrajectoryFrozen,
    TrajectoryOpened,
    TrajectoryReleased,
    TrajectoryRewound,
    UnwindingStarted,
    UsageReported,
)
from gateway.core.sparse import NONE, NOTHING, excluding, including, own
from gateway.core.tool import BoundRequest

__all__ = [
    "OVERDUE_FAULT",
    "UNSENT_FAULT",
    "Blocked",
    "Clearance",
    "IllegalRecord",
    "Incident",
    "Notice",
    "Phase",
    "Planned",
    "Step",
    "StepState",
    "Trajectory",
    "evolve",
    "fold",
]


class Phase(StrEnum):
    """Where a run stands. The strings are the `state` of the runs API."""

    PREPARING = "preparing"
    FINALIZING = "finalizing"
    SUCCEEDED = "succeeded"
    COMPENSATING = "compensating"
    ABORTED_CLEAN = "aborted_clean"
    FROZEN = "frozen"
    CLOSED = "closed"


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
    STAGED = "staged"
    DEFERRED = "deferred"


# Members that every call is compared with, looked up once (docs/adr/0092).
_COMMITTED: Final = StepState.COMMITTED
_FINALIZING: Final = Phase.FINALIZING
_INTENDED: Final = StepState.INTENDED
_IN_DOUBT: Final = StepState.IN_DOUBT
_PIVOT: Final = Tier.PIVOT
_PREPARING: Final = Phase.PREPARING


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
        answer: hash of the tool's no, by which an equal one is recognised.
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
    caller: str | None = None
    intended_at: int = 0
    intended: int = 0
    method: str = ""
    target: str = ""
    approval: str | None = None
    is_delivered: bool = False
    compensator: BoundRequest | None = None
    unbound: str | None = None
    bad: str | None = None
    detail: str = ""
    is_residue: bool = False
    doubted_at: int = 0
    doubt: str = ""
    undo_turn: int = 1
    skipped: str | None = None
    committed_at: int = 0
    fault: str = ""
    status: int | None = None
    is_staged: bool = False
    lease: str | None = None
    lease_until: int | None = None
    leak: tuple[str, float, float, str] | None = None
    resolved: str | None = None
    answer: str = ""

    @property
    def is_to_undo(self) -> bool:
        """Whether unwinding has anything to say about it yet: undo it, or record why not."""
        if self.state is StepState.FAILED:
            return self.skipped is None
        return self.state in (StepState.COMMITTED, StepState.COMPENSATING, StepState.IN_DOUBT, StepState.STAGED)


@dataclass(frozen=True, slots=True)
class Clearance:
    """The gates let this action pass, on the run as `snapshot` describes it."""

    action: str
    snapshot: str
    approval: str | None


@dataclass(frozen=True, slots=True)
class Notice:
    """Something about an incident that people are told out of band: `opened`, `acknowledged` or `resolved`."""

    position: int
    kind: str
    at: int
    principal: str = ""
    reason: str = ""


@dataclass(slots=True)
class Incident:
    """One time that the run was frozen. `position` is that of the record, and with the run's name its own name."""

    id: str
    kind: str
    position: int
    at: int
    detail: str
    step: int | None
    by: str
    acknowledged_by: str | None = None
    resolved_by: str | None = None
    notices: list[Notice] = field(default_factory=list)

    @property
    def state(self) -> str:
        """`open`, `acknowledged` or `resolved`."""
        if self.resolved_by is not None:
            return "resolved"
        return "open" if self.acknowledged_by is None else "acknowledged"


@dataclass(slots=True)
class Blocked:
    """What a tool's content filter refused of one operation: actions, the newest, and attempts in a row."""

    actions: dict[str, None] = field(default_factory=dict)
    attempts: int = 0


@dataclass(slots=True)
class Planned:
    """A step of an enforced plan. `needs` are the plan's own names; `step` is the run's number once it was taken."""

    id: str
    tool: str
    operation: str
    tier: Tier
    phase: str
    needs: tuple[str, ...]
    step: int | None = None


@dataclass(slots=True)
class Trajectory:
    """The state of one run.

    Attributes:
        version: records folded so far; the `expected` of the next append.
        actions, callers: latest step of each action digest and of each caller's key.
        in_flight, in_doubt, unbound: numbers of the steps that are so, for the pivot's gate in constant time.
        leases: numbers of the steps whose effect is good for a time only, undone ones among them.
        pivot: the pivot step from its intent on, unless it failed.
        unsent: how many steps never left.
        budget, usage: caps by name; what was spent of them beside what the steps and reads themselves tell, by children
            that are over, too.
        children: tasks that name it, or one of its own that is over, as their parent and are not settled yet.
        reports: names of the latest reports of usage, each of which counts once.
        undelivered: steps whose results the agent has not got yet.
        newly_delivered: delivered since the last record, to ride on the next one.
        savepoints: stream version of each by name, in order.
        rewinding: savepoint that the present unwinding stops at; None if it undoes the run.
        recovery_failures: how often in a row settling or undoing broke off.
        staged, deferred, released: steps that wait for the pivot, that failed past it, that were released and are not done.
        is_closing: no more steps; to be committed once nothing is left to finish.
        resume: the phase that a frozen run was in.
        circles: what the watchdog of the run has to know after a restart; None as long as there is nothing.
        standing: how many steps of each tool and operation an abort would undo; None where it has to be counted anew.
        blocked: content that tools have blocked, by tool and operation.
        task, task_digest, task_ended: the packet that opened it, and how the task ended.
        notified, settled_to: how far each sink, and all of them, have taken the notices about the incidents.
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
    labels: dict[str, str] = NOTHING
    budget: dict[str, float] = NOTHING
    usage: dict[str, float] = NOTHING
    reports: dict[str, None] = NOTHING
    children: dict[str, None] = NOTHING
    savepoints: dict[str, int] = NOTHING
    rewinding: str | None = None
    recovery_failures: int = 0
    steps: dict[int, Step] = field(default_factory=dict)
    actions: dict[str, int] = field(default_factory=dict)
    callers: dict[str, int] = NOTHING
    in_flight: set[int] = NONE
    in_doubt: set[int] = NONE
    unbound: set[int] = NONE
    leases: set[int] = NONE
    undelivered: set[int] = NONE
    newly_delivered: tuple[int, ...] = ()
    pivot: int | None = None
    unsent: int = 0
    reads: int = 0
    refusals: int = 0
    reason: str = ""
    incident: str = ""
    staged: set[int] = NONE
    deferred: set[int] = NONE
    released: set[int] = NONE
    is_closing: bool = False
    approvals: dict[str, Approval] = NOTHING
    clearance: Clearance | None = None
    plan: list[Planned] | None = None
    resume: Phase | None = None
    incidents: tuple[Incident, ...] = ()
    notified: dict[str, int] = NOTHING
    settled_to: int = 0
    circles: Circles | None = None
    standing: Counter[tuple[str, str]] | None = field(default=None, compare=False)
    blocked: dict[tuple[str, str], Blocked] = NOTHING
    task: dict[str, Any] | None = None
    task_digest: str = ""
    task_ended: dict[str, Any] | None = None

    @property
    def is_over(self) -> bool:
        """Whether its end is reached: no step, no compensator, nothing to decide."""
        return self.phase in _OVER

    @property
    def is_open(self) -> bool:
        """Whether something may still happen in it, be it only that people are told of its end."""
        return self.phase is _PREPARING or self.phase not in _OVER or self.has_notices

    @property
    def is_past_pivot(self) -> bool:
        """Whether it can only go forward, frozen or not."""
        return self.pivot is not None or _FINALIZING in (self.phase, self.resume)

    @property
    def open_incident(self) -> Incident | None:
        """The incident that keeps it frozen."""
        return self.incidents[-1] if self.phase is Phase.FROZEN and self.incidents else None

    @property
    def has_notices(self) -> bool:
        """Whether people have yet to be told something."""
        return bool(self.incidents) and self.incidents[-1].notices[-1].position > self.settled_to

    @property
    def has_living_approvals(self) -> bool:
        """Whether a person may still decide something, or a decision be used."""
        return any(approval.is_living for approval in self.approvals.values())

    @property
    def needs_attention(self) -> bool:
        """Whether time alone makes something due in it: approvals, notices, doubts, work past the pivot."""
        if self.in_doubt or self.staged or self.deferred or self.released or self.is_closing or self.approvals:
            return True
        return bool(self.incidents) and self.has_notices

    def to_undo(self) -> Counter[tuple[str, str]]:
        """Return how many committed steps of each tool and operation an abort would undo.

        Counted as steps commit, and anew only after something was undone, so that a long run costs no more to ask than a
        short one.
        """
        if self.standing is None:
            self.standing = Counter(
                (step.tool, step.operation)
                for step in self.steps.values()
                if step.state is StepState.COMMITTED and step.compensator is not None
            )
        return self.standing

    def collects(self, action: str) -> bool:
        """Whether a call of this action only collects, joins or settles what was sent already."""
        number = self.actions.get(action)
        return number is not None and any(
            number in numbers
            for numbers in (self.undelivered, self.in_doubt, self.in_flight, self.staged, self.deferred)
        )

    @property
    def needs_recovery(self) -> list[int]:
        """Numbers of the steps that ran for longer than twice their timeout and are not settled yet."""
        return sorted(number for number in self.in_doubt if self.steps[number].doubt == OVERDUE_FAULT)

    @property
    def undone_since(self) -> int:
        """The stream version that an unwinding goes back to: steps intended later are undone."""
        return 0 if self.rewinding is None else self.savepoints[self.rewinding]

    def delivered(self, number: int) -> None:
        """Note that the agent has a step's result; it is written with the next record of the run.

        Only what is done has one: whatever the agent read of a step that is in doubt or deferred, its result is yet to come.
        """
        step = self.steps.get(number)
        if step is not None and step.state is _COMMITTED and not step.is_delivered:
            step.is_delivered = True
            self.undelivered = excluding(self.undelivered, number)
            self.newly_delivered += (number,)


_OVER = (Phase.SUCCEEDED, Phase.ABORTED_CLEAN, Phase.CLOSED)


def fold(trajectory_id: str, records: Iterable[tuple[Record, int]]) -> Trajectory:
    """Return the state of a run from all its records, each with its time (UTC milliseconds).

    Raises:
        IllegalRecord: a record cannot follow the ones before it; names the record.
    """
    state = Trajectory(id=trajectory_id)
    for record, at in records:
        evolve(state, record, at)
    return state


_RELEASABLE = (StepState.STAGED, StepState.DEFERRED)


def evolve(state: Trajectory, record: Record, at: int) -> Trajectory:
    """Fold one record into the state. Changes `state` and returns it.

    Raises:
        IllegalRecord: the record cannot follow the ones before it; the state is unchanged.
    """
    fold = _FOLDS.get(type(record), _apply)
    try:
        fold(state, record, at)
    except KeyError as error:
        raise IllegalRecord(
            f"record {state.version + 1} of run {state.id}, {type(record).__name__}, names step {error}, which is not there"
        ) from error
    state.version += 1
    state.changed_at = at
    if state.standing is not None and isinstance(record, _TAKES_AWAY):
        state.standing = None
    return state


_TAKES_AWAY = (CompensationIntended, CompensationCompleted, CompensationSkipped, CompensationRefused, StepResolved)
"""Records after which fewer steps stand than before."""


def _apply(state: Trajectory, record: Record, at: int) -> None:
    match record:
        case TrajectoryOpened():
            _expect(state, record, state.version == 0)
            state.agent, state.is_implicit, state.opened_at = record.agent, record.is_implicit, at
            state.on_abandon, state.ttl_s, state.labels = record.on_abandon, record.ttl_s, record.labels or NOTHING
            state.on_stuck, state.budget = record.on_stuck, dict(record.budget) if record.budget else NOTHING
        case StepIntended():
            _intended(state, record, at)
        case StepCommitted():
            _committed(state, record, at)
        case StepFailed():
            step = _take(state, record.step, record, StepState.INTENDED, StepState.IN_DOUBT)
            step.state, step.detail, step.is_delivered = StepState.FAILED, record.detail, True
            step.compensator, step.unbound = record.compensator, record.unbound
            step.order, state.recovery_failures = max(step.order, state.version + 1), 0
            step.fault, step.status, step.answer = record.fault, record.status, record.answer
            state.unsent += record.fault == UNSENT_FAULT
            _not_landed(state, step)
        case StepInDoubt():
            step = _take(state, record.step, record, StepState.INTENDED)
            step.state, step.detail = StepState.IN_DOUBT, record.detail
            step.order, step.doubted_at, step.doubt = state.version + 1, at, record.fault
            step.fault, step.status = record.fault, record.status
            state.in_doubt = including(state.in_doubt, step.number)
        case StepDeferred():
            step = _take(state, record.step, record, StepState.INTENDED, StepState.IN_DOUBT)
            step.state, step.detail = StepState.DEFERRED, record.detail
            step.fault, step.status = record.fault, record.status
            state.deferred = including(state.deferred, step.number)
        case StepStaged():
            _staged(state, record, at)
        case StepReleased():
            step = state.steps[record.step]
            _expect(state, record, state.phase is Phase.FINALIZING and step.state in _RELEASABLE)
            if step.state is StepState.STAGED:
                step.intended_at = at
            state.staged = excluding(state.staged, step.number)
            state.deferred = excluding(state.deferred, step.number)
            step.state = StepState.INTENDED
            state.in_flight = including(state.in_flight, step.number)
            state.released = including(state.released, step.number)
        case ReadObserved():
            state.reads += 1
        case ReadsObserved():
            state.reads += len(record.reads)
        case RefusalsObserved():
            state.refusals += sum(count for *_, count in record.refusals)
        case PolicyObserved() | LeaseTaken() | LeaseEnded():
            pass  # for the audit
        case UnwindingStarted():
            is_widened = state.phase is Phase.COMPENSATING and state.rewinding is not None and record.savepoint is None
            _expect(state, record, state.phase in (Phase.PREPARING, Phase.FROZEN) or is_widened)
            _expect(state, record, record.savepoint is None or record.savepoint in state.savepoints)
            state.phase, state.reason, state.rewinding = Phase.COMPENSATING, record.reason, record.savepoint
            state.resume = None
            _void_approvals(state)
        case SavepointTaken():
            _expect(state, record, state.phase is Phase.PREPARING)
            state.savepoints = own(state.savepoints)
            state.savepoints.pop(record.name, None)
            state.savepoints[record.name] = state.version + 1 if record.since is None else record.since
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
            state.in_doubt = excluding(state.in_doubt, step.number)
            state.staged = excluding(state.staged, step.number)
        case CompensationRefused():
            step = state.steps[record.step]
            step.state, step.detail, step.is_residue = StepState.COMPENSATION_FAILED, record.detail, True
            step.fault, step.status = record.fault, record.status
            state.in_doubt = excluding(state.in_doubt, step.number)
        case TrajectoryAborted():
            _expect(state, record, state.phase is Phase.COMPENSATING and state.rewinding is None)
            state.phase = Phase.ABORTED_CLEAN
        case TrajectoryCommitted():
            _expect(state, record, state.phase in (Phase.PREPARING, Phase.FINALIZING))
            state.phase, state.is_closing = Phase.SUCCEEDED, False
            _void_approvals(state)
        case TrajectoryClosing():
            _expect(state, record, state.phase in (Phase.PREPARING, Phase.FINALIZING))
            state.is_closing = True
            _no_way_back(state)
        case TrajectoryFrozen():
            _frozen(state, record, at)
        case TrajectoryReleased() | TrajectoryClosed() | IncidentAcknowledged() | StepResolved():
            _decided(state, record, at)
            if isinstance(record, TrajectoryReleased) and state.circles is not None:
                state.circles.released(state.version + 1)
        case BudgetTightened():
            state.budget = own(state.budget)
            for name, cap in record.caps.items():
                state.budget[name] = min(cap, state.budget.get(name, cap))
        case UsageReported():
            _used(state, record)
        case ChildOpened():
            state.children = own(state.children)
            state.children[record.child] = None
        case ChildSettled():
            if record.child in state.children:
                del state.children[record.child]
                state.children.update(dict.fromkeys(record.heirs))
                _spent(state, record.values)
        case ContentBlocked():
            state.blocked = own(state.blocked)
            blocked = state.blocked.setdefault((record.tool, record.operation), Blocked())
            blocked.actions[record.action] = None
            blocked.attempts += 1
            if len(blocked.actions) > BLOCKED_KEPT:
                del blocked.actions[next(iter(blocked.actions))]
        case TaskAccepted():
            state.task, state.task_digest = record.task, record.digest
        case TaskEnded():
            state.task_ended = record.result
        case LoopInterrupted() | StateReported() | MetricsReported():
            state.circles = fold_circles(state.circles or Circles(), record, state.version + 1)
        case ApprovalRequested() | ApprovalDecided() | ApprovalExpired():
            state.approvals = own(state.approvals)
            fold_approval(state.approvals, record, at)
        case GatePassed():
            state.clearance = Clearance(record.action, record.snapshot, record.approval)
        case PlanAdopted():
            state.plan = [
                Planned(
                    id=one["id"], tool=one["tool"], operation=one["operation"], tier=Tier(one["tier"]),
                    phase=one["phase"], needs=tuple(one["needs"]))
                for one in record.steps
            ]  # fmt: skip
        case NoticesDelivered():
            state.notified = own(state.notified)
            state.notified[record.sink] = record.up_to
            if record.is_complete:
                state.settled_to = max(state.settled_to, record.up_to)
        case _ as never:
            assert_never(never)


_TIERS: dict[str, Tier] = {tier.value: tier for tier in Tier}

OVERDUE_FAULT = "overdue"
"""The doubt of a step that ran for longer than twice its timeout."""

UNSENT_FAULT = "unsent"
"""The fault of a step that certainly never left: it costs its run no step, call or retry."""

BLOCKED_KEPT = 256
"""Actions of one operation that are remembered as blocked."""

REPORTS_KEPT = 256
"""Names of reports that are remembered, so that one that is sent again is not counted again."""


def _spent(state: Trajectory, values: Mapping[str, float]) -> None:
    state.usage = own(state.usage)
    for name, amount in values.items():
        state.usage[name] = state.usage.get(name, 0.0) + amount


def _used(state: Trajectory, record: UsageReported) -> None:
    _spent(state, record.values)
    if record.report is not None:
        state.reports = own(state.reports)
        state.reports[record.report] = None
        if len(state.reports) > REPORTS_KEPT:
            del state.reports[next(iter(state.reports))]


def _intended(state: Trajectory, record: StepIntended, at: int) -> None:
    number, tier, steps, position = record.step, _TIERS[record.tier], state.steps, state.version + 1
    if (
        (state.phase is not _PREPARING and state.phase is not _FINALIZING)
        or number != len(steps) + 1
        or (tier is _PIVOT and state.pivot is not None)
    ):
        _expect(state, record, False)
    if record.delivered:
        _delivered(state, record.delivered)
    step = steps[number] = Step(
        number,
        record.tool,
        record.operation,
        tier,
        record.action,
        record.fingerprint,
        record.occurrence,
        record.key,
        _INTENDED,
        position,
        record.is_idempotent,
        record.caller,
        at,
        position,
        record.method,
        record.target,
        record.approval,
    )
    if state.in_flight:
        state.in_flight.add(number)
    else:
        state.in_flight = {number}
    _known(state, step)
    if tier is _PIVOT:
        state.pivot = number


def _staged(state: Trajectory, record: StepStaged, at: int) -> None:
    _expect(state, record, state.phase is Phase.PREPARING and state.pivot is None)
    _expect(state, record, record.step == len(state.steps) + 1)
    _delivered(state, record.delivered)
    step = state.steps[record.step] = Step(
        number=record.step,
        tool=record.tool,
        operation=record.operation,
        tier=Tier(record.tier),
        action=record.action,
        fingerprint=record.fingerprint,
        occurrence=record.occurrence,
        key=record.key,
        state=StepState.STAGED,
        order=state.version + 1,
        is_idempotent=record.is_idempotent,
        is_delivered=True,
        caller=record.caller,
        intended_at=at,
        intended=state.version + 1,
        method=record.method,
        target=record.target,
        approval=record.approval,
        is_staged=True,
    )
    state.staged = including(state.staged, record.step)
    _known(state, step)


def _delivered(state: Trajectory, numbers: list[int]) -> None:
    for number in numbers:
        state.steps[number].is_delivered = True
    if state.undelivered:
        state.undelivered.difference_update(numbers)
        state.undelivered = state.undelivered or NONE
    if state.newly_delivered == tuple(numbers):  # as it is where the record was only just made
        state.newly_delivered = ()
    elif numbers:
        state.newly_delivered = tuple([n for n in state.newly_delivered if n not in numbers])


def _known(state: Trajectory, step: Step) -> None:
    """What a repeat is recognised by, and what the step uses up: its clearance, its approval, its place in the plan."""
    state.actions[step.action] = step.number
    if step.caller is not None:
        state.callers = own(state.callers)
        state.callers[step.caller] = step.number
    if step.approval is not None:
        approval = state.approvals[step.approval]
        approval.state, approval.step = ApprovalState.USED, step.number
    state.clearance = None
    if state.plan is None:
        return
    for planned in state.plan:
        is_free = planned.step is None or state.steps[planned.step].state is StepState.FAILED
        if is_free and (planned.tool, planned.operation) == (step.tool, step.operation):
            planned.step = step.number
            break


def _committed(state: Trajectory, record: StepCommitted, at: int) -> None:
    number = record.step
    step = _take(state, number, record, _INTENDED, _IN_DOUBT)
    if step.state is _INTENDED:
        step.order = state.version + 1
    step.state, state.recovery_failures, step.committed_at = _COMMITTED, 0, at
    step.compensator, step.unbound, step.bad, step.detail = record.compensator, record.unbound, record.bad, ""
    if state.blocked and record.bad is None and (blocked := state.blocked.get((step.tool, step.operation))):
        blocked.attempts = 0
    step.lease_until, step.leak = record.lease_until, record.leak
    if record.lease is not None:
        step.lease = record.lease
        state.leases = including(state.leases, number)
    if number in state.released:
        state.released = excluding(state.released, number)
    elif not step.is_delivered:
        if state.undelivered:
            state.undelivered.add(number)
        else:
            state.undelivered = {number}
    if record.unbound is not None:
        state.unbound = including(state.unbound, number)
    if state.standing is not None and step.compensator is not None:
        state.standing[(step.tool, step.operation)] += 1
    if number == state.pivot:
        _no_way_back(state)
    elif state.phase is _FINALIZING or state.resume is _FINALIZING:
        step.compensator, state.standing = None, None


def _no_way_back(state: Trajectory) -> None:
    """The pivot has committed: compensators are retired, for good."""
    if state.phase is Phase.PREPARING:
        state.phase = Phase.FINALIZING
    elif state.phase is Phase.FROZEN and state.resume is Phase.PREPARING:
        state.resume = Phase.FINALIZING
    if Phase.FINALIZING in (state.phase, state.resume):
        state.standing = None
        for step in state.steps.values():
            if step.state is not StepState.COMPENSATED:
                step.compensator = None


def _not_landed(state: Trajectory, step: Step) -> None:
    """The step certainly had no effect: what it used up is free again, within its time."""
    state.released = excluding(state.released, step.number)
    if state.pivot == step.number:
        state.pivot = None
    approval = state.approvals.get(step.approval or "")
    if approval is not None and approval.state is ApprovalState.USED:
        approval.state, approval.step = ApprovalState.GRANTED, None


def _void_approvals(state: Trajectory) -> None:
    state.clearance = None
    for approval in state.approvals.values():
        if approval.is_living:
            approval.state = ApprovalState.VOID


def _frozen(state: Trajectory, record: TrajectoryFrozen, at: int) -> None:
    _expect(state, record, not state.is_over)
    if state.phase is Phase.FROZEN:
        return  # the first incident stands until a person has decided
    state.resume = state.phase
    state.phase, state.incident, state.reason = Phase.FROZEN, record.incident, record.detail
    position = state.version + 1
    incident = Incident(f"{state.id}~{position}", record.incident, position, at, record.detail, record.step, record.by)
    incident.notices.append(Notice(position, "opened", at, record.by, record.detail))
    state.incidents += (incident,)


def _decided(
    state: Trajectory,
    record: TrajectoryReleased | TrajectoryClosed | IncidentAcknowledged | StepResolved,
    at: int,
) -> None:
    """A person has spoken."""
    if isinstance(record, StepResolved):
        _resolved(state, record, at)
        return
    incident = state.open_incident
    _expect(state, record, incident is not None)
    assert incident is not None
    kind = "acknowledged" if isinstance(record, IncidentAcknowledged) else "resolved"
    incident.notices.append(Notice(state.version + 1, kind, at, record.principal, record.reason))
    if isinstance(record, IncidentAcknowledged):
        incident.acknowledged_by = record.principal
        return
    incident.resolved_by = record.principal
    state.incident, state.reason, state.recovery_failures = "", record.reason, 0
    if isinstance(record, TrajectoryClosed):
        state.phase, state.resume, state.is_closing = Phase.CLOSED, None, False
        _void_approvals(state)
        return
    state.phase, state.resume = Phase(record.to), None
    for step in state.steps.values():
        if step.state is StepState.IN_DOUBT:
            step.doubted_at = at
        if step.state is StepState.COMPENSATION_FAILED and state.phase is Phase.COMPENSATING:
            step.state, step.is_residue = StepState.COMMITTED, False
    if state.phase is Phase.COMPENSATING:
        _void_approvals(state)


def _resolved(state: Trajectory, record: StepResolved, at: int) -> None:
    step = state.steps[record.step]
    step.resolved = record.verdict
    step.detail = f"{record.verdict.replace('_', ' ')}, says {record.principal}: {record.evidence}"
    has_landed = record.verdict == "landed"
    state.in_flight = excluding(state.in_flight, step.number)
    state.in_doubt = excluding(state.in_doubt, step.number)
    state.staged = excluding(state.staged, step.number)
    state.deferred = excluding(state.deferred, step.number)
    step.is_residue = False
    if step.state in (StepState.COMPENSATING, StepState.COMPENSATION_FAILED):
        step.state = StepState.COMMITTED if has_landed else StepState.COMPENSATED
        return
    if not has_landed:
        step.state, step.is_delivered = StepState.FAILED, True
        _not_landed(state, step)
        return
    step.state, step.order, step.committed_at = StepState.COMMITTED, state.version + 1, at
    state.released = excluding(state.released, step.number)
    if not step.is_staged:
        # Its agent was only ever told that nobody knows: a repeat of its call is told now, and does nothing anew.
        step.is_delivered = False
        state.undelivered = including(state.undelivered, step.number)
    if step.number == state.pivot:
        _no_way_back(state)
    elif step.tier is Tier.COMPENSABLE and not state.is_past_pivot:
        step.unbound = "a person found that it landed; there is no answer to bind its compensator from"
        state.unbound = including(state.unbound, step.number)


def _compensating(state: Trajectory, record: CompensationIntended) -> None:
    step = state.steps[record.step]
    is_first = step.state is StepState.COMMITTED or (step.state is StepState.FAILED and step.compensator is not None)
    is_blind = step.state is StepState.IN_DOUBT and record.compensator is not None
    is_second = step.state is StepState.COMPENSATING and record.round > step.undo_turn
    _expect(state, record, state.phase is Phase.COMPENSATING and (is_first or is_blind or is_second))
    if record.compensator is not None:
        step.compensator = record.compensator
    step.state, step.undo_turn = StepState.COMPENSATING, record.round
    state.in_doubt = excluding(state.in_doubt, step.number)


def _take(state: Trajectory, number: int, record: Record, *legal: StepState) -> Step:
    step = state.steps[number]
    if step.state not in legal:
        _expect(state, record, False)
    if state.in_flight:
        state.in_flight.discard(number)
        if not state.in_flight:
            state.in_flight = NONE
    if state.in_doubt:
        state.in_doubt = excluding(state.in_doubt, number)
    return step


_FOLDS: Final[dict[type[Any], Callable[[Trajectory, Any, int], None]]] = {
    StepIntended: _intended,
    StepCommitted: _committed,
}
"""The records that every write makes: found without asking for each of the others first."""


def _expect(state: Trajectory, record: Record, is_legal: bool) -> None:
    if not is_legal:
        raise IllegalRecord(
            f"record {state.version + 1} of run {state.id}, {type(record).__name__}, cannot follow: the run is {state.phase}"
        )
