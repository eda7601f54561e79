"""A run is a saga: `decide` says which records a command leads to, `evolve` (`core/trajectory.py`) folds them.

        preparing ──(pivot commits)──► finalizing ──► succeeded
            │  └──────────────(commit)──────────────────▲
            ├──(abort)──► compensating ──► aborted_clean
            └──(rewind)─► compensating ──► preparing     (from the savepoint on)
        any of them ──► frozen                       (a person decides)

A step:  intended ─► committed ─► compensating ─► compensated | compensation_failed
            │  └───► failed ─(may be partial)─► compensating
            └──────► in_doubt ─► committed | failed ; committed ─► skipped where nothing can be sent

What holds here, whatever the callers do (design section 2): intents precede effects because a step exists only by its
`StepIntended`; unwinding is last-in first-out by order of completion, and waits only for calls in flight that began after
the step to be undone was over (what ran at the same time has no order to keep); there is at most one pivot, it is admitted
only when everything before it is settled and can be undone, and after it only idempotent steps are; an unwinding run
admits nothing; a frozen run admits nothing at all.

A command that is not legal yields a `Refusal` and no record. Nothing here reads a clock or draws a number.

Source: Garcia-Molina & Salem, "Sagas", SIGMOD 1987; Richardson, "Microservices Patterns", chapter 4 (pivot); Chassaing,
"Functional Event Sourcing Decider", 2021 (decide and evolve).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, assert_never

from gateway.core.codes import Code
from gateway.core.gate import cleared, closed_gate
from gateway.core.keys import derive_key, undo_key
from gateway.core.manifest import ApprovalPolicy, Tier
from gateway.core.outcome import Refusal
from gateway.core.plan import against_plan
from gateway.core.records import (
    CompensationCompleted,
    CompensationIntended,
    CompensationRefused,
    CompensationSkipped,
    Record,
    RecordedReply,
    RecordedRequest,
    RecoveryFailed,
    SavepointTaken,
    StepCommitted,
    StepFailed,
    StepInDoubt,
    StepIntended,
    StepStaged,
    TrajectoryAborted,
    TrajectoryClosing,
    TrajectoryCommitted,
    TrajectoryFrozen,
    TrajectoryOpened,
    TrajectoryRewound,
    UnwindingStarted,
)
from gateway.core.sparse import NOTHING
from gateway.core.tool import BoundRequest, Operation
from gateway.core.trajectory import Phase, Step, StepState, Trajectory
from gateway.core.value import frozen

__all__ = [
    "QUARANTINED",
    "Abort",
    "Begin",
    "Command",
    "Commit",
    "Complete",
    "Doubt",
    "Fail",
    "FinishCompensation",
    "FinishUnwinding",
    "Freeze",
    "IntendCompensation",
    "NoteRecoveryFailure",
    "Nothing",
    "Open",
    "RefuseCompensation",
    "Rewind",
    "Savepoint",
    "Skip",
    "SkipCompensation",
    "Stuck",
    "Undo",
    "Unwinding",
    "Wait",
    "admits",
    "admits_repeat",
    "admits_settling",
    "decide",
    "next_undo",
    "residue",
]

# Members that every call is compared with, looked up once (docs/adr/0092).
_FINALIZING: Final = Phase.FINALIZING
_FROZEN: Final = Phase.FROZEN
_PIVOT: Final = Tier.PIVOT
_PREPARING: Final = Phase.PREPARING
_REQUIRED: Final = ApprovalPolicy.REQUIRED


QUARANTINED = "QUARANTINED"
"""Class of the incident of a run that is quarantined."""

# --- commands -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Begin a run."""

    agent: str
    is_implicit: bool = False
    on_abandon: str = "escalate"
    ttl_s: float | None = None
    labels: dict[str, str] = NOTHING
    on_stuck: str = "stop"
    budget: dict[str, float] = NOTHING


@frozen(kw_only=False)
class Begin:
    """Take a step, or stage it where its operation says so.

    `caller` is the digest of the agent's own key and `caller_key` the key itself; `salt` keys ours. `at` is UTC
    milliseconds: without it whatever may run out has run out. A `stage` that the run is not in yet takes a savepoint of that
    name first.
    """

    tool: str
    operation: Operation
    action: str
    fingerprint: str
    method: str
    target: str
    salt: bytes
    body_digest: str | None = None
    caller: str | None = None
    caller_key: str | None = None
    request: RecordedRequest | None = None
    stage: str = ""
    at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """The tool did it."""

    step: int
    reply: RecordedReply
    compensator: BoundRequest | None = None
    unbound: str | None = None
    bad: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """Certainly no effect, or, with a compensator, perhaps a part of it."""

    step: int
    fault: str
    detail: str
    status: int | None = None
    compensator: BoundRequest | None = None
    unbound: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Sent, effect unknown."""

    step: int
    fault: str
    detail: str
    status: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Close the run as done."""

    by: str = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """Undo the run. Asking again while it is being undone, or after, changes nothing."""

    reason: str
    by: str = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint:
    """Note where the run stands, to rewind to. The same name again moves it."""

    name: str
    by: str = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """Undo what came after a savepoint and go on from there."""

    savepoint: str
    reason: str
    by: str = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntendCompensation:
    """Send a compensator. Asking again for one that was sent changes nothing: it is re-sent under the same key.

    `compensator` is needed only for a step in doubt; `turn` 2 is the repeat after the effect was found back.
    """

    step: int
    salt: bytes
    compensator: BoundRequest | None = None
    turn: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishCompensation:
    """The step is undone, `is_proven` by a probe."""

    step: int
    status: int | None = None
    is_proven: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipCompensation:
    """There is nothing to send for this step."""

    step: int
    reason: str
    is_residue: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseCompensation:
    """The compensator was refused for good: the run freezes."""

    step: int
    fault: str
    detail: str
    status: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishUnwinding:
    """Nothing is left to undo."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze:
    """Stop the run for a person. `step` is the one it is about."""

    incident: str
    detail: str
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteRecoveryFailure:
    """Settling or undoing broke off on something unforeseen; the third time in a row freezes the run."""

    where: str
    error: str


Command = (
    Open
    | Begin
    | Complete
    | Fail
    | Doubt
    | Commit
    | Abort
    | IntendCompensation
    | FinishCompensation
    | SkipCompensation
    | RefuseCompensation
    | FinishUnwinding
    | Freeze
    | Savepoint
    | Rewind
    | NoteRecoveryFailure
)


def decide(state: Trajectory, command: Command) -> list[Record] | Refusal:
    """Return the records that a command leads to (none if nothing changes), or why it is not legal.

    The state is not changed. Deciding twice on the same state gives the same answer.
    """
    match command:
        case Open():
            return _open(state, command)
        case Begin():
            return _begin(state, command)
        case Complete():
            return _outcome(state, command.step, StepCommitted(
                step=command.step, reply=command.reply, compensator=command.compensator,
                unbound=command.unbound, bad=command.bad))  # fmt: skip
        case Fail():
            return _outcome(state, command.step, StepFailed(
                step=command.step, fault=command.fault, detail=command.detail, status=command.status,
                compensator=command.compensator, unbound=command.unbound))  # fmt: skip
        case Doubt():
            if state.steps[command.step].state is StepState.IN_DOUBT:
                return []
            return _outcome(state, command.step, StepInDoubt(
                step=command.step, fault=command.fault, detail=command.detail, status=command.status))  # fmt: skip
        case Commit():
            return _commit(state, command)
        case Abort():
            return _abort(state, command)
        case IntendCompensation():
            return _intend_compensation(state, command)
        case FinishCompensation():
            return _unwound(state, command.step, CompensationCompleted(
                step=command.step, status=command.status, is_proven=command.is_proven))  # fmt: skip
        case SkipCompensation():
            return _unwound(state, command.step, CompensationSkipped(
                step=command.step, reason=command.reason, is_residue=command.is_residue))  # fmt: skip
        case RefuseCompensation():
            return _refuse_compensation(state, command)
        case FinishUnwinding():
            is_done = state.phase is Phase.COMPENSATING and isinstance(next_undo(state), Nothing)
            return [_end_of_unwinding(state)] if is_done else []
        case Freeze():
            if state.phase is Phase.FROZEN or state.is_over:
                return []
            return [TrajectoryFrozen(incident=command.incident, detail=command.detail, step=command.step)]
        case Savepoint():
            return _savepoint(state, command)
        case Rewind():
            return _rewind(state, command)
        case NoteRecoveryFailure():
            return _recovery_failed(state, command)
        case _ as never:
            assert_never(never)


# --- what each command needs ----------------------------------------------------------------------------------------


def admits(state: Trajectory, operation: Operation) -> Refusal | None:
    """Return why a step of `operation` is not legal now, or None. Cheap enough to ask before any queue."""
    phase = state.phase
    if phase is not _PREPARING and phase is not _FINALIZING:
        return _frozen(state) if phase is _FROZEN else _closed(state)
    if operation.is_read:
        return None
    if state.is_closing:
        return _closed(state)
    if operation.is_staged and state.pivot is None:
        return None
    if state.pivot is not None and (operation.tier is _PIVOT or not operation.is_idempotent):
        return Refusal(
            code=Code.PIVOT_ORDER,
            detail=f"Run {state.id} has its irreversible step (step {state.pivot}) already, and {operation.name} is "
            f"{_what(operation)}; only reads and idempotent steps may follow. Commit this run and open a new one for it.",
            extra={"pivot": state.pivot},
        )
    if operation.tier is _PIVOT:
        return _pivot_gate(state, operation)
    return None


def admits_settling(state: Trajectory) -> Refusal | None:
    """Return why nothing may be sent to settle a step of the run, or None. A run that is being undone settles on."""
    if state.phase is Phase.FROZEN:
        return _frozen(state)
    return _closed(state) if state.is_over else None


def admits_repeat(state: Trajectory, *, is_in_doubt: bool) -> Refusal | None:
    """Return why a step that has its intent may not be sent again, or None.

    A run that is being undone sends nothing that would only have to be undone, except to settle what is in doubt.
    """
    refusal = admits_settling(state)
    if refusal is None and state.phase is Phase.COMPENSATING and not is_in_doubt:
        return _closed(state)
    return refusal


def _what(operation: Operation) -> str:
    return "irreversible too" if operation.tier is Tier.PIVOT else "not idempotent"


def _pivot_gate(state: Trajectory, operation: Operation) -> Refusal | None:
    problems = [
        *(f"step {n} ({state.steps[n].operation}) is still in flight" for n in sorted(state.in_flight)),
        *(f"the outcome of step {n} ({state.steps[n].operation}) is unknown" for n in sorted(state.in_doubt)),
        *(
            f"step {n} ({state.steps[n].operation}) cannot be undone: {state.steps[n].unbound}"
            for n in sorted(state.unbound)
        ),
    ]
    return closed_gate(operation.name, problems) if problems else None


def _frozen(state: Trajectory) -> Refusal:
    if state.incident == QUARANTINED:
        return Refusal(
            code=Code.QUARANTINED,
            detail=f"Run {state.id} is quarantined: {state.reason} Send nothing more; an operator has to look at it.",
            extra={"incident": state.incident},
        )
    return Refusal(
        code=Code.TRAJECTORY_FROZEN,
        detail=f"Run {state.id} is frozen ({state.incident}): {state.reason} An operator has to decide; send nothing more.",
        extra={"incident": state.incident},
    )


def _closed(state: Trajectory) -> Refusal:
    what = (
        "is being finished"
        if state.is_closing
        else {
            Phase.SUCCEEDED: "is committed",
            Phase.ABORTED_CLEAN: "is aborted",
            Phase.COMPENSATING: "is being undone",
            Phase.CLOSED: "was closed by an operator",
        }[state.phase]
    )
    return Refusal(
        code=Code.TRAJECTORY_CLOSED,
        detail=f"Run {state.id} {what} and takes no more steps. Open a new run.",
        extra={"state": state.phase.value},
    )


def _open(state: Trajectory, command: Open) -> list[Record]:
    if state.version:
        return []
    return [
        TrajectoryOpened(
            agent=command.agent,
            is_implicit=command.is_implicit,
            on_abandon=command.on_abandon,
            ttl_s=command.ttl_s,
            labels=command.labels,
            on_stuck=command.on_stuck,
            budget=command.budget,
        )
    ]


def _stage(state: Trajectory, name: str) -> list[Record]:
    """A savepoint in front of the first step of a stage of the run; none is needed twice in a row, or past the pivot."""
    if not name or state.phase is not _PREPARING or next(reversed(state.savepoints), None) == name:
        return []
    return [SavepointTaken(name=name, by="stage")] if len(state.savepoints) < SAVEPOINTS_LIMIT else []


def _begin(state: Trajectory, command: Begin) -> list[Record] | Refusal:
    operation = command.operation
    refusal = (
        admits(state, operation)
        or against_plan(state, command.tool, operation)
        or cleared(state, operation, command.action, command.at)
    )
    if refusal is not None:
        return refusal
    intent = _intent(state, command)
    return [*_stage(state, command.stage), intent] if command.stage else [intent]


def _intent(state: Trajectory, command: Begin) -> Record:
    operation, action = command.operation, command.action
    previous = state.actions.get(action)
    occurrence = 1 if previous is None else state.steps[previous].occurrence + 1
    key = command.caller_key or derive_key(
        command.salt, state.id, command.tool, operation.name, action, str(occurrence)
    )
    approval = None
    if operation.approval is _REQUIRED and state.clearance is not None:
        approval = state.clearance.approval
    if operation.is_staged:
        assert command.request is not None
        return StepStaged(
            step=len(state.steps) + 1,
            tool=command.tool,
            operation=operation.name,
            tier=operation.tier.value,
            action=action,
            fingerprint=command.fingerprint,
            occurrence=occurrence,
            key=key,
            method=command.method,
            target=command.target,
            request=command.request,
            is_idempotent=operation.is_idempotent,
            caller=command.caller,
            approval=approval,
            delivered=list(state.newly_delivered),
        )
    return StepIntended(
        len(state.steps) + 1,
        command.tool,
        operation.name,
        operation.tier._value_,
        action,
        command.fingerprint,
        occurrence,
        key,
        command.method,
        command.target,
        operation.is_idempotent,
        command.caller,
        command.body_digest,
        list(state.newly_delivered),
        command.request,
        approval,
    )


def _outcome(state: Trajectory, number: int, record: Record) -> list[Record] | Refusal:
    if state.steps[number].state not in (StepState.INTENDED, StepState.IN_DOUBT):
        return []
    return [record]


def _commit(state: Trajectory, command: Commit) -> list[Record] | Refusal:
    if state.phase is Phase.SUCCEEDED:
        return []
    if state.phase is Phase.FROZEN:
        return _frozen(state)
    if state.phase in (Phase.COMPENSATING, Phase.ABORTED_CLEAN, Phase.CLOSED):
        return _closed(state)
    if in_flight := state.in_flight - state.released:
        return Refusal(
            code=Code.IDEMPOTENCY_CONFLICT,
            detail=f"Step {min(in_flight)} of run {state.id} is still in flight. Wait for it, then commit.",
            retry_after_ms=1000,
        )
    if in_doubt := state.in_doubt - state.released:
        return Refusal(
            code=Code.OUTCOME_UNKNOWN,
            detail=f"The outcome of step {min(in_doubt)} of run {state.id} is unknown, so it cannot be committed. "
            "Send that call again unchanged to settle it, or abort the run.",
        )
    if state.staged or state.deferred or state.released:
        return [] if state.is_closing else [TrajectoryClosing(by=command.by)]
    return [TrajectoryCommitted(by=command.by)]


def _abort(state: Trajectory, command: Abort) -> list[Record] | Refusal:
    match state.phase:
        case Phase.COMPENSATING if state.rewinding is not None:
            return [UnwindingStarted(reason=command.reason, by=command.by)]
        case Phase.COMPENSATING | Phase.ABORTED_CLEAN:
            return []
        case Phase.SUCCEEDED | Phase.CLOSED:
            return _closed(state)
        case Phase.FROZEN:
            return _frozen(state)
    if state.is_past_pivot:
        sent = f"sent its irreversible step (step {state.pivot})" if state.pivot else "begun to send what was staged"
        return Refusal(
            code=Code.PIVOT_ORDER,
            detail=f"Run {state.id} has {sent} and cannot be undone any more. "
            "Finish it with idempotent steps and commit it.",
            extra={"pivot": state.pivot},
        )
    return [UnwindingStarted(reason=command.reason, by=command.by)]


SAVEPOINTS_LIMIT = 1000
"""Savepoints a run may have; an agent that needs more has lost its way."""


def _savepoint(state: Trajectory, command: Savepoint) -> list[Record] | Refusal:
    if state.phase is Phase.FROZEN:
        return _frozen(state)
    if state.phase is Phase.FINALIZING or state.pivot is not None:
        return _past_pivot(state, "a savepoint past it could not be rewound to")
    if state.phase is not Phase.PREPARING:
        return _closed(state)
    if len(state.savepoints) >= SAVEPOINTS_LIMIT and command.name not in state.savepoints:
        return Refusal(
            code=Code.INVALID_ARGUMENTS,
            detail=f"Run {state.id} has {SAVEPOINTS_LIMIT} savepoints, its limit. Use one of their names again.",
        )
    return [SavepointTaken(name=command.name, by=command.by)]


def _rewind(state: Trajectory, command: Rewind) -> list[Record] | Refusal:
    if state.phase is Phase.FROZEN:
        return _frozen(state)
    if state.phase is Phase.COMPENSATING and state.rewinding == command.savepoint:
        return []
    if state.is_past_pivot:
        return _past_pivot(state, "nothing can be undone any more")
    if state.phase is not Phase.PREPARING:
        return _closed(state)
    if command.savepoint not in state.savepoints:
        known = ", ".join(list(state.savepoints)[-10:]) or "none"
        return Refusal(
            code=Code.INVALID_ARGUMENTS,
            detail=f"Run {state.id} has no savepoint {command.savepoint!r}; it has: {known}. "
            "Rewind to one of them, or abort the run.",
            extra={"savepoints": list(state.savepoints)[-10:]},
        )
    return [UnwindingStarted(reason=command.reason, by=command.by, savepoint=command.savepoint)]


def _past_pivot(state: Trajectory, why: str) -> Refusal:
    return Refusal(
        code=Code.PIVOT_ORDER,
        detail=f"Run {state.id} has sent its irreversible step (step {state.pivot}): {why}. "
        "Finish it with idempotent steps and commit it.",
        extra={"pivot": state.pivot},
    )


RECOVERY_FAILURES_LIMIT = 3


def _recovery_failed(state: Trajectory, command: NoteRecoveryFailure) -> list[Record]:
    if state.phase is Phase.FROZEN or state.is_over:
        return []
    failed = RecoveryFailed(where=command.where, error=command.error)
    if state.recovery_failures + 1 < RECOVERY_FAILURES_LIMIT:
        return [failed]
    incident = "POST_PIVOT_STALLED" if state.is_past_pivot else "COMPENSATION_CORRUPTED"
    return [
        failed,
        TrajectoryFrozen(
            incident=incident,
            detail=f"{command.where} broke off {RECOVERY_FAILURES_LIMIT} times in a row, last with: {command.error}",
        ),
    ]


def _end_of_unwinding(state: Trajectory) -> Record:
    failed = [step for step in state.steps.values() if step.state is StepState.COMPENSATION_FAILED]
    if failed:
        named = ", ".join(f"{step.number} ({step.tool}.{step.operation})" for step in failed)
        return TrajectoryFrozen(
            incident="COMPENSATION_CORRUPTED",
            detail=f"Everything else is undone, but not step {named}: {failed[-1].detail}",
            step=failed[-1].number,
        )
    if state.rewinding is not None:
        return TrajectoryRewound(savepoint=state.rewinding)
    return TrajectoryAborted()


def _intend_compensation(state: Trajectory, command: IntendCompensation) -> list[Record]:
    step = state.steps[command.step]
    is_known = step.state is StepState.COMMITTED or (step.state is StepState.FAILED and step.compensator is not None)
    is_blind = step.state is StepState.IN_DOUBT and command.compensator is not None
    is_second = step.state is StepState.COMPENSATING and command.turn > step.undo_turn
    if state.phase is not Phase.COMPENSATING or not (is_known or is_blind or is_second):
        return []
    return [
        CompensationIntended(
            step=command.step,
            key=undo_key(command.salt, state.id, command.step, command.turn),
            compensator=command.compensator if is_blind else None,
            round=command.turn,
        )
    ]


def _unwound(state: Trajectory, number: int, record: Record) -> list[Record]:
    step = state.steps[number]
    ended = (StepState.COMPENSATED, StepState.SKIPPED, StepState.COMPENSATION_FAILED)
    return [] if step.state in ended or step.skipped is not None else [record]


def _refuse_compensation(state: Trajectory, command: RefuseCompensation) -> list[Record]:
    step = state.steps[command.step]
    if step.state is StepState.COMPENSATION_FAILED or state.phase is not Phase.COMPENSATING:
        return []
    refused = CompensationRefused(step=step.number, fault=command.fault, detail=command.detail, status=command.status)
    if state.on_stuck == "continue":
        return [refused]
    return [
        refused,
        TrajectoryFrozen(
            incident="COMPENSATION_CORRUPTED",
            detail=f"The compensator of step {step.number} ({step.tool}.{step.operation}) was refused for good: "
            f"{command.detail}",
            step=step.number,
        ),
    ]


# --- unwinding ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wait:
    """A forward step is still in flight and may land: nothing is undone before it is known."""

    step: Step


@dataclass(frozen=True, slots=True)
class Undo:
    """Send the compensator of this step next."""

    step: Step


@dataclass(frozen=True, slots=True)
class Skip:
    """Record that this step is not undone, and why."""

    step: Step
    reason: str
    is_residue: bool


@dataclass(frozen=True, slots=True)
class Stuck:
    """This step has to be settled before anything earlier may be undone."""

    step: Step
    reason: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """All is undone."""


Unwinding = Wait | Undo | Skip | Stuck | Nothing


def next_undo(state: Trajectory) -> Unwinding:
    """Return what unwinding has to do next: the latest of what is left, by order of completion.

    A call in flight is waited for only if it began after that step was over, or if nothing else is left.
    """
    since = state.undone_since
    left = [step for step in state.steps.values() if step.intended > since and step.is_to_undo]
    flying = [step for number in state.in_flight if (step := state.steps[number]).intended > since]
    if not left:
        return Wait(min(flying, key=lambda flight: flight.number)) if flying else Nothing()
    step = max(left, key=lambda candidate: candidate.order)
    later = [flight for flight in flying if flight.intended > step.order]
    if later:
        return Wait(min(later, key=lambda flight: flight.number))
    return _undo(step)


def _undo(step: Step) -> Unwinding:
    if step.state is StepState.IN_DOUBT:
        return Stuck(step, f"its outcome is unknown: {step.detail}")
    if step.state is StepState.STAGED:
        return Skip(step, "it was staged and is dropped: it never left", is_residue=False)
    if step.compensator is not None:
        return Undo(step)
    if step.unbound is not None:
        return Skip(step, f"its compensator could not be bound: {step.unbound}", is_residue=True)
    if step.state is StepState.FAILED:
        return Skip(step, f"it had no effect: {step.detail}", is_residue=False)
    if step.tier is Tier.UNMANAGED:
        return Skip(step, "the tool declares no operations, so there is no compensator", is_residue=True)
    return Skip(step, "no compensator is declared", is_residue=step.tier is not Tier.READ)


def residue(state: Trajectory) -> list[Step]:
    """Return the steps whose effects an abort leaves in the world, in order."""
    return [step for step in state.steps.values() if step.is_residue]
