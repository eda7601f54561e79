"""What a loop leads to: the records, and what the agent reads; and the watchdog of a run that is read back.

The ladder of `core/watchdog.py` meets the run here. Before its pivot a named run is taken back to the savepoint before the
loop, to one of its own where there is one, else to a place that is marked in retrospect; a deadlock undoes it. Past the
pivot nothing is undone: the action is masked, and a deadlock freezes the run for a person. Of a run that nobody named only
actions are masked. What is told says what repeated, since when, and what to do instead; an action is never taken away
without saying so.

Source: seed 000, "Watchdog intervention protocols".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gateway.core.codes import Code, Directive
from gateway.core.fault import Fault
from gateway.core.outcome import Refusal
from gateway.core.records import (
    LoopInterrupted,
    Record,
    SavepointTaken,
    StateReported,
    TrajectoryFrozen,
    UnwindingStarted,
)
from gateway.core.saga import SAVEPOINTS_LIMIT
from gateway.core.trajectory import UNSENT_FAULT, Phase, Step, StepState, Trajectory
from gateway.core.watchdog import Ended, Loop, Pattern, Verdict, Watchdog, WatchdogMode, WatchdogSettings

__all__ = ["Told", "deadlocked", "interrupt", "restored"]

_PATTERNS: Mapping[Pattern, str] = {
    Pattern.REPETITION: "it was tried {times} times since {since} and got the same no each time",
    Pattern.POLLING: "it was asked {times} times since {since} and the answer was the same each time",
    Pattern.OSCILLATION: "since {since} the run's changes go round in a cycle of {times}, and nothing is gained by them",
    Pattern.STAGNATION: "{times} changes since {since} made none of the reported metrics better",
    Pattern.MASKED: "this action was taken away from the run, because it went in circles with it",
}
_NUDGE = (
    "Do not repeat it. Form another hypothesis, or check what you assume about the environment, then do something else."
)


@dataclass(frozen=True, slots=True)
class Told:
    """What is recorded, what the agent gets in place of the call, and what was done: `interrupt`, `mask`, `rewind`,
    `deadlock`."""

    records: list[Record]
    refusal: Refusal
    done: str


def interrupt(
    state: Trajectory, loop: Loop, *, tool: str, operation: str, action: str, mode: WatchdogMode, is_named: bool
) -> Told:
    """Return what a loop leads to in the run as it is.

    Args:
        state: the run.
        loop: what was seen.
        tool, operation, action: of the call that is held back; `action` is its digest, hexadecimal.
        mode: of the tool.
        is_named: somebody named the run, so its steps belong together.
    """
    name = f"{tool}.{operation}"
    verdict = _done_about(state, loop, mode, is_named=is_named)
    noted = LoopInterrupted(
        pattern=loop.pattern.value, verdict=verdict, action=action, tool=tool, operation=operation,
        since_step=loop.since_step, times=loop.times)  # fmt: skip
    why = f"{loop.pattern.value}: {_said(loop)}"
    refusal = Refusal(
        code=Code.WATCHDOG_INTERRUPT,
        dependency=tool,
        directive=Directive.FORWARD_REPAIR,
        detail=f"{name} was not sent. {why}. {_NUDGE}",
        extra={
            "watchdog": {
                "pattern": loop.pattern.value, "done": verdict, "since_step": loop.since_step,
                "since_action": loop.since_action, "times": loop.times,
            }
        },
    )  # fmt: skip
    match verdict:
        case "rewind":
            savepoint, taken = _place(state, loop)
            begun = UnwindingStarted(reason=f"taken back by the watchdog: {why}", by="watchdog", savepoint=savepoint)
            detail = (
                f"{name} was not sent. {why}. The run is taken back to the savepoint {savepoint!r}, before the loop, and "
                f"this action is refused for the rest of the run. {_NUDGE}"
            )
            told = replace(refusal, detail=detail, extra={**refusal.extra, "savepoint": savepoint})
            return Told([noted, *taken, begun], told, verdict)
        case "deadlock":
            return Told([noted, *_stopped(state, why)], replace(deadlocked(state, why), extra=refusal.extra), verdict)
        case "mask":
            detail = f"{name} was not sent. {why}. This action is refused for the rest of the run. {_NUDGE}"
            return Told([noted], replace(refusal, detail=detail), verdict)
    return Told([noted], refusal, verdict)


def deadlocked(state: Trajectory, why: str = "") -> Refusal:
    """Return what every call of a run gets that was stopped for good."""
    because = why or (f"{state.circles.last.pattern}" if state.circles and state.circles.last else "it went in circles")
    past = state.is_past_pivot
    what = "it is frozen, and an operator decides" if past else "what it did is undone"
    return Refusal(
        code=Code.SEMANTIC_DEADLOCK,
        directive=Directive.OPERATOR_ESCALATE if past else Directive.BACKWARD_ROLLBACK,
        detail=f"Run {state.id} is stopped for good: {because}. It did not heed the interrupts; {what}. "
        "Send nothing more in it. Report what you tried, and open a new run only with another plan.",
    )


def _done_about(state: Trajectory, loop: Loop, mode: WatchdogMode, *, is_named: bool) -> str:
    if loop.verdict is Verdict.INTERRUPT:
        return "interrupt"
    if not is_named or mode is not WatchdogMode.ENFORCE:
        return "mask"
    if loop.verdict is Verdict.DEADLOCK:
        return "deadlock"
    can_rewind = state.phase is Phase.PREPARING and not state.is_past_pivot and loop.undo_after is not None
    return "rewind" if can_rewind else "mask"


def _said(loop: Loop) -> str:
    since = f"action {loop.since_action} of the run" if loop.since_step is None else f"step {loop.since_step}"
    return _PATTERNS[loop.pattern].format(times=loop.times, since=since)


def _place(state: Trajectory, loop: Loop) -> tuple[str, list[Record]]:
    """Return the name of the savepoint before the loop, and the record that takes it where there is none yet."""
    after = state.steps.get(loop.undo_after or 0)
    version = 1 if after is None else after.order
    if loop.pattern is Pattern.REPETITION and (first := state.steps.get(loop.since_step or 0)) is not None:
        version = first.intended - 1
    own = [(at, name) for name, at in state.savepoints.items() if at <= version]
    if own:
        return max(own)[1], []
    name = f"watchdog-{1 + (0 if state.circles is None else state.circles.interrupted)}"
    if len(state.savepoints) >= SAVEPOINTS_LIMIT:
        name = next(iter(state.savepoints))
    return name, [SavepointTaken(name=name, by="watchdog", since=version)]


def _stopped(state: Trajectory, why: str) -> list[Record]:
    if state.is_past_pivot:
        return [
            TrajectoryFrozen(incident="SEMANTIC_DEADLOCK", detail=f"The run went in circles: {why}.", by="watchdog")
        ]
    if state.phase is Phase.PREPARING or (state.phase is Phase.COMPENSATING and state.rewinding is not None):
        return [UnwindingStarted(reason=f"semantic deadlock: {why}", by="watchdog")]
    return []


# --- after a restart


def restored(settings: WatchdogSettings, state: Trajectory) -> Watchdog:
    """Return the watchdog of a run as its records tell of it: new for a new run."""
    dog = Watchdog(settings, is_gentle=state.is_implicit)
    if not state.steps and state.circles is None:
        return dog
    told: list[tuple[int, object]] = [(step.order, step) for step in _last(state, settings.window)]
    if state.circles is not None:
        dog.since = state.circles.since
        told += state.circles.reports
        for action in state.circles.masked:
            dog.masks(bytes.fromhex(action), state.circles.rewinds)
    for position, what in sorted(told, key=lambda pair: pair[0]):
        if position <= dog.since:
            continue
        if isinstance(what, Step):
            _replay(dog, what)
        elif isinstance(what, StateReported):
            dog.state_is(int(what.state or "0", 16), what.source)
        else:
            dog.measured(getattr(what, "values", {}))
    return dog


def _last(state: Trajectory, count: int) -> list[Step]:
    newest = len(state.steps)
    return [state.steps[number] for number in range(max(1, newest - count + 1), newest + 1)]


_DONE = (StepState.COMMITTED, StepState.COMPENSATED, StepState.COMPENSATING, StepState.COMPENSATION_FAILED)


def _replay(dog: Watchdog, step: Step) -> None:
    if step.state is StepState.FAILED and step.fault == UNSENT_FAULT:
        return  # the world has not answered
    action = bytes.fromhex(step.action)
    if step.state in _DONE and step.bad is None:
        dog.acted(action, None, Ended.DONE, is_change=True, number=step.number)
    elif step.state is StepState.FAILED and step.fault == Fault.CLIENT_ERROR.value and step.answer:
        dog.acted(action, int(step.answer, 16), Ended.NO, number=step.number)
    else:
        dog.acted(action, None, Ended.NOT_YET, number=step.number)
