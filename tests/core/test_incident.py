"""Frozen runs: what a person is shown, and what a person may decide."""

from __future__ import annotations

import pytest

from gateway.core.codes import Code
from gateway.core.incident import acknowledge, close, freeze, incident_view, release, resolve_step
from gateway.core.manifest import Tier, TimeoutSettings
from gateway.core.outcome import Refusal
from gateway.core.records import (
    ApprovalDecided,
    ApprovalRequested,
    GatePassed,
    IncidentAcknowledged,
    NoticesDelivered,
    Record,
    RecordedReply,
    RecordedRequest,
    StepCommitted,
    StepDeferred,
    StepInDoubt,
    StepIntended,
    StepReleased,
    StepResolved,
    StepStaged,
    TrajectoryClosed,
    TrajectoryFrozen,
    TrajectoryOpened,
    TrajectoryReleased,
    decode,
    encode,
    redacted,
)
from gateway.core.saga import Abort, Begin, IntendCompensation, Open, RefuseCompensation, decide, next_undo
from gateway.core.tool import BoundRequest, Operation
from gateway.core.trajectory import IllegalRecord, Phase, StepState, Trajectory, evolve

UNDO = BoundRequest("cloud", "DELETE", "/instances/i1")
HOLD = Operation(name="provision", tier=Tier.COMPENSABLE, timeouts=TimeoutSettings())
PIVOT = Operation(name="payout", tier=Tier.PIVOT, timeouts=TimeoutSettings())


class Run:
    def __init__(self) -> None:
        self.state, self.at = Trajectory(id="r1"), 0
        self.do(Open(agent="bot", labels={"team": "ml"}))

    def do(self, *commands: object) -> Run:
        for command in commands:
            records = command if isinstance(command, list) else decide(self.state, command)  # type: ignore[arg-type]
            assert not isinstance(records, Refusal), records
            for record in records:
                self.at += 1_000
                evolve(self.state, record, self.at)
        return self

    def hold(self) -> Run:
        began = Begin(tool="cloud", operation=HOLD, action=f"a{len(self.state.steps)}", fingerprint="f", method="POST",
                      target="/instances", salt=b"s", at=1)  # fmt: skip
        self.do(began)
        committed = StepCommitted(step=len(self.state.steps), reply=RecordedReply(status=201), compensator=UNDO,
                                  leak=("16 H100 instances", 5.5, 60.0, "USD"))  # fmt: skip
        return self.do([committed])

    def corrupted(self) -> Run:
        self.hold().hold().do(Abort(reason="x"), IntendCompensation(step=2, salt=b"s"))
        return self.do(RefuseCompensation(step=2, fault="client_error", detail="it answered 409: locked", status=409))


def only(run: Run) -> dict[str, object]:
    (incident,) = run.state.incidents
    return incident_view(run.state, incident, run.at + 60_000)


def test_a_refused_compensator_freezes_in_the_same_breath_and_says_what_leaks() -> None:
    run = Run().corrupted()
    view = only(run)
    assert (view["class"], view["state"], view["was"]) == ("COMPENSATION_CORRUPTED", "open", "compensating")
    assert view["journal_position"] == run.state.version
    failed = view["failed"]
    assert isinstance(failed, dict)
    assert failed["call"]["target"] == "/instances/i1"
    assert failed["answer"] == {"status": 409, "fault": "client_error", "detail": "it answered 409: locked"}
    assert [one["step"] for one in view["not_undone"]] == [2, 1]  # type: ignore[attr-defined]
    assert [one["so_far"] for one in view["leaks"]] == [6.05, 5.87], "money runs from the step's own time on"  # type: ignore[attr-defined]


def test_a_run_is_frozen_once_and_a_run_that_is_over_is_not() -> None:
    run = Run().hold()
    run.do(freeze(run.state, "OPERATOR_FREEZE", "look", "ann"))
    assert freeze(run.state, "OPERATOR_FREEZE", "again", "bob") == []
    run.do(close(run.state, "ann", "enough"))
    assert run.state.phase is Phase.CLOSED
    assert isinstance(freeze(run.state, "OPERATOR_FREEZE", "late", "ann"), Refusal)
    assert close(run.state, "ann", "enough") == []


def test_acknowledging_twice_is_once_and_taking_over_is_recorded() -> None:
    run = Run().corrupted()
    run.do(acknowledge(run.state, "ann", "on it"))
    assert acknowledge(run.state, "ann", "still") == []
    assert acknowledge(run.state, "bob", "I take over")
    assert only(run)["acknowledged_by"] == "ann"


def test_letting_go_resolves_the_incident_and_tries_again_what_was_given_up() -> None:
    run = Run().corrupted()
    run.do(release(run.state, None, "ann", "unlocked"))
    assert run.state.phase is Phase.COMPENSATING
    assert run.state.steps[2].state is StepState.COMMITTED
    assert next_undo(run.state).step.number == 2  # type: ignore[union-attr]
    assert only(run)["state"] == "resolved"
    refusal = release(run.state, None, "ann", "again")
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.ALREADY_DECIDED


@pytest.mark.parametrize(
    ("to", "is_allowed"), [(None, True), ("compensating", True), ("preparing", False), ("finalizing", False)]
)
def test_a_run_that_was_being_undone_takes_no_new_steps(to: str | None, is_allowed: bool) -> None:
    run = Run().corrupted()
    assert isinstance(release(run.state, to, "ann", "x"), Refusal) is not is_allowed


def test_what_a_person_found_out_decides_what_is_left_to_undo() -> None:
    run = Run().corrupted()
    run.do(resolve_step(run.state, 2, "not_landed", "deleted by hand", "ann"))
    assert run.state.steps[2].state is StepState.COMPENSATED
    assert resolve_step(run.state, 2, "not_landed", "deleted by hand", "ann") == []
    assert [one["step"] for one in only(run)["not_undone"]] == [1]  # type: ignore[attr-defined]
    refusal = resolve_step(run.state, 2, "landed", "no, it is there", "bob")
    assert isinstance(refusal, Refusal)
    missing = resolve_step(run.state, 9, "landed", "x", "ann")
    assert isinstance(missing, Refusal)


def doubtful(operation: Operation) -> Run:
    began = Begin(tool="cloud", operation=operation, action="aa", fingerprint="f", method="POST", target="/x", salt=b"s",
                  at=1)  # fmt: skip
    return Run().do(began, [StepInDoubt(step=1, fault="reset", detail="?")])


def test_a_pivot_in_doubt_that_landed_means_forward_and_one_that_did_not_means_back() -> None:
    run = doubtful(PIVOT)
    run.do(freeze(run.state, "OUTCOME_UNKNOWN", "too long", "gateway", 1))
    refused = release(run.state, "compensating", "ann", "x")
    assert isinstance(refused, Refusal), "while nobody knows, nothing is undone"
    run.do(resolve_step(run.state, 1, "landed", "the bank says so", "ann"))
    run.do(release(run.state, None, "ann", "x"))
    assert run.state.phase is Phase.FINALIZING
    other = doubtful(PIVOT)
    other.do(resolve_step(other.state, 1, "not_landed", "the bank says no", "ann"))
    assert other.state.pivot is None
    other.do(Abort(reason="x"))
    assert other.state.phase is Phase.COMPENSATING


def test_a_step_that_a_person_saw_landed_has_no_answer_to_undo_it_from_and_keeps_the_pivot_shut() -> None:
    run = doubtful(HOLD)
    run.do(resolve_step(run.state, 1, "landed", "seen in the console", "ann"))
    assert "no answer to bind" in (run.state.steps[1].unbound or "")
    refusal = decide(run.state, Begin(tool="pay", operation=PIVOT, action="p", fingerprint="p", method="POST",
                                      target="/p", salt=b"s", at=1))  # fmt: skip
    assert isinstance(refusal, Refusal)
    assert "cannot be undone" in refusal.detail


def test_a_run_stays_in_the_open_part_of_the_journal_until_people_have_been_told_of_its_end() -> None:
    run = Run().corrupted()
    run.do(close(run.state, "ann", "enough"))
    assert run.state.is_over
    assert run.state.is_open
    run.do([NoticesDelivered(sink="ops", up_to=run.state.version)])
    assert run.state.is_open, "another sink may not have taken it"
    run.do([NoticesDelivered(sink="", up_to=run.state.incidents[-1].notices[-1].position, is_complete=True)])
    assert not run.state.is_open


def test_a_journal_that_closes_a_run_which_is_not_frozen_contradicts_itself() -> None:
    run = Run()
    record: Record = TrajectoryClosed(principal="ann", reason="x")
    with pytest.raises(IllegalRecord):
        evolve(run.state, record, 0)


def test_a_run_whose_payloads_were_erased_folds_to_the_same_states() -> None:
    """Erasing takes what was said and asked, never where the run stands."""
    records: list[Record] = [
        TrajectoryOpened(agent="bot"),
        ApprovalRequested(approval="r1~2", agent="bot", tool="pay", operation="payout", tier="pivot", action="aa",
                          fingerprint="aa", origin="http://pay", method="POST", target="/p", required=1, expires_at=9,
                          valid_ms=9, body="secret", approvers=["ann"]),
        ApprovalDecided(approval="r1~2", principal="ann", verdict="approve", reason="private", use_until=9),
        StepStaged(step=1, tool="pay", operation="notice", tier="pivot", action="bb", fingerprint="bb", occurrence=1,
                   key="k1", method="POST", target="/n", request=RecordedRequest(text="private")),
        GatePassed(action="aa", operation="pay.payout", snapshot="x", approval="r1~2", gates=[["g", "private"]]),
        StepIntended(step=2, tool="pay", operation="payout", tier="pivot", action="aa", fingerprint="aa", occurrence=1,
                     key="k2", method="POST", target="/p", approval="r1~2"),
        StepCommitted(step=2, reply=RecordedReply(status=200, text="private"), lease="db", lease_until=7,
                      leak=("private", 1.0, 60.0, "USD")),
        StepReleased(step=1),
        StepDeferred(step=1, fault="server", detail="private"),
        TrajectoryFrozen(incident="POST_PIVOT_STALLED", detail="private", step=1, by="ann"),
        IncidentAcknowledged(principal="ann", reason="private"),
        StepResolved(step=1, verdict="not_landed", evidence="private", principal="ann"),
        TrajectoryReleased(to="finalizing", principal="ann", reason="private"),
        TrajectoryFrozen(incident="OPERATOR_FREEZE", detail="private"),
        TrajectoryClosed(principal="ann", reason="private"),
        NoticesDelivered(sink="", up_to=99, is_complete=True),
    ]  # fmt: skip
    whole, erased = Trajectory(id="r1"), Trajectory(id="r1")
    for record in records:
        kind, data = encode(record)
        kept = redacted(kind, data)
        assert b"private" not in kept
        assert b"secret" not in kept
        evolve(whole, record, 1)
        evolve(erased, decode(kind, kept), 1)
        assert (erased.phase, erased.pivot) == (whole.phase, whole.pivot)
        assert [step.state for step in erased.steps.values()] == [step.state for step in whole.steps.values()]
        assert [one.state for one in erased.approvals.values()] == [one.state for one in whole.approvals.values()]
        for incident in erased.incidents:
            incident_view(erased, incident, 5)
    assert whole.phase is Phase.CLOSED
    assert not erased.is_open
