"""A run that is parked whenever it can be, between any two callbacks, lives the very same life as one that never is."""

from __future__ import annotations

import random

import pytest

from tests.simulation.plan import canonical
from tests.simulation.schedule import play, play_seed
from tests.simulation.test_crash_points import undisturbed

SCHEDULES = 400
CHUNK = 100


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(0, SCHEDULES, CHUNK))
def test_a_schedule_with_parking_is_the_same_line_for_line(first: int) -> None:
    """What is sent, answered, recorded, found in circles, undone and frozen, with crashes and bad disks between."""
    parked = 0
    for seed in range(first, first + CHUNK):
        report = play_seed(seed, parks=True)
        parked += report.parked
        assert report.trace == play_seed(seed).trace, f"seed {seed}"
    assert parked > CHUNK


@pytest.mark.timeout(300)
@pytest.mark.parametrize("plan", canonical(), ids=lambda plan: plan.name)
def test_it_ends_the_same_whatever_point_the_process_ends_at_while_it_is_parked(plan) -> None:  # type: ignore[no-untyped-def]
    """Nothing that only a parked run knows may be needed after a crash."""
    points = undisturbed(plan).handled
    for crash_at in range(1, points + 1, 5):
        bare = play(plan, random.Random(7), [crash_at])
        parked = play(plan, random.Random(7), [crash_at], parks=True)
        assert (parked.trace, parked.phase) == (bare.trace, bare.phase), f"crash before callback {crash_at}"
