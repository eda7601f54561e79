"""Every status class and every way to break, for every tier: certain only where it is."""

from __future__ import annotations

import pytest

from gateway.core.codes import Code, Dispatched
from gateway.core.fault import Broken, Fault
from gateway.core.manifest import Tier
from gateway.core.outcome import Failed, InDoubt, Outcome, Rejected, Success
from gateway.core.verdict import classify
from tests.builders import operation_of, reply_of, tool_of

WRITES = [tier for tier in Tier if tier is not Tier.READ]
HINT = ((b"Retry-After", b"3"),)


def verdict(
    status: int, tier: Tier, *, fails_cleanly: bool = False, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> str:
    outcome = classify(
        reply_of(status, headers=headers), tool_of(), operation_of("op", tier, fails_cleanly=fails_cleanly), at=0
    )
    return spell(outcome)


def spell(outcome: Outcome) -> str:
    if isinstance(outcome, Success):
        return "success"
    assert not isinstance(outcome, Rejected)
    return f"{'failed' if isinstance(outcome, Failed) else 'in_doubt'} {outcome.fault}"


def expected(status: int, tier: Tier) -> str:
    """The table of `core/verdict.py` said a second time, in another shape."""
    read = tier is Tier.READ
    if status < 200 or status > 599:
        return "failed protocol" if read else "in_doubt protocol"
    if status < 400:
        return "success"
    if status == 429:
        return "failed throttled"
    if status == 408 and not read:
        return "in_doubt timeout"
    if status < 500 or status in (501, 505):
        return "failed client_error"
    return "failed server" if read else "in_doubt server"


@pytest.mark.parametrize("tier", list(Tier))
def test_every_status_has_one_meaning_for_every_tier(tier: Tier) -> None:
    """Regression: dtm-labs/dtm#545 and #8, where an undocumented status meant "retry for ever"."""
    for status in range(100, 1_000):
        assert verdict(status, tier) == expected(status, tier), status


@pytest.mark.parametrize("tier", list(Tier))
def test_503_that_says_when_to_come_back_is_a_clean_refusal(tier: Tier) -> None:
    assert verdict(503, tier, headers=HINT) == "failed throttled"
    assert verdict(500, tier, headers=HINT) == ("failed server" if tier is Tier.READ else "in_doubt server")


@pytest.mark.parametrize("tier", WRITES)
def test_a_tool_that_fails_cleanly_is_believed(tier: Tier) -> None:
    assert verdict(500, tier, fails_cleanly=True) == "failed server"


def test_the_hint_of_the_tool_is_kept() -> None:
    outcome = classify(reply_of(429, headers=HINT), tool_of(), operation_of(), at=0)
    assert isinstance(outcome, Failed)
    assert outcome.retry_after_ms == 3_000
    assert outcome.reply is not None, "the agent gets the answer unchanged"


def test_the_answer_to_a_doubtful_call_is_kept_as_evidence() -> None:
    outcome = classify(reply_of(500), tool_of(), operation_of(), at=0)
    assert isinstance(outcome, InDoubt)
    assert outcome.reply is not None
    assert outcome.refusal.code is Code.OUTCOME_UNKNOWN
    assert outcome.refusal.dispatched is Dispatched.YES


FAULTS = [Fault.CONNECT, Fault.CONNECT_TIMEOUT, Fault.TIMEOUT, Fault.RESET, Fault.PROTOCOL, Fault.CANCELLED]


@pytest.mark.parametrize("tier", list(Tier))
@pytest.mark.parametrize("dispatched", list(Dispatched))
@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_exchange_is_certain_only_if_nothing_left_or_it_was_a_read(
    fault: Fault, dispatched: Dispatched, tier: Tier
) -> None:
    outcome = classify(Broken(fault, dispatched, "the line broke"), tool_of(), operation_of("op", tier), at=0)
    assert spell(outcome).endswith(f" {fault}")
    if dispatched is Dispatched.NO or tier is Tier.READ:
        assert isinstance(outcome, Failed)
        assert outcome.refusal is not None
        assert outcome.refusal.dispatched is dispatched
    else:
        assert isinstance(outcome, InDoubt)
        assert outcome.refusal.code is Code.OUTCOME_UNKNOWN


@pytest.mark.parametrize(
    ("fault", "dispatched", "code"),
    [
        (Fault.CONNECT, Dispatched.NO, Code.UPSTREAM_CONNECT),
        (Fault.CONNECT_TIMEOUT, Dispatched.NO, Code.UPSTREAM_CONNECT),
        (Fault.RESET, Dispatched.NO, Code.UPSTREAM_CONNECT),
        (Fault.RESET, Dispatched.YES, Code.UPSTREAM_PROTOCOL),
        (Fault.PROTOCOL, Dispatched.YES, Code.UPSTREAM_PROTOCOL),
        (Fault.TIMEOUT, Dispatched.NO, Code.DEADLINE),
        (Fault.TIMEOUT, Dispatched.YES, Code.DEADLINE),
    ],
)
def test_a_failed_read_names_what_broke(fault: Fault, dispatched: Dispatched, code: Code) -> None:
    outcome = classify(Broken(fault, dispatched, "x"), tool_of(), operation_of("op", Tier.READ), at=0)
    assert isinstance(outcome, Failed)
    assert outcome.refusal is not None
    assert outcome.refusal.code is code


@pytest.mark.parametrize("tier", [Tier.READ, Tier.PIVOT])
@pytest.mark.parametrize("dispatched", list(Dispatched))
@pytest.mark.parametrize("fault", FAULTS)
def test_the_sentence_names_the_tool_and_operation_and_what_to_do(
    fault: Fault, dispatched: Dispatched, tier: Tier
) -> None:
    outcome = classify(Broken(fault, dispatched, "the line broke."), tool_of("bank"), operation_of("pay", tier), at=0)
    assert isinstance(outcome, Failed | InDoubt)
    assert outcome.refusal is not None
    detail = outcome.refusal.detail
    assert "bank.pay" in detail
    assert "the line broke;" in detail
    assert detail.count(". ") == 0, "one sentence"
    assert "again" in detail or "abort" in detail
    assert outcome.refusal.dependency == "bank"


def test_details_with_braces_are_taken_literally() -> None:
    """A detail is data, never a format."""
    outcome = classify(Broken(Fault.RESET, Dispatched.MAYBE, "{tool} {0}"), tool_of(), operation_of(), at=0)
    assert isinstance(outcome, InDoubt)
    assert "{tool} {0}" in outcome.refusal.detail
