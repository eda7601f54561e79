"""How fast virtual storms are simulated: two million calls with their figures, timed; or what a call costs, counted.

    python -m loadtests.storm_pace                # 2,000,000 calls on all cores; exit code 1: longer than --within seconds
    python -m loadtests.storm_pace --count        # bytecode instructions a call; exit code 1: more than in limits.json
    python -m loadtests.storm_pace --write        # take the count over into limits.json

The time starts before the processes do and ends with the last figure. It is that of the machine and of whatever else runs
on it; the count is the same on every run, and `tests/loadtests/test_storm_pace.py` holds it.
"""

from __future__ import annotations

import dataclasses
import os
import sys

import click

from gateway.storm.measure import measure
from gateway.storm.runner import Pace, run_storm
from gateway.storm.scenario import PolicySettings, load, shipped
from gateway.storm.virtual import simulate
from loadtests import limits

__all__ = ["KIND", "count", "main", "timed"]

KIND = "storm_pace"
SCENARIO = "pace"
# Counting is slow, so what is counted is a smaller storm: until a while after the trouble, at a part of the rate.
COUNTED_S = 24.0
COUNTED_SHARE = 1 / 16


def timed(scenario: str, calls: int, jobs: int) -> Pace:
    """Return how long about so many calls of a scenario take, under the manifest as written: whole storms, a seed each."""
    chosen = load(scenario)
    first = simulate(dataclasses.replace(chosen, seconds=1.0), PolicySettings(), 1)
    seeds = max(1, round(calls / (chosen.seconds * max(1, len(first.calls)))))
    return run_storm(chosen, seeds=range(1, seeds + 1), policies=(), claims=(), jobs=jobs).pace


def count(scenario: str) -> float:
    """Return the bytecode instructions that a call of a scenario takes to simulate and to measure."""
    from loadtests.opcodes import Opcodes  # brings the whole gateway, which processes that are timed need not load

    chosen = load(scenario)
    thin = tuple(dataclasses.replace(one, rate=one.rate * COUNTED_SHARE) for one in chosen.load)
    chosen = dataclasses.replace(chosen, seconds=min(chosen.seconds, COUNTED_S), load=thin)
    simulate(dataclasses.replace(chosen, seconds=1.0), PolicySettings(), 1)
    opcodes = Opcodes()
    opcodes.enable()
    try:
        recording = simulate(chosen, PolicySettings(), 1)
        measure(recording, chosen)
    finally:
        opcodes.disable()
    return opcodes.total / len(recording.calls)


@click.command()
@click.argument("scenario", type=click.Choice(shipped()), default=SCENARIO)
@click.option("--calls", default=2_000_000, show_default=True, help="About how many.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Processes at the same time.")
@click.option("--within", default=10.0, show_default=True, help="Seconds that they may take.")
@click.option("--count", "is_counted", is_flag=True, help="Count instructions instead, and judge them.")
@click.option("--write", is_flag=True, help="Count, and take the count over as the limit of this Python.")
def main(scenario: str, calls: int, jobs: int, within: float, is_counted: bool, write: bool) -> None:
    """Say how fast storms of SCENARIO are simulated. Exit code 1: not fast enough."""
    if not (is_counted or write):
        pace = timed(scenario, calls, jobs)
        click.echo(str(pace))
        sys.exit(pace.seconds > within)
    counted = {scenario: count(scenario)}
    click.echo(f"{scenario}: {counted[scenario]:,.0f} instructions a call")
    limits.conclude(KIND, limits.version(), counted, write=write)


if __name__ == "__main__":
    main()
