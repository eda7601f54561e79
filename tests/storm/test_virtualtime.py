"""Virtual time: order, determinism, and an end where everybody waits."""

from __future__ import annotations

import asyncio

import pytest

from gateway.storm.virtualtime import VirtualClock, VirtualLoop, pause, run


def test_hours_pass_at_once_and_in_order() -> None:
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        seen.append((name, asyncio.get_running_loop().time()))

    async def main(loop: VirtualLoop) -> None:
        await asyncio.gather(sleeper("late", 7200.0), sleeper("early", 0.25))

    run(main)
    assert seen == [("early", 0.25), ("late", 7200.0)]


def test_a_storm_in_which_everybody_waits_ends_instead_of_hanging() -> None:
    async def main(loop: VirtualLoop) -> None:
        await loop.create_future()

    with pytest.raises(RuntimeError, match="everybody waits"):
        run(main)


@pytest.mark.parametrize(("jitter", "low", "high"), [("none", 0.999, 1.0), ("zero", 0.0, 0.0), ("full", 0.2, 0.9)])
def test_chance_is_chosen_by_the_policy(jitter: str, low: float, high: float) -> None:
    async def main(loop: VirtualLoop) -> list[float]:
        clock = VirtualClock(loop, seed=3, jitter=jitter)
        await clock.sleep(1.5)
        assert clock.now() == 1.5
        assert clock.at() == 1_700_000_001_500
        assert len(clock.token()) == 32
        return [clock.draw() for _ in range(100)]

    draws = run(main)
    assert low <= sum(draws) / len(draws) <= high
    assert all(0 <= draw < 1 for draw in draws)


def test_spawned_coroutines_tasks_and_timers_share_one_time_and_one_order() -> None:
    """What is due at the same moment happens in the order in which it was asked for, whoever asked."""
    seen: list[tuple[str, float]] = []

    async def main(loop: VirtualLoop) -> None:
        clock = VirtualClock(loop, seed=1)
        gate = loop.create_future()

        async def spawned(name: str) -> None:
            await pause(1.0)
            seen.append((name, loop.time()))
            await gate
            seen.append((f"{name} through the gate", loop.time()))

        async def task() -> None:
            await clock.sleep(1.0)
            seen.append(("task", loop.time()))
            await asyncio.sleep(0.5)
            gate.set_result(None)

        loop.spawn(spawned("first"))
        waits = loop.create_task(task())
        loop.spawn(spawned("second"))
        cancelled = loop.call_later(1.2, seen.append, ("never", 0.0))
        loop.call_later(1.1, cancelled.cancel)
        await waits

    run(main)
    assert seen[:3] == [("first", 1.0), ("task", 1.0), ("second", 1.0)]
    assert seen[3:] == [("first through the gate", 1.5), ("second through the gate", 1.5)]


@pytest.mark.parametrize("is_spawned", [True, False])
def test_a_failure_that_nobody_takes_ends_the_storm(is_spawned: bool) -> None:
    """A storm in which a stage broke must not come out as one in which nothing happened."""

    async def broken() -> None:
        await pause(0.1)
        raise ZeroDivisionError

    async def main(loop: VirtualLoop) -> None:
        if is_spawned:
            loop.spawn(broken())
        else:
            future = loop.create_future()
            future.add_done_callback(lambda _: 1 / 0)
            future.set_result(None)
        await asyncio.sleep(1)

    with pytest.raises(ZeroDivisionError):
        run(main)
