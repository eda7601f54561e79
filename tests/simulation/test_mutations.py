"""The simulation is worth what it can find: with any one step of the protocol taken out it must turn red."""

from __future__ import annotations

import pytest

from tests.simulation.mutations import MUTATIONS
from tests.simulation.schedule import play_seed

SEEDS = 600


@pytest.mark.timeout(120)
@pytest.mark.parametrize("step", MUTATIONS)
def test_without_this_step_the_simulation_turns_red(step: str) -> None:
    with MUTATIONS[step]():
        for seed in range(SEEDS):
            try:
                play_seed(seed)
            except Exception:
                return
    pytest.fail(f"{SEEDS} schedules did not notice that a step is missing: {step}")
