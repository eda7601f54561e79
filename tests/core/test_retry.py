"""Repeats are safe, patient, and paid for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gateway.core.codes import Code, Dispatched
from gateway.core.fault import Fault
from gateway.core.outcome import Failed, InDoubt, Outcome, Refusal, Rejected, Success
from gateway.core.retry import (
    BUDGET_CAP,
    GiveUp,
    GiveUpReason,
    RecentFailures,
    RetryAfter,
    RetryBudget,
    RetrySettings,
    conclude,
    decide_retry,
    parse_retry_after,
)
from tests.builders import reply_of

TRANSIENT = [
    Fault.CONNECT, Fault.CONNECT_TIMEOUT, Fault.TIMEOUT, Fault.RESET, Fault.PROTOCOL, Fault.SERVER, Fault.THROTTLED
]  # fmt: skip
UNKNOWN = Refusal(code=Code.OUTCOME_UNKNOWN, detail="Sent, effect unknown.")
OPEN = Rejected(Refusal(code=Code.CIRCUIT_OPEN, detail="Open.", retry_after_ms=900))


def decide(outcome: Outcome, **changes: object) -> RetryAfter | GiveUpReason:
    arguments: dict[str, object] = {
        "attempt": 1, "settings": RetrySettings(), "now": 100.0, "deadline": 160.0, "u": 0.5, "is_replayable": True,
        "key_until": None,
    }  # fmt: skip
    decision = decide_retry(outcome, **{**arguments, **changes})  # type: ignore[arg-type]
    return decision.reason if isinstance(decision, GiveUp) else decision


class TestDeciding:
    @pytest.mark.parametrize("fault", TRANSIENT)
    def test_a_transient_failure_without_effect_is_repeated(self, fault: Fault) -> None:
        assert isinstance(decide(Failed(fault)), RetryAfter)

    @pytest.mark.parametrize("fault", sorted(set(Fault) - set(TRANSIENT)))
    def test_nothing_else_is_repeated(self, fault: Fault) -> None:
        """A cancelled call in particular. Regression: jd/tenacity#529 retried a cancellation."""
        assert decide(Failed(fault)) is GiveUpReason.PERMANENT
        assert decide(InDoubt(fault, UNKNOWN), key_until=1e9) is GiveUpReason.PERMANENT

    def test_a_success_is_final_even_if_its_stream_breaks_later(self) -> None:
        assert decide(Success(reply_of())) is GiveUpReason.SUCCESS

    def test_what_we_refused_ourselves_is_told_and_not_repeated(self) -> None:
        assert decide(OPEN) is GiveUpReason.REFUSED

    @pytest.mark.parametrize("fault", TRANSIENT)
    def test_an_effect_in_doubt_is_never_repeated_without_a_key(self, fault: Fault) -> None:
        """Regression: aws-powertools/powertools-lambda-python#8049, where a payment that timed out ran again."""
        assert decide(InDoubt(fault, UNKNOWN)) is GiveUpReason.IN_DOUBT

    def test_under_a_key_that_the_tool_honours_sending_again_settles_it(self) -> None:
        assert isinstance(decide(InDoubt(Fault.TIMEOUT, UNKNOWN), key_until=200.0), RetryAfter)

    def test_not_once_the_tool_has_forgotten_the_key(self) -> None:
        """A key past its window is a new key: the repeat would be a second effect."""
        assert decide(InDoubt(Fault.TIMEOUT, UNKNOWN), key_until=100.0) is GiveUpReason.IN_DOUBT
        assert decide(InDoubt(Fault.TIMEOUT, UNKNOWN), key_until=100.04) is GiveUpReason.IN_DOUBT, "by the time it goes"

    def test_a_body_that_was_read_and_is_gone_cannot_be_sent_again(self) -> None:
        assert decide(Failed(Fault.RESET), is_replayable=False) is GiveUpReason.BODY_SPENT
        assert isinstance(decide(Failed(Fault.CONNECT), is_replayable=False), RetryAfter), "it was never read"

    def test_attempts_are_bounded(self) -> None:
        assert isinstance(decide(Failed(Fault.RESET), attempt=2), RetryAfter)
        assert decide(Failed(Fault.RESET), attempt=3) is GiveUpReason.ATTEMPTS

    @pytest.mark.parametrize(("deadline", "is_repeated"), [(100.0, False), (100.09, False), (100.11, True)])
    def test_a_repeat_must_fit_before_the_deadline_with_time_to_be_answered(
        self, deadline: float, is_repeated: bool
    ) -> None:
        """Regression: aws-powertools/powertools-lambda-python#4759, where no time left was taken for no limit."""
        assert isinstance(decide(Failed(Fault.RESET), deadline=deadline), RetryAfter) is is_repeated

    def test_a_wait_that_the_tool_asked_for_is_honoured(self) -> None:
        throttled = Failed(Fault.THROTTLED, reply=reply_of(429), retry_after_ms=7_000)
        assert decide(throttled, u=0.0) == RetryAfter(7.0)
        assert decide(throttled, deadline=105.0) is GiveUpReason.DEADLINE


class TestConcluding:
    DOUBT = InDoubt(Fault.TIMEOUT, UNKNOWN)

    @pytest.mark.parametrize(
        "last",
        [
            OPEN,
            Failed(Fault.CONNECT),
            Failed(Fault.THROTTLED, reply=reply_of(429), retry_after_ms=5),
            Failed(Fault.SERVER, reply=reply_of(500)),
            *[Failed(Fault.CLIENT_ERROR, reply=reply_of(status)) for status in (401, 403, 408, 409, 425)],
        ],
    )
    def test_a_doubt_outlives_an_answer_that_does_not_say_what_became_of_it(self, last: Outcome) -> None:
        """The repeat failed for certain, but the attempt before it may have landed all the same."""
        together = conclude(self.DOUBT, last)
        assert isinstance(together, InDoubt)
        hint_ms = last.refusal.retry_after_ms if isinstance(last, Rejected) else last.retry_after_ms  # type: ignore[union-attr]
        assert together.refusal == replace(UNKNOWN, retry_after_ms=hint_ms)
        assert together.reply is None

    @pytest.mark.parametrize(
        "last", [Success(reply_of()), *[Failed(Fault.CLIENT_ERROR, reply=reply_of(s)) for s in (400, 402, 404, 422)]]
    )
    def test_a_definite_answer_under_the_same_key_settles_it(self, last: Outcome) -> None:
        assert conclude(self.DOUBT, last) is last

    def test_a_later_doubt_takes_the_place_of_an_earlier_one(self) -> None:
        last = InDoubt(Fault.RESET, UNKNOWN)
        assert conclude(self.DOUBT, last) is last

    @pytest.mark.parametrize(("fault", "dispatched"), [(Fault.CONNECT, Dispatched.NO), (Fault.RESET, Dispatched.YES)])
    def test_our_refusal_after_an_attempt_says_that_one_was_made(self, fault: Fault, dispatched: Dispatched) -> None:
        together = conclude(Failed(fault), OPEN)
        assert together == Failed(fault, refusal=replace(OPEN.refusal, dispatched=dispatched))

    def test_otherwise_the_last_word_counts(self) -> None:
        assert conclude(None, OPEN) is OPEN
        success = Success(reply_of())
        assert conclude(Failed(Fault.RESET), success) is success


class TestBudget:
    def test_it_starts_with_its_floor_and_is_empty_after_it(self) -> None:
        budget = RetryBudget(3.0, now=0.0)
        assert [budget.charge(0.0) for _ in range(4)] == [True, True, True, False]
        assert budget.refill_s(0.0) == 1.0

    def test_calls_earn_exactly_their_ratio(self) -> None:
        """Regression: twitter/finagle#956, where two layers deposited for one request."""
        budget = RetryBudget(3.0, now=0.0)
        for _ in range(20):
            budget.deposit(0.1, 0.0)
        assert budget.balance == pytest.approx(5.0)

    def test_the_reserve_is_capped_however_long_the_tool_was_well(self) -> None:
        budget = RetryBudget(3.0, now=0.0)
        for _ in range(10_000):
            budget.deposit(0.1, 0.0)
        assert budget.balance == 3.0 + BUDGET_CAP

    def test_a_drained_budget_comes_back(self) -> None:
        """Regression: aws/aws-sdk-go-v2#3550 and #3186, where retries were dead until the process restarted."""
        budget = RetryBudget(3.0, now=0.0)
        while budget.charge(0.0):
            pass
        assert not budget.charge(0.9)
        assert budget.charge(1.0)
        for _ in range(1_000):
            budget.deposit(0.1, 1.0)
        assert budget.balance == 13.0

    def test_the_floor_refills_to_itself_and_no_further(self) -> None:
        budget = RetryBudget(3.0, now=0.0)
        budget.charge(0.0)
        budget.deposit(0.0, 1e9)
        assert budget.balance == 3.0

    def test_without_a_floor_only_calls_can_earn_a_repeat(self) -> None:
        budget = RetryBudget(0.0, now=0.0)
        assert not budget.charge(1e9)
        assert budget.refill_s(1e9) is None

    @given(
        steps=st.lists(st.sampled_from(["call", "repeat", "tick", "refund"]), max_size=300),
        ratio=st.floats(0, 1),
        floor=st.floats(0, 20),
    )
    @hypothesis_settings(derandomize=True, deadline=None, max_examples=100)
    def test_repeats_never_exceed_what_was_earned(self, steps: list[str], ratio: float, floor: float) -> None:
        budget, now, calls, charged = RetryBudget(floor, now=0.0), 0.0, 0, 0
        for step in steps:
            if step == "call":
                budget.deposit(ratio, now)
                calls += 1
            elif step == "tick":
                now += 0.7
            elif step == "refund" and charged:
                budget.refund()
                charged -= 1
            elif step == "repeat":
                charged += budget.charge(now)
            assert -1e-9 <= budget.balance <= floor + BUDGET_CAP
            assert charged <= floor + ratio * calls + now + 1e-6


class TestRecentFailures:
    def test_an_action_that_failed_within_the_minute_is_a_repeat(self) -> None:
        recent = RecentFailures()
        recent.note(b"a", 0.0)
        assert recent.is_repeat(b"a", 60.0)
        assert not recent.is_repeat(b"a", 60.1)
        assert not recent.is_repeat(b"b", 0.0)

    def test_success_ends_it(self) -> None:
        recent = RecentFailures()
        recent.note(b"a", 0.0)
        recent.forget(b"a")
        assert not recent.is_repeat(b"a", 0.0)

    def test_memory_is_bounded_by_number_and_by_age(self) -> None:
        recent = RecentFailures(capacity=100)
        for number in range(1_000):
            recent.note(number, 0.0)
        assert len(recent) == 100
        assert recent.is_repeat(999, 0.0)
        recent.note("later", 61.0)
        assert len(recent) == 1


AT = 1_445_412_480_000  # Wed, 21 Oct 2015 07:28:00 GMT


@pytest.mark.parametrize(
    ("headers", "milliseconds"),
    [
        ([], None),
        ([(b"Retry-After", b"2")], 2_000),
        ([(b"retry-after", b" 0 ")], 0),
        ([(b"retry-after", b"1.5")], 1_500),
        ([(b"Retry-After", b"Wed, 21 Oct 2015 07:28:30 GMT")], 30_000),
        ([(b"Retry-After", b"Wednesday, 21-Oct-15 07:28:30 GMT")], 30_000),
        ([(b"Retry-After", b"Wed Oct 21 07:28:30 2015")], 30_000),
        ([(b"Retry-After", b"Wed, 21 Oct 2015 07:00:00 GMT")], 0),
        ([(b"retry-after", b"9"), (b"Retry-After-Ms", b"250")], 250),
        ([(b"retry-after-ms", b"soon"), (b"retry-after", b"9")], 9_000),
        ([(b"retry-after", b"99999999999999")], 365 * 86_400_000),
        *[
            ([(b"retry-after", value)], None)
            for value in (b"", b"-1", b"nan", b"inf", b"1e9", b"soon", b"9" * 5_000, b"\xff\xfe", b"21 Foo 99999 1:1:1")
        ],
    ],
)
def test_retry_after_is_read_in_every_form_and_nonsense_is_ignored(
    headers: list[tuple[bytes, bytes]], milliseconds: int | None
) -> None:
    """Source: RFC 9110 sections 5.6.7 and 10.2.3."""
    assert parse_retry_after(headers, AT) == milliseconds


@given(value=st.binary(max_size=40))
@hypothesis_settings(derandomize=True, deadline=None)
def test_no_retry_after_of_a_tool_can_raise(value: bytes) -> None:
    parsed = parse_retry_after([(b"retry-after", value)], AT)
    assert parsed is None or parsed >= 0
