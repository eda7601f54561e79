"""Past the pivot: examples, and a machine in which everything goes wrong in any order."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.core.codes import Code
from gateway.core.incident import acknowledge, close, freeze, release, resolve_step
from gateway.core.manifest import Tier, TimeoutSettings
from gateway.core.outbox import Await, Done, Send, next_finish, outcome_records
from gateway.core.outcome import Refusal
from gateway.core.records import (
    Record,
    RecordedReply,
    RecordedRequest,
    StepCommitted,
    StepDeferred,
    StepFailed,
    StepInDoubt,
    StepReleased,
    StepStaged,
    TrajectoryClosing,
    TrajectoryCommitted,
    TrajectoryFrozen,
    decode,
    encode,
)
from gateway.core.saga import (
    Abort,
    Begin,
    Commit,
    FinishUnwinding,
    Nothing,
    Open,
    Skip,
    SkipCompensation,
    decide,
    next_undo,
)
from gateway.core.tool import Operation
from gateway.core.trajectory import Phase, StepState, Trajectory, evolve

OK = RecordedReply(status=200)


def operation(kind: str) -> Operation:
    tier = Tier.PIVOT if kind in ("pivot", "notice") else Tier.REVERSIBLE
    return Operation(name=kind, tier=tier, timeouts=TimeoutSettings(), is_staged=kind == "notice",
                     is_idempotent=kind == "idem")  # fmt: skip


def begin(kind: str, action: str | None = None) -> Begin:
    action = action or kind
    return Begin(tool="pay", operation=operation(kind), action=action, fingerprint=action, method="POST", target="/x",
                 salt=b"s" * 32, at=1, request=RecordedRequest(text="{}"))  # fmt: skip


class Run:
    """given(...).when(...)"""

    def __init__(self, *commands: object) -> None:
        self.state = Trajectory(id="r1")
        self.do(Open(agent="ann"), *commands)

    def do(self, *commands: object) -> Run:
        for command in commands:
            records = decide(self.state, command) if not isinstance(command, list) else command  # type: ignore[arg-type]
            assert not isinstance(records, Refusal), records
            self.fold(records)
        return self

    def fold(self, records: list[Record]) -> None:
        for record in records:
            assert decode(*encode(record)) == record, "what is folded is what the journal gives back"
            evolve(self.state, record, 1)

    def done(self, number: int) -> Run:
        return self.do([StepCommitted(step=number, reply=OK)])


def past_pivot(*before: str) -> Run:
    run = Run(*(begin(kind, f"{kind}{n}") for n, kind in enumerate(before)), begin("pivot"))
    return run.done(len(before) + 1)


def test_a_staged_call_is_kept_whole_and_is_no_pivot() -> None:
    run = Run(begin("notice"))
    (step,) = run.state.steps.values()
    assert (step.state, run.state.pivot, run.state.phase) == (StepState.STAGED, None, Phase.PREPARING)
    assert next_finish(run.state) == Done(is_closing=False), "nothing leaves before the pivot"


def test_staged_calls_are_released_in_order_once_the_pivot_has_committed() -> None:
    run = past_pivot("notice", "notice")
    assert next_finish(run.state) == Send(run.state.steps[1])
    run.do([StepReleased(step=1)])
    assert next_finish(run.state) == Await(run.state.steps[1])
    run.done(1)
    assert next_finish(run.state) == Send(run.state.steps[2])
    run.do([StepReleased(step=2)]).done(2)
    assert next_finish(run.state) == Done(is_closing=False)


def test_a_pivot_in_doubt_releases_nothing() -> None:
    run = Run(begin("notice"), begin("pivot"))
    run.do([StepInDoubt(step=2, fault="reset", detail="?")])
    assert next_finish(run.state) == Done(is_closing=False)
    refusal = decide(run.state, Commit())
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.OUTCOME_UNKNOWN


def test_committing_a_run_with_staged_calls_and_no_pivot_is_the_point_of_no_return() -> None:
    run = Run(begin("idem"))
    run.done(1).do(begin("notice"))
    assert decide(run.state, Commit()) == [TrajectoryClosing()]
    run.do(Commit())
    assert run.state.phase is Phase.FINALIZING
    refusal = decide(run.state, Abort(reason="no"))
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.PIVOT_ORDER
    refused = decide(run.state, begin("idem", "more"))
    assert isinstance(refused, Refusal)
    assert decide(run.state, Commit()) == [], "asking twice changes nothing"
    run.do([StepReleased(step=2)]).done(2)
    assert next_finish(run.state) == Done(is_closing=True)
    assert decide(run.state, Commit()) == [TrajectoryCommitted()]


def test_an_abort_drops_what_was_staged() -> None:
    run = Run(begin("notice"), Abort(reason="x"))
    plan = next_undo(run.state)
    assert isinstance(plan, Skip)
    assert plan.is_residue is False
    run.do(SkipCompensation(step=1, reason=plan.reason), FinishUnwinding())
    assert run.state.phase is Phase.ABORTED_CLEAN


@pytest.mark.parametrize(
    ("fault", "is_ours", "kinds"),
    [
        ("server", False, [StepDeferred]),
        ("connect", True, [StepDeferred]),
        ("client_error", False, [StepFailed]),
        ("client_error", True, [StepDeferred, TrajectoryFrozen]),
    ],
)
def test_a_failure_past_the_pivot_is_not_the_end_of_a_step(fault: str, is_ours: bool, kinds: list[type]) -> None:
    """An agent reads a refusal and repairs its call; where no agent waits, a refusal for good is for a person."""
    run = past_pivot().do(begin("idem"))
    records = outcome_records(run.state, StepFailed(step=2, fault=fault, detail="no", status=409), is_ours=is_ours)
    assert [type(record) for record in records] == kinds
    run.fold(records)


def test_a_failure_before_the_pivot_is_one() -> None:
    run = Run(begin("idem"))
    failed = StepFailed(step=1, fault="server", detail="no")
    assert outcome_records(run.state, failed, is_ours=False) == [failed]


def test_compensators_are_retired_when_the_pivot_commits_be_the_run_frozen_or_not() -> None:
    run = Run(begin("idem")).done(1).do(begin("pivot"))
    run.do(freeze(run.state, "OPERATOR_FREEZE", "look", "ann"))
    run.done(2)
    assert (run.state.phase, run.state.resume) == (Phase.FROZEN, Phase.FINALIZING)
    refusal = release(run.state, "compensating", "ann", "undo it")
    assert isinstance(refusal, Refusal)
    run.do(release(run.state, None, "ann", "go on"))
    assert run.state.phase is Phase.FINALIZING


class PastThePivot(RuleBasedStateMachine):
    """Any interleaving of agent, answers, finalizer and people keeps to the boundary."""

    def __init__(self) -> None:
        super().__init__()
        self.run = Run()
        self.sent: list[int] = []
        self.landed: list[int] = []
        self.was_aborted = False

    @property
    def state(self) -> Trajectory:
        return self.run.state

    def try_(self, records: list[Record] | Refusal) -> bool:
        if isinstance(records, Refusal):
            return False
        for record in records:
            if isinstance(record, StepReleased):
                self.note_release(record.step)
        self.run.fold(records)
        return True

    def note_release(self, number: int) -> None:
        assert not self.was_aborted, "what an abort dropped never leaves"
        pivot = self.state.pivot
        assert self.state.is_closing or (pivot and self.state.steps[pivot].state is StepState.COMMITTED)
        assert number not in self.landed, "nothing is sent that is known to have landed"
        self.sent.append(number)

    @rule(kind=st.sampled_from(["notice", "idem", "pivot", "plain"]), n=st.integers(0, 2))
    def act(self, kind: str, n: int) -> None:
        self.try_(decide(self.state, begin(kind, f"{kind}{n}")))

    @rule(n=st.integers(0, 2))
    def cross(self, n: int) -> None:
        """Stage two and take the pivot in one go, which random steps seldom do."""
        for kind, action in (("notice", f"a{n}"), ("notice", f"b{n}"), ("pivot", f"p{n}")):
            self.try_(decide(self.state, begin(kind, action)))
        if self.state.pivot in self.state.in_flight:
            assert self.state.pivot is not None
            self.landed.append(self.state.pivot)
            self.run.fold([StepCommitted(step=self.state.pivot, reply=OK)])

    @precondition(lambda self: bool(self.state.in_flight))
    @rule(how=st.sampled_from(["ok", "bad", "server", "client_error", "doubt"]), is_ours=st.booleans())
    def answer(self, how: str, is_ours: bool) -> None:
        number = min(self.state.in_flight)
        record: StepCommitted | StepFailed | StepInDoubt
        if how in ("ok", "bad"):
            record = StepCommitted(step=number, reply=OK, bad="no" if how == "bad" else None)
            assert number not in self.landed
            self.landed.append(number)
        elif how == "doubt":
            record = StepInDoubt(step=number, fault="reset", detail="?")
        else:
            record = StepFailed(step=number, fault=how, detail="no")
        self.run.fold(outcome_records(self.state, record, is_ours=is_ours))

    @precondition(lambda self: bool(self.state.in_doubt))
    @rule(has_landed=st.booleans())
    def settle(self, has_landed: bool) -> None:
        number = min(self.state.in_doubt)
        if has_landed:
            self.landed.append(number)
            self.run.fold(outcome_records(self.state, StepCommitted(step=number, reply=OK), is_ours=True))
        else:
            failed = StepFailed(step=number, fault="timeout", detail="absent")
            self.run.fold(outcome_records(self.state, failed, is_ours=True))

    @rule()
    def finish(self) -> None:
        plan = next_finish(self.state)
        if isinstance(plan, Send):
            waiting = [n for n, s in self.state.steps.items() if s.is_staged and s.state is StepState.STAGED]
            assert not waiting or plan.step.number <= min(waiting) or not plan.step.is_staged, "in order"
            self.try_([StepReleased(step=plan.step.number)])
        elif isinstance(plan, Done) and plan.is_closing:
            assert self.try_(decide(self.state, Commit()))
            assert self.state.phase is Phase.SUCCEEDED

    @rule()
    def commit(self) -> None:
        self.try_(decide(self.state, Commit()))

    @precondition(lambda self: len(self.state.steps) > 2)
    @rule()
    def abort(self) -> None:
        if self.try_(decide(self.state, Abort(reason="x"))) and self.state.phase is Phase.COMPENSATING:
            assert not self.state.is_past_pivot
            self.was_aborted = True

    @precondition(lambda self: self.state.phase is Phase.COMPENSATING)
    @rule()
    def unwind(self) -> None:
        plan = next_undo(self.state)
        if isinstance(plan, Skip):
            self.try_(decide(self.state, SkipCompensation(step=plan.step.number, reason=plan.reason)))
        elif isinstance(plan, Nothing):
            self.try_(decide(self.state, FinishUnwinding()))

    @rule()
    def freeze(self) -> None:
        self.try_(freeze(self.state, "OPERATOR_FREEZE", "look", "ann"))

    @precondition(lambda self: self.state.phase is Phase.FROZEN)
    @rule(what=st.sampled_from(["go", "compensating", "preparing", "finalizing", "close", "ack"]))
    def decide(self, what: str) -> None:
        if what == "close":
            self.try_(close(self.state, "ann", "enough"))
        elif what == "ack":
            self.try_(acknowledge(self.state, "ann", ""))
        else:
            self.try_(release(self.state, None if what == "go" else what, "ann", "fine"))
        if self.state.phase is Phase.COMPENSATING:
            assert not self.state.is_past_pivot, "nothing is unwound past the pivot, whoever asks"
            self.was_aborted = True

    @precondition(lambda self: bool(self.state.steps))
    @rule(data=st.data(), verdict=st.sampled_from(["landed", "not_landed"]))
    def resolve(self, data: st.DataObject, verdict: str) -> None:
        number = data.draw(st.sampled_from(sorted(self.state.steps)))
        records = resolve_step(self.state, number, verdict, "seen", "ann")
        if self.try_(records) and records and verdict == "landed":
            self.landed.append(number)

    @invariant()
    def one_class_and_one_incident(self) -> None:
        state = self.state
        assert (state.phase is Phase.FROZEN) == (
            state.open_incident is not None and state.open_incident.state != "resolved"
        )
        assert sum(1 for one in state.incidents if one.state != "resolved") <= 1

    @invariant()
    def one_pivot_and_nothing_undoable_after(self) -> None:
        sent = [s for s in self.state.steps.values() if s.tier is Tier.PIVOT and not s.is_staged
                and s.state is not StepState.FAILED]  # fmt: skip
        assert len(sent) <= 1

    @invariant()
    def a_run_that_succeeded_left_nothing(self) -> None:
        if self.state.phase is Phase.SUCCEEDED:
            assert self.state.staged | self.state.deferred | self.state.released == set()
            assert not any(s.state is StepState.STAGED for s in self.state.steps.values())


TestPastThePivot = PastThePivot.TestCase
TestPastThePivot.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def test_records_of_the_outbox_survive_the_journal() -> None:
    (record,) = (r for r in decide(Run().state, begin("notice")) if isinstance(r, StepStaged))  # type: ignore[union-attr]
    assert decode(*encode(record)) == record
