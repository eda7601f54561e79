"""Virtual time: order, determinism, and an end where everybody waits."""

from __future__ import annotations

import asyncio

import pytest

from gateway.storm.virtualtime import VirtualClock, run


def test_hours_pass_at_once_and_in_order() -> None:
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        seen.append((name, asyncio.get_running_loop().time()))

    async def main() -> None:
        await asyncio.gather(sleeper("late", 7200.0), sleeper("early", 0.25))

    run(main())
    assert seen == [("early", 0.25), ("late", 7200.0)]


def test_a_storm_in_which_everybody_waits_ends_instead_of_hanging() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="everybody waits"):
        run(main())


@pytest.mark.parametrize(("jitter", "low", "high"), [("none", 0.999, 1.0), ("zero", 0.0, 0.0), ("full", 0.2, 0.9)])
def test_chance_is_chosen_by_the_policy(jitter: str, low: float, high: float) -> None:
    async def main() -> list[float]:
        clock = VirtualClock(asyncio.get_running_loop(), seed=3, jitter=jitter)
        await clock.sleep(1.5)
        assert clock.now() == 1.5
        assert clock.at() == 1_700_000_001_500
        assert len(clock.token()) == 32
        return [clock.draw() for _ in range(100)]

    draws = run(main())
    assert low <= sum(draws) / len(draws) <= high
    assert all(0 <= draw < 1 for draw in draws)
