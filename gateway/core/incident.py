"""A frozen run and what a person needs to decide about it.

An incident is not a thing of its own: it is a `TrajectoryFrozen` record and what people did about it since. Its name is
the run's and the position of that record. A run is frozen if and only if it has an open incident, so letting it go on, or
closing it, resolves the incident in the same record.

What a person may say about a step is one thing only: whether its effect is in the world. `landed` puts the step back among
those that have to be undone or finished; `not_landed` takes it off the list, be it that it never happened or that somebody
undid it by hand.

Source: seed 000, "Terminal escalation" (freeze, preserve, classify, call the operator out of band); research, durability
section 5 (the operator's verbs).
"""

from __future__ import annotations

from typing import Final

from gateway.core.codes import Code
from gateway.core.outcome import Refusal
from gateway.core.records import (
    IncidentAcknowledged,
    Record,
    StepResolved,
    TrajectoryClosed,
    TrajectoryFrozen,
    TrajectoryReleased,
)
from gateway.core.trajectory import Incident, Phase, Step, StepState, Trajectory

__all__ = [
    "acknowledge",
    "close",
    "freeze",
    "incident_view",
    "release",
    "resolve_step",
]

_SHOWN: Final = 2000


def freeze(state: Trajectory, kind: str, reason: str, by: str, step: int | None = None) -> list[Record] | Refusal:
    """Stop a run for a person; one that is frozen stays as it is."""
    if state.phase is Phase.FROZEN:
        return []
    if state.is_over:
        return _over(state)
    return [TrajectoryFrozen(incident=kind, detail=reason, by=by, step=step)]


def acknowledge(state: Trajectory, principal: str, reason: str) -> list[Record] | Refusal:
    """Note that somebody looks after the incident; once is enough."""
    incident = state.open_incident
    if incident is None:
        return _not_frozen(state)
    return [] if incident.acknowledged_by == principal else [IncidentAcknowledged(principal=principal, reason=reason)]


def release(state: Trajectory, to: str | None, principal: str, reason: str) -> list[Record] | Refusal:
    """Let a frozen run go on where it stopped, or in the phase `to`, if that can be.

    Never back over the pivot: a run whose irreversible step was sent is not undone, and one that was being undone takes
    no new steps. What was given up (a refused compensator) is tried again.
    """
    if state.phase is not Phase.FROZEN:
        return _not_frozen(state)
    before = state.resume or Phase.PREPARING
    allowed = {
        Phase.PREPARING: (Phase.PREPARING, Phase.COMPENSATING) if state.pivot is None else (Phase.PREPARING,),
        Phase.COMPENSATING: (Phase.COMPENSATING,),
        Phase.FINALIZING: (Phase.FINALIZING,),
    }[before]
    if to is not None and to not in allowed:
        return Refusal(
            code=Code.PIVOT_ORDER,
            detail=f"Run {state.id} was {before.value} when it was frozen and can only go on as "
            f"{' or '.join(phase.value for phase in allowed)}.",
        )
    return [TrajectoryReleased(to=to or before.value, principal=principal, reason=reason)]


def close(state: Trajectory, principal: str, reason: str) -> list[Record] | Refusal:
    """End a frozen run as it is: nothing more is sent, undone or finished."""
    if state.phase is Phase.CLOSED:
        return []
    if state.phase is not Phase.FROZEN:
        return _not_frozen(state)
    return [TrajectoryClosed(principal=principal, reason=reason)]


def resolve_step(state: Trajectory, number: int, verdict: str, evidence: str, principal: str) -> list[Record] | Refusal:
    """Record what a person found out about a step: `landed` or `not_landed`, with the evidence.

    Possible for a step in doubt, one whose compensator failed or is in doubt, and one that could not be finished. Saying
    the same again changes nothing.
    """
    step = state.steps.get(number)
    if step is None:
        return Refusal(
            code=Code.INVALID_ARGUMENTS, detail=f"Run {state.id} has no step {number}; it has {len(state.steps)} steps."
        )
    said = StepResolved(step=number, verdict=verdict, evidence=evidence, principal=principal)
    if step.resolved == verdict and step.state in (StepState.COMMITTED, StepState.FAILED, StepState.COMPENSATED):
        return []
    if step.state in (StepState.STAGED, StepState.DEFERRED, StepState.COMPENSATING, StepState.COMPENSATION_FAILED):
        return [said] if state.phase is Phase.FROZEN else _freeze_first(state)
    if step.state is not StepState.IN_DOUBT:
        return Refusal(
            code=Code.ALREADY_DECIDED,
            detail=f"Step {number} of run {state.id} is {step.state.value}, which leaves nothing to resolve.",
            extra={"state": step.state.value},
        )
    return [said]


def incident_view(state: Trajectory, incident: Incident, at: int) -> dict[str, object]:
    """Return everything a person needs to decide, as plain values; times are UTC milliseconds.

    What is undone and what is not, what leaks, what is open, the call that failed and what it answered, and the next
    steps that can be taken, as commands.
    """
    steps = list(state.steps.values())
    failed = None if incident.step is None else state.steps.get(incident.step)
    return {
        "id": incident.id,
        "state": incident.state,
        "class": incident.kind,
        "detail": incident.detail,
        "trajectory": state.id,
        "agent": state.agent,
        "labels": state.labels,
        "journal_position": incident.position,
        "opened_at": incident.at,
        "by": incident.by,
        "acknowledged_by": incident.acknowledged_by,
        "resolved_by": incident.resolved_by,
        "run_state": state.phase.value,
        "was": None if state.resume is None else state.resume.value,
        "pivot": state.pivot,
        "failed": None if failed is None else _failed(failed),
        "done": [_brief(s) for s in steps if s.state is StepState.COMMITTED],
        "undone": [
            _brief(s) for s in steps if s.state in (StepState.COMPENSATED, StepState.SKIPPED) and not s.is_residue
        ],
        "not_undone": [_undoing(s) for s in reversed(steps) if _is_left(state, s)],
        "unknown": [_brief(s) for s in steps if s.state in (StepState.IN_DOUBT, StepState.INTENDED)],
        "unfinished": [_brief(s) for s in steps if s.state in (StepState.STAGED, StepState.DEFERRED)],
        "leaks": _leaks(state, at),
        "next": _next(state, incident, failed),
    }


def _is_left(state: Trajectory, step: Step) -> bool:
    """Whether its effect is in the world although the run was to be undone."""
    if state.is_past_pivot:
        return False
    return step.is_residue or step.state in (StepState.COMMITTED, StepState.COMPENSATING, StepState.COMPENSATION_FAILED)


def _brief(step: Step) -> dict[str, object]:
    return {"step": step.number, "tool": step.tool, "operation": step.operation, "tier": step.tier.value,
            "state": step.state.value, "key": step.key, "detail": step.detail or None}  # fmt: skip


def _undoing(step: Step) -> dict[str, object]:
    undo = step.compensator
    return _brief(step) | {
        "compensator": None if undo is None else {"tool": undo.tool, "method": undo.method, "target": undo.target}
    }


def _failed(step: Step) -> dict[str, object]:
    """The call that went wrong: the compensator where that was it, else the step's own."""
    undo = step.compensator if step.state in (StepState.COMPENSATION_FAILED, StepState.COMPENSATING) else None
    return {
        "step": step.number,
        "call": {"tool": step.tool, "operation": step.operation, "method": step.method, "target": step.target}
        if undo is None
        else {"tool": undo.tool, "operation": f"undo {step.operation}", "method": undo.method, "target": undo.target},
        "key": step.key,
        "answer": {"status": step.status, "fault": step.fault or None, "detail": step.detail[:_SHOWN] or None},
    }


def _leaks(state: Trajectory, at: int) -> list[dict[str, object]]:
    """What costs money for as long as it is not undone: declared rates, and how much that is so far."""
    leaks: list[dict[str, object]] = []
    for step in state.steps.values():
        is_there = step.state in (StepState.COMMITTED, StepState.COMPENSATING, StepState.COMPENSATION_FAILED)
        if not step.leak or not is_there:
            continue
        what, amount, per_s, currency = step.leak
        spent = amount * max(0, at - step.committed_at) / 1000 / per_s
        leaks.append({"step": step.number, "what": what, "amount": amount, "per_s": per_s, "currency": currency,
                      "so_far": round(spent, 2)})  # fmt: skip
    return leaks


def _next(state: Trajectory, incident: Incident, failed: Step | None) -> list[str]:
    if incident.state == "resolved":
        return []
    run = state.id
    steps = [f"seawall incidents ack {incident.id} --reason TEXT"]
    unclear = [s for s in state.steps.values() if s.state is StepState.IN_DOUBT]
    asked = [*unclear, *([failed] if failed is not None and failed not in unclear else [])]
    steps += [f"seawall step resolve {run} {one.number} --as landed|not_landed --evidence TEXT" for one in asked]
    steps.append(f"seawall trajectories release {run} --reason TEXT")
    steps.append(f"seawall trajectories close {run} --reason TEXT")
    return steps


def _not_frozen(state: Trajectory) -> Refusal:
    return Refusal(
        code=Code.ALREADY_DECIDED,
        detail=f"Run {state.id} is {state.phase.value}, not frozen. See it with "
        f"`seawall trajectories show {state.id}`.",
        extra={"state": state.phase.value},
    )


def _freeze_first(state: Trajectory) -> Refusal:
    return Refusal(
        code=Code.ALREADY_DECIDED,
        detail=f"Run {state.id} is {state.phase.value} and still at work on this step. Freeze the run first: "
        f"`seawall trajectories freeze {state.id} --reason TEXT`.",
        extra={"state": state.phase.value},
    )


def _over(state: Trajectory) -> Refusal:
    return Refusal(
        code=Code.TRAJECTORY_CLOSED,
        detail=f"Run {state.id} is over ({state.phase.value}); there is nothing left to stop.",
        extra={"state": state.phase.value},
    )
