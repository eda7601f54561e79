"""The seed's cost example comes out of a real gateway, and looking costs the same in a long run as in a short one."""

from __future__ import annotations

import pytest

from gateway.core.economics import loop_bill as bill
from loadtests.loops import CEILING, cost, example, is_flat


def test_the_bill_is_the_seeds() -> None:
    assert (bill(CEILING).input_tokens, bill(4).input_tokens) == (1_397_500, 10_600)
    assert bill(CEILING).usd == pytest.approx(4.42, abs=0.005)
    assert bill(4).usd == pytest.approx(0.05, abs=0.001)
    assert (bill(4).seconds, bill(CEILING).seconds) == (40, 500)


async def test_a_loop_that_is_seen_at_turn_four_is_89_times_cheaper() -> None:
    """Turns are counted in front of a whole gateway with a real tool, not assumed."""
    found = await example()
    assert (found["watchdog"]["turns"], found["ceiling"]["turns"]) == (4, CEILING)
    assert found["times_cheaper"] == pytest.approx(89, abs=0.5)


async def test_what_a_call_pays_does_not_grow_with_its_run() -> None:
    costs = await cost(lengths=(100, 5_000), calls=60, rounds=7)
    assert set(costs) == {
        "watchdog, read", "watchdog, refused write", "budget, no caps", "recovery, refused write",
    }  # fmt: skip
    for name, each in costs.items():
        best = each["best_us_by_length"]
        assert best[5_000] < 3 * best[100] + 20, f"{name}: fifty times the steps, and a call costs {best} us"


def test_noise_is_no_growth_and_growth_is() -> None:
    flat = {"a": {"best_us_by_length": {100: 0.2, 1000: 0.9}}, "b": {"best_us_by_length": {100: 6.0, 1000: 9.0}}}
    assert is_flat(flat)
    assert not is_flat({"a": {"best_us_by_length": {100: 6.0, 1000: 60.0}}})
