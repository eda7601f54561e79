"""Past the point of no return: what was staged is sent, what failed is tried again, until all is done or a person decides.

Further irreversible calls (`pivot: stage`: notices, webhooks) are not sent when the agent makes them. They are kept with
their whole request, released in the order in which they came once the pivot has committed, and dropped with a run that is
undone. Each carries its own key and its release is durable before it leaves, so a crash leaves it in doubt and never sends
it twice on a guess. A step that an agent takes past the pivot joins them when it fails for a passing reason.

Source: seed 000, "The double-pivot trap" (staged webhooks behind an atomic outbox) and "Finalisation phase"; Richardson,
"Microservices Patterns", chapter 3 (transactional outbox).
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.fault import Fault
from gateway.core.records import Record, StepCommitted, StepDeferred, StepFailed, StepInDoubt, TrajectoryFrozen
from gateway.core.trajectory import Phase, Step, StepState, Trajectory

__all__ = ["Await", "Done", "Finish", "Send", "is_obliged", "next_finish", "outcome_records", "stalled"]


@dataclass(frozen=True, slots=True)
class Send:
    """Send this step (again), under its own key."""

    step: Step


@dataclass(frozen=True, slots=True)
class Await:
    """This step has to be known before anything after it may be sent: it is on its way, or somebody has to settle it."""

    step: Step


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing is left. `is_closing`: the run may be committed now."""

    is_closing: bool


Finish = Send | Await | Done


def next_finish(state: Trajectory) -> Finish:
    """Return what a run past its pivot has to do next: the first, in order, of what is not done.

    A step in doubt is for the settler, by probe or under its key; nothing after it is sent before it is known.
    """
    left = state.staged | state.deferred | state.released
    if state.phase is not Phase.FINALIZING or not left:
        return Done(state.is_closing and state.phase is Phase.FINALIZING and not state.in_flight and not state.in_doubt)
    step = state.steps[min(left)]
    return Send(step) if step.state in (StepState.STAGED, StepState.DEFERRED) else Await(step)


def is_obliged(state: Trajectory, step: Step) -> bool:
    """Whether a step has to be finished: it comes after the pivot, or was staged for it."""
    is_past = state.phase is Phase.FINALIZING or state.resume is Phase.FINALIZING
    return is_past and (step.number in state.released or (state.pivot is not None and step.number > state.pivot))


def outcome_records(
    state: Trajectory, record: StepCommitted | StepFailed | StepInDoubt, *, is_ours: bool
) -> list[Record]:
    """Return what an outcome amounts to in this run.

    `is_ours`: the gateway sent it with no agent waiting, so nobody reads a refusal and repairs it: what a tool refuses
    for good, or answers badly, is for a person.
    """
    step = state.steps[record.step]
    if step.state in (StepState.STAGED, StepState.DEFERRED) and isinstance(record, StepFailed):
        return []
    if not is_obliged(state, step):
        return [record]
    match record:
        case StepFailed(fault=fault) if fault != Fault.CLIENT_ERROR.value:
            return [_deferred(record)]
        case StepFailed() if is_ours and state.phase is not Phase.FROZEN:
            return [_deferred(record), stalled(step, f"{step.tool} refused it for good: {record.detail}")]
        case StepFailed() if is_ours:
            return [_deferred(record)]
        case StepCommitted(bad=bad) if is_ours and bad is not None and state.phase is not Phase.FROZEN:
            return [record, stalled(step, f"{step.tool} answered, but {bad}")]
    return [record]


def _deferred(record: StepFailed) -> StepDeferred:
    return StepDeferred(step=record.step, fault=record.fault, detail=record.detail, status=record.status)


def stalled(step: Step, why: str) -> TrajectoryFrozen:
    """Return the record that freezes a run which cannot be finished."""
    return TrajectoryFrozen(
        incident="POST_PIVOT_STALLED",
        detail=f"Step {step.number} ({step.tool}.{step.operation}) cannot be completed: {why}",
        step=step.number,
    )
