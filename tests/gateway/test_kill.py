"""The real gateway under load, killed with SIGKILL at random and at named points. `make chaos` does it 82 times."""

from __future__ import annotations

import pytest

from tests.gateway.chaos import POINTS, run_chaos


@pytest.mark.timeout(240)
async def test_nothing_is_lost_or_doubled_by_kills_at_random_and_at_every_named_point(tmp_path):
    """One kill at random and one at a named point, in turn, until each point was met; the seed fixes load and moments."""
    report = await run_chaos(tmp_path, seed=1, cycles=2 * len(POINTS))
    assert report.problems == [], str(report)
    assert report.cycles == 2 * len(POINTS)
    assert report.acknowledged > 100
    assert {"succeeded", "aborted_clean"} <= report.classes.keys()
