"""A proposed graph of steps, put into an order that can be undone until its last irreversible moment, or why there is none.

Reads, reversible and compensable steps come first, then those that are staged, then the single pivot, then what depends on
it and can be repeated until it is done. The agent's own order is kept wherever that leaves a choice. A graph has no such
order if it has a cycle, two pivots, a step after the pivot that is not idempotent, or one before it that waits for a staged
step's effect; each reason names the steps and what would help.

An enforced plan is what a run then has to follow: a write that is not in it, or whose needs are not met, is refused.

Source: seed 000, "The double-pivot trap and the isolation of the pivot" (topological sort of the proposed graph, all
compensable operations first, the one irreversible step at the very end); Kahn, "Topological sorting of large networks",
CACM 1962.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from gateway.core.codes import Code
from gateway.core.manifest import Tier
from gateway.core.outcome import Refusal
from gateway.core.records import PlanAdopted, Record
from gateway.core.tool import Operation
from gateway.core.trajectory import Phase, Planned, StepState, Trajectory

__all__ = ["Arranged", "PlanPhase", "Proposed", "adopt", "against_plan", "arrange"]


class PlanPhase(StrEnum):
    """Where in a run a step belongs."""

    PREPARE = "prepare"
    STAGE = "stage"
    PIVOT = "pivot"
    FINALIZE = "finalize"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """A step as proposed: `after` names those whose effect it needs."""

    id: str
    tool: str
    operation: Operation
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arranged:
    """A step in its place. `moved` is by how many places, negative for earlier; `why` says so in words if it was moved."""

    proposed: Proposed
    phase: PlanPhase
    needs: tuple[str, ...]
    moved: int = 0
    why: str = ""


def arrange(steps: Sequence[Proposed]) -> list[Arranged] | list[str]:
    """Return the steps in order, or every reason why there is none. Deterministic; empty for no steps."""
    by_id = {step.id: step for step in steps}
    problems = _malformed(steps, by_id)
    if problems:
        return problems
    cycle = _cycle(steps, by_id)
    if cycle:
        return [f"{' → '.join(cycle)} wait for each other; remove one of these dependencies"]
    pivots = [step for step in steps if step.operation.tier is Tier.PIVOT and not step.operation.is_staged]
    if len(pivots) > 1:
        names = " and ".join(_name(step) for step in pivots)
        return [
            f"{names} are irreversible and a run has one pivot; declare all but one `pivot: stage`, so that they are sent "
            "when it commits, or take them in runs of their own"
        ]
    pivot = pivots[0] if pivots else None
    late = [step.id for step in steps if step is pivot or step.operation.is_staged]
    behind = _dependents(steps, late)
    phases = {step.id: _phase(step, pivot, behind) for step in steps}
    problems = _illegal(steps, phases, by_id)
    return problems or _ordered(steps, phases, pivot)


def _malformed(steps: Sequence[Proposed], by_id: Mapping[str, Proposed]) -> list[str]:
    problems = [f"{step.id} waits for {name}, which is not in the plan" for step in steps for name in step.after
                if name not in by_id]  # fmt: skip
    return problems if len(by_id) == len(steps) else [*problems, "two steps have the same id"]


def _cycle(steps: Sequence[Proposed], by_id: Mapping[str, Proposed]) -> list[str]:
    left = dict.fromkeys(step.id for step in steps)
    while free := [name for name in left if not any(need in left for need in by_id[name].after)]:
        for name in free:
            del left[name]
    if not left:
        return []
    path = [next(iter(left))]
    while True:
        following = next(need for need in by_id[path[-1]].after if need in left)
        if following in path:
            return [*path[path.index(following) :], following]
        path.append(following)


def _dependents(steps: Sequence[Proposed], names: Sequence[str]) -> set[str]:
    found = set(names)
    grown = True
    while grown:
        more = {step.id for step in steps if step.id not in found and found.intersection(step.after)}
        found |= more
        grown = bool(more)
    return found - set(names)


def _phase(step: Proposed, pivot: Proposed | None, behind: set[str]) -> PlanPhase:
    if step is pivot:
        return PlanPhase.PIVOT
    if step.operation.is_staged:
        return PlanPhase.STAGE
    return PlanPhase.FINALIZE if step.id in behind else PlanPhase.PREPARE


def _illegal(steps: Sequence[Proposed], phases: Mapping[str, PlanPhase], by_id: Mapping[str, Proposed]) -> list[str]:
    problems = []
    for step in steps:
        phase = phases[step.id]
        if phase is PlanPhase.FINALIZE and not (step.operation.is_read or step.operation.is_idempotent):
            problems.append(
                f"{_name(step)} waits for what is irreversible and is not idempotent: if it failed, there would be no way "
                "back and no safe way on; let it not wait for that, or declare an idempotent operation for it"
            )
        for need in step.after:
            if phase is PlanPhase.PIVOT and phases[need] is PlanPhase.STAGE:
                problems.append(
                    f"{_name(step)} waits for {_name(by_id[need])}, which is staged and sent only once the pivot has "
                    "committed"
                )
            if phase is PlanPhase.STAGE and phases[need] is PlanPhase.FINALIZE:
                problems.append(
                    f"{_name(step)} is staged and sent as soon as the pivot has committed, before {_name(by_id[need])}, "
                    "which it waits for"
                )
    return problems


def _ordered(steps: Sequence[Proposed], phases: Mapping[str, PlanPhase], pivot: Proposed | None) -> list[Arranged]:
    """Kahn's algorithm, phase by phase, the first proposed of those that are free first."""
    rank = {phase: index for index, phase in enumerate(PlanPhase)}
    position = {step.id: index for index, step in enumerate(steps)}
    left = sorted(steps, key=lambda step: (rank[phases[step.id]], position[step.id]))
    order: list[Arranged] = []
    placed: set[str] = set()
    while left:
        step = next(one for one in left if _may_follow(one, phases, placed))
        left.remove(step)
        needs = tuple(need for need in step.after if phases[step.id] is not PlanPhase.STAGE or rank[phases[need]] < 2)
        if step is pivot:
            needs = tuple(one.proposed.id for one in order)
        moved = len(order) - position[step.id]
        one = Arranged(proposed=step, phase=phases[step.id], needs=needs, moved=moved)
        order.append(one if not moved else replace(one, why=_why(one)))
        placed.add(step.id)
    return order


def _may_follow(step: Proposed, phases: Mapping[str, PlanPhase], placed: set[str]) -> bool:
    """A staged step is called before the pivot that its effect comes after."""
    if phases[step.id] is PlanPhase.STAGE:
        return all(need in placed or phases[need] is PlanPhase.PIVOT for need in step.after)
    return all(need in placed for need in step.after)


def _why(one: Arranged) -> str:
    match one.phase:
        case PlanPhase.PIVOT:
            return "it is irreversible, so everything that can be undone comes before it"
        case PlanPhase.STAGE:
            return "it is staged before the pivot and sent when that commits"
        case PlanPhase.FINALIZE:
            return "it needs the pivot's effect"
    return "it can be undone, so it comes before the pivot" if one.moved < 0 else "something it does not need was moved"


def _name(step: Proposed) -> str:
    return f"{step.id} ({step.tool}.{step.operation.name})"


# --- following it


def adopt(state: Trajectory, order: Sequence[Arranged]) -> list[Record] | Refusal:
    """Have the run follow a plan from here on; the same plan again changes nothing, another one is refused."""
    steps: list[dict[str, object]] = [
        {"id": one.proposed.id, "tool": one.proposed.tool, "operation": one.proposed.operation.name,
         "tier": one.proposed.operation.tier.value, "phase": one.phase.value, "needs": list(one.needs)}
        for one in order
    ]  # fmt: skip
    if state.plan is not None:
        known = [(p.id, p.tool, p.operation, p.tier.value, p.phase, list(p.needs)) for p in state.plan]
        if known == [tuple(step.values()) for step in steps]:
            return []
        return Refusal(
            code=Code.ALREADY_DECIDED,
            detail=f"Run {state.id} follows a plan already. Follow it, or abort it and open a new run for another.",
        )
    if state.phase is not Phase.PREPARING or state.steps:
        return Refusal(
            code=Code.ALREADY_DECIDED,
            detail=f"Run {state.id} has begun ({len(state.steps)} steps, {state.phase.value}); a plan is enforced from the "
            "first step on. Ask without `enforce`, or open a new run.",
        )
    return [PlanAdopted(steps=steps)]


def against_plan(state: Trajectory, tool: str, operation: Operation) -> Refusal | None:
    """Return why a write does not follow the run's plan, or None if it does, or there is none."""
    if state.plan is None or operation.is_read:
        return None
    named = [one for one in state.plan if (one.tool, one.operation) == (tool, operation.name)]
    free = [one for one in named if one.step is None or state.steps[one.step].state is StepState.FAILED]
    if not free:
        ready = [
            one.id for one in state.plan if one.step is None and one.tier is not Tier.READ and not _missing(state, one)
        ]
        return _off_plan(state, operation, "is done already" if named else "is not in its plan", ready)
    missing = _missing(state, free[0])
    return _off_plan(state, operation, f"comes later in its plan, as {free[0].id}", missing) if missing else None


def _missing(state: Trajectory, planned: Planned) -> list[str]:
    assert state.plan is not None
    by_id = {one.id: one for one in state.plan}
    return [name for name in planned.needs if not _is_done(state, by_id[name])]


def _is_done(state: Trajectory, planned: Planned) -> bool:
    if planned.tier is Tier.READ:
        return True
    return planned.step is not None and state.steps[planned.step].state in (StepState.COMMITTED, StepState.STAGED)


def _off_plan(state: Trajectory, operation: Operation, how: str, due: Sequence[str]) -> Refusal:
    return Refusal(
        code=Code.PIVOT_ORDER,
        detail=f"{operation.name} was not sent: for run {state.id} it {how}. "
        + (f"Due now: {', '.join(due)}." if due else "Nothing of the plan is left; commit the run."),
        extra={"due": list(due)},
    )
