"""The clocks: the real one keeps its promises, and waiting has a bound."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from gateway.clock import Alarm, Bounds, SystemClock, settled, wait_until
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


async def test_an_alarm_rings_once_when_its_latest_bound_has_passed() -> None:
    loop, rung = asyncio.get_running_loop(), asyncio.Event()
    times: list[float] = []
    alarm = Alarm(loop, lambda: (times.append(loop.time()), rung.set()))
    due = loop.time() + 0.06
    alarm.set(loop.time() + 0.02)
    alarm.set(due)
    await rung.wait()
    assert times[0] >= due - 0.005
    assert len(times) == 1


async def test_an_alarm_can_be_moved_nearer_cleared_and_stopped() -> None:
    loop, rung = asyncio.get_running_loop(), asyncio.Event()
    alarm = Alarm(loop, rung.set)
    alarm.set(loop.time() + 3600)
    alarm.set(loop.time() + 0.01)
    await rung.wait()
    rung.clear()
    for quiet in (alarm.clear, alarm.stop, alarm.stop):
        alarm.set(loop.time() + 0.01)
        quiet()
        await asyncio.sleep(0.03)
        assert not rung.is_set()


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


async def bounded(bounds: Bounds, future: asyncio.Future[None], limit_s: float) -> None:
    bounds.put(future, limit_s)
    try:
        await future
    finally:
        bounds.take_off(future)


async def test_bounds_end_the_waits_whose_time_is_over_and_no_other() -> None:
    loop = asyncio.get_running_loop()
    bounds = Bounds(loop)
    futures: list[asyncio.Future[None]] = [loop.create_future() for _ in range(4)]
    later, first, second, done = [
        asyncio.create_task(bounded(bounds, future, limit_s))
        for future, limit_s in zip(futures, (3600, 0.03, 0.04, 0.01), strict=True)
    ]
    await asyncio.sleep(0)
    assert repr(bounds) == "<Bounds of 4 waits>"
    futures[3].set_result(None)
    await done
    for late in (first, second):
        with pytest.raises(TimeoutError):
            await late
    assert not later.done()
    later.cancel()
    with pytest.raises(asyncio.CancelledError):
        await later
    assert repr(bounds) == "<Bounds of 0 waits>"


async def test_bounds_wait_for_what_a_future_brings() -> None:
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    failed.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await bounded(Bounds(asyncio.get_running_loop()), failed, 3600)


def test_many_waits_have_one_timer() -> None:
    """Every write waits for the disk, and a timer costs as much as writing its record down."""

    class Counting(asyncio.SelectorEventLoop):
        timers = 0

        def call_at(self, *args: Any, **settings: Any) -> asyncio.TimerHandle:
            self.timers += 1
            return super().call_at(*args, **settings)

    async def wait(loop: Counting) -> int:
        bounds = Bounds(loop)
        futures: list[asyncio.Future[None]] = [loop.create_future() for _ in range(100)]
        waits = [asyncio.create_task(bounded(bounds, future, 3600 + place)) for place, future in enumerate(futures)]
        await asyncio.sleep(0)
        for future in futures:
            future.set_result(None)
        await asyncio.gather(*waits)
        return loop.timers

    with asyncio.Runner(loop_factory=Counting) as runner:
        assert runner.run(wait(cast(Counting, runner.get_loop()))) == 1
