"""The crash storm in small, and what counts as a toll."""

from __future__ import annotations

import asyncio

import pytest

from loadtests.crashes import Toll, crash_storm


@pytest.mark.timeout(300)
def test_kills_under_load_lose_double_and_orphan_nothing() -> None:
    """Seed 001: no doubled change, whatever the power does. Design section 2, line 4: unwinding survives each kill."""
    toll = asyncio.run(crash_storm(kills=3, agents=3, seed=5))
    assert toll.kills == 3
    assert toll.runs >= 3
    assert (toll.stuck, toll.doubled, toll.missing, toll.orphans) == (0, 0, 0, 0)


def test_a_toll_with_a_stain_is_not_flawless() -> None:
    assert Toll(back_s=[0.4]).is_flawless
    for stain in ({"stuck": 1}, {"doubled": 1}, {"missing": 1}, {"orphans": 1}, {"back_s": [5.1]}):
        assert not Toll(**stain).is_flawless  # type: ignore[arg-type]
