"""Everything that `docs/storms` holds, part after part: `make storm`.

    python -m loadtests.storm_report --runs 1000 --kills 82 --seeds 5 --out docs/storms

A part that fails does not keep the others from running; the exit code is 1 if one did. Once a minute it says how long it has
been going and about how much longer it will: by what each part takes on a quiet machine with two cores, corrected by what
the parts so far have taken on this one.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from gateway.storm.scenario import load, shipped
from loadtests.storms import live_policies

__all__ = ["Part", "left_s", "main", "parts", "run_all"]

_TELL_S = 60.0
# What starting and stopping the processes of one live storm takes, and drawing the plots of one scenario.
_AROUND_S, _PLOTS_S = 5.0, 6.0


@dataclass(frozen=True, slots=True)
class Part:
    """One part: arguments of Python, and the seconds that it takes on a quiet machine."""

    name: str
    arguments: tuple[str, ...]
    quiet_s: float


def parts(runs: int, kills: int, seeds: int, jobs: int, out: Path, only: Sequence[str] = ()) -> list[Part]:
    """Return what is run, in order. `only` leaves nothing but the storms of these scenarios."""
    one_by_one = [f"--only={name}" for name in only]
    storms = Part(
        "storms",
        ("-m", "loadtests.storms", "--seeds", str(seeds), "--jobs", str(jobs), "--out", str(out), *one_by_one),
        sum(_storm_s(name, seeds) for name in only or shipped()),
    )
    if only:
        return [storms]
    return [
        Part(
            "scoreboard",
            ("-m", "loadtests.scoreboard", "--runs", str(runs), "--out", str(out / "scoreboard")),
            20 + 0.45 * runs,
        ),
        Part(
            "crashes",
            ("-m", "loadtests.crashes", "--kills", str(kills), "--out", str(out / "crashes")),
            5 + 0.6 * kills,
        ),
        Part("baselines", ("-m", "loadtests.baselines", "--out", str(out / "baselines")), 4 * (40 + _AROUND_S)),
        Part("journal", ("-m", "loadtests.journal_rate", "--out", str(out / "journal" / "journal.json")), 15),
        storms,
    ]


def _storm_s(name: str, seeds: int) -> float:
    scenario = load(name)
    virtual_s = 1.0 * seeds + _PLOTS_S if "virtual" in scenario.engines else 0.0
    if "live" not in scenario.engines:
        return virtual_s
    return virtual_s + (1 + len(live_policies(scenario))) * (scenario.seconds + _AROUND_S) + _PLOTS_S


def left_s(planned: Sequence[float], taken: Sequence[float], running_s: float) -> float:
    """Return about how many seconds are left.

    Args:
        planned: what each part takes on a quiet machine.
        taken: what those that are over took here.
        running_s: how long the next has been running.
    """
    over = len(taken)
    slowness = (sum(taken) + 60.0) / (sum(planned[:over]) + 60.0)
    return (
        max(0.0, planned[over] * slowness - running_s) + sum(planned[over + 1 :]) * slowness
        if over < len(planned)
        else 0.0
    )


async def _run(part: Part) -> int:
    process = await asyncio.create_subprocess_exec(sys.executable, *part.arguments)
    return await process.wait()


async def run_all(planned: Sequence[Part]) -> list[str]:
    """Run every part; return the names of those that failed."""
    began, taken, failed = time.monotonic(), list[float](), list[str]()
    seconds = [part.quiet_s for part in planned]
    for number, part in enumerate(planned, 1):
        click.echo(
            f"[{number}/{len(planned)}] {part.name}: about {_minutes(left_s(seconds, taken, 0.0))} left", err=True
        )
        started = time.monotonic()
        running = asyncio.ensure_future(_run(part))
        while not (await asyncio.wait((running,), timeout=_TELL_S))[0]:
            now = time.monotonic()
            left = _minutes(left_s(seconds, taken, now - started))
            click.echo(f"      {_minutes(now - began)} gone, about {left} left ({part.name})", err=True)
        taken.append(time.monotonic() - started)
        if running.result():
            failed.append(part.name)
        click.echo(
            f"      {part.name} took {_minutes(taken[-1])}{'' if not running.result() else ' and FAILED'}", err=True
        )
    click.echo(f"all of it took {_minutes(time.monotonic() - began)}", err=True)
    return failed


def _minutes(seconds: float) -> str:
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


@click.command()
@click.option("--runs", default=1000, show_default=True, help="Runs of the scoreboard, under each configuration.")
@click.option("--kills", default=82, show_default=True, help="SIGKILLs of the crash storm.")
@click.option("--seeds", default=5, show_default=True, help="Seeds of each virtual storm.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Virtual storms at the same time.")
@click.option("--out", default="docs/storms", show_default=True, type=click.Path(file_okay=False), help="Where to.")
@click.option("--only", multiple=True, help="Only the storms of this scenario.")
def main(runs: int, kills: int, seeds: int, jobs: int, out: str, only: tuple[str, ...]) -> None:
    """Write the whole report; exit code 1 if a part failed or a claim does not hold."""
    failed = asyncio.run(run_all(parts(runs, kills, seeds, jobs, Path(out), only)))
    if failed:
        click.echo(f"FAILED: {', '.join(failed)}", err=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
