"""The clocks: the real one keeps its promises, and waiting has a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest

from gateway.clock import Alarm, Alarms, SystemClock, dated_token, settled, wait_until
from tests.fakes import FakeClock


async def test_the_system_clock_counts_up_and_draws_within_bounds() -> None:
    clock = SystemClock()
    before = clock.now()
    await clock.sleep(0)
    assert clock.now() >= before
    assert clock.at() > 1_700_000_000_000
    assert 0 <= clock.draw() < 1
    assert len(clock.token()) == 32
    assert clock.token() != clock.token()


async def test_dated_tokens_are_in_the_order_of_their_making_and_differ() -> None:
    """An index of names grows at its end (docs/adr/0186)."""
    clock = FakeClock()
    tokens = []
    for _ in range(50):
        tokens.append(dated_token(clock))
        clock.turn(0.001)
    assert tokens == sorted(tokens)
    assert {len(token) for token in tokens} == {32}
    assert len({dated_token(clock) for _ in range(50)}) == 50


async def test_waiting_ends_with_the_future() -> None:
    clock = FakeClock()
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(wait_until(clock, future, clock.now() + 10))
    await clock.advance(1)
    future.set_result(None)
    assert await waiting
    await clock.settle()
    assert clock.sleeping == 0, "no timer is left behind"


async def test_waiting_ends_with_its_time_and_leaves_the_future_alone() -> None:
    clock = FakeClock()
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    assert not await clock.finish(wait_until(clock, future, clock.now() + 10))
    assert not future.done()


async def test_a_cancelled_wait_leaves_neither_timer_nor_cancelled_future() -> None:
    clock = FakeClock()
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(wait_until(clock, future, clock.now() + 10))
    await clock.settle()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await clock.settle()
    assert clock.sleeping == 0
    assert not future.cancelled()


async def test_the_fake_clock_wakes_sleepers_in_order_of_time() -> None:
    clock, woken = FakeClock(), []

    async def sleeper(delay_s: float) -> None:
        await clock.sleep(delay_s)
        woken.append((delay_s, clock.now() - 1_000))

    await clock.finish(asyncio.gather(*(sleeper(delay_s) for delay_s in (3.0, 1.0, 2.0))))
    assert woken == [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]


async def test_the_fake_clock_tells_when_nobody_could_ever_wake_the_waiter() -> None:
    with pytest.raises(AssertionError, match="nobody asleep"):
        await FakeClock().finish(asyncio.get_running_loop().create_future())


class Bell:
    """Does something when it is rung."""

    def __init__(self, heard: Callable[[], object]) -> None:
        self._heard = heard

    def ring(self) -> None:
        self._heard()


async def test_an_alarm_rings_once_when_its_latest_bound_has_passed() -> None:
    loop, rung = asyncio.get_running_loop(), asyncio.Event()
    times: list[float] = []
    alarm = Alarm(Alarms(loop), Bell(lambda: (times.append(loop.time()), rung.set())))
    due = loop.time() + 0.06
    alarm.set(loop.time() + 0.02)
    alarm.set(due)
    await rung.wait()
    assert times[0] >= due - 0.005
    assert len(times) == 1


async def test_an_alarm_can_be_moved_nearer_cleared_and_stopped() -> None:
    loop, rung = asyncio.get_running_loop(), asyncio.Event()
    alarm = Alarm(Alarms(loop), Bell(rung.set))
    alarm.set(loop.time() + 3600)
    alarm.set(loop.time() + 0.01)
    await rung.wait()
    rung.clear()
    for quiet in (alarm.clear, alarm.stop, alarm.stop):
        alarm.set(loop.time() + 0.01)
        quiet()
        await asyncio.sleep(0.03)
        assert not rung.is_set()


class Timers:
    """What alarms ask of an event loop, with a time that is turned by hand."""

    def __init__(self) -> None:
        self.now, self.due = 0.0, [0.0, lambda: None]
        self.failed: list[object] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timers:
        self.due = [when, callback]
        return self

    def cancel(self) -> None:
        self.due = [float("inf"), lambda: None]

    def call_exception_handler(self, context: dict[str, object]) -> None:
        self.failed.append(context["exception"])

    def turn(self, now: float) -> None:
        self.now = now
        when, callback = self.due
        if when <= now:
            callback()  # type: ignore[operator]


def test_many_alarms_share_one_timer_and_each_rings_in_its_time() -> None:
    timers, rung = Timers(), list[int]()
    alarms = Alarms(cast(Any, timers))
    many = [Alarm(alarms, Bell(partial(rung.append, number))) for number in range(5)]
    for number, alarm in enumerate(many):
        alarm.set(10.0 - number)
    many[2].set(20.0)
    many[3].clear()
    assert timers.due[0] == 6.0
    timers.turn(6.0)
    assert rung == [4]
    timers.turn(9.5)
    assert rung == [4, 1]
    timers.turn(12.0)
    assert rung == [4, 1, 0]
    assert timers.due[0] == 20.0
    timers.turn(20.0)
    assert rung == [4, 1, 0, 2]
    assert len(alarms) == 0


def test_an_alarm_that_fails_is_told_and_keeps_no_other_from_ringing() -> None:
    timers, rung = Timers(), list[int]()
    alarms = Alarms(cast(Any, timers))
    Alarm(alarms, Bell(lambda: 1 / 0)).set(1.0)
    Alarm(alarms, Bell(partial(rung.append, 1))).set(1.0)
    timers.turn(1.0)
    assert rung == [1]
    assert isinstance(timers.failed[0], ZeroDivisionError)


def test_places_that_were_given_up_are_cleared_out() -> None:
    """Connections come and go faster than their bounds pass: what is gone may not pile up until then."""
    timers = Timers()
    alarms = Alarms(cast(Any, timers))
    kept = Alarm(alarms, Bell(lambda: None))
    kept.set(50.0)
    for _ in range(10_000):
        gone = Alarm(alarms, Bell(lambda: None))
        gone.set(75.0)
        gone.stop()
    assert len(alarms) == 1
    assert len(alarms._places) < 200
    timers.turn(80.0)
    assert len(alarms) == 0


async def test_settled_waits_for_a_future_or_for_time_and_leaves_it_alone() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    assert not await settled(future, 0.01)
    waiting = asyncio.create_task(settled(future, 3600))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert not future.cancelled()
    again = asyncio.create_task(settled(future, 3600))
    await asyncio.sleep(0)
    future.set_result(None)
    assert await again
    assert await settled(future, 0)


async def bounded(alarms: Alarms, future: asyncio.Future[None], limit_s: float) -> None:
    place = alarms.bound(future, limit_s)
    try:
        await future
    finally:
        alarms.give_up(place)


async def test_bounds_end_the_waits_whose_time_is_over_and_no_other() -> None:
    loop = asyncio.get_running_loop()
    alarms = Alarms(loop)
    futures: list[asyncio.Future[None]] = [loop.create_future() for _ in range(4)]
    later, first, second, done = [
        asyncio.create_task(bounded(alarms, future, limit_s))
        for future, limit_s in zip(futures, (3600, 0.03, 0.04, 0.01), strict=True)
    ]
    await asyncio.sleep(0)
    assert repr(alarms) == "<Alarms of 4 bounds>"
    futures[3].set_result(None)
    await done
    for late in (first, second):
        with pytest.raises(TimeoutError):
            await late
    assert not later.done()
    later.cancel()
    with pytest.raises(asyncio.CancelledError):
        await later
    assert repr(alarms) == "<Alarms of 0 bounds>"


async def test_bounds_wait_for_what_a_future_brings() -> None:
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    failed.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await bounded(Alarms(asyncio.get_running_loop()), failed, 3600)


def test_many_waits_have_one_timer() -> None:
    """Every write waits for the disk, and a timer costs as much as writing its record down."""

    class Counting(asyncio.SelectorEventLoop):
        timers = 0

        def call_at(self, *args: Any, **settings: Any) -> asyncio.TimerHandle:
            self.timers += 1
            return super().call_at(*args, **settings)

    async def wait(loop: Counting) -> int:
        alarms = Alarms(loop)
        futures: list[asyncio.Future[None]] = [loop.create_future() for _ in range(100)]
        waits = [asyncio.create_task(bounded(alarms, future, 3600 + place)) for place, future in enumerate(futures)]
        await asyncio.sleep(0)
        for future in futures:
            future.set_result(None)
        await asyncio.gather(*waits)
        return loop.timers

    with asyncio.Runner(loop_factory=Counting) as runner:
        assert runner.run(wait(cast(Counting, runner.get_loop()))) == 1
