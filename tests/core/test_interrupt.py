"""What a loop leads to in a run, and that a run that is read back knows as much as before."""

from __future__ import annotations

import pytest

from gateway.core.circles import KEPT, MASKS, Circles, fold_circles
from gateway.core.codes import Code, Directive
from gateway.core.interrupt import Told, deadlocked, interrupt, restored
from gateway.core.records import (
    LoopInterrupted,
    MetricsReported,
    Record,
    SavepointTaken,
    StateReported,
    StepCommitted,
    StepFailed,
    StepIntended,
    TrajectoryFrozen,
    TrajectoryOpened,
    TrajectoryReleased,
    UnwindingStarted,
    decode,
    encode,
)
from gateway.core.trajectory import Trajectory, fold
from gateway.core.watchdog import Loop, Pattern, Verdict, WatchdogMode, WatchdogSettings


def intended(number: int, action: str = "", tier: str = "reversible") -> StepIntended:
    return StepIntended(
        step=number, tool="lab", operation="set", tier=tier, action=action or f"{number:032x}", fingerprint="", occurrence=1,
        key=f"k{number}", method="POST", target="/")  # fmt: skip


def committed(number: int) -> StepCommitted:
    record = decode("StepCommitted", b'{"step": %d, "reply": {"status": 200}}' % number)
    assert isinstance(record, StepCommitted)
    return record


def failed(number: int, answer: str = "00000000000000aa") -> StepFailed:
    return StepFailed(step=number, fault="client_error", detail="no", status=422, answer=answer)


def run(*records: Record) -> Trajectory:
    return fold("r1", [(record, 1) for record in (TrajectoryOpened(agent="ann"), *records)])


def loop(verdict: Verdict, pattern: Pattern = Pattern.REPETITION, since: int | None = 2) -> Loop:
    return Loop(pattern, verdict, 2, since, None if since is None else since - 1, 3)


def told(state: Trajectory, found: Loop, mode: WatchdogMode = WatchdogMode.ENFORCE, *, is_named: bool = True) -> Told:
    return interrupt(state, found, tool="lab", operation="set", action="ab" * 16, mode=mode, is_named=is_named)


STATE = (intended(1), committed(1), intended(2), failed(2))


def test_an_interrupt_is_an_observation_in_the_seeds_sense() -> None:
    said = told(run(*STATE), loop(Verdict.INTERRUPT))
    assert said.records == [
        LoopInterrupted(
            pattern="REPEATED_FAILURE_DETECTED", verdict="interrupt", action="ab" * 16, tool="lab", operation="set",
            since_step=2, times=3)
    ]  # fmt: skip
    assert (said.refusal.code, said.refusal.directive) == (Code.WATCHDOG_INTERRUPT, Directive.FORWARD_REPAIR)
    assert said.refusal.detail.count("since step 2") == 1


def test_a_rewind_marks_the_place_before_the_loop_in_retrospect() -> None:
    state = run(*STATE)
    said = told(state, loop(Verdict.REWIND))
    assert [type(record) for record in said.records] == [LoopInterrupted, SavepointTaken, UnwindingStarted]
    taken = said.records[1]
    assert isinstance(taken, SavepointTaken)
    assert taken.since == state.steps[2].intended - 1
    after = run(*STATE, *said.records)
    assert after.undone_since == taken.since


def test_the_agents_own_savepoint_goes_before() -> None:
    state = run(intended(1), committed(1), SavepointTaken(name="mine"), intended(2), failed(2))
    said = told(state, loop(Verdict.REWIND))
    assert [type(record) for record in said.records] == [LoopInterrupted, UnwindingStarted]
    assert said.refusal.extra["savepoint"] == "mine"


@pytest.mark.parametrize(
    ("mode", "is_named", "verdict", "done"),
    [
        (WatchdogMode.ENFORCE, True, Verdict.REWIND, "rewind"),
        (WatchdogMode.ENFORCE, False, Verdict.REWIND, "mask"),
        (WatchdogMode.ENFORCE, False, Verdict.DEADLOCK, "mask"),
        (WatchdogMode.INTERRUPT, True, Verdict.REWIND, "mask"),
        (WatchdogMode.INTERRUPT, True, Verdict.DEADLOCK, "mask"),
        (WatchdogMode.ENFORCE, True, Verdict.DEADLOCK, "deadlock"),
    ],
)
def test_how_far_the_ladder_goes(mode: WatchdogMode, is_named: bool, verdict: Verdict, done: str) -> None:
    assert told(run(*STATE), loop(verdict), mode, is_named=is_named).done == done


def test_a_loop_of_reads_takes_nothing_back() -> None:
    assert told(run(*STATE), loop(Verdict.REWIND, Pattern.POLLING, None)).done == "mask"


def test_past_the_pivot_nothing_is_undone() -> None:
    state = run(*STATE, intended(3, tier="pivot"), committed(3))
    assert told(state, loop(Verdict.REWIND)).done == "mask"
    stopped = told(state, loop(Verdict.DEADLOCK))
    assert isinstance(stopped.records[-1], TrajectoryFrozen)
    assert stopped.records[-1].incident == "SEMANTIC_DEADLOCK"
    assert stopped.refusal.directive is Directive.OPERATOR_ESCALATE
    assert isinstance(told(run(*STATE), loop(Verdict.DEADLOCK)).records[-1], UnwindingStarted)
    assert deadlocked(state).code is Code.SEMANTIC_DEADLOCK


def test_a_run_that_is_read_back_knows_its_noes_its_states_and_its_masks() -> None:
    records: list[Record] = []
    for number in range(1, 4):
        records += [intended(number, "aa" * 16), failed(number)]
    records += [StateReported(state=f"{n % 2:016x}") for n in range(4)]
    records += [LoopInterrupted(pattern="x", verdict="mask", action="bb" * 16, tool="lab", operation="set")]
    state = run(*[decode(*encode(record)) for record in records])
    dog = restored(WatchdogSettings(), state)
    first = dog.check(bytes.fromhex("aa" * 16), is_read=False)
    assert first is not None
    assert (first.pattern, first.times, first.undo_after) == (Pattern.REPETITION, 3, 0)
    masked = dog.check(bytes.fromhex("bb" * 16), is_read=False)
    assert masked is not None
    assert masked.pattern is Pattern.MASKED
    assert dog.view()["pending"] is None, "what was masked begins with a new window of states"


def test_a_released_run_starts_anew() -> None:
    records: list[Record] = []
    for number in range(1, 4):
        records += [intended(number, "aa" * 16), failed(number)]
    records += [LoopInterrupted(pattern="x", verdict="deadlock", action="aa" * 16, tool="lab", operation="set")]
    records += [TrajectoryFrozen(incident="SEMANTIC_DEADLOCK", detail="x")]
    state = run(*records)
    assert state.circles is not None
    assert state.circles.is_deadlocked
    state = run(*records, TrajectoryReleased(to="preparing", principal="ann", reason="mended"))
    assert state.circles is not None
    assert not state.circles.is_deadlocked
    assert restored(WatchdogSettings(), state).check(bytes.fromhex("aa" * 16), is_read=False) is None


def test_the_fold_is_bounded() -> None:
    circles = Circles()
    for number in range(1000):
        fold_circles(circles, MetricsReported(values={"m": number}), number)
        masked = LoopInterrupted(pattern="x", verdict="mask", action=f"{number:032x}", tool="t", operation="o")
        fold_circles(circles, masked, number)
        fold_circles(circles, StateReported(state="00"), number)
    assert len(circles.reports) <= KEPT
    assert len(circles.masked) == MASKS
