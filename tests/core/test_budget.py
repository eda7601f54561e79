"""Caps are numbers that only ever go down, and nothing of a call is spent before it fits."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.core.budget import RESOURCES, Meter, Spent, caps_from, caps_of_header, shown, tightened, usage_from


def test_a_header_says_what_json_says() -> None:
    assert caps_of_header("usd=0.5, tokens=250000") == {"usd": 0.5, "tokens": 250_000.0}
    assert caps_of_header(" calls=10 ") == {"calls": 10.0}
    assert caps_from({"usd": 0.5, "tokens": None}) == {"usd": 0.5}


@pytest.mark.parametrize(
    "text", ["", "usd", "usd=", "usd=x", "euro=3", "usd=-1", "usd=nan", "usd=inf", "usd=1e99", "usd:1"]
)
def test_a_header_that_cannot_be_read_is_said_to_be_wrong(text: str) -> None:
    assert isinstance(caps_of_header(text), list)


@pytest.mark.parametrize(
    "value", [[], "usd=1", None, {"usd": "1"}, {"usd": True}, {"usd": -1}, {"x": 1}, {"usd": math.nan}]
)
def test_json_that_is_no_caps(value: Any) -> None:
    assert isinstance(caps_from(value), list)


def test_seconds_and_steps_cannot_be_reported() -> None:
    assert isinstance(usage_from({"seconds": 1}), list)
    assert usage_from({"tokens": 5}) == {"tokens": 5.0}


def test_caps_go_down_and_never_up() -> None:
    assert tightened({"usd": 1.0, "calls": 5}, {"usd": 2.0, "calls": 3, "tokens": 7}) == {"calls": 3, "tokens": 7}


def test_at_four_fifths_it_is_said_and_at_the_cap_it_ends() -> None:
    meter = Meter({"calls": 10, "usd": 0.5, "seconds": 60}, {"calls": 7, "usd": 0.4}, opened_at=1_000)
    assert shown(meter.warnings(1_000)) == "usd=0.4/0.5"
    meter.spend({"calls": 1})
    assert [one.name for one in meter.warnings(49_000)] == ["calls", "usd", "seconds"]
    assert meter.spent(49_000, is_step=True, is_retry=True) is None
    assert meter.spent(61_000, is_step=False, is_retry=False) == Spent("seconds", 60.0, 60)
    assert meter.left("usd", 0) == pytest.approx(0.1)
    assert meter.left("tokens", 0) == math.inf


def test_a_cap_of_steps_or_retries_concerns_steps_and_retries_alone() -> None:
    meter = Meter({"steps": 1, "retries": 0}, {"steps": 1}, 0)
    assert meter.spent(0, is_step=False, is_retry=False) is None
    assert meter.spent(0, is_step=True, is_retry=False) == Spent("steps", 1, 1)
    assert Meter({"retries": 0}, {}, 0).spent(0, is_step=True, is_retry=True) == Spent("retries", 0, 0)


@given(st.dictionaries(st.sampled_from(RESOURCES), st.floats(0, 1e6)))
def test_what_is_given_back_was_never_spent(amounts: dict[str, float]) -> None:
    meter = Meter({}, {}, 0)
    meter.spend(amounts)
    meter.spend(amounts, -1.0)
    assert all(used == 0 for used in meter.used.values())


class Run(RuleBasedStateMachine):
    """Any calls at once: never more beyond a cap than the calls in flight when it was reached."""

    def __init__(self) -> None:
        super().__init__()
        self.meter = Meter({"calls": 5, "usd": 1.0, "tokens": 100}, {}, 0)
        self.flying: list[float] = []

    @rule(tokens=st.floats(0, 60))
    def a_call_leaves(self, tokens: float) -> None:
        if self.meter.spent(0, is_step=True, is_retry=False) is None:
            self.meter.spend({"calls": 1, "usd": 0.3})
            self.flying.append(tokens)

    @rule()
    def an_answer_comes(self) -> None:
        if self.flying:
            self.meter.spend({"tokens": self.flying.pop(0)})

    @invariant()
    def never_beyond_what_was_in_flight(self) -> None:
        assert self.meter.used["calls"] <= 5
        assert self.meter.used["usd"] <= 1.0 + 0.3
        assert self.meter.used["tokens"] <= 100 + 60 * 5


Run.TestCase.settings = hypothesis_settings(max_examples=40, stateful_step_count=30, deadline=None)
TestRun = Run.TestCase
