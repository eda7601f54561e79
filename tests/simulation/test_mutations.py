"""The simulation is worth what it can find: with any one step of the protocol taken out it must turn red."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.simulation.mutations import MUTATIONS
from tests.simulation.plan import canonical, directed
from tests.simulation.schedule import Report, play, play_seed

SEEDS = 1500

_MISCALLED = re.compile(r".*(positional|keyword|required) (keyword-only )?argument.*|.*has no attribute.*")
"""A mutation that cannot even be called would turn everything red, and show nothing."""


def schedules() -> Iterator[Callable[[], Report]]:
    """The hanging call, with the process ended while it hangs, the stories of gate and outbox, then what the seeds bring."""
    (hanging,) = [plan for plan in canonical() if plan.name == "hanging"]
    for seed in range(8):
        for crash_at in range(20, 90, 6):
            yield partial(play, hanging, random.Random(seed), [crash_at])
    for plan in directed():
        for seed in range(60):
            yield partial(play, plan, random.Random(seed), [])
    for seed in range(SEEDS):
        yield partial(play_seed, seed)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("step", MUTATIONS)
def test_without_this_step_the_simulation_turns_red(step: str) -> None:
    with MUTATIONS[step]():
        for schedule in schedules():
            try:
                schedule()
            except Exception as error:
                if stale := _MISCALLED.search(str(error)):
                    pytest.fail(f"the mutation itself is out of date: {stale[0]}")
                return
    pytest.fail(f"{SEEDS} schedules did not notice that a step is missing: {step}")


def test_with_every_step_in_place_the_same_schedules_are_green() -> None:
    for schedule in itertools.islice(schedules(), 400):
        schedule()
