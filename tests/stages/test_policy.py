"""The policy stage: what it asks, what it lets through, what it writes down."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.cel import compile_condition
from gateway.core.call import Call, Lane
from gateway.core.codes import Code
from gateway.core.manifest import ApprovalPolicy, ApprovalSettings, Tier
from gateway.core.message import BytesBody
from gateway.core.outcome import Outcome, Rejected, Success
from gateway.core.policy import POLICY_NAMES, Effect, Rule
from gateway.core.records import PolicyObserved, decode
from gateway.core.saga import Open
from gateway.journal.memory import MemoryJournal
from gateway.journal.trajectories import Run, Trajectories
from gateway.stages.policy import DECIDED, PolicyStage
from gateway.telemetry import Telemetry
from tests.builders import call_of, operation_of, reply_of, tool_of
from tests.fakes import FakeClock


def rule(when: str, effect: str = "deny", **fields: Any) -> Rule:
    compiled = compile_condition(when, POLICY_NAMES)
    return Rule(name=fields.pop("name", "r"), effect=Effect(effect), when=compiled, names=compiled.names, **fields)


class Rig:
    def __init__(self, *rules: Rule, is_shadow: bool = False, tier: Tier = Tier.COMPENSABLE) -> None:
        self.clock, self.journal = FakeClock(), MemoryJournal()
        self.trajectories = Trajectories(self.journal, self.clock, Telemetry(), salt=b"s" * 32)
        self.stage = PolicyStage(self.trajectories, self.clock, self.journal.remember, is_shadow=is_shadow)
        self.operation = operation_of("hold", tier, rules=rules)
        self.sent: list[Call] = []

    async def call(self, body: bytes = b'{"amount": 7}', **fields: Any) -> Outcome:
        call = call_of(tool_of("pay", self.operation), self.operation, trajectory="r1", body=BytesBody(body), **fields)
        call.request.headers = ((b"Content-Type", b"application/json"),)
        return await self.stage(call, self._tool)

    async def _tool(self, call: Call) -> Outcome:
        self.sent.append(call)
        return Success(reply_of())


async def test_a_rule_that_holds_keeps_the_call_from_being_sent() -> None:
    rig = Rig(rule("request.json.amount > 5", detail="Too much."))
    refused = await rig.call()
    assert isinstance(refused, Rejected)
    assert refused.refusal.code is Code.POLICY_DENIED
    assert refused.refusal.extra["rule"] == "r"
    assert refused.refusal.detail == "The rule r forbids pay.hold; nothing was sent. Too much."
    assert isinstance(await rig.call(b'{"amount": 5}'), Success)
    assert len(rig.sent) == 1


@pytest.mark.parametrize("lane", [Lane.COMPENSATION, Lane.PROBE, Lane.FINALIZATION])
async def test_our_own_calls_are_nobodys_wish(lane: Lane) -> None:
    """A run that is being undone must not be stopped half-way by a rule for agents."""
    rig = Rig(rule("true"))
    assert isinstance(await rig.call(lane=lane), Success)


async def test_a_held_call_goes_on_as_one_that_people_decide_about() -> None:
    rig = Rig(rule("true", "hold", asks=ApprovalSettings(approvers=("ann",))))
    assert isinstance(await rig.call(), Success)
    (call,) = rig.sent
    assert call.operation.approval is ApprovalPolicy.REQUIRED
    assert call.operation.approved_by.approvers == ("ann",)
    assert rig.operation.approval is ApprovalPolicy.NONE


async def test_a_quarantine_rule_contains_the_run_before_the_refusal_is_given() -> None:
    contained: list[tuple[str, str, str]] = []
    rig = Rig(rule("true", "quarantine", detail="No."))
    rig.stage.on_quarantine = lambda call, by, why: contained.append((call.trajectory, by, why))
    refused = await rig.call()
    assert isinstance(refused, Rejected)
    assert refused.refusal.code is Code.QUARANTINED
    assert contained == [("r1", "rule r", "No.")]


async def test_shadow_is_recorded_and_changes_nothing() -> None:
    rig = Rig(rule("true"), is_shadow=True)
    run = await rig.trajectories.named("r1", Open(agent="agent"))
    assert isinstance(run, Run)
    for _ in range(3):
        assert isinstance(await rig.call(), Success)
    rig.trajectories.flush_refusals()
    await rig.journal.flush()
    records = [decode(entry.kind, entry.data) for entry in await rig.journal.read("r1")]
    (said,) = [record for record in records if isinstance(record, PolicyObserved)]
    assert said.decisions == [("r", "deny", "pay.hold", True, 3)]
    told: Any = rig.stage.statistics()
    assert told["is_shadow"]
    assert [(row["rule"], row["effect"], row["is_shadow"], row["times"]) for row in told["decisions"]] == [
        ("r", "deny", True, 3)
    ]


async def test_counts_survive_a_restart() -> None:
    rig = Rig(rule("true"))
    await rig.call()
    other = Rig()
    other.stage.restore(await rig.journal.recall(DECIDED))
    assert other.stage.statistics()["decisions"] == rig.stage.statistics()["decisions"]
    other.stage.restore({DECIDED + "rubbish": b"{"})


async def test_a_rule_sees_the_run_in_constant_time() -> None:
    rig = Rig(rule("trajectory.labels.access == 'none' && trajectory.steps < 1"))
    run = await rig.trajectories.named("r1", Open(agent="agent", labels={"access": "none"}))
    assert isinstance(run, Run)
    run.state.labels = {"access": "none"}
    assert isinstance(await rig.call(), Rejected)


async def test_a_tool_without_rules_does_without_the_stage() -> None:
    ruled, plain = operation_of(rules=(rule("true"),)), operation_of()
    holding = operation_of(rules=(rule("true", "hold"),))
    assert [PolicyStage.concerns(tool_of(), one) for one in (ruled, plain, holding)] == [True, False, True]
    assert [PolicyStage.may_hold(one) for one in (ruled, plain, holding)] == [False, False, True]
