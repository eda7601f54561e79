"""Approvals as dialogues, and a machine that looks for any way around them."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.core.approval import (
    Approval,
    ApprovalState,
    Verdict,
    approval_view,
    expired,
    fold_approval,
    state_at,
    vote,
)
from gateway.core.codes import Code
from gateway.core.gate import snapshot
from gateway.core.manifest import ApprovalPolicy, Tier, TimeoutSettings
from gateway.core.outcome import Refusal
from gateway.core.records import (
    ApprovalDecided,
    ApprovalExpired,
    ApprovalRequested,
    GatePassed,
    Record,
    RecordedReply,
    StepCommitted,
    StepFailed,
    StepIntended,
)
from gateway.core.saga import Abort, Begin, Open, decide
from gateway.core.tool import Operation
from gateway.core.trajectory import Trajectory, evolve

APPROVERS = ["ann", "bob", "carl"]


def requested(
    name: str = "r1~2", *, required: int = 2, action: str = "aa", expires_at: int = 1_000
) -> ApprovalRequested:
    return ApprovalRequested(
        approval=name, agent="bot", tool="pay", operation="payout", tier="pivot", action=action, fingerprint=action,
        origin="http://pay", method="POST", target="/payouts", required=required, expires_at=expires_at, valid_ms=500,
        approvers=list(APPROVERS))  # fmt: skip


def asked(**fields: int) -> Approval:
    return Approval(requested(**fields), 0)


def cast(
    approval: Approval, principal: str, verdict: Verdict = Verdict.APPROVE, at: int = 10
) -> list[Record] | Refusal:
    records = vote(approval, verdict, principal, "because", at)
    for record in () if isinstance(records, Refusal) else records:
        assert isinstance(record, ApprovalDecided)
        fold_approval({approval.id: approval}, record, at)
    return records


def test_the_last_of_n_votes_grants_and_says_until_when() -> None:
    approval = asked()
    first = cast(approval, "ann")
    assert first == [ApprovalDecided(approval="r1~2", principal="ann", verdict="approve", reason="because")]
    assert state_at(approval, 10) is ApprovalState.PENDING
    (second,) = cast(approval, "bob", at=20)  # type: ignore[misc]
    assert isinstance(second, ApprovalDecided)
    assert second.use_until == 520
    assert state_at(approval, 519) is ApprovalState.GRANTED


def test_a_double_click_counts_once() -> None:
    """archestra-ai/archestra#5132."""
    approval = asked()
    cast(approval, "ann")
    assert cast(approval, "ann", at=11) == []
    assert state_at(approval, 11) is ApprovalState.PENDING
    cast(approval, "bob")
    assert cast(approval, "bob") == []


@pytest.mark.parametrize("who", ["mallory", "", "bot"])
def test_only_the_named_decide_and_never_the_agent_itself(who: str) -> None:
    refusal = cast(asked(), who)
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.POLICY_DENIED


def test_with_nobody_named_anyone_decides_but_the_agent() -> None:
    approval = Approval(
        ApprovalRequested(**{**{f: getattr(requested(), f) for f in requested().__dataclass_fields__},
                             "approvers": [], "required": 1}), 0)  # fmt: skip
    assert isinstance(cast(approval, "bot"), Refusal)
    assert cast(approval, "zoe")
    assert state_at(approval, 11) is ApprovalState.GRANTED


def test_one_rejection_denies_for_good() -> None:
    approval = asked()
    cast(approval, "ann")
    cast(approval, "carl", Verdict.REJECT)
    refusal = cast(approval, "bob")
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.extra["state"]) == (Code.ALREADY_DECIDED, "rejected")


def test_a_rejection_takes_back_an_approval_until_it_is_used() -> None:
    approval = asked(required=1)
    cast(approval, "ann")
    cast(approval, "ann", Verdict.REJECT)
    assert state_at(approval, 11) is ApprovalState.REJECTED
    used = asked(required=1)
    cast(used, "ann")
    used.state = ApprovalState.USED
    assert isinstance(cast(used, "ann", Verdict.REJECT), Refusal)


def test_time_running_out_is_a_no_whether_or_not_it_was_written_down() -> None:
    approval = asked()
    assert state_at(approval, 999) is ApprovalState.PENDING
    assert state_at(approval, 1_000) is ApprovalState.EXPIRED
    assert state_at(approval, None) is ApprovalState.EXPIRED, "no clock, no yes"
    assert isinstance(cast(approval, "ann", at=1_000), Refusal)
    cast(approval, "ann")
    cast(approval, "bob")
    assert state_at(approval, 510) is ApprovalState.EXPIRED, "an approval has to be used in time"


def test_the_sweep_writes_each_expiry_once() -> None:
    approvals = {"r1~2": asked()}
    assert expired(approvals, 500) == []
    assert expired(approvals, 1_000) == [ApprovalExpired(approval="r1~2")]
    fold_approval(approvals, ApprovalExpired(approval="r1~2"), 1_000)
    assert expired(approvals, 2_000) == []


def test_the_view_shows_exactly_what_is_asked() -> None:
    view = approval_view(asked(), "r1", 10)
    assert view["call"]["target"] == "/payouts"  # type: ignore[index]
    assert view["state"] == "pending"


PIVOT = Operation(name="payout", tier=Tier.PIVOT, timeouts=TimeoutSettings(), approval=ApprovalPolicy.REQUIRED)


def test_an_approval_is_used_up_by_one_step() -> None:
    hold = Operation(name="payout", tier=Tier.COMPENSABLE, timeouts=TimeoutSettings(), approval=ApprovalPolicy.REQUIRED)
    state = Trajectory(id="r1")
    began = Begin(
        tool="pay", operation=hold, action="aa", fingerprint="aa", method="POST", target="/x", salt=b"s", at=30
    )
    granted: list[Record] = [
        requested(required=1),
        ApprovalDecided(approval="r1~2", principal="ann", verdict="approve", reason="", use_until=900),
    ]
    for record in [*decide(state, Open(agent="bot")), *granted]:  # type: ignore[misc]
        evolve(state, record, 20)
    for is_first in (True, False):
        evolve(state, GatePassed(action="aa", operation="x", snapshot=snapshot(state), approval="r1~2"), 20)
        records = decide(state, began)
        assert isinstance(records, Refusal) is not is_first
        for record in records if is_first else ():  # type: ignore[union-attr]
            evolve(state, record, 30)
            evolve(state, StepCommitted(step=1, reply=RecordedReply(status=200)), 40)


class Approvals(RuleBasedStateMachine):
    """However people, time, the agent and other steps interleave: no pivot without N living, exact, timely votes."""

    def __init__(self) -> None:
        super().__init__()
        self.state = Trajectory(id="r1")
        self.at = 0
        self.fold(decide(self.state, Open(agent="bot")))
        self.voted: dict[str, dict[str, tuple[Verdict, int]]] = {}

    def fold(self, records: list[Record] | Refusal) -> None:
        for record in () if isinstance(records, Refusal) else records:
            evolve(self.state, record, self.at)

    @rule(action=st.sampled_from(["aa", "bb"]))
    def ask(self, action: str) -> None:
        name = f"r1~{self.state.version + 1}"
        self.fold([requested(name, action=action, expires_at=self.at + 1_000)])
        self.voted[name] = {}

    @precondition(lambda self: bool(self.state.approvals))
    @rule(data=st.data(), who=st.sampled_from([*APPROVERS, "bot", "mallory"]), verdict=st.sampled_from(Verdict))
    def click(self, data: st.DataObject, who: str, verdict: Verdict) -> None:
        name = data.draw(st.sampled_from(sorted(self.state.approvals)))
        records = vote(self.state.approvals[name], verdict, who, "r", self.at)
        if records and not isinstance(records, Refusal):
            self.voted[name][who] = (verdict, self.at)
        self.fold(records)

    @rule(ms=st.sampled_from([1, 100, 600, 1_000]))
    def wait(self, ms: int) -> None:
        self.at += ms

    @rule()
    def sweep(self) -> None:
        self.fold(expired(self.state.approvals, self.at))

    @rule(action=st.sampled_from(["aa", "bb"]), pair=st.sampled_from([("ann", "bob"), ("bob", "carl"), ("ann", "ann")]))
    def decide_quickly(self, action: str, pair: tuple[str, str]) -> None:
        self.ask(action)
        name = next(reversed(self.state.approvals))
        for who in pair:
            records = vote(self.state.approvals[name], Verdict.APPROVE, who, "r", self.at)
            if records and not isinstance(records, Refusal):
                self.voted[name][who] = (Verdict.APPROVE, self.at)
            self.fold(records)

    @rule(name=st.integers(0, 20), action=st.sampled_from(["aa", "bb"]))
    def send(self, name: int, action: str) -> None:
        """Even a stage that lies about which approval it saw gets nothing through that people did not agree to."""
        known = list(reversed(self.state.approvals))
        approval = known[name % len(known)] if known else "r1~0"
        self.fold([GatePassed(action=action, operation="x", snapshot=snapshot(self.state), approval=approval)])
        began = Begin(tool="pay", operation=PIVOT, action=action, fingerprint=action, method="POST", target="/payouts",
                      salt=b"s" * 32, at=self.at)  # fmt: skip
        records = decide(self.state, began)
        for record in () if isinstance(records, Refusal) else records:
            if isinstance(record, StepIntended):
                self.check(record)
        self.fold(records)

    def check(self, intended: StepIntended) -> None:
        assert intended.approval is not None
        approval = self.state.approvals[intended.approval]
        votes = self.voted[approval.id]
        yes = {who: at for who, (verdict, at) in votes.items() if verdict is Verdict.APPROVE}
        assert approval.asked.action == intended.action, "bound to the exact arguments"
        assert len(yes) >= approval.asked.required
        assert set(yes) <= set(APPROVERS)
        assert all(verdict is Verdict.APPROVE for verdict, _ in votes.values())
        assert self.at < max(yes.values()) + 500, "used in time"
        assert all(at < approval.asked.expires_at for at in yes.values())
        assert approval.state is ApprovalState.GRANTED, "used once at most"

    @precondition(lambda self: bool(self.state.in_flight))
    @rule(works=st.sampled_from([False, False, False, True]))
    def answer(self, works: bool) -> None:
        number = min(self.state.in_flight)
        self.fold([StepCommitted(step=number, reply=RecordedReply(status=200)) if works
                   else StepFailed(step=number, fault="connect", detail="refused")])  # fmt: skip

    @precondition(lambda self: len(self.state.approvals) > 4)
    @rule()
    def abort(self) -> None:
        self.fold(decide(self.state, Abort(reason="x")))

    @invariant()
    def one_pivot_at_most(self) -> None:
        sent = [step for step in self.state.steps.values() if step.state.value in ("intended", "committed")]
        assert len(sent) <= 1


TestApprovals = Approvals.TestCase
TestApprovals.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
