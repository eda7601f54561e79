"""Nothing leaves that is not on disk."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.call import Call, Lane
from gateway.core.codes import Code
from gateway.core.manifest import Tier
from gateway.core.outcome import Outcome, Rejected, Success
from gateway.core.saga import Abort
from gateway.core.trajectory import StepState
from tests.builders import operation_of
from tests.stages.saga_rig import Rig, ok


async def test_the_intent_is_durable_when_the_tool_sees_the_call() -> None:
    """Invariant 1. MassTransit#4990, #1005: acknowledged before it was on disk."""
    rig = Rig()
    seen: list[list[str]] = []

    async def look(call: Call) -> Outcome:
        seen.append([entry.kind for entry in await rig.journal.read("r1")])
        return ok()

    rig.answers = [look]
    await rig.call()
    assert seen == [["TrajectoryOpened", "StepIntended"]]


@pytest.mark.parametrize("takes_effect", [False, True])
async def test_if_the_journal_cannot_write_nothing_leaves(takes_effect: bool) -> None:
    rig = Rig()
    rig.journal.break_down(takes_effect=takes_effect)
    outcome = await rig.call()
    assert isinstance(outcome, Rejected)
    assert outcome.refusal.code is Code.JOURNAL_UNAVAILABLE
    assert rig.sent == []
    rig.journal.mend()
    assert isinstance(await rig.call(), Success)
    assert len(rig.sent) == 1


async def test_a_disk_that_does_not_answer_is_given_up_at_the_deadline() -> None:
    rig = Rig()
    rig.journal.hold = asyncio.Event()
    outcome = await rig.call(timeout_s=0.0)
    assert isinstance(outcome, Rejected)
    assert outcome.refusal.code is Code.JOURNAL_UNAVAILABLE
    assert rig.sent == []
    rig.journal.hold.set()
    assert rig.state().steps[1].state is StepState.FAILED, "never sent, and said so"


async def test_a_caller_who_leaves_while_the_intent_is_written_leaves_no_doubt() -> None:
    rig = Rig()
    rig.journal.hold = asyncio.Event()
    call = rig.start()
    while rig.trajectories.get("r1") is None or not rig.state().in_flight:
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    rig.journal.hold.set()
    assert rig.state().steps[1].state is StepState.FAILED
    assert rig.sent == []


async def test_legality_is_decided_on_the_state_the_append_is_made_to() -> None:
    """Two pivots that both passed the first look: only one leaves."""
    rig = Rig()
    payout = operation_of("payout", Tier.PIVOT)
    one, two = rig.start(b"one", operation=payout), rig.start(b"two", operation=payout)
    outcomes = await asyncio.gather(one, two)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Rejected", "Success"]
    assert len(rig.sent) == 1


async def test_a_compensator_has_its_intent_before_it_leaves_and_only_one() -> None:
    rig = Rig()
    await rig.call()
    run = rig.trajectories.get("r1")
    assert run is not None
    await rig.trajectories.decided(run, Abort(reason="x"))
    for _ in range(2):
        await rig.call(lane=Lane.COMPENSATION, step=1)
    kinds = [entry.kind for entry in await rig.journal.read("r1")]
    assert kinds.count("CompensationIntended") == 1
    assert rig.state().steps[1].state is StepState.COMPENSATING
