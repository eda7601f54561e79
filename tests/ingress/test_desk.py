"""The desk itself, on a journal that fails: what a person decided is answered once it is on the disk, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gateway.core.approval import Verdict
from gateway.core.codes import Code
from gateway.core.manifest import ApprovalPolicy, ApprovalSettings, Tier
from gateway.core.outcome import Refusal, Rejected
from gateway.core.trajectory import Phase
from gateway.ingress.desk import Desk
from gateway.ingress.runs import Shown
from gateway.journal import JournalUnavailable
from tests.builders import operation_of, tool_of
from tests.stages.gate_rig import GateRig

PAYOUT = operation_of(
    "payout",
    Tier.PIVOT,
    approval=ApprovalPolicy.REQUIRED,
    approved_by=ApprovalSettings(approvers=("ann", "bob"), required=2),
)
TOOL = tool_of("pay", PAYOUT)
Decide = Callable[[Desk, str], Awaitable[Shown | Refusal]]

DECISIONS: dict[str, Decide] = {
    "approve": lambda desk, name: desk.decide(name, Verdict.APPROVE, "ann", "fine"),
    "reject": lambda desk, name: desk.decide(name, Verdict.REJECT, "ann", "no"),
    "freeze": lambda desk, name: desk.freeze("r1", "ann", "stop"),
}


async def held() -> tuple[GateRig, Desk, str]:
    """A run with a call that waits for people."""
    rig = GateRig()
    outcome = await rig.call(operation=PAYOUT, tool=TOOL)
    assert isinstance(outcome, Rejected)
    return rig, Desk(rig.trajectories, rig.clock), str(outcome.refusal.extra["approval"])


def shown(answer: Shown | Refusal) -> dict[str, object]:
    assert isinstance(answer, Shown), answer
    return dict(answer.view)


@pytest.mark.parametrize("decide", DECISIONS.values(), ids=DECISIONS)
async def test_a_decision_that_cannot_be_written_is_not_answered_and_can_be_made_again(decide: Decide) -> None:
    rig, desk, name = await held()
    rig.journal.break_down()
    with pytest.raises(JournalUnavailable):
        await decide(desk, name)
    rig.journal.mend()
    before = shown(await desk.approval(name))
    assert (before["state"], before["votes"]) == ("pending", [])
    assert isinstance(await decide(desk, name), Shown)
    found = await rig.trajectories.find("r1")
    assert found is not None
    assert found.state.approvals[name].votes or found.state.phase is Phase.FROZEN


async def test_two_clicks_at_once_while_the_disk_fails_are_both_told_so() -> None:
    """The second changed nothing in memory, and was answered as if the first had been written."""
    rig, desk, name = await held()
    rig.journal.break_down()
    clicks = [desk.decide(name, Verdict.APPROVE, "ann", "fine") for _ in range(2)]
    answers = await asyncio.gather(*clicks, return_exceptions=True)
    assert [type(answer) for answer in answers] == [JournalUnavailable, JournalUnavailable]


async def test_an_approval_that_has_run_out_is_listed_as_such_before_anybody_wrote_it_down() -> None:
    rig, desk, name = await held()
    rig.clock.turn(PAYOUT.approved_by.timeout)
    assert shown(desk.approvals("pending"))["approvals"] == []
    (expired,) = shown(desk.approvals("expired"))["approvals"]  # type: ignore[misc]
    assert expired["id"] == name
    refused = await desk.decide(name, Verdict.APPROVE, "ann", "late")
    assert isinstance(refused, Refusal)
    assert refused.code is Code.ALREADY_DECIDED


@pytest.mark.parametrize("identity", ["", "r1", "r1~", "r1~99", "nobody~1", "~"])
async def test_a_name_that_names_nothing_is_refused(identity: str) -> None:
    _, desk, _ = await held()
    for answer in (
        await desk.approval(identity),
        await desk.decide(identity, Verdict.REJECT, "ann", "x"),
        await desk.incident(identity),
        await desk.acknowledge(identity, "ann", "x"),
        await desk.resolve(identity, "ann", "x", to=None, is_closing=True),
    ):
        assert isinstance(answer, Refusal)
        assert answer.code in (Code.UNKNOWN_APPROVAL, Code.UNKNOWN_INCIDENT)
