"""Loops are stopped, honest work is not, and nothing grows with the length of the run."""

from __future__ import annotations

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.core.canonical import fingerprint
from gateway.core.tool import BoundRequest
from gateway.core.watchdog import (
    Ended,
    Loop,
    NetEffect,
    Pattern,
    Verdict,
    Watchdog,
    WatchdogSettings,
    first_return,
    inverse,
    says_nothing,
)

SETTINGS = WatchdogSettings()


def failing(dog: Watchdog, action: int = 1, result: int = 9, times: int = 3) -> None:
    for _ in range(times):
        assert dog.check(action, is_read=False) is None
        dog.acted(action, result, Ended.NO)


def done(dog: Watchdog, action: int, number: int | None = None) -> None:
    dog.acted(action, None, Ended.DONE, is_change=True, number=number)


def stopped(dog: Watchdog, action: int, *, is_read: bool = False) -> Loop:
    loop = dog.check(action, is_read=is_read)
    assert loop is not None
    dog.interrupted(loop, action)
    return loop


def test_the_same_failure_three_times_is_not_sent_a_fourth_time() -> None:
    """NousResearch/hermes-agent#67829: 85 identical failures, a warning printed each time."""
    dog = Watchdog(SETTINGS)
    failing(dog)
    loop = stopped(dog, 1)
    assert (loop.pattern, loop.verdict, loop.since_action, loop.times) == (Pattern.REPETITION, Verdict.INTERRUPT, 1, 3)


def test_another_action_or_another_result_is_no_repetition() -> None:
    dog = Watchdog(SETTINGS)
    for result in range(20):
        dog.acted(1, result, Ended.NO)
    assert dog.check(1, is_read=False) is None
    failing(dog, action=2, times=2)
    assert dog.check(3, is_read=False) is None


def test_a_poll_whose_answer_changes_is_no_loop_and_one_that_stays_has_a_cap_of_its_own() -> None:
    """HKUDS/nanobot#2298: hash the result too."""
    dog = Watchdog(SETTINGS)
    for result in range(500):
        assert dog.check(1, is_read=True) is None
        dog.acted(1, result, Ended.DONE)
    for _ in range(199):
        dog.acted(1, 7, Ended.DONE)
    assert dog.check(1, is_read=True) is None
    dog.acted(1, 7, Ended.DONE)
    assert stopped(dog, 1, is_read=True).pattern is Pattern.POLLING


def test_between_two_noes_a_change_makes_the_next_try_an_honest_one_up_to_a_cap() -> None:
    """The tests fail, a fix, the tests fail the same way, another fix: that is work, for a while."""
    dog = Watchdog(SETTINGS)
    for fix in range(12):
        assert dog.check(1, is_read=False) is None
        dog.acted(1, 9, Ended.NO, number=2 * fix + 1)
        done(dog, 100 + fix, 2 * fix + 2)
    loop = stopped(dog, 1)
    assert (loop.pattern, loop.times, loop.since_step, loop.undo_after) == (Pattern.REPETITION, 12, 1, 0)


def test_not_yet_has_the_patience_of_a_poll_and_a_declared_poll_its_own() -> None:
    dog = Watchdog(SETTINGS)
    for _ in range(5):
        dog.acted(1, 404, Ended.NOT_YET, cap=5)
        dog.acted(2, 404, Ended.NOT_YET)
    assert dog.check(2, is_read=True) is None
    assert stopped(dog, 1, is_read=True).pattern is Pattern.POLLING
    done(dog, 3)
    for _ in range(5):
        assert dog.check(1, is_read=True) is None, "a poll may go on for as long again"
        dog.acted(1, 404, Ended.NOT_YET, cap=5)
    assert dog.check(1, is_read=True) is not None


def test_what_is_done_again_and_again_with_success_is_no_loop_by_itself() -> None:
    dog = Watchdog(SETTINGS)
    for _ in range(500):
        assert dog.check(1, is_read=False) is None
        dog.acted(1, 5, Ended.DONE, is_change=True)


def test_an_interrupted_action_may_be_tried_again_after_something_else_was_done() -> None:
    dog = Watchdog(SETTINGS)
    failing(dog)
    stopped(dog, 1)
    done(dog, 2)
    assert dog.check(1, is_read=False) is None
    done(dog, 1)
    assert dog.check(1, is_read=False) is None


def test_who_does_not_heed_the_interrupt_is_taken_back_and_then_stopped_for_good() -> None:
    dog = Watchdog(SETTINGS)
    failing(dog)
    assert stopped(dog, 1).verdict is Verdict.INTERRUPT
    assert stopped(dog, 1).verdict is Verdict.REWIND
    loop = stopped(dog, 1)
    assert (loop.pattern, loop.verdict) == (Pattern.MASKED, Verdict.REWIND)
    assert stopped(dog, 1).verdict is Verdict.DEADLOCK


def test_a_gentle_watchdog_calls_no_run_a_deadlock() -> None:
    dog = Watchdog(SETTINGS, is_gentle=True)
    failing(dog)
    assert stopped(dog, 1).verdict is Verdict.INTERRUPT
    for _ in range(20):
        assert stopped(dog, 1).verdict is Verdict.REWIND


def test_a_violation_long_after_an_interrupt_is_a_first_one_again() -> None:
    dog = Watchdog(SETTINGS)
    failing(dog)
    stopped(dog, 1)
    for action in range(10, 14):
        dog.acted(action, action, Ended.DONE)
    failing(dog, action=2)
    assert stopped(dog, 2).verdict is Verdict.INTERRUPT


@pytest.mark.parametrize("period", range(1, 9))
def test_a_lap_that_repeats_the_one_before_is_an_oscillation_of_its_period(period: int) -> None:
    """The flip-flop of line 42: H_t == H_{t-2}, and again."""
    dog = Watchdog(SETTINGS)
    for turn in range(2 * period + (period == 1)):
        assert dog.check(500, is_read=False) is None
        done(dog, 100 + turn % period)
        dog.state_is(turn % period)
    loop = dog.check(500, is_read=False)
    assert loop is not None
    assert (loop.pattern, loop.times) == (Pattern.OSCILLATION, period)
    assert dog.check(500, is_read=True) is None, "the agent may still look around"


def test_to_take_back_a_change_that_did_not_help_is_no_cycle() -> None:
    dog = Watchdog(SETTINGS)
    for turn in range(40):
        for state in (0, turn + 1):
            done(dog, state)
            assert dog.state_is(state) is None


def test_a_longer_cycle_than_the_window_is_not_seen() -> None:
    dog = Watchdog(SETTINGS)
    for turn in range(36):
        done(dog, turn % 9)
        dog.state_is(turn % 9)
    assert dog.check(500, is_read=False) is None


def test_who_goes_on_in_circles_after_the_interrupt_is_taken_back() -> None:
    """The orbit is not forgotten with the interrupt: its next change is the second violation within three steps."""
    dog = Watchdog(SETTINGS)
    for turn in range(4):
        done(dog, turn % 2)
        dog.state_is(turn % 2)
    assert stopped(dog, 0).verdict is Verdict.INTERRUPT
    done(dog, 0)
    dog.state_is(0)
    loop = stopped(dog, 1)
    assert (loop.verdict, loop.pattern) == (Verdict.REWIND, Pattern.OSCILLATION)
    assert stopped(dog, 1).pattern is Pattern.MASKED


def test_who_does_something_else_after_the_interrupt_is_let_be() -> None:
    dog = Watchdog(SETTINGS)
    for turn in range(4):
        done(dog, turn % 2)
        dog.state_is(turn % 2)
    stopped(dog, 0)
    done(dog, 77)
    assert dog.state_is(77) is None
    assert dog.check(0, is_read=False) is None


def test_states_of_two_sources_are_not_compared() -> None:
    dog = Watchdog(SETTINGS)
    for turn in range(20):
        done(dog, turn)
        dog.state_is(turn, "agent")
        dog.state_is(turn - 1, "tool")
    assert dog.check(500, is_read=False) is None


def test_the_seeds_own_detector_reports_the_first_return() -> None:
    """Seed 000, `check_state_hash_invariants`: 1 for a no-op, 2 for a flip-flop."""
    assert first_return(["a", "b"], "b", 8) == 1
    assert first_return(["a", "b"], "a", 8) == 2
    assert first_return(["a", "b", "c"], "a", 2) is None


def test_changes_without_a_better_metric_are_stagnation() -> None:
    dog = Watchdog(WatchdogSettings(epoch=5))
    dog.measured({"passing": 3, "errors": -7})
    for number in range(1, 6):
        assert dog.check(number, is_read=False) is None
        done(dog, number, number)
        dog.measured({"passing": 3 + number % 2 * -1, "errors": -7})
    loop = dog.check(99, is_read=False)
    assert loop is not None
    assert (loop.pattern, loop.undo_after, loop.times) == (Pattern.STAGNATION, 0, 5)


def test_a_metric_that_is_not_measured_again_says_nothing() -> None:
    dog = Watchdog(WatchdogSettings(epoch=5))
    dog.measured({"passing": 3})
    for number in range(50):
        done(dog, number)
        assert dog.check(99, is_read=False) is None


def test_progress_in_one_metric_is_progress() -> None:
    dog = Watchdog(WatchdogSettings(epoch=3))
    dog.measured({"passing": 0, "errors": -7})
    for number in range(50):
        done(dog, number)
        dog.measured({"passing": number, "errors": -7})
        assert dog.check(1000 + number, is_read=False) is None


def test_entropy_falls_when_one_thing_is_done_over_and_over() -> None:
    dog = Watchdog(SETTINGS)
    assert dog.entropy_bits == 0.0
    for action in range(64):
        dog.acted(action, action, Ended.DONE)
    assert dog.entropy_bits == pytest.approx(6.0)
    for _ in range(64):
        dog.acted(7, 7, Ended.DONE)
    assert dog.entropy_bits == pytest.approx(0.0)


def test_what_an_unnoticed_loop_costs_and_what_it_costs_here() -> None:
    """Seed 000: a ceiling of 50 turns against detection at turn 4, about 89 times."""

    def cost(turns: int) -> float:
        tokens_in = turns * 1000 + 1100 * turns * (turns - 1) // 2
        return tokens_in * 3e-6 + turns * 300 * 15e-6

    dog = Watchdog(WatchdogSettings(period=2))
    dog.state_is(0)
    turn = 0
    while True:
        turn += 1
        if dog.check(turn % 2, is_read=False) is not None or turn > 50:
            break
        done(dog, turn % 2)
        dog.state_is(turn % 2)
    assert turn == 4
    assert cost(50) == pytest.approx(4.42, abs=0.005)
    assert cost(50) / cost(turn) == pytest.approx(89, abs=1)


def test_a_step_and_its_inverse_cancel_out() -> None:
    """Create and cancel, three times over with nothing learnt in between: two laps that repeat the first."""
    dog, effects = Watchdog(SETTINGS), NetEffect(8)
    for turn in range(1, 4):
        for call, undo, action in ((b"create", b"cancel%d" % turn, 11), (b"cancel%d" % turn, None, 12 + turn)):
            done(dog, action)
            found = dog.state_is(effects.changed(call, undo, action, turn), "net", laps=2)
    assert found is Pattern.OSCILLATION


@pytest.mark.parametrize("other", ["step", "read"])
def test_a_lap_with_another_step_or_another_read_in_it_is_none(other: str) -> None:
    """A lock that is taken and given back around each piece of work; a lease around each page."""
    dog, effects = Watchdog(SETTINGS), NetEffect(8)
    for turn in range(1, 20):
        done(dog, 11)
        found = dog.state_is(effects.changed(b"lock", b"unlock%d" % turn, 11, 3 * turn), "net", laps=2)
        assert found is None
        if other == "step":
            done(dog, 50)
            dog.state_is(effects.changed(b"work", None, 50, 3 * turn + 1), "net", laps=2)
        else:
            effects.looked(turn)
        done(dog, 12)
        found = dog.state_is(effects.changed(b"unlock%d" % turn, None, 12, 3 * turn + 2), "net", laps=2)
        assert found is None


def test_what_is_forgotten_stands_for_ever() -> None:
    effects = NetEffect(2)
    for n in range(1, 4):
        effects.changed(b"c", b"i%d" % n, n, n)
    assert len(effects._standing) == 2
    effects.clear()
    assert not effects._standing


class Dog(RuleBasedStateMachine):
    """Any behaviour of an agent."""

    def __init__(self) -> None:
        super().__init__()
        self.dog = Watchdog(WatchdogSettings(repeats=2, window=8, period=3, epoch=4, polls=5))
        self.is_over = False

    @rule(
        action=st.integers(0, 12), result=st.integers(0, 2), failed=st.booleans(), is_read=st.booleans(),
        state=st.integers(0, 4), metric=st.integers(0, 5),
    )  # fmt: skip
    def one_call(self, action: int, result: int, failed: bool, is_read: bool, state: int, metric: int) -> None:
        if self.is_over:
            return
        masked = action in self.dog._masked
        loop = self.dog.check(action, is_read=is_read)
        assert loop == self.dog.check(action, is_read=is_read), "checking changes nothing"
        if loop is not None:
            self.dog.interrupted(loop, action)
            self.is_over = loop.verdict is Verdict.DEADLOCK
            return
        assert not masked, "a masked action is never dispatched"
        self.dog.acted(action, result, Ended.NO if failed else Ended.DONE, is_change=not (failed or is_read))
        if not is_read:
            self.dog.state_is(state)
            self.dog.measured({"m": metric})

    @invariant()
    def memory_is_bounded(self) -> None:
        dog = self.dog
        assert len(dog._seen) <= 8
        assert len(dog._recent) <= 8
        assert len(dog._counts) <= 8
        assert all(len(orbit.states) <= 7 for orbit in dog._orbits.values())
        assert len(dog._masked) <= 8
        assert dog._rewinds <= 3


Dog.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=50, deadline=None)
TestDog = Dog.TestCase


def test_a_compensator_is_named_by_what_it_would_send() -> None:
    """A call of the agent's own that undoes the step has the same name, whatever its spelling of an empty body."""
    assert inverse(BoundRequest("pay", "DELETE", "/h/1", (), " {} ")) == ("pay", "DELETE", "/h/1", b"")
    bound = BoundRequest("pay", "POST", "/h/1", (("content-Type", "application/json"),), '{"a": 1}')
    digest = fingerprint("POST", "/h/1", "application/json", b'{"a":1}')
    assert inverse(bound) == ("pay", "POST", "/h/1", digest)
    assert says_nothing(b"")
    assert not says_nothing(b"[]")
