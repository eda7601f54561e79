"""How long the loop is held: the measuring itself, small; the figure for a hundred thousand runs is the command's."""

from __future__ import annotations

import asyncio
import gc
import time

from loadtests.stalls import Pulse, measure


async def test_a_pass_that_works_is_found_and_one_that_waits_is_not() -> None:
    pulse = Pulse()
    with pulse.felt():
        await asyncio.sleep(0)
        until = time.thread_time() + 0.03
        while time.thread_time() < until:
            pass
        await asyncio.sleep(0)
        gc.collect()
        await asyncio.sleep(0)
    assert pulse.longest_s >= 0.03
    assert pulse.looks[2] == 1
    passes = pulse.passes.counts.total()
    await asyncio.sleep(0)
    assert pulse.passes.counts.total() == passes


async def test_passes_are_counted_and_not_kept() -> None:
    """An idle loop makes half a million a second: kept, those of a long measurement took all memory of a machine."""
    pulse = Pulse()
    with pulse.felt():
        for _ in range(20_000):
            await asyncio.sleep(0)
    assert pulse.passes.counts.total() >= 20_000
    assert len(pulse.passes.counts) < 2_000


async def test_runs_are_opened_ended_and_served() -> None:
    stalls = await measure(200, 1.5, is_tuned=False)
    assert stalls.runs == 200
    assert stalls.calls > 0
    assert stalls.serving.passes.counts.total() > 1
    assert stalls.longest_ms > 0.0
    assert "200 live runs" in next(stalls.lines())
