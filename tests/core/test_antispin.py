"""The four-iteration trace of seed 000, and the bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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
