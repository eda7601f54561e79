"""The breaker: examples, the regressions of other breakers by the name of their issue, then what always holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from gateway.core.breaker import (
    CANARY_SPACING_S,
    TRANSITIONS,
    Breaker,
    BreakerRefusal,
    BreakerSettings,
    Cause,
    Permit,
    Reason,
    State,
    Verdict,
    verdict_of,
)
from gateway.core.codes import Code
from gateway.core.fault import Fault
from gateway.core.outcome import Failed, InDoubt, Refusal, Rejected, Success
from tests.builders import reply_of

OK, DOWN, ERROR, NEUTRAL = Verdict.SUCCESS, Verdict.FAILURE, Verdict.FAILURE_SERVER, Verdict.NEUTRAL


def permit_of(breaker: Breaker, now: float, *, may_be_canary: bool = True, lease_s: float = 10.0) -> Permit:
    permit = breaker.acquire(now, may_be_canary=may_be_canary, lease_s=lease_s)
    assert isinstance(permit, Permit), permit
    return permit


def refusal_of(breaker: Breaker, now: float, *, may_be_canary: bool = True) -> BreakerRefusal:
    refusal = breaker.acquire(now, may_be_canary=may_be_canary, lease_s=10.0)
    assert isinstance(refusal, BreakerRefusal), refusal
    return refusal


def run(breaker: Breaker, *verdicts: Verdict, now: float = 0.0, elapsed_s: float = 0.1) -> list[Cause]:
    """Make calls one after the other and return the causes of all moves."""
    causes: list[Cause] = []
    for verdict in verdicts:
        permit = permit_of(breaker, now)
        causes += [move.cause for move in (*permit.transitions, *breaker.settle(permit, verdict, now, elapsed_s))]
    return causes


def opened(now: float = 0.0, **fields: object) -> Breaker:
    breaker = Breaker(BreakerSettings(**fields))  # type: ignore[arg-type]
    run(breaker, DOWN, DOWN, DOWN, now=now)
    assert breaker.state is State.OPEN
    return breaker


class TestOpening:
    def test_three_transport_failures_in_a_row_open_it(self) -> None:
        breaker = Breaker(BreakerSettings())
        assert run(breaker, DOWN, DOWN) == []
        assert run(breaker, DOWN) == [Cause.CONSECUTIVE]

    def test_an_error_answer_breaks_the_row_because_the_tool_was_reached(self) -> None:
        assert run(Breaker(BreakerSettings()), DOWN, DOWN, ERROR, DOWN, DOWN) == []

    def test_neutral_outcomes_neither_extend_nor_break_the_row(self) -> None:
        assert run(Breaker(BreakerSettings()), DOWN, NEUTRAL, DOWN, NEUTRAL, DOWN) == [Cause.CONSECUTIVE]

    def test_failures_far_apart_are_not_a_row(self) -> None:
        """One timeout a week is not an outage."""
        breaker = Breaker(BreakerSettings(max_age=60))
        assert [run(breaker, DOWN, now=day * 86_400.0) for day in range(5)] == [[]] * 5

    @pytest.mark.parametrize("ratio", [0.1, 0.3, 0.5, 0.6, 0.7, 1.0])
    def test_the_ratio_opens_at_its_exact_boundary(self, ratio: float) -> None:
        """At the threshold is open; one failure short of it is not, for every ratio that floats spell badly."""
        failures = round(10 * ratio)
        at, below = Breaker(BreakerSettings(failure_ratio=ratio)), Breaker(BreakerSettings(failure_ratio=ratio))
        assert run(at, *[OK] * (10 - failures), *[ERROR] * failures) == [Cause.FAILURE_RATIO]
        assert run(below, *[OK] * (11 - failures), *[ERROR] * (failures - 1)) == []

    def test_too_few_outcomes_never_open_it_by_ratio(self) -> None:
        assert run(Breaker(BreakerSettings(minimum=10)), *[ERROR] * 9) == []

    def test_a_minimum_beyond_the_window_is_cut_to_the_window(self) -> None:
        """Else the ratio could never open it at all."""
        assert run(Breaker(BreakerSettings(window=20, minimum=500)), *[ERROR] * 20) == [Cause.FAILURE_RATIO]

    def test_outcomes_beyond_the_maximum_age_no_longer_count(self) -> None:
        breaker = Breaker(BreakerSettings(max_age=60))
        run(breaker, *[ERROR] * 9, now=0.0)
        assert run(breaker, *[ERROR] * 9, now=100.0) == []
        assert breaker.statistics(100.0).samples == 9

    def test_slow_answers_open_it_when_that_is_asked_for(self) -> None:
        slow = Breaker(BreakerSettings(slow_after=1.0))
        assert run(slow, *[OK] * 10, elapsed_s=1.5) == [Cause.SLOW_RATIO]
        assert run(Breaker(BreakerSettings()), *[OK] * 50, elapsed_s=999.0) == []

    def test_an_answer_exactly_on_time_is_not_slow(self) -> None:
        assert run(Breaker(BreakerSettings(slow_after=1.0)), *[OK] * 30, elapsed_s=1.0) == []


class TestOpen:
    def test_the_refusal_names_the_exact_remaining_cooldown(self) -> None:
        breaker = opened(now=100.0)
        assert refusal_of(breaker, 112.5) == BreakerRefusal(17.5, Reason.OPEN)
        assert breaker.peek(112.5) == BreakerRefusal(17.5, Reason.OPEN)

    def test_peeking_takes_nothing(self) -> None:
        breaker = opened()
        assert [breaker.peek(30.0) for _ in range(3)] == [None] * 3
        assert permit_of(breaker, 30.0).is_canary

    def test_an_irreversible_call_is_never_the_canary(self) -> None:
        breaker = opened()
        assert refusal_of(breaker, 30.0, may_be_canary=False).reason is Reason.NO_ELIGIBLE_CANARY
        assert breaker.state is State.OPEN
        assert permit_of(breaker, 30.0).is_canary

    def test_only_one_canary_is_out(self) -> None:
        """Regression: resilience4j/resilience4j#1432, where two callers were both let through after the wait."""
        breaker = opened()
        answers = [breaker.acquire(30.0, may_be_canary=True, lease_s=10.0) for _ in range(1000)]
        assert sum(isinstance(answer, Permit) for answer in answers) == 1
        assert {answer.reason for answer in answers[1:] if isinstance(answer, BreakerRefusal)} == {Reason.CANARY_OUT}


class TestHealing:
    def test_a_good_canary_closes_it_and_clears_the_ring(self) -> None:
        breaker = opened()
        assert run(breaker, OK, now=30.0) == [Cause.COOLDOWN_OVER, Cause.HEALED]
        assert breaker.statistics(30.0).samples == 0

    def test_a_failed_canary_doubles_the_cooldown_up_to_the_cap(self) -> None:
        breaker, now, cooldowns = opened(cooldown=30, max_cooldown=200), 0.0, []
        for _ in range(5):
            now += breaker.statistics(now).remaining_s
            run(breaker, DOWN, now=now)
            cooldowns.append(breaker.statistics(now).cooldown_s)
        assert cooldowns == [60, 120, 200, 200, 200]

    def test_a_canary_that_fails_with_an_almost_empty_window_opens_it_again(self) -> None:
        """Regression: nodeshift/opossum#276, where the volume gate returned early in half-open."""
        breaker = opened(minimum=20)
        assert run(breaker, ERROR, now=30.0) == [Cause.COOLDOWN_OVER, Cause.CANARY_FAILED]

    def test_an_application_error_as_canary_shows_a_tool_that_works(self) -> None:
        """Regression: resilience4j/resilience4j#544, where an ignored error kept the last permit for ever."""
        verdict = verdict_of(Failed(Fault.CLIENT_ERROR, reply=reply_of(404)), BreakerSettings())
        assert run(opened(), verdict, now=30.0)[-1] is Cause.HEALED

    def test_a_slow_canary_does_not_heal_a_breaker_that_opens_on_slowness(self) -> None:
        breaker = opened(slow_after=1.0)
        assert run(breaker, OK, now=30.0, elapsed_s=2.0)[-1] is Cause.CANARY_FAILED

    def test_the_cooldown_shrinks_on_evidence_and_not_with_time(self) -> None:
        """Regression: envoyproxy/envoy#21142 (the multiplier decayed unseen) and #1491 (it opened only once)."""
        breaker = opened()
        run(breaker, DOWN, now=30.0)
        run(breaker, OK, now=90.0)
        assert run(breaker, DOWN, DOWN, DOWN, now=1_000_000.0) == [Cause.CONSECUTIVE]
        assert breaker.statistics(1_000_000.0).cooldown_s == 60
        run(breaker, OK, now=1_000_060.0)
        run(breaker, *[OK] * 20, now=1_000_060.0)
        run(breaker, DOWN, DOWN, DOWN, now=1_000_061.0)
        assert breaker.statistics(1_000_061.0).cooldown_s == 30

    def test_many_failures_at_once_still_let_the_canary_through_later(self) -> None:
        """Regression: nodeshift/opossum#385, where simultaneous failures cancelled the timer that half-opens."""
        breaker = Breaker(BreakerSettings())
        permits = [permit_of(breaker, 0.0) for _ in range(50)]
        moves = [move for permit in permits for move in breaker.settle(permit, DOWN, 1.0, 1.0)]
        assert [move.cause for move in moves] == [Cause.CONSECUTIVE]
        assert permit_of(breaker, 31.0).is_canary

    def test_the_ramp_admits_twice_as_many_calls_each_round(self) -> None:
        breaker, now, rounds = opened(ramp=True), 30.0, []
        while breaker.state is not State.CLOSED:
            permits = []
            while isinstance(permit := breaker.acquire(now, may_be_canary=True, lease_s=9.0), Permit):
                permits.append(permit)
            rounds.append(len(permits))
            for permit in permits:
                breaker.settle(permit, OK, now, 0.1)
        assert rounds == [1, 2, 4, 8, 16]

    def test_a_failure_in_the_ramp_opens_it_and_grows_the_cooldown(self) -> None:
        breaker = opened(ramp=True)
        run(breaker, OK, OK, now=30.0)
        assert run(breaker, DOWN, now=31.0) == [Cause.CANARY_FAILED]
        assert breaker.statistics(31.0).cooldown_s == 60


class TestLostAndCancelledCanaries:
    def test_a_canary_that_never_answers_is_lost_with_its_lease(self) -> None:
        """Regression: diegosouzapw/OmniRoute#13836 (six days of refusals) and resilience4j/resilience4j#935."""
        breaker = opened()
        lost = permit_of(breaker, 30.0, lease_s=10.0)
        refusal = refusal_of(breaker, 40.0)
        assert refusal.reason is Reason.OPEN
        assert refusal.retry_after_s == 60
        assert [move.cause for move in refusal.transitions] == [Cause.CANARY_LOST]
        assert breaker.settle(lost, OK, 41.0, 11.0) == ()
        assert breaker.state is State.OPEN
        assert run(breaker, OK, now=100.0) == [Cause.COOLDOWN_OVER, Cause.HEALED]

    def test_a_loss_counts_from_the_end_of_the_lease_whoever_notices_it_when(self) -> None:
        breaker = opened()
        permit_of(breaker, 30.0, lease_s=10.0)
        assert breaker.peek(100.0) is None
        canary = permit_of(breaker, 100.0)
        assert canary.is_canary
        assert [move.cause for move in canary.transitions] == [Cause.CANARY_LOST, Cause.COOLDOWN_OVER]

    def test_a_cancelled_canary_is_neither_success_nor_failure(self) -> None:
        """Regression: App-vNext/Polly#1979 (it closed the circuit) and wshobson/maverick-mcp#272 (it wedged it)."""
        breaker = opened()
        run(breaker, NEUTRAL, now=30.0)
        assert breaker.state is State.HALF_OPEN
        assert refusal_of(breaker, 30.1) == BreakerRefusal(pytest.approx(CANARY_SPACING_S - 0.1), Reason.CANARY_OUT)
        assert run(breaker, OK, now=30.25) == [Cause.HEALED]

    def test_three_inconclusive_canaries_close_the_door_without_growth(self) -> None:
        """Regression: bagowix/interlock#194, where probes that failed for local reasons were repeated for ever."""
        breaker = opened()
        run(breaker, NEUTRAL, now=30.0)
        run(breaker, NEUTRAL, now=31.0)
        assert run(breaker, NEUTRAL, now=32.0) == [Cause.CANARY_INCONCLUSIVE]
        assert refusal_of(breaker, 32.0) == BreakerRefusal(30.0, Reason.OPEN)


class TestLateResults:
    @pytest.mark.parametrize("verdict", [OK, DOWN, ERROR, NEUTRAL])
    def test_calls_from_before_the_opening_change_nothing_in_any_later_state(self, verdict: Verdict) -> None:
        """Regression: App-vNext/Polly#216 and #218, Netflix/Hystrix#1853 and #1861."""
        breaker = Breaker(BreakerSettings())
        early = [permit_of(breaker, 0.0) for _ in range(4)]
        run(breaker, DOWN, DOWN, DOWN)
        assert breaker.settle(early[0], verdict, 1.0, 1.0) == ()
        canary = permit_of(breaker, 30.0)
        assert breaker.settle(early[1], verdict, 30.0, 1.0) == ()
        assert breaker.state is State.HALF_OPEN
        assert [move.cause for move in breaker.settle(canary, OK, 31.0, 1.0)] == [Cause.HEALED]
        assert breaker.settle(early[2], verdict, 32.0, 1.0) == ()
        assert breaker.observe(early[3], verdict, 32.0) == ()
        assert breaker.statistics(32.0).samples == 0

    def test_a_success_of_an_earlier_half_open_era_does_not_close_a_later_one(self) -> None:
        """Regression: denoland/std#7306."""
        breaker = opened()
        first = permit_of(breaker, 30.0, lease_s=10.0)
        second = permit_of(breaker, 100.0)
        assert breaker.settle(first, OK, 101.0, 71.0) == ()
        assert breaker.state is State.HALF_OPEN
        assert refusal_of(breaker, 101.0).reason is Reason.CANARY_OUT
        assert breaker.settle(second, OK, 102.0, 2.0)[0].cause is Cause.HEALED

    def test_slow_answers_of_an_earlier_era_say_nothing_about_this_one(self) -> None:
        """Regression: envoyproxy/envoy#11579, where samples from before the window skewed the latency that it measured."""
        breaker = Breaker(BreakerSettings(slow_after=1.0, minimum=3))
        early = [permit_of(breaker, 0.0) for _ in range(10)]
        run(breaker, DOWN, DOWN, DOWN)
        run(breaker, OK, now=30.0)
        assert [breaker.settle(permit, OK, 31.0, 31.0) for permit in early] == [()] * 10
        assert breaker.statistics(31.0).slow == 0
        assert run(breaker, OK, OK, OK, now=31.0) == []

    def test_slow_answers_beyond_the_maximum_age_no_longer_count(self) -> None:
        """Regression: envoyproxy/envoy#11579 again: a brown-out that is over is no part of what is measured now."""
        breaker = Breaker(BreakerSettings(slow_after=1.0, minimum=10, max_age=60))
        run(breaker, *[OK] * 9, now=0.0, elapsed_s=5.0)
        assert run(breaker, *[OK] * 9, now=100.0, elapsed_s=5.0) == []
        assert breaker.statistics(100.0).slow == 9

    def test_a_permit_is_settled_once(self) -> None:
        """Regression: resilience4j/resilience4j#1569, a double release after an error on completion."""
        breaker = Breaker(BreakerSettings())
        permit = permit_of(breaker, 0.0)
        for _ in range(5):
            breaker.settle(permit, DOWN, 0.0, 0.1)
        assert breaker.statistics(0.0).samples == 1

    def test_a_stream_that_breaks_after_its_head_counts_as_a_failure(self) -> None:
        breaker, causes = Breaker(BreakerSettings()), []
        permits = [permit_of(breaker, 0.0) for _ in range(3)]
        for permit in permits:
            breaker.settle(permit, OK, 0.1, 0.1)
        for permit in permits:
            causes += [move.cause for move in breaker.observe(permit, DOWN, 5.0)]
        assert causes == [Cause.CONSECUTIVE]


class TestRestart:
    def test_an_open_breaker_goes_on_with_what_is_left_of_its_cooldown(self) -> None:
        snapshot = opened().snapshot(10.0, at=1_000_000)
        restored = Breaker.restore(BreakerSettings(), snapshot, now=5_000.0, at=1_005_000)
        assert refusal_of(restored, 5_000.0) == BreakerRefusal(15.0, Reason.OPEN)

    @pytest.mark.parametrize(("at", "remaining_s"), [(0, 30.0), (10**15, 0.0)])
    def test_the_cooldown_stays_within_its_bounds_whatever_the_wall_clock_did(
        self, at: int, remaining_s: float
    ) -> None:
        snapshot = opened().snapshot(0.0, at=1_000_000_000)
        restored = Breaker.restore(BreakerSettings(), snapshot, now=7.0, at=at)
        assert restored.statistics(7.0).remaining_s == remaining_s

    def test_a_lower_cap_cuts_a_restored_cooldown(self) -> None:
        snapshot = opened(cooldown=30).snapshot(0.0, at=0)
        restored = Breaker.restore(BreakerSettings(cooldown=2, max_cooldown=5), snapshot, now=0.0, at=0)
        assert restored.statistics(0.0).remaining_s == 5

    def test_growth_survives_and_a_canary_that_was_out_is_forgotten(self) -> None:
        breaker = opened()
        run(breaker, DOWN, now=30.0)
        permit_of(breaker, 90.0)
        restored = Breaker.restore(BreakerSettings(), breaker.snapshot(91.0, at=0), now=0.0, at=0)
        assert restored.state is State.OPEN
        assert permit_of(restored, 0.0).is_canary
        assert restored.statistics(0.0).level == 1

    @pytest.mark.parametrize(
        "snapshot",
        [
            {},
            {"version": 2, "state": "open", "level": 0, "cooldown_s": 1.0, "until_at": 0},
            {"version": 1, "state": "ajar", "level": 0, "cooldown_s": 1.0, "until_at": 0},
            {"version": 1, "state": "open", "level": -1, "cooldown_s": 1.0, "until_at": 0},
            {"version": 1, "state": "open", "level": 0, "cooldown_s": "nan", "until_at": 0},
            {"version": 1, "state": "open", "level": None, "cooldown_s": 1.0, "until_at": 0},
        ],
    )
    def test_a_snapshot_that_is_not_ours_is_an_error_and_not_a_guess(self, snapshot: dict[str, object]) -> None:
        with pytest.raises(ValueError):
            Breaker.restore(BreakerSettings(), snapshot, now=0.0, at=0)


class TestReload:
    def test_new_settings_keep_the_state_and_cut_a_running_cooldown(self) -> None:
        breaker = opened(cooldown=300)
        breaker.reconfigure(BreakerSettings(cooldown=5, max_cooldown=10), 100.0)
        assert refusal_of(breaker, 100.0) == BreakerRefusal(10.0, Reason.OPEN)

    def test_a_smaller_window_drops_the_oldest_outcomes(self) -> None:
        breaker = Breaker(BreakerSettings(window=100))
        run(breaker, *[OK] * 60)
        breaker.reconfigure(BreakerSettings(window=20), 0.0)
        assert breaker.statistics(0.0).samples == 20


_REFUSAL = Refusal(code=Code.OUTCOME_UNKNOWN, detail="Unknown.")


@pytest.mark.parametrize("fault", list(Fault))
def test_every_fault_has_a_verdict(fault: Fault) -> None:
    """A new fault without a verdict would be a crash on the hot path."""
    expected = {
        Fault.NONE: OK, Fault.CLIENT_ERROR: OK, Fault.CANCELLED: NEUTRAL, Fault.SERVER: ERROR, Fault.THROTTLED: ERROR
    }.get(fault, DOWN)  # fmt: skip
    assert verdict_of(Failed(fault), BreakerSettings()) is expected
    assert verdict_of(InDoubt(fault, _REFUSAL), BreakerSettings()) is expected


def test_our_own_refusals_say_nothing_about_the_tool() -> None:
    """Regression: bagowix/interlock#194; nodeshift/opossum counts its own rejections as failures."""
    assert verdict_of(Rejected(_REFUSAL), BreakerSettings()) is NEUTRAL
    assert verdict_of(Success(reply_of()), BreakerSettings()) is OK


def test_throttling_counts_as_a_failure_unless_the_manifest_counts_it_apart() -> None:
    throttled, unavailable = Failed(Fault.THROTTLED, reply=reply_of(429)), Failed(Fault.THROTTLED, reply=reply_of(503))
    assert verdict_of(throttled, BreakerSettings()) is ERROR
    assert verdict_of(throttled, BreakerSettings(count_429=False)) is NEUTRAL
    assert verdict_of(unavailable, BreakerSettings(count_429=False)) is ERROR


def test_the_docstring_draws_every_row_of_the_table() -> None:
    """The picture that people read is the table that runs."""
    import gateway.core.breaker as module

    for cause, (before, after) in TRANSITIONS.items():
        rows = [line.split() for line in (module.__doc__ or "").splitlines() if f" {cause} " in line]
        assert [row[:4] for row in rows] == [[before, cause, "->", after]]


@given(
    turns=st.lists(
        st.tuples(st.sampled_from([0.0, 0.1, 3.0, 41.0]), st.sampled_from([*Verdict, None, None]), st.integers(0, 3)),
        max_size=60,
    )
)
@hypothesis_settings(max_examples=200, deadline=None)
def test_a_call_without_a_permit_counts_as_with_one(turns: list[tuple[float, Verdict | None, int]]) -> None:
    """While the breaker is closed, and for calls that end after it has moved on."""
    settings = BreakerSettings(cooldown=8.0, max_age=40.0, slow_after=1.0, minimum=4)
    plain, quick = Breaker(settings), Breaker(settings)
    out: list[tuple[Permit, Permit | int]] = []
    now = 0.0
    for passes_s, verdict, number in turns:
        now += passes_s
        if verdict is None:
            permit = plain.acquire(now, may_be_canary=True, lease_s=5.0)
            generation = quick.acquire_at_once()
            other = quick.acquire(now, may_be_canary=True, lease_s=5.0) if generation is None else generation
            if isinstance(permit, Permit) and not isinstance(other, BreakerRefusal):
                out.append((permit, other))
            else:
                assert permit == other
        elif out:
            permit, other = out.pop(number % len(out))
            elapsed_s = 0.5 * number
            moves = plain.settle(permit, verdict, now, elapsed_s)
            if isinstance(other, Permit):
                assert quick.settle(other, verdict, now, elapsed_s) == moves
            else:
                assert quick.settle_at_once(other, verdict, now, elapsed_s) == moves
        assert plain.statistics(now) == quick.statistics(now)


class AnySchedule(RuleBasedStateMachine):
    """Calls that start, end, are cancelled, get lost or arrive late in any order, over restarts and reloads."""

    permits: Bundle[tuple[Breaker, Permit]] = Bundle("permits")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.at = 10**9
        self.settings = BreakerSettings(cooldown=8.0, max_cooldown=50.0, max_age=40.0)
        self.breaker = Breaker(self.settings)
        self.canaries: list[Permit] = []

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.25, 1.0, 8.0, 30.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.at += round(seconds * 1000)

    @rule(target=permits, may_be_canary=st.booleans(), lease_s=st.sampled_from([0.5, 5.0, 60.0]))
    def a_call_starts(self, may_be_canary: bool, lease_s: float) -> object:
        state = self.breaker.statistics(self.now)
        answer = self.breaker.acquire(self.now, may_be_canary=may_be_canary, lease_s=lease_s)
        if isinstance(answer, BreakerRefusal):
            assert 0 < answer.retry_after_s <= 50.0
            return multiple()
        if answer.is_canary:
            assert may_be_canary
            self.canaries.append(answer)
        assert state.state is not State.OPEN or state.remaining_s == 0
        return self.breaker, answer

    @rule(permit=consumes(permits), verdict=st.sampled_from(Verdict))
    def a_call_ends(self, permit: tuple[Breaker, Permit], verdict: Verdict) -> None:
        permit[0].settle(permit[1], verdict, self.now, 0.1)

    @rule(permit=permits, verdict=st.sampled_from(Verdict))
    def a_call_ends_and_will_end_again(self, permit: tuple[Breaker, Permit], verdict: Verdict) -> None:
        permit[0].settle(permit[1], verdict, self.now, 0.1)

    @rule(permit=permits, verdict=st.sampled_from(Verdict))
    def a_stream_breaks(self, permit: tuple[Breaker, Permit], verdict: Verdict) -> None:
        permit[0].observe(permit[1], verdict, self.now)

    @rule(skew_s=st.sampled_from([0, -(10**6), 10**6]))
    def the_gateway_restarts(self, skew_s: int) -> None:
        snapshot = self.breaker.snapshot(self.now, self.at)
        self.at += skew_s * 1000
        self.breaker = Breaker.restore(self.settings, snapshot, self.now, self.at)
        for permit in self.canaries:
            permit.is_settled = True

    @precondition(lambda self: self.breaker.state is State.CLOSED)
    @rule()
    def the_tool_goes_down(self) -> None:
        while self.breaker.state is State.CLOSED:
            run(self.breaker, DOWN, now=self.now)

    @invariant()
    def at_most_one_canary_is_out(self) -> None:
        self.canaries = [permit for permit in self.canaries if not permit.is_settled and permit.lease_until > self.now]
        assert len(self.canaries) <= 1

    @invariant()
    def the_cooldown_keeps_its_bounds(self) -> None:
        figures = self.breaker.statistics(self.now)
        assert 0 <= figures.remaining_s <= figures.cooldown_s <= 50.0
        if figures.state is State.OPEN:
            assert figures.cooldown_s >= 8.0

    @invariant()
    def the_counters_are_what_a_recount_gives(self) -> None:
        ring = self.breaker._ring
        assert ring.failures == sum(failed for _, failed, _ in ring.samples)
        assert len(ring) <= self.settings.window

    @invariant()
    def it_is_never_wedged(self) -> None:
        """After the longest lease and the longest cooldown an eligible call is always admitted."""
        later = self.now + 60.0 + 50.0
        probe = Breaker.restore(self.settings, self.breaker.snapshot(self.now, 0), later, 10**6)
        assert probe.peek(later) is None


AnySchedule.TestCase.settings = hypothesis_settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True
)
TestAnySchedule = AnySchedule.TestCase
