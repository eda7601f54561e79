"""Staging: durable and whole before the agent is told, recognised when it comes again, and nothing leaves a frozen run."""

from __future__ import annotations

from gateway.core.call import Call, Lane
from gateway.core.codes import Code
from gateway.core.incident import freeze
from gateway.core.manifest import Tier
from gateway.core.outcome import Rejected, Success
from gateway.core.records import StepStaged, decode
from gateway.core.saga import Abort
from gateway.core.trajectory import StepState
from tests.builders import operation_of
from tests.stages.gate_rig import GateRig

NOTICE = operation_of("notice", Tier.PIVOT, is_staged=True)


async def test_a_staged_call_is_on_the_disk_with_its_whole_body_before_the_agent_is_told() -> None:
    rig = GateRig()
    large = b"x" * 200_000
    for body in (b"small", large):
        answer = await rig.call(body, operation=NOTICE)
        assert isinstance(answer, Success)
    records = [decode(entry.kind, entry.data) for entry in await rig.journal.read("r1")]
    small, kept = (record.request for record in records if isinstance(record, StepStaged))
    assert small.inline_body() == b"small"
    assert kept.blob is not None
    body = await rig.journal.kept(kept.blob)
    assert b"".join([chunk async for chunk in body.chunks()]) == large
    assert rig.sent == []


async def test_a_call_that_cannot_be_kept_is_refused_and_not_promised() -> None:
    rig = GateRig()
    await rig.call(b"before")
    rig.journal.break_down()
    answer = await rig.call(b"x", operation=NOTICE)
    assert isinstance(answer, Rejected)
    assert answer.refusal.code is Code.JOURNAL_UNAVAILABLE


async def test_a_repeat_under_the_agents_key_after_a_restart_is_the_same_step() -> None:
    rig = GateRig()
    await rig.call(b"x", operation=NOTICE, key="k1")
    rig.restart()
    call: Call = rig.make(b"x", operation=NOTICE, key="k1")
    answer = await rig.pipeline(call)
    assert isinstance(answer, Success)
    assert answer.reply.status == 202
    assert (call.step, len(rig.state().steps)) == (1, 1)


async def test_no_compensator_leaves_a_run_that_was_frozen_while_it_was_being_undone() -> None:
    rig = GateRig()
    await rig.call(b"x")
    run = await rig.trajectories.find("r1")
    assert run is not None
    await rig.trajectories.decided(run, Abort(reason="x"))
    await rig.trajectories.recorded(run, freeze(run.state, "OPERATOR_FREEZE", "stop", "ann"))
    undo = rig.make(b"undo", lane=Lane.COMPENSATION, step=1)
    answer = await rig.pipeline(undo)
    assert isinstance(answer, Rejected)
    assert answer.refusal.code is Code.TRAJECTORY_FROZEN
    assert len(rig.sent) == 1
    assert rig.state().steps[1].state is StepState.COMMITTED
