"""What has to hold before an irreversible step, and that nothing gets past a clearance that no longer fits."""

from __future__ import annotations

from gateway.core.codes import Code
from gateway.core.gate import cleared, lease_problems, run_env, snapshot
from gateway.core.manifest import Tier, TimeoutSettings
from gateway.core.outcome import Refusal
from gateway.core.records import GatePassed, RecordedReply, StepCommitted
from gateway.core.saga import Begin, Open, decide
from gateway.core.tool import Gate, Operation
from gateway.core.trajectory import Trajectory, evolve

HOLD = Operation(name="hold", tier=Tier.REVERSIBLE, timeouts=TimeoutSettings())
PIVOT = Operation(name="payout", tier=Tier.PIVOT, timeouts=TimeoutSettings())
GATED = Operation(name="payout", tier=Tier.PIVOT, timeouts=TimeoutSettings(), gates=(Gate("any", margin_s=0.0),))


def begin(operation: Operation, action: str = "aa", at: int | None = 1_000) -> Begin:
    return Begin(tool="pay", operation=operation, action=action, fingerprint=action, method="POST", target="/x",
                 salt=b"s" * 32, at=at)  # fmt: skip


def run_of(*leases: tuple[str | None, int | None]) -> Trajectory:
    state = Trajectory(id="r1")
    for record in decide(state, Open(agent="ann")):  # type: ignore[union-attr]
        evolve(state, record, 0)
    for lease, until in leases:
        for record in decide(state, begin(HOLD, action=f"h{len(state.steps)}")):  # type: ignore[union-attr]
            evolve(state, record, 0)
        committed = StepCommitted(
            step=len(state.steps), reply=RecordedReply(status=200), lease=lease, lease_until=until)  # fmt: skip
        evolve(state, committed, 0)
    return state


def refused(state: Trajectory, command: Begin) -> str:
    refusal = decide(state, command)
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.PIVOT_GATE
    return refusal.detail


def test_a_gated_pivot_without_a_clearance_does_not_leave_whoever_forgot_to_ask() -> None:
    """Taking the approval stage out of the pipeline must close the gate, not open it."""
    assert "have not let it pass" in refused(run_of(), begin(GATED))


def test_a_clearance_is_for_one_action_on_the_run_as_it_was() -> None:
    state = run_of((None, None))
    evolve(state, GatePassed(action="aa", operation="x", snapshot=snapshot(state)), 0)
    assert "have not let it pass" in refused(state, begin(GATED, action="bb"))
    assert cleared(state, GATED, "aa", 1_000) is None
    before = snapshot(state)
    state.steps[1].bad = "changes nothing"
    assert snapshot(state) == before
    state.steps[1].order += 1
    assert "went on" in refused(state, begin(GATED))


def test_a_step_in_between_uses_the_clearance_up() -> None:
    state = run_of()
    evolve(state, GatePassed(action="aa", operation="x", snapshot=snapshot(state)), 0)
    for record in decide(state, begin(HOLD, action="h1")):  # type: ignore[union-attr]
        evolve(state, record, 0)
    assert state.clearance is None


def test_no_pivot_on_a_lease_that_is_over_unknown_or_judged_without_a_clock() -> None:
    assert cleared(run_of(("lock", 2_000)), PIVOT, "aa", 1_000) is None
    assert "has run out" in refused(run_of(("lock", 1_000)), begin(PIVOT))
    assert "nobody knows" in refused(run_of(("lock", 0)), begin(PIVOT))
    assert "has run out" in refused(run_of(("lock", 2_000)), begin(PIVOT, at=None))


def test_a_later_lease_of_the_same_name_renews_and_a_margin_asks_for_more() -> None:
    state = run_of(("lock", 500), ("lock", 9_000))
    assert lease_problems(state, 1_000) == []
    assert lease_problems(state, 1_000, margin_s=10.0) == ["what step 2 (hold) gave runs out in 8 s"]


def test_expressions_see_every_step_and_what_its_tool_answered() -> None:
    env = run_env(run_of((None, None)), 5_000, {1: {"status": 200, "json": {"ok": True}}})
    (step,) = env["steps"]  # type: ignore[misc]
    assert (step["operation"], step["state"], step["response"]["json"]["ok"]) == ("hold", "committed", True)
