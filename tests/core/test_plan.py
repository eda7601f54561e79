"""Graphs of steps put in a safe order: the examples of seed 000, and what holds for any graph."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.manifest import Tier, TimeoutSettings
from gateway.core.plan import Arranged, PlanPhase, Proposed, arrange
from gateway.core.tool import Operation


def step(name: str, tier: Tier, *after: str, staged: bool = False, idempotent: bool = False) -> Proposed:
    operation = Operation(
        name=name, tier=tier, timeouts=TimeoutSettings(), is_staged=staged, is_idempotent=idempotent
    )  # fmt: skip
    return Proposed(id=name, tool="cloud", operation=operation, after=after)


def order(*steps: Proposed) -> list[str]:
    arranged = arrange(steps)
    assert all(isinstance(one, Arranged) for one in arranged), arranged
    return [one.proposed.id for one in arranged if isinstance(one, Arranged)]


def problem(*steps: Proposed) -> str:
    told = arrange(steps)
    assert told
    assert all(isinstance(one, str) for one in told), told
    return "; ".join(str(one) for one in told)


T1 = step("t1", Tier.COMPENSABLE)
T2 = step("t2", Tier.REVERSIBLE, "t1")
T3 = step("t3", Tier.PIVOT, "t2")
T5_STAGED = step("t5", Tier.PIVOT, "t3", "t4", staged=True)


def test_the_five_steps_of_seed_000_end_with_the_egress_and_its_staged_webhook() -> None:
    """16 H100 instances, warm-up, migration, then BGP activation together with the compliance webhook."""
    t4 = step("t4", Tier.COMPENSABLE, "t1")
    assert order(T1, T2, T3, t4, T5_STAGED) == ["t1", "t2", "t4", "t5", "t3"]
    arranged = arrange([T1, T2, T3, t4, T5_STAGED])
    pivot = arranged[-1]
    assert isinstance(pivot, Arranged)
    assert (pivot.phase, pivot.moved, pivot.needs) == (PlanPhase.PIVOT, 2, ("t1", "t2", "t4", "t5"))


def test_the_double_pivot_trap_as_it_was_proposed_has_no_order() -> None:
    """T3 and T5 both irreversible, with a failure-prone migration between them."""
    trap = [T1, T2, T3, step("t4", Tier.COMPENSABLE, "t3"), step("t5", Tier.PIVOT, "t4")]
    assert "t3 (cloud.t3) and t5 (cloud.t5) are irreversible" in problem(*trap)


def test_a_migration_that_waits_for_the_pivot_has_no_order_unless_it_is_idempotent() -> None:
    assert "t4 (cloud.t4) waits for what is irreversible" in problem(T1, T2, T3, step("t4", Tier.COMPENSABLE, "t3"))
    assert order(T1, T2, T3, step("t4", Tier.COMPENSABLE, "t3", idempotent=True))[-1] == "t4"


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([step("a", Tier.READ, "b"), step("b", Tier.READ, "a")], "a → b → a wait for each other"),
        ([step("a", Tier.READ, "zz")], "zz, which is not in the plan"),
        ([step("a", Tier.READ), step("a", Tier.READ)], "two steps have the same id"),
        ([step("s", Tier.PIVOT, staged=True), step("p", Tier.PIVOT, "s")], "is staged and sent only once"),
        (
            [step("p", Tier.PIVOT), step("f", Tier.REVERSIBLE, "p", idempotent=True),
             step("s", Tier.PIVOT, "f", staged=True)],
            "before f (cloud.f), which it waits for",
        ),
    ],
)  # fmt: skip
def test_each_reason_is_named(steps: list[Proposed], said: str) -> None:
    assert said in problem(*steps)


def test_nothing_and_a_plan_in_order_stay_as_they_are() -> None:
    assert arrange([]) == []
    assert [one.moved for one in arrange([T1, T2, T3]) if isinstance(one, Arranged)] == [0, 0, 0]


@st.composite
def graphs(draw: st.DrawFn) -> list[Proposed]:
    steps: list[Proposed] = []
    for number in range(draw(st.integers(0, 7))):
        kind = draw(st.sampled_from(["read", "undo", "idem", "pivot", "staged"]))
        tier = {"read": Tier.READ, "undo": Tier.COMPENSABLE, "idem": Tier.REVERSIBLE}.get(kind, Tier.PIVOT)
        after = draw(st.lists(st.sampled_from([f"s{n}" for n in range(8)]), max_size=2, unique=True))
        steps.append(step(f"s{number}", tier, *after, staged=kind == "staged", idempotent=kind == "idem"))
    return steps


@given(graphs())
def test_any_order_given_is_complete_safe_and_the_same_each_time(steps: list[Proposed]) -> None:
    arranged = arrange(steps)
    assert arrange(steps) == arranged
    if not arranged or isinstance(arranged[0], str):
        return
    given = [one for one in arranged if isinstance(one, Arranged)]
    assert sorted(one.proposed.id for one in given) == sorted(one.id for one in steps)
    pivots = [index for index, one in enumerate(given) if one.phase is PlanPhase.PIVOT]
    assert len(pivots) <= 1
    place = {one.proposed.id: index for index, one in enumerate(given)}
    for index, one in enumerate(given):
        operation = one.proposed.operation
        if pivots and index > pivots[0]:
            assert operation.is_read or operation.is_idempotent, "nothing past the pivot that could get stuck"
        if one.phase is not PlanPhase.STAGE:
            assert all(place[need] < index for need in one.proposed.after)
        if pivots and one.phase is PlanPhase.STAGE:
            assert index < pivots[0], "staged before it is released"
