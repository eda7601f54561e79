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
    assert pulse.cpu_s[-1] >= 0.03
    assert pulse.looks[2] == 1
    passes = list(pulse.cpu_s)
    await asyncio.sleep(0)
    assert pulse.cpu_s == passes, "the sorting of a million figures takes longer than any pass that they are of"


async def test_runs_are_opened_ended_and_served() -> None:
    stalls = await measure(200, 1.5, is_tuned=False)
    assert stalls.runs == 200
    assert stalls.calls > 0
    assert len(stalls.serving.cpu_s) > 1
    assert stalls.longest_ms > 0.0
    assert "200 live runs" in next(stalls.lines())
