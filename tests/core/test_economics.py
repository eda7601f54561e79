"""The worked examples of seed 000, and what holds for any prices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.economics import Chance, Costs, break_even, expected_repair_cost

SECONDS = Costs(unwind=40.6, rerun=46.0, repair=4.1)
MONEY = Costs(unwind=0.0, rerun=38_500 * 3e-6 + 3_100 * 15e-6, repair=2_390 * 3e-6 + 180 * 15e-6)


def test_the_seeds_break_even_is_five_percent_by_time_and_six_by_money() -> None:
    assert break_even(SECONDS) == pytest.approx(0.047, abs=0.0005)
    assert break_even(MONEY) == pytest.approx(0.061, abs=0.001)
    assert MONEY.rollback == pytest.approx(0.162, abs=0.0005)
    assert MONEY.repair == pytest.approx(0.010, abs=0.0005)


def test_at_even_odds_repairing_first_costs_47_seconds_against_86() -> None:
    assert expected_repair_cost(SECONDS, 0.5) == pytest.approx(47.4, abs=0.05)
    assert SECONDS.rollback == pytest.approx(86.6)
    assert expected_repair_cost(MONEY, 0.5) == pytest.approx(0.091, abs=0.0005)


def test_nothing_to_lose_means_going_back() -> None:
    assert break_even(Costs(unwind=0, rerun=0, repair=1)) == float("inf")


@given(st.floats(0.001, 1e6), st.floats(0.001, 1e6), st.floats(0.0, 1e6), st.floats(0.0, 1.0))
def test_above_the_break_even_and_only_there_repairing_is_cheaper(u: float, r: float, c: float, p: float) -> None:
    costs = Costs(unwind=u, rerun=r, repair=c)
    margin = expected_repair_cost(costs, p) - costs.rollback
    if p > break_even(costs) * (1 + 1e-9):
        assert margin <= 1e-6 * costs.rollback
    elif p < break_even(costs) * (1 - 1e-9):
        assert margin >= -1e-6 * costs.rollback


def test_chance_is_measured() -> None:
    chance = Chance()
    assert chance.mean == 0.5
    for worked in (True, True, True, False):
        chance = chance.after(worked=worked)
    assert (chance.worked, chance.failed, chance.seen) == (3, 1, 4)
    assert chance.mean == pytest.approx(4 / 6)
