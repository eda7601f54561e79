"""The four-iteration trace of seed 000, and the bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.core.antispin import MAX_REPAIRS, AntiSpin, Spin
from gateway.core.signature import error_signature

TRACE = [
    ("ImportError", "cannot import name 'AsyncSession' from 'sqlalchemy.orm'"),
    ("AttributeError", "'AsyncSession' object has no attribute 'sync_engine'"),
    ("TypeError", "NoneType object cannot be interpreted as an integer"),
    ("ImportError", "cannot import name 'AsyncSession' from 'sqlalchemy.orm'"),
]


def test_the_seeds_trace_ends_at_its_fourth_error() -> None:
    spin = AntiSpin(limit=10)
    said = [spin.failed(error_signature(kind, "pytest", text)) for kind, text in TRACE]
    assert said == [Spin.MAY_REPAIR, Spin.MAY_REPAIR, Spin.MAY_REPAIR, Spin.CYCLE]


def test_a_cycle_ends_repairing_at_once_whatever_is_left() -> None:
    spin = AntiSpin()
    assert spin.failed("a") is Spin.MAY_REPAIR
    assert spin.failed("a") is Spin.CYCLE
    assert spin.repairs == 1


def test_three_repairs_are_all_there_are() -> None:
    spin = AntiSpin()
    assert [spin.failed(name) for name in "abcd"] == [Spin.MAY_REPAIR] * 3 + [Spin.EXHAUSTED]
    assert spin.repairs == MAX_REPAIRS


def test_success_starts_anew() -> None:
    spin = AntiSpin()
    spin.failed("a")
    spin.succeeded()
    assert spin.failed("a") is Spin.MAY_REPAIR


@given(st.lists(st.sampled_from("abcdef"), max_size=40), st.integers(1, 3))
def test_never_more_repairs_than_allowed_and_bounded_memory(errors: list[str], limit: int) -> None:
    spin = AntiSpin(limit=limit)
    for allowed, error in enumerate(errors, start=1):
        verdict = spin.failed(error)
        assert len(spin.signatures) <= limit + 1
        if verdict is not Spin.MAY_REPAIR:
            return
        assert allowed <= limit


class Repairing(RuleBasedStateMachine):
    """A step fails, is repaired and works, in any order; beside it a plain account of what the agent saw."""

    def __init__(self) -> None:
        super().__init__()
        self.spin = AntiSpin()
        self.seen: list[str] = []

    @rule(error=st.sampled_from("abcdef"))
    def fails(self, error: str) -> None:
        verdict = self.spin.failed(error)
        if error in self.seen:
            assert verdict is Spin.CYCLE
        elif len(self.seen) >= MAX_REPAIRS:
            assert verdict is Spin.EXHAUSTED
        else:
            assert verdict is Spin.MAY_REPAIR
        if len(self.seen) <= MAX_REPAIRS:
            self.seen.append(error)

    @rule()
    def works(self) -> None:
        self.spin.succeeded()
        self.seen.clear()

    @invariant()
    def counts_every_failure_after_the_first(self) -> None:
        assert self.spin.repairs == max(0, len(self.seen) - 1) <= MAX_REPAIRS


TestRepairing = Repairing.TestCase
