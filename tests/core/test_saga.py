"""Runs as dialogues: given these records, when this command, then these records or this refusal."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.core.codes import Code
from gateway.core.keys import undo_key
from gateway.core.manifest import ApprovalPolicy, Tier, TimeoutSettings
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
    decode,
    encode,
)
from gateway.core.saga import (
    Abort,
    Begin,
    Command,
    Commit,
    Complete,
    Doubt,
    Fail,
    FinishCompensation,
    FinishUnwinding,
    Freeze,
    IntendCompensation,
    NoteRecoveryFailure,
    Nothing,
    Open,
    RefuseCompensation,
    Rewind,
    Savepoint,
    Skip,
    SkipCompensation,
    Stuck,
    Undo,
    Wait,
    admits_repeat,
    decide,
    next_undo,
    residue,
)
from gateway.core.tool import BoundRequest, Compensator, Operation, RequestTemplate
from gateway.core.trajectory import IllegalRecord, Phase, StepState, Trajectory, evolve, fold

SALT = b"s" * 32
OK = RecordedReply(status=200)
UNDO = BoundRequest("pay", "POST", "/cancel")


def operation(
    tier: Tier = Tier.COMPENSABLE,
    name: str = "hold",
    *,
    idempotent: bool = False,
    approval: ApprovalPolicy = ApprovalPolicy.NONE,
) -> Operation:
    compensator = Compensator(RequestTemplate("POST /cancel", lambda env: UNDO)) if tier is Tier.COMPENSABLE else None
    return Operation(
        name=name,
        tier=tier,
        timeouts=TimeoutSettings(),
        compensator=compensator,
        is_idempotent=idempotent,
        approval=approval,
    )


def begin(op: Operation, action: str = "a1", caller: str | None = None) -> Begin:
    return Begin(
        tool="pay",
        operation=op,
        action=action,
        fingerprint=action,
        method="POST",
        target="/x",
        salt=SALT,
        caller=caller,
        caller_key=None if caller is None else "their-key",
    )


class Dialogue:
    """given(...).when(...).then(...)"""

    def __init__(self) -> None:
        self.state = Trajectory(id="r1")
        self.clock = 0

    def given(self, *commands: Command) -> Dialogue:
        for command in commands:
            records = decide(self.state, command)
            assert not isinstance(records, Refusal), records
            self.fold(records)
        return self

    def fold(self, records: list[Record]) -> None:
        for record in records:
            self.clock += 1
            evolve(self.state, record, self.clock)

    def when(self, command: Command) -> list[Record] | Refusal:
        return decide(self.state, command)


def opened() -> Dialogue:
    return Dialogue().given(Open(agent="ann"))


def committed_step(number: int = 1) -> Complete:
    return Complete(step=number, reply=OK, compensator=UNDO)


def kinds(records: list[Record] | Refusal) -> list[str]:
    assert not isinstance(records, Refusal), records
    return [type(record).__name__ for record in records]


def test_a_step_is_intended_before_anything_else_is_known_of_it() -> None:
    run = opened()
    (intent,) = run.when(begin(operation()))
    assert isinstance(intent, StepIntended)
    assert (intent.step, intent.occurrence, intent.tier) == (1, 1, "compensable")
    assert len(intent.key) == 32


def test_the_same_action_gets_another_key_at_each_occurrence_and_the_same_key_for_the_same_place() -> None:
    run = opened()
    (first,) = run.when(begin(operation()))
    (again,) = run.when(begin(operation()))
    assert first == again
    run.given(begin(operation()), committed_step())
    (second,) = run.when(begin(operation()))
    assert second.occurrence == 2
    assert second.key != first.key


def test_a_callers_key_is_the_key() -> None:
    (intent,) = opened().when(begin(operation(), caller="c0ffee"))
    assert intent.key == "their-key"


def test_a_second_pivot_is_refused() -> None:
    """Invariant 5: at most one."""
    run = opened().given(begin(operation(Tier.PIVOT, "payout")), Complete(step=1, reply=OK))
    assert run.state.phase is Phase.FINALIZING
    for idempotent in (False, True):
        refusal = run.when(begin(operation(Tier.PIVOT, "payout", idempotent=idempotent), "a2"))
        assert isinstance(refusal, Refusal)
        assert refusal.code is Code.PIVOT_ORDER


@pytest.mark.parametrize("tier", [Tier.REVERSIBLE, Tier.COMPENSABLE, Tier.UNMANAGED])
def test_nothing_that_is_not_idempotent_follows_the_pivot(tier: Tier) -> None:
    run = opened().given(begin(operation(Tier.PIVOT)), Complete(step=1, reply=OK))
    assert isinstance(run.when(begin(operation(tier), "a2")), Refusal)
    assert kinds(run.when(begin(operation(tier, idempotent=True), "a2"))) == ["StepIntended"]
    assert decide(run.state, begin(operation(Tier.READ), "a3"))


def test_a_pivot_that_certainly_failed_may_be_tried_again_and_one_in_doubt_may_not() -> None:
    run = opened().given(begin(operation(Tier.PIVOT)), Fail(step=1, fault="client_error", detail="402"))
    assert kinds(run.when(begin(operation(Tier.PIVOT)))) == ["StepIntended"]
    doubt = opened().given(begin(operation(Tier.PIVOT)), Doubt(step=1, fault="timeout", detail="late"))
    assert isinstance(doubt.when(begin(operation(Tier.PIVOT), "a2")), Refusal)
    assert isinstance(doubt.when(Abort(reason="no")), Refusal), "a pivot that may have landed cannot be undone"


@pytest.mark.parametrize(
    ("before", "says"),
    [
        ((begin(operation()),), "still in flight"),
        ((begin(operation()), Doubt(step=1, fault="timeout", detail="late")), "unknown"),
        ((begin(operation()), Complete(step=1, reply=OK, unbound="response.json.id is missing")), "cannot be undone"),
    ],
)
def test_the_pivots_gate_stays_shut_while_anything_before_it_is_open(before: tuple[Command, ...], says: str) -> None:
    refusal = opened().given(*before).when(begin(operation(Tier.PIVOT), "a9"))
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.PIVOT_GATE
    assert says in refusal.detail


def test_a_pivot_that_needs_an_approval_is_refused_while_nobody_can_give_one() -> None:
    """Invariant 11: fail closed."""
    refusal = opened().when(begin(operation(Tier.PIVOT, approval=ApprovalPolicy.REQUIRED)))
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.PIVOT_GATE


def test_unwinding_goes_backwards_by_completion_not_by_intent() -> None:
    """Steps that ran side by side: what ended last is undone first."""
    run = opened().given(
        begin(operation(), "a1"), begin(operation(), "a2"), begin(operation(), "a3"),
        committed_step(2), committed_step(1), committed_step(3), Abort(reason="plan failed"),
    )  # fmt: skip
    order = []
    while isinstance(plan := next_undo(run.state), Undo):
        order.append(plan.step.number)
        run.given(IntendCompensation(step=plan.step.number, salt=SALT), FinishCompensation(step=plan.step.number))
    assert order == [3, 1, 2]
    assert isinstance(plan, Nothing)
    assert kinds(run.when(FinishUnwinding())) == ["TrajectoryAborted"]


def test_an_unwinding_run_admits_nothing_and_waits_for_what_is_in_flight() -> None:
    run = opened().given(begin(operation()), Abort(reason="stop"))
    refusal = run.when(begin(operation(), "a2"))
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.TRAJECTORY_CLOSED
    assert isinstance(next_undo(run.state), Wait)
    run.given(committed_step())
    assert isinstance(next_undo(run.state), Undo), "a step that landed after the unwinding began is undone too"


def test_a_step_that_never_landed_is_not_compensated() -> None:
    run = opened().given(begin(operation()), Fail(step=1, fault="connect", detail="refused"), Abort(reason="stop"))
    skip = next_undo(run.state)
    assert isinstance(skip, Skip)
    assert not skip.is_residue
    run.given(SkipCompensation(step=1, reason=skip.reason))
    assert run.state.steps[1].state is StepState.FAILED
    assert isinstance(next_undo(run.state), Nothing)


def test_a_step_in_doubt_stops_the_unwinding_in_its_place() -> None:
    run = opened().given(
        begin(operation(), "a1"), committed_step(1), begin(operation(), "a2"),
        Doubt(step=2, fault="timeout", detail="late"), begin(operation(), "a3"), committed_step(3), Abort(reason="x"),
    )  # fmt: skip
    plan = next_undo(run.state)
    assert isinstance(plan, Undo)
    assert plan.step.number == 3
    run.given(IntendCompensation(step=3, salt=SALT), FinishCompensation(step=3))
    assert isinstance(next_undo(run.state), Stuck)


def test_what_cannot_be_undone_is_named_as_residue() -> None:
    run = opened().given(
        begin(operation(Tier.UNMANAGED, "POST"), "a1"), Complete(step=1, reply=OK),
        begin(operation(), "a2"), Complete(step=2, reply=OK, unbound="no id"), Abort(reason="x"),
    )  # fmt: skip
    while isinstance(plan := next_undo(run.state), Skip):
        run.given(SkipCompensation(step=plan.step.number, reason=plan.reason, is_residue=plan.is_residue))
    run.given(FinishUnwinding())
    assert run.state.phase is Phase.ABORTED_CLEAN
    assert [step.number for step in residue(run.state)] == [1, 2]


def test_a_compensator_refused_for_good_freezes_the_run() -> None:
    run = opened().given(begin(operation()), committed_step(), Abort(reason="x"), IntendCompensation(step=1, salt=SALT))
    records = run.when(RefuseCompensation(step=1, fault="client_error", detail="it answered 403", status=403))
    assert kinds(records) == ["CompensationRefused", "TrajectoryFrozen"]
    assert not isinstance(records, Refusal)
    run.fold(records)
    assert run.state.phase is Phase.FROZEN
    assert run.state.incident == "COMPENSATION_CORRUPTED"
    for command in (begin(operation(Tier.READ), "r"), Abort(reason="again"), Commit()):
        refusal = run.when(command)
        assert isinstance(refusal, Refusal)
        assert refusal.code is Code.TRAJECTORY_FROZEN


@pytest.mark.parametrize("command", [Abort(reason="again"), FinishUnwinding(), Freeze(incident="X", detail="y")])
def test_an_aborted_run_stays_aborted(command: Command) -> None:
    run = opened().given(Abort(reason="x"), FinishUnwinding())
    assert run.when(command) == []


def test_a_run_with_an_open_question_is_not_committed() -> None:
    run = opened().given(begin(operation()))
    assert isinstance(run.when(Commit()), Refusal)
    run.given(Doubt(step=1, fault="timeout", detail="late"))
    refusal = run.when(Commit())
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.OUTCOME_UNKNOWN
    assert kinds(run.given(committed_step()).when(Commit())) == ["TrajectoryCommitted"]


def test_an_undo_key_is_stable_and_differs_from_the_steps_own() -> None:
    run = opened().given(begin(operation()), committed_step(), Abort(reason="x"))
    (first,) = run.when(IntendCompensation(step=1, salt=SALT))
    assert isinstance(first, CompensationIntended)
    assert first.key != run.state.steps[1].key
    assert run.when(IntendCompensation(step=1, salt=SALT)) == [first]
    run.fold([first])
    assert run.when(IntendCompensation(step=1, salt=SALT)) == [], (
        "it is re-sent under the same key, without a new record"
    )


def test_only_what_is_done_can_be_delivered() -> None:
    """An agent that was told "unknown" has no result: once it is known, its repeat gets it, and does nothing anew."""
    run = opened().given(begin(operation(), "a1"), Doubt(step=1, fault="timeout", detail="late"))
    run.state.delivered(1)
    run.given(committed_step())
    assert run.state.undelivered == {1}
    assert not run.state.steps[1].is_delivered


def test_delivered_results_ride_on_the_next_intent() -> None:
    run = opened().given(begin(operation(), "a1"), committed_step())
    assert run.state.undelivered == {1}
    run.state.delivered(1)
    (intent,) = run.when(begin(operation(), "a2"))
    assert isinstance(intent, StepIntended)
    assert intent.delivered == [1]
    run.fold([intent])
    assert run.state.newly_delivered == ()


@pytest.mark.parametrize(
    "record",
    [
        StepCommitted(step=9, reply=OK),
        StepFailed(step=1, fault="x", detail="y"),
        TrajectoryOpened(agent="twice"),
        TrajectoryAborted(),
        CompensationIntended(step=1, key="k"),
        StepIntended(step=7, tool="t", operation="o", tier="read", action="a", fingerprint="f", occurrence=1, key="k",
                     method="GET", target="/"),
    ],
)  # fmt: skip
def test_a_record_that_cannot_follow_is_named(record: Record) -> None:
    run = opened().given(begin(operation()), committed_step())
    version = run.state.version
    with pytest.raises(IllegalRecord, match=type(record).__name__):
        evolve(run.state, record, 1)
    assert run.state.version == version


ALL_RECORDS: list[Record] = [
    TrajectoryOpened(agent="a", labels={"x": "y"}),
    StepCommitted(step=1, reply=RecordedReply.of(200, b"OK", ((b"A", b"\xff"),), b"\xff\x00"), compensator=UNDO),
    StepCommitted(step=1, reply=RecordedReply.of(201, b"", (), "sha256:ab"), unbound="why", bad="bad"),
    StepInDoubt(step=2, fault="timeout", detail="late", status=500),
    CompensationSkipped(step=1, reason="r", is_residue=True),
    CompensationRefused(step=1, fault="f", detail="d"),
    UnwindingStarted(reason="r"),
    TrajectoryCommitted(),
    TrajectoryFrozen(incident="i", detail="d"),
    CompensationCompleted(step=3, status=200),
]


@pytest.mark.parametrize("record", ALL_RECORDS, ids=lambda record: type(record).__name__)
def test_every_record_reads_back_as_it_was_written(record: Record) -> None:
    assert decode(*encode(record)) == record


def test_steps_that_ran_at_the_same_time_are_undone_without_waiting_for_each_other() -> None:
    """Only what began after a step was over may depend on it (dbos-inc/dbos-transact-py#688)."""
    run = opened().given(begin(operation(), "a"), begin(operation(), "b"), committed_step(2), Abort(reason="x"))
    undo = next_undo(run.state)
    assert isinstance(undo, Undo)
    assert undo.step.number == 2, "step 1 is in flight, but began before step 2 was over"


def test_a_step_waits_for_one_in_flight_that_may_depend_on_it() -> None:
    run = opened().given(begin(operation(), "a"), committed_step(1), begin(operation(), "b"), Abort(reason="x"))
    waiting = next_undo(run.state)
    assert isinstance(waiting, Wait)
    assert waiting.step.number == 2


def test_a_step_settled_late_is_undone_in_its_place() -> None:
    """The agent went on after it was told "unknown", so what came after may rest on it and is undone first."""
    run = opened().given(
        begin(operation(), "a"), Doubt(step=1, fault="timeout", detail="late"),
        begin(operation(), "b"), committed_step(2), committed_step(1), Abort(reason="x"),
    )  # fmt: skip
    undo = next_undo(run.state)
    assert isinstance(undo, Undo)
    assert undo.step.number == 2


def test_a_failure_that_may_be_partial_is_undone_in_its_place() -> None:
    run = opened().given(
        begin(operation(), "a"), committed_step(1),
        begin(operation(), "b"), Fail(step=2, fault="server", detail="half", compensator=UNDO), Abort(reason="x"),
    )  # fmt: skip
    undo = next_undo(run.state)
    assert isinstance(undo, Undo)
    assert undo.step.number == 2
    run.given(IntendCompensation(step=2, salt=SALT), FinishCompensation(step=2))
    assert run.state.steps[2].state is StepState.COMPENSATED


def test_a_partial_failure_that_cannot_be_undone_is_residue() -> None:
    run = opened().given(
        begin(operation(), "a"), Fail(step=1, fault="server", detail="half", unbound="no id"), Abort(reason="x")
    )
    skip = next_undo(run.state)
    assert isinstance(skip, Skip)
    assert skip.is_residue


def test_a_rewind_undoes_what_was_intended_after_the_savepoint_and_nothing_else() -> None:
    run = opened().given(
        begin(operation(), "a"), committed_step(1), Savepoint(name="here"),
        begin(operation(), "b"), committed_step(2), Rewind(savepoint="here", reason="dead end"),
    )  # fmt: skip
    undo = next_undo(run.state)
    assert isinstance(undo, Undo)
    assert undo.step.number == 2
    run.given(IntendCompensation(step=2, salt=SALT), FinishCompensation(step=2), FinishUnwinding())
    assert run.state.phase is Phase.PREPARING
    assert run.state.steps[1].state is StepState.COMMITTED
    assert kinds(run.when(begin(operation(), "b"))) == ["StepIntended"]


def test_an_abort_widens_a_rewind_and_a_restart_goes_on_with_it() -> None:
    run = opened().given(
        begin(operation(), "a"), committed_step(1), Savepoint(name="here"), Rewind(savepoint="here", reason="x"),
        Abort(reason="all of it"),
    )  # fmt: skip
    undo = next_undo(run.state)
    assert isinstance(undo, Undo)
    assert undo.step.number == 1
    run.given(IntendCompensation(step=1, salt=SALT), FinishCompensation(step=1), FinishUnwinding())
    assert run.state.phase is Phase.ABORTED_CLEAN


def test_a_rewind_needs_a_savepoint_that_is_there_and_no_pivot() -> None:
    run = opened().given(Savepoint(name="here"))
    unknown = run.when(Rewind(savepoint="there", reason="x"))
    assert isinstance(unknown, Refusal)
    assert "it has: here" in unknown.detail
    run.given(begin(operation(Tier.PIVOT), "p"), committed_step(1))
    late = run.when(Rewind(savepoint="here", reason="x"))
    assert isinstance(late, Refusal)
    assert late.code is Code.PIVOT_ORDER


def test_a_savepoint_later_than_the_one_rewound_to_is_forgotten() -> None:
    run = opened().given(
        Savepoint(name="one"), Savepoint(name="two"), Rewind(savepoint="one", reason="x"), FinishUnwinding()
    )
    assert list(run.state.savepoints) == ["one"]


def test_a_new_stage_takes_a_savepoint_with_its_first_intent_in_one_append() -> None:
    run = opened()
    first = replace(begin(operation(), "a"), stage="provision")
    assert kinds(run.when(first)) == ["SavepointTaken", "StepIntended"]
    run.given(first)
    assert kinds(run.when(replace(begin(operation(), "b"), stage="provision"))) == ["StepIntended"]


def test_with_on_stuck_continue_the_run_freezes_only_after_the_rest_is_undone() -> None:
    run = Dialogue().given(
        Open(agent="ann", on_stuck="continue"), begin(operation(), "a"), committed_step(1),
        begin(operation(), "b"), committed_step(2), Abort(reason="x"), IntendCompensation(step=2, salt=SALT),
    )  # fmt: skip
    assert kinds(run.when(RefuseCompensation(step=2, fault="client_error", detail="no"))) == ["CompensationRefused"]
    run.given(RefuseCompensation(step=2, fault="client_error", detail="no"))
    undo = next_undo(run.state)
    assert isinstance(undo, Undo)
    assert undo.step.number == 1
    run.given(IntendCompensation(step=1, salt=SALT), FinishCompensation(step=1))
    assert kinds(run.when(FinishUnwinding())) == ["TrajectoryFrozen"]


def test_the_third_failure_of_recovery_in_a_row_freezes_the_run() -> None:
    """dbos-inc/dbos-transact-py#805: an item that could not be recovered stayed pending for ever."""
    run = opened().given(begin(operation(), "a"), committed_step(1), Abort(reason="x"))
    broke = NoteRecoveryFailure(where="undoing", error="KeyError: 'x'")
    run.given(broke, broke)
    assert run.state.phase is Phase.COMPENSATING
    assert kinds(run.when(broke)) == ["RecoveryFailed", "TrajectoryFrozen"]


def test_progress_begins_the_count_of_failures_anew() -> None:
    run = opened().given(begin(operation(), "a"), committed_step(1), Abort(reason="x"))
    broke = NoteRecoveryFailure(where="undoing", error="KeyError")
    run.given(broke, broke, IntendCompensation(step=1, salt=SALT), FinishCompensation(step=1))
    assert run.state.recovery_failures == 0


def test_an_effect_that_came_back_is_undone_once_more_under_another_key() -> None:
    run = opened().given(
        begin(operation(), "a"), committed_step(1), Abort(reason="x"), IntendCompensation(step=1, salt=SALT)
    )
    (second,) = run.when(IntendCompensation(step=1, salt=SALT, turn=2))  # type: ignore[misc]
    assert isinstance(second, CompensationIntended)
    assert second.key != undo_key(SALT, "r1", 1)
    run.fold([second])
    assert run.when(IntendCompensation(step=1, salt=SALT, turn=2)) == []


def test_a_frozen_run_sends_nothing_and_an_unwinding_one_only_to_settle() -> None:
    run = opened().given(begin(operation(), "a"), Abort(reason="x"))
    assert admits_repeat(run.state, is_in_doubt=True) is None
    refusal = admits_repeat(run.state, is_in_doubt=False)
    assert refusal is not None
    assert refusal.code is Code.TRAJECTORY_CLOSED
    run.given(Freeze(incident="X", detail="y"))
    frozen = admits_repeat(run.state, is_in_doubt=True)
    assert frozen is not None
    assert frozen.code is Code.TRAJECTORY_FROZEN


class RunMachine(RuleBasedStateMachine):
    """Any order of legal commands: what always holds of a run holds after each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.state = Trajectory(id="m")
        self.log: list[tuple[Record, int]] = []
        self.undone: list[int] = []
        self.do(Open(agent="a"))

    def do(self, command: Command) -> list[Record] | Refusal:
        before = self.state.version
        records = decide(self.state, command)
        assert self.state.version == before, "deciding changes nothing"
        if not isinstance(records, Refusal):
            for record in records:
                evolve(self.state, record, len(self.log))
                self.log.append((record, len(self.log)))
        return records

    def some(self, draw: int, *states: StepState) -> int | None:
        numbers = [step.number for step in self.state.steps.values() if step.state in states]
        return numbers[draw % len(numbers)] if numbers else None

    @rule(tier=st.sampled_from(list(Tier)), action=st.sampled_from("abc"), idempotent=st.booleans())
    def take_a_step(self, tier: Tier, action: str, idempotent: bool) -> None:
        phase = self.state.phase
        had_pivot = self.state.pivot is not None
        if tier is Tier.READ:
            return
        records = self.do(begin(operation(tier, idempotent=idempotent), action + tier.value))
        if not isinstance(records, Refusal):
            assert phase in (Phase.PREPARING, Phase.FINALIZING)
            assert not had_pivot or idempotent

    @rule(draw=st.integers(0, 9), bound=st.booleans())
    def it_lands(self, draw: int, bound: bool) -> None:
        number = self.some(draw, StepState.INTENDED, StepState.IN_DOUBT)
        if number is not None:
            compensable = self.state.steps[number].tier is Tier.COMPENSABLE
            self.do(Complete(
                step=number, reply=OK, compensator=UNDO if compensable and bound else None,
                unbound=None if bound or not compensable else "why"))  # fmt: skip

    @rule(draw=st.integers(0, 9))
    def it_fails(self, draw: int) -> None:
        number = self.some(draw, StepState.INTENDED, StepState.IN_DOUBT)
        if number is not None:
            self.do(Fail(step=number, fault="f", detail="d"))

    @rule(draw=st.integers(0, 9))
    def it_is_in_doubt(self, draw: int) -> None:
        number = self.some(draw, StepState.INTENDED)
        if number is not None:
            self.do(Doubt(step=number, fault="f", detail="d"))

    @rule()
    def the_agent_aborts(self) -> None:
        had_pivot = self.state.pivot is not None
        phase = self.state.phase
        records = self.do(Abort(reason="x"))
        if records and not isinstance(records, Refusal):
            assert not had_pivot
            assert phase is Phase.PREPARING

    @rule()
    def the_agent_commits(self) -> None:
        self.do(Commit())

    @precondition(lambda self: self.state.phase is Phase.COMPENSATING)
    @rule(refused=st.sampled_from([False] * 9 + [True]))
    def unwind_one(self, refused: bool) -> None:
        match next_undo(self.state):
            case Undo(step):
                later = [s for s in self.state.steps.values() if s.order > step.order]
                assert all(s.state not in (StepState.COMMITTED, StepState.COMPENSATING) for s in later), "LIFO"
                self.do(IntendCompensation(step=step.number, salt=SALT))
                if refused:
                    self.do(RefuseCompensation(step=step.number, fault="f", detail="d"))
                else:
                    self.do(FinishCompensation(step=step.number))
                    self.undone.append(step.number)
            case Skip(step, reason, is_residue):
                self.do(SkipCompensation(step=step.number, reason=reason, is_residue=is_residue))
            case Stuck(step):
                self.do(Freeze(incident="X", detail="y"))
            case Nothing():
                self.do(FinishUnwinding())
            case Wait():
                assert self.state.in_flight

    @invariant()
    def there_is_at_most_one_live_pivot(self) -> None:
        pivots = [
            s for s in self.state.steps.values()
            if s.tier is Tier.PIVOT and s.state not in (StepState.FAILED,)
        ]  # fmt: skip
        assert len(pivots) <= 1

    @invariant()
    def nothing_is_undone_after_the_pivot(self) -> None:
        if self.state.phase in (Phase.FINALIZING, Phase.SUCCEEDED):
            assert not self.undone

    @invariant()
    def a_step_is_undone_once(self) -> None:
        assert len(self.undone) == len(set(self.undone))

    @invariant()
    def the_fold_of_the_log_is_the_state(self) -> None:
        """Recovery is not a second engine."""
        again = fold("m", [(decode(*encode(record)), at) for record, at in self.log])
        assert again == self.state

    @invariant()
    def what_would_be_undone_is_counted_right(self) -> None:
        """The count is kept from step to step, so that a failure in a long run costs no more than in a short one."""
        steps = self.state.steps.values()
        counted = Counter(
            (s.tool, s.operation) for s in steps if s.state is StepState.COMMITTED and s.compensator is not None
        )
        assert self.state.to_undo() == counted

    @invariant()
    def an_aborted_run_left_only_what_it_names(self) -> None:
        if self.state.phase is Phase.ABORTED_CLEAN:
            left = [s for s in self.state.steps.values() if s.state in (StepState.COMMITTED, StepState.IN_DOUBT)]
            assert not left


RunMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRunMachine = RunMachine.TestCase
