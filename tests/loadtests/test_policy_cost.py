"""What rules cost does not grow with the run."""

from __future__ import annotations

import asyncio
import cProfile
import pstats

import pytest

from loadtests.policy_cost import Bench, measure


def calls_of(bench: Bench) -> int:
    """Return the Python calls of a hundred calls through the stage: the same number on every machine, but for what the
    garbage collector may finalise in between."""

    async def both() -> int:
        await bench.prepare()
        await bench.run(10)
        profiler = cProfile.Profile()
        profiler.enable()
        await bench.run(100)
        profiler.disable()
        return int(pstats.Stats(profiler).total_calls)  # type: ignore[attr-defined]

    return asyncio.run(both())


@pytest.mark.parametrize("condition", ["trajectory.steps > 100000", "request.json.amount > 100", "time.hour > 24"])
def test_a_rule_costs_the_same_however_long_the_run_is(condition: str) -> None:
    assert calls_of(Bench([condition])) == pytest.approx(calls_of(Bench([condition], steps=2_000)), abs=50)


def test_an_artifact_costs_the_same_however_long_the_run_is() -> None:
    short, long = Bench([], with_artifacts=True), Bench([], steps=2_000, with_artifacts=True)
    assert calls_of(short) == pytest.approx(calls_of(long), abs=50)


async def test_the_measurement_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtests.policy_cost.CALLS", 10)
    monkeypatch.setattr("loadtests.policy_cost.ROUNDS", 1)
    assert len(await measure()) == 9
