"""Loops are stopped, honest work is not, and nothing grows with the length of the run."""

from __future__ import annotations

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.core.watchdog import Loop, Pattern, Verdict, Watchdog, WatchdogSettings

SETTINGS = WatchdogSettings()


def failing(dog: Watchdog, action: int = 1, result: int = 9, times: int = 3) -> None:
    for _ in range(times):
        assert dog.check(action, is_read=False) is None
        dog.acted(action, result, failed=True, is_change=False)


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
    assert (loop.pattern, loop.verdict, loop.since_step, loop.times) == (Pattern.REPETITION, Verdict.INTERRUPT, 1, 3)


def test_another_action_or_another_result_is_no_repetition() -> None:
    dog = Watchdog(SETTINGS)
    for result in range(20):
        dog.acted(1, result, failed=True, is_change=False)
    assert dog.check(1, is_read=False) is None
    failing(dog, action=2, times=2)
    assert dog.check(3, is_read=False) is None


def test_a_poll_whose_answer_changes_is_no_loop_and_one_that_stays_has_a_cap_of_its_own() -> None:
    """HKUDS/nanobot#2298: hash the result too."""
    dog = Watchdog(SETTINGS)
    for result in range(500):
        assert dog.check(1, is_read=True) is None
        dog.acted(1, result, failed=False, is_change=False)
    for _ in range(99):
        dog.acted(1, 7, failed=False, is_change=False)
    assert dog.check(1, is_read=True) is None
    dog.acted(1, 7, failed=False, is_change=False)
    assert stopped(dog, 1, is_read=True).pattern is Pattern.POLLING


def test_an_interrupted_action_may_be_tried_again_after_something_else_was_done() -> None:
    dog = Watchdog(SETTINGS)
    failing(dog)
    stopped(dog, 1)
    dog.acted(2, 0, failed=False, is_change=True)
    assert dog.check(1, is_read=False) is None
    dog.acted(1, 0, failed=False, is_change=True)
    assert dog.check(1, is_read=False) is None


def test_who_does_not_heed_the_interrupt_is_taken_back_and_then_stopped_for_good() -> None:
    dog = Watchdog(SETTINGS)
    failing(dog)
    assert stopped(dog, 1).verdict is Verdict.INTERRUPT
    assert stopped(dog, 1).verdict is Verdict.REWIND
    loop = stopped(dog, 1)
    assert (loop.pattern, loop.verdict) == (Pattern.MASKED, Verdict.REWIND)
    assert stopped(dog, 1).verdict is Verdict.DEADLOCK


def test_a_violation_long_after_an_interrupt_is_a_first_one_again() -> None:
    dog = Watchdog(SETTINGS)
    failing(dog)
    stopped(dog, 1)
    for action in range(10, 14):
        dog.acted(action, action, failed=False, is_change=False)
    failing(dog, action=2)
    assert stopped(dog, 2).verdict is Verdict.INTERRUPT


@pytest.mark.parametrize("period", range(1, 9))
def test_a_state_that_comes_back_is_an_oscillation_of_its_period(period: int) -> None:
    """The flip-flop of line 42: H_t == H_{t-2}."""
    dog = Watchdog(SETTINGS)
    for state in [*range(period), 0]:
        dog.acted(100 + state, state, failed=False, is_change=True)
        dog.state_is(state)
    loop = dog.check(500, is_read=False)
    assert loop is not None
    assert (loop.pattern, loop.times) == (Pattern.OSCILLATION, period)
    assert dog.check(500, is_read=True) is None, "the agent may still look around"


def test_a_longer_cycle_than_the_window_is_not_seen() -> None:
    dog = Watchdog(SETTINGS)
    for state in [*range(9), 0]:
        dog.acted(state, state, failed=False, is_change=True)
        dog.state_is(state)
    assert dog.check(500, is_read=False) is None


def test_changes_without_a_better_metric_are_stagnation() -> None:
    dog = Watchdog(WatchdogSettings(epoch=5))
    dog.measured({"passing": 3, "errors": -7})
    for number in range(5):
        assert dog.check(number, is_read=False) is None
        dog.acted(number, number, failed=False, is_change=True)
        dog.measured({"passing": 3 + number % 2 * -1, "errors": -7})
    loop = dog.check(99, is_read=False)
    assert loop is not None
    assert loop.pattern is Pattern.STAGNATION


def test_progress_in_one_metric_is_progress() -> None:
    dog = Watchdog(WatchdogSettings(epoch=3))
    dog.measured({"passing": 0, "errors": -7})
    for number in range(50):
        dog.acted(number, number, failed=False, is_change=True)
        dog.measured({"passing": number, "errors": -7})
        assert dog.check(1000 + number, is_read=False) is None


def test_entropy_falls_when_one_thing_is_done_over_and_over() -> None:
    dog = Watchdog(SETTINGS)
    assert dog.entropy_bits == 0.0
    for action in range(64):
        dog.acted(action, action, failed=False, is_change=False)
    assert dog.entropy_bits == pytest.approx(6.0)
    for _ in range(64):
        dog.acted(7, 7, failed=False, is_change=False)
    assert dog.entropy_bits == pytest.approx(0.0)


def test_what_an_unnoticed_loop_costs_and_what_it_costs_here() -> None:
    """Seed 000: a ceiling of 50 turns against detection at turn 4, about 89 times."""

    def cost(turns: int) -> float:
        tokens_in = turns * 1000 + 1100 * turns * (turns - 1) // 2
        return tokens_in * 3e-6 + turns * 300 * 15e-6

    dog = Watchdog(WatchdogSettings(period=2))
    turn = 0
    while True:
        turn += 1
        if dog.check(turn % 2, is_read=False) is not None or turn > 50:
            break
        dog.acted(turn % 2, turn % 2, failed=True, is_change=True)
        dog.state_is(turn % 2)
    assert turn == 4
    assert cost(50) == pytest.approx(4.42, abs=0.005)
    assert cost(50) / cost(turn) == pytest.approx(89, abs=1)


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
        self.dog.acted(action, result, failed=failed, is_change=not is_read)
        if not is_read:
            self.dog.state_is(state)
            self.dog.measured({"m": metric})

    @invariant()
    def memory_is_bounded(self) -> None:
        dog = self.dog
        assert len(dog._seen) <= 8
        assert len(dog._recent) <= 8
        assert len(dog._counts) <= 8
        assert len(dog._states) <= 4
        assert len(dog._masked) <= 4
        assert dog._rewinds <= 3


Dog.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=50, deadline=None)
TestDog = Dog.TestCase
