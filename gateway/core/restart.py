"""What a restart finds: the class of each open run, what goes on with it, and whether the manifest can still carry it.

Every open run is in exactly one class, and the class is read off its records alone, so a restart continues and never changes
it. A run is frozen at start for one reason only: something that has to be settled or undone needs a tool or operation that
the manifest no longer has. Dropping the step would lose it and guessing would invent a call; a person puts the tool back, or
decides.

Source: design section 2, rule 6; riverqueue/river#1105 (a worker that lacked a job's kind discarded the job).
"""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never

from gateway.core.tool import Catalog
from gateway.core.trajectory import Phase, Step, StepState, Trajectory

__all__ = ["Standing", "classify", "drift"]


class Standing(StrEnum):
    """What goes on with a run after a restart."""

    WAITING = "waiting"
    SETTLING = "settling"
    UNDOING = "undoing"
    FINALIZING = "finalizing"
    FROZEN = "frozen"
    OVER = "over"


def classify(state: Trajectory) -> Standing:
    """Return what goes on with a run: it waits for its agent, is settled, undone or finished, or waits for a person."""
    match state.phase:
        case Phase.FROZEN:
            return Standing.FROZEN
        case Phase.COMPENSATING:
            return Standing.UNDOING
        case Phase.PREPARING | Phase.FINALIZING:
            if state.in_doubt or state.in_flight:
                return Standing.SETTLING
            return Standing.WAITING if state.phase is Phase.PREPARING else Standing.FINALIZING
        case Phase.SUCCEEDED | Phase.ABORTED_CLEAN | Phase.CLOSED:
            return Standing.OVER
        case _ as never:
            assert_never(never)


def drift(state: Trajectory, catalog: Catalog) -> str | None:
    """Return what a run needs that the manifest no longer has, or None. Frozen and finished runs need nothing."""
    if state.phase not in (Phase.PREPARING, Phase.FINALIZING, Phase.COMPENSATING):
        return None
    for step in state.steps.values():
        missing = _missing(step, catalog, can_be_undone=state.phase is not Phase.FINALIZING)
        if missing is not None:
            return missing
    return None


def _missing(step: Step, catalog: Catalog, *, can_be_undone: bool) -> str | None:
    what = {
        StepState.IN_DOUBT: "settled",
        StepState.INTENDED: "settled",
        StepState.STAGED: "sent",
        StepState.DEFERRED: "sent",
    }.get(step.state)
    if what is not None:
        tool = catalog.tools.get(step.tool)
        # An MCP server's tools need not be declared; it is asked for them anew.
        if tool is None or (tool.mcp is None and step.operation not in tool.operations):
            return f"step {step.number} has to be {what} at {step.tool}.{step.operation}"
    undo = step.compensator if can_be_undone and step.is_to_undo else None
    if undo is not None and undo.tool not in catalog.tools:
        return (
            f"step {step.number} ({step.tool}.{step.operation}) is undone by {undo.method} {undo.target} at {undo.tool}"
        )
    return None
