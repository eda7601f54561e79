"""Which tools are asked first whether they refuse."""

from __future__ import annotations

import pytest

from gateway.core.codes import Code
from gateway.ingress.refusing import HEAT, Refusing

HEATING = (Code.CIRCUIT_OPEN, Code.BULKHEAD_FULL, Code.QUEUE_DEADLINE, Code.RATE_LIMITED)


@pytest.mark.parametrize("code", list(Code))
def test_only_what_the_queue_and_the_breaker_say_makes_a_tool_hot(code: Code) -> None:
    refusing = Refusing()
    refusing.refused("pay", code)
    assert ("pay" in refusing) is bool(refusing) is (code in HEATING)


@pytest.mark.parametrize("target", [b"/pay/", b"/pay/x?y", b"/pay//"])
def test_a_target_means_the_tool_that_it_begins_with(target: bytes) -> None:
    refusing = Refusing()
    assert not refusing.is_meant(target)
    refusing.refused("pay", Code.CIRCUIT_OPEN)
    assert refusing.is_meant(target)


@pytest.mark.parametrize("target", [b"", b"/", b"*", b"pay/", b"/pa/y", b"/payx/", b"http://pay/x", b"/PAY/"])
def test_no_other_target_does(target: bytes) -> None:
    refusing = Refusing()
    refusing.refused("pay", Code.CIRCUIT_OPEN)
    assert not refusing.is_meant(target)


def test_a_tool_cools_down_with_calls_that_pass_and_heats_up_with_one_that_does_not() -> None:
    refusing = Refusing()
    refusing.passed("pay")
    refusing.refused("pay", Code.CIRCUIT_OPEN)
    for _ in range(HEAT - 1):
        refusing.passed("pay")
    refusing.refused("pay", Code.BULKHEAD_FULL)
    for _ in range(HEAT - 1):
        refusing.passed("pay")
    assert "pay" in refusing
    refusing.passed("pay")
    assert "pay" not in refusing
    assert not refusing


def test_names_of_tools_that_are_gone_do_not_add_up() -> None:
    refusing = Refusing()
    for number in range(3_000):
        refusing.refused(f"gone-{number}", Code.CIRCUIT_OPEN)
    assert len(refusing) <= 1_000
