"""A call that has grown is told apart from one that has not."""

from loadtests.instructions import verdict


def test_growth_beyond_the_tolerance_is_a_problem() -> None:
    assert verdict(102.9, 100) is None
    assert verdict(103.1, 100) == "103 instructions a call, 3.1% above the limit of 100"
    assert verdict(50, 100) is None


def test_without_a_limit_nothing_is_wrong() -> None:
    assert verdict(1e9, None) is None
