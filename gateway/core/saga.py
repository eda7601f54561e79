"""A run is a saga: `decide` says which records a command leads to, `evolve` (`core/trajectory.py`) folds them.

        preparing ──(pivot commits)──► finalizing ──► succeeded
            │  └──────────────(commit)──────────────────▲
            └──(abort)──► compensating ──► aborted_clean
        any of them ──► frozen                       (a person decides)

A step:  intended ─► committed ─► compensating ─► compensated | compensation_failed
            │  └───► failed          └────────► skipped
            └──────► in_doubt ─► committed | failed

What holds here, whatever the callers do (design section 2): intents precede effects because a step exists only by its
`StepIntended`; unwinding is last-in first-out by order of completion, a step in doubt taking the place of its intent;
there is at most one pivot, it is admitted only when everything before it is settled and can be undone, and after it only
idempotent steps are; an unwinding run admits nothing; a frozen run admits nothing at all.

A command that is not legal yields a `Refusal` and no record. Nothing here reads a clock or draws a number.

Source: Garcia-Molina & Salem, "Sagas", SIGMOD 1987; Richardson, "Microservices Patterns", chapter 4 (pivot); Chassaing,
"Functional Event Sourcing Decider", 2021 (decide and evolve).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from gateway.core.codes import Code
from gateway.core.keys import derive_key, undo_key
from gateway.core.manifest import ApprovalPolicy, Tier
from gateway.core.outcome import Refusal
from gateway.core.records import (
    CompensationCompleted,
    CompensationIntended,
    CompensationRefused,
    CompensationSkipped,
    Record,
    RecordedReply,
    StepCommitted,
    StepFailed,
    StepInDoubt,
    StepIntended,
    TrajectoryAborted,
    TrajectoryCommitted,
    TrajectoryFrozen,
    TrajectoryOpened,
    UnwindingStarted,
)
from gateway.core.tool import BoundRequest, Operation
from gateway.core.trajectory import Phase, Step, StepState, Trajectory

__all__ = [
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
    "Nothing",
    "Open",
    "RefuseCompensation",
    "Skip",
    "SkipCompensation",
    "Stuck",
    "Undo",
    "Unwinding",
    "Wait",
    "admits",
    "decide",
    "next_undo",
    "residue",
]


# --- commands -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Begin a run."""

    agent: str
    is_implicit: bool = False
    on_abandon: str = "escalate"
    ttl_s: float | None = None
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Take a step. `caller` is the digest of the agent's own key and `caller_key` the key itself; `salt` keys ours."""

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
    """Certainly no effect."""

    step: int
    fault: str
    detail: str
    status: int | None = None


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
class IntendCompensation:
    """Send a compensator. Asking again for one that was sent changes nothing: it is re-sent under the same key."""

    step: int
    salt: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishCompensation:
    """The step is undone."""

    step: int
    status: int | None = None


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
    """Stop the run for a person."""

    incident: str
    detail: str


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
)


def decide(state: Trajectory, command: Command) -> list[Record] | Refusal:
    """Return the records that a command leads to (none if nothing changes), or why it is not legal.

    The state is not changed. Deciding twice on the same state gives the same answer.
    """
    match command:
        case Open():
            return _open(state, command)
        case Begin():
            return admits(state, command.operation) or [_intent(state, command)]
        case Complete():
            return _outcome(state, command.step, StepCommitted(
                step=command.step, reply=command.reply, compensator=command.compensator,
                unbound=command.unbound, bad=command.bad))  # fmt: skip
        case Fail():
            return _outcome(state, command.step, StepFailed(
                step=command.step, fault=command.fault, detail=command.detail, status=command.status))  # fmt: skip
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
            return _unwound(state, command.step, CompensationCompleted(step=command.step, status=command.status))
        case SkipCompensation():
            return _unwound(state, command.step, CompensationSkipped(
                step=command.step, reason=command.reason, is_residue=command.is_residue))  # fmt: skip
        case RefuseCompensation():
            return _refuse_compensation(state, command)
        case FinishUnwinding():
            is_done = state.phase is Phase.COMPENSATING and isinstance(next_undo(state), Nothing)
            return [TrajectoryAborted()] if is_done else []
        case Freeze():
            if state.phase is Phase.FROZEN or not state.is_open:
                return []
            return [TrajectoryFrozen(incident=command.incident, detail=command.detail)]
        case _ as never:
            assert_never(never)


# --- what each command needs ----------------------------------------------------------------------------------------


def admits(state: Trajectory, operation: Operation) -> Refusal | None:
    """Return why a step of `operation` is not legal now, or None. Cheap enough to ask before any queue."""
    if state.phase is Phase.FROZEN:
        return _frozen(state)
    if state.phase not in (Phase.PREPARING, Phase.FINALIZING):
        return _closed(state)
    if operation.is_read:
        return None
    if state.pivot is not None and (operation.tier is Tier.PIVOT or not operation.is_idempotent):
        return Refusal(
            code=Code.PIVOT_ORDER,
            detail=f"Run {state.id} has its irreversible step (step {state.pivot}) already, and {operation.name} is "
            f"{_what(operation)}; only reads and idempotent steps may follow. Commit this run and open a new one for it.",
            extra={"pivot": state.pivot},
        )
    if operation.tier is Tier.PIVOT:
        return _pivot_gate(state, operation)
    return None


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
    if operation.approval is ApprovalPolicy.REQUIRED:
        problems.append("it needs an approval and no way to give one is configured")
    if not problems:
        return None
    return Refusal(
        code=Code.PIVOT_GATE,
        detail=f"{operation.name} is irreversible and may not be sent while {'; '.join(problems)}. "
        "Resolve that and send it again, or abort the run.",
    )


def _frozen(state: Trajectory) -> Refusal:
    return Refusal(
        code=Code.TRAJECTORY_FROZEN,
        detail=f"Run {state.id} is frozen ({state.incident}): {state.reason} An operator has to decide; send nothing more.",
        extra={"incident": state.incident},
    )


def _closed(state: Trajectory) -> Refusal:
    what = {
        Phase.SUCCEEDED: "is committed",
        Phase.ABORTED_CLEAN: "is aborted",
        Phase.COMPENSATING: "is being undone",
    }[state.phase]
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
        )
    ]


def _intent(state: Trajectory, command: Begin) -> Record:
    previous = state.actions.get(command.action)
    occurrence = 1 if previous is None else state.steps[previous].occurrence + 1
    key = command.caller_key or derive_key(
        command.salt, state.id, command.tool, command.operation.name, command.action, str(occurrence)
    )
    return StepIntended(
        step=len(state.steps) + 1,
        tool=command.tool,
        operation=command.operation.name,
        tier=command.operation.tier.value,
        action=command.action,
        fingerprint=command.fingerprint,
        occurrence=occurrence,
        key=key,
        method=command.method,
        target=command.target,
        is_idempotent=command.operation.is_idempotent,
        caller=command.caller,
        body_digest=command.body_digest,
        delivered=list(state.newly_delivered),
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
    if state.phase in (Phase.COMPENSATING, Phase.ABORTED_CLEAN):
        return _closed(state)
    if state.in_flight:
        return Refusal(
            code=Code.IDEMPOTENCY_CONFLICT,
            detail=f"Step {min(state.in_flight)} of run {state.id} is still in flight. Wait for it, then commit.",
            retry_after_ms=1000,
        )
    if state.in_doubt:
        return Refusal(
            code=Code.OUTCOME_UNKNOWN,
            detail=f"The outcome of step {min(state.in_doubt)} of run {state.id} is unknown, so it cannot be committed. "
            "Send that call again unchanged to settle it, or abort the run.",
        )
    return [TrajectoryCommitted(by=command.by)]


def _abort(state: Trajectory, command: Abort) -> list[Record] | Refusal:
    match state.phase:
        case Phase.COMPENSATING | Phase.ABORTED_CLEAN:
            return []
        case Phase.SUCCEEDED:
            return _closed(state)
        case Phase.FROZEN:
            return _frozen(state)
    if state.pivot is not None:
        return Refusal(
            code=Code.PIVOT_ORDER,
            detail=f"Run {state.id} has sent its irreversible step (step {state.pivot}) and cannot be undone any more. "
            "Finish it with idempotent steps and commit it.",
            extra={"pivot": state.pivot},
        )
    return [UnwindingStarted(reason=command.reason, by=command.by)]


def _intend_compensation(state: Trajectory, command: IntendCompensation) -> list[Record]:
    if state.phase is not Phase.COMPENSATING or state.steps[command.step].state is not StepState.COMMITTED:
        return []
    return [CompensationIntended(step=command.step, key=undo_key(command.salt, state.id, command.step))]


def _unwound(state: Trajectory, number: int, record: Record) -> list[Record]:
    ended = (StepState.COMPENSATED, StepState.SKIPPED, StepState.COMPENSATION_FAILED)
    return [] if state.steps[number].state in ended else [record]


def _refuse_compensation(state: Trajectory, command: RefuseCompensation) -> list[Record]:
    step = state.steps[command.step]
    if step.state is StepState.COMPENSATION_FAILED:
        return []
    return [
        CompensationRefused(step=step.number, fault=command.fault, detail=command.detail, status=command.status),
        TrajectoryFrozen(
            incident="COMPENSATION_CORRUPTED",
            detail=f"The compensator of step {step.number} ({step.tool}.{step.operation}) was refused for good: "
            f"{command.detail}",
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
    """Return what unwinding has to do next: the latest of what is left, by order of completion."""
    if state.in_flight:
        return Wait(state.steps[min(state.in_flight)])
    left = [
        step
        for step in state.steps.values()
        if step.state in (StepState.COMMITTED, StepState.COMPENSATING, StepState.IN_DOUBT)
    ]
    if not left:
        return Nothing()
    step = max(left, key=lambda candidate: candidate.order)
    if step.state is StepState.IN_DOUBT:
        return Stuck(step, f"its outcome is unknown: {step.detail}")
    if step.compensator is not None:
        return Undo(step)
    if step.unbound is not None:
        return Skip(step, f"its compensator could not be bound: {step.unbound}", is_residue=True)
    if step.tier is Tier.UNMANAGED:
        return Skip(step, "the tool declares no operations, so there is no compensator", is_residue=True)
    return Skip(step, "no compensator is declared", is_residue=step.tier is not Tier.READ)


def residue(state: Trajectory) -> list[Step]:
    """Return the steps whose effects an abort leaves in the world, in order."""
    return [step for step in state.steps.values() if step.is_residue]
