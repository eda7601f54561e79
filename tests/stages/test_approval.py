"""The gate stage around a scripted tool: waiting, time running out by a clock turned by hand, and a journal that fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.approval import expired
from gateway.core.call import Call
from gateway.core.codes import Code
from gateway.core.expression import Environment
from gateway.core.manifest import ApprovalPolicy, ApprovalSettings, Tier
from gateway.core.outcome import Outcome, Refusal, Rejected, Success
from gateway.core.tool import Gate, Operation
from gateway.journal import JournalUnavailable
from tests.builders import operation_of
from tests.stages.gate_rig import GateRig

POLICY = ApprovalSettings(approvers=("ann", "bob"), required=2, timeout=600.0, valid=60.0)


def pivot(**fields: Any) -> Operation:
    fields.setdefault("approval", ApprovalPolicy.REQUIRED)
    return operation_of("payout", Tier.PIVOT, approved_by=POLICY, **fields)


def code(outcome: Outcome) -> Code:
    assert isinstance(outcome, Rejected), outcome
    return outcome.refusal.code


async def test_a_held_call_says_where_to_ask_and_a_restart_forgets_nothing() -> None:
    rig = GateRig()
    held = await rig.call(operation=pivot())
    assert code(held) is Code.HELD_FOR_APPROVAL
    assert isinstance(held, Rejected)
    assert held.refusal.location == "/seawall/v1/approvals/r1~2"
    rig.restart()
    await rig.vote("ann")
    rig.restart()
    await rig.vote("bob")
    assert isinstance(await rig.call(operation=pivot()), Success)
    assert len(rig.sent) == 1


async def test_a_waiting_call_is_let_through_by_the_last_vote_with_its_whole_time_left() -> None:
    rig = GateRig()
    call = rig.make(operation=pivot(), wait_s=300.0)
    waiting = asyncio.ensure_future(rig.pipeline(call))
    await rig.clock.advance(120.0)
    await rig.vote("ann")
    await rig.clock.advance(120.0)
    assert not waiting.done()
    await rig.vote("bob")
    assert isinstance(await rig.clock.finish(waiting), Success)
    assert call.deadline > rig.clock.now(), "people's time is not the call's"


async def test_the_outcome_of_a_call_that_waited_while_its_run_was_read_anew_is_recorded() -> None:
    """Found by the simulation: a vote could not be written, the run was read again, and the outcome went to the old one: the
    agent had the answer of its pivot, and the journal never did."""
    rig = GateRig()
    waiting = asyncio.ensure_future(rig.pipeline(rig.make(operation=pivot(), wait_s=300.0)))
    await rig.clock.settle()
    rig.journal.break_down()
    with pytest.raises(JournalUnavailable):
        await rig.vote("ann")
    rig.journal.mend()
    await rig.vote("ann")
    await rig.vote("bob")
    assert isinstance(await rig.clock.finish(waiting), Success)
    assert [entry.kind for entry in await rig.journal.read("r1")][-2:] == ["StepIntended", "StepCommitted"]
    assert not rig.state().in_flight


async def test_a_waiting_call_gives_up_at_its_own_time_and_is_held_on() -> None:
    rig = GateRig()
    waiting = asyncio.ensure_future(rig.pipeline(rig.make(operation=pivot(), wait_s=30.0)))
    await rig.clock.advance(29.0)
    assert not waiting.done()
    await rig.clock.advance(2.0)
    assert code(await waiting) is Code.HELD_FOR_APPROVAL


async def test_expiry_is_a_no_for_who_waits_and_for_who_comes_back() -> None:
    rig = GateRig()
    waiting = asyncio.ensure_future(rig.pipeline(rig.make(operation=pivot(), wait_s=3_000.0)))
    await rig.clock.advance(599.0)
    assert not waiting.done()
    await rig.clock.advance(2.0)
    assert code(await waiting) is Code.PIVOT_GATE
    assert code(await rig.call(operation=pivot())) is Code.PIVOT_GATE
    state = rig.state()
    assert len(expired(state.approvals, rig.clock.at())) == 1
    assert rig.sent == []


async def test_an_approval_that_is_not_used_in_time_is_worth_nothing() -> None:
    rig = GateRig()
    await rig.call(operation=pivot())
    await rig.vote("ann")
    await rig.vote("bob")
    rig.clock.turn(61.0)
    assert code(await rig.call(operation=pivot())) is Code.PIVOT_GATE
    assert rig.sent == []


async def test_a_wall_clock_that_jumps_can_only_make_it_a_no() -> None:
    rig = GateRig()
    await rig.call(operation=pivot())
    await rig.vote("ann")
    await rig.vote("bob")
    rig.clock.shift_wall_clock(3_600.0)
    assert code(await rig.call(operation=pivot())) is Code.PIVOT_GATE


async def test_an_approval_for_a_call_that_certainly_failed_can_be_used_again() -> None:
    rig = GateRig()
    await rig.call(operation=pivot())
    await rig.vote("ann")
    await rig.vote("bob")
    rig.answers = [Rejected(Refusal(code=Code.CIRCUIT_OPEN, detail="open"))]
    await rig.call(operation=pivot())
    assert isinstance(await rig.call(operation=pivot()), Success)


async def test_a_changed_policy_asks_anew() -> None:
    rig = GateRig()
    await rig.call(operation=pivot())
    await rig.vote("ann")
    await rig.vote("bob")
    stricter = ApprovalSettings(approvers=("ann", "bob", "carl"), required=3)
    operation = operation_of("payout", Tier.PIVOT, approval=ApprovalPolicy.REQUIRED, approved_by=stricter)
    assert code(await rig.call(operation=operation)) is Code.HELD_FOR_APPROVAL
    assert len(rig.state().approvals) == 2


class Check:
    """A condition that can be turned over."""

    source = "check"

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)

    def __call__(self, env: Environment) -> object:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize("said", [False, None, 1, "true"])
async def test_whatever_is_not_true_keeps_the_gate_closed(said: object) -> None:
    rig = GateRig()
    gated = pivot(approval=ApprovalPolicy.NONE, gates=(Gate("g", check=Check(said)),))
    assert code(await rig.call(operation=gated)) is Code.PIVOT_GATE
    assert rig.sent == []


async def test_machines_are_asked_again_after_people_took_their_time() -> None:
    rig = GateRig()
    gated = pivot(gates=(Gate("g", check=Check(True, False)),))
    waiting = asyncio.ensure_future(rig.pipeline(rig.make(operation=gated, wait_s=300.0)))
    await rig.clock.settle()
    await rig.vote("ann")
    await rig.vote("bob")
    assert code(await rig.clock.finish(waiting)) is Code.PIVOT_GATE
    assert rig.sent == []


async def test_nobody_is_asked_about_a_call_that_is_not_legal_anyway() -> None:
    rig = GateRig()
    rig.answers = [ConnectionResetError("gone")]
    with pytest.raises(ConnectionResetError):
        await rig.call(b'{"n": 0}')
    assert code(await rig.call(operation=pivot())) is Code.PIVOT_GATE
    assert rig.state().approvals == {}


async def test_a_journal_that_cannot_write_keeps_the_gate_closed() -> None:
    rig = GateRig()
    await rig.call(b'{"n": 0}')
    rig.journal.break_down()
    assert code(await rig.call(operation=pivot())) is Code.JOURNAL_UNAVAILABLE
    assert len(rig.sent) == 1


async def test_a_staged_call_is_kept_and_answered_202_and_its_repeat_likewise() -> None:
    rig = GateRig()
    notice = operation_of("notice", Tier.PIVOT, is_staged=True)
    first = await rig.call(operation=notice)
    assert isinstance(first, Success)
    assert first.reply.status == 202
    call: Call = rig.make(operation=notice)
    assert isinstance(await rig.pipeline(call), Success)
    assert (call.step, rig.sent) == (1, [])
