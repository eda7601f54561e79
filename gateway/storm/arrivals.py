"""When calls come: the due times of an open loop, the same for the same seed, whatever becomes of the calls.

An open loop is what a fleet of agents looks like to a tool; a closed one slows down together with the tool and so hides
collapse (Schroeder et al., "Open Versus Closed", NSDI 2006).
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator

from gateway.storm.scenario import LoadSettings, Scenario

__all__ = ["due_times", "names", "source_of", "whole"]


def whole(load: LoadSettings, seconds: float) -> tuple[float, float]:
    """Return from when to when calls of a load come."""
    return load.start, seconds if load.end is None else min(load.end, seconds)


def due_times(load: LoadSettings, seconds: float, source: random.Random) -> Iterator[float]:
    """Yield when the calls of an open loop or a herd are due, in seconds from the start.

    A rate that moves is followed by thinning: gaps of the highest rate, each call kept with the share that is due.

    Source: Lewis & Shedler, "Simulation of Nonhomogeneous Poisson Processes by Thinning", 1979.
    """
    start, end = whole(load, seconds)
    if load.arrive == "herd":
        yield from itertools.repeat(start, load.agents)
        return
    final = load.rate if load.to_rate is None else load.to_rate
    highest = max(load.rate, final)
    if load.arrive == "loop" or highest <= 0:
        return
    if load.arrive == "poisson" and final == load.rate:
        yield from _poisson(load.rate, start, end, source.random)
        return
    due, credit = start, 0.0
    while True:
        due += 1 / highest if load.arrive == "steady" else -math.log(1 - source.random()) / highest
        if due >= end:
            return
        share = (load.rate + (final - load.rate) * (due - start) / (end - start)) / highest
        if load.arrive == "steady":
            credit += share
            if credit < 1:
                continue
            credit -= 1
        elif share < 1 and source.random() >= share:
            continue
        yield due


def _poisson(rate: float, due: float, end: float, draw: Callable[[], float]) -> Iterator[float]:
    """Yield the times after `due` and before `end` of a Poisson process: what thinning comes to when nothing moves."""
    while (due := due - math.log(1 - draw()) / rate) < end:
        yield due


def names(load: LoadSettings) -> list[str]:
    """Return the names of a load's agents."""
    return [f"{load.name}-{number}" for number in range(load.agents)]


def source_of(scenario: Scenario, seed: int, index: int) -> random.Random:
    """Return the source of chance of one load of a scenario."""
    return random.Random(f"{seed}/{scenario.name}/{index}")  # noqa: S311 - chance in an experiment
