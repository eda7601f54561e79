"""What time alone makes due."""

from __future__ import annotations

from gateway.core.approval import ApprovalState
from gateway.core.codes import Code
from gateway.core.manifest import ApprovalPolicy, ApprovalSettings, Tier
from gateway.core.outcome import Rejected
from gateway.workers.escalator import Escalator
from tests.builders import operation_of
from tests.stages.gate_rig import GateRig

GATED = operation_of("payout", Tier.PIVOT, approval=ApprovalPolicy.REQUIRED, approved_by=ApprovalSettings(timeout=10.0))


async def test_an_approval_that_nobody_decides_runs_out_once_and_on_the_record() -> None:
    rig = GateRig()
    held = await rig.call(operation=GATED)
    assert isinstance(held, Rejected)
    assert held.refusal.code is Code.HELD_FOR_APPROVAL
    resumed: list[int] = []
    escalator = Escalator(rig.trajectories, rig.clock, rig.telemetry, resume=lambda: resumed.append(1))
    assert await escalator.run_once(rig.clock.at()) == 0
    rig.clock.turn(10.0)
    assert await escalator.run_once(rig.clock.at()) == 1
    assert await escalator.run_once(rig.clock.at()) == 0, "doing it twice changes nothing"
    (approval,) = rig.state().approvals.values()
    assert approval.state is ApprovalState.EXPIRED
    rig.restart()
    await rig.trajectories.recover()
    (approval,) = rig.state().approvals.values()
    assert approval.state is ApprovalState.EXPIRED
    assert len(resumed) == 3


async def test_runs_that_need_nothing_are_not_looked_at() -> None:
    rig = GateRig()
    await rig.call(b"plain")
    assert rig.trajectories.attentive() == []
