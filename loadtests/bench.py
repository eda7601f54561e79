"""One run, side by side: a direct call, a bare aiohttp proxy, and the gateway's reads, journaled writes and refusals."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from loadtests.arena import Arena, Plan
from loadtests.figures import Sample, summarise
from loadtests.machine import facts
from loadtests.peers import PEERS
from loadtests.process import ROOT, Cores, pin
from loadtests.report import render, replace_section
from loadtests.systems import SYSTEMS, Direct, System
from loadtests.targets import judge
from loadtests.wire import WORKLOADS

__all__ = ["main"]

_WARM_UP_S = 0.5


def _numbers(_context: click.Context, _option: click.Parameter, value: str) -> list[int]:
    try:
        numbers = [int(part) for part in value.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise click.BadParameter("give whole numbers of at least 1 with commas between, such as 1,64")
    return numbers


def _systems(_context: click.Context, _option: click.Parameter, value: str) -> list[System]:
    known = {**SYSTEMS, **PEERS}
    unknown = [name for name in value.split(",") if name not in known]
    if unknown:
        raise click.BadParameter(f"no system {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in value.split(",")]


def _workloads(_context: click.Context, _option: click.Parameter, value: str) -> list[str]:
    wanted = [name for name in value.split(",") if name]
    if unknown := set(wanted) - set(WORKLOADS):
        raise click.BadParameter(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    return wanted


@click.command()
@click.option(
    "--systems", callback=_systems, default=",".join([*SYSTEMS, *PEERS]), show_default=True, help="What to compare."
)
@click.option("--base", default="bare-asyncio", show_default=True, help="The system that ratios are quoted against.")
@click.option(
    "--workloads", callback=_workloads, default=",".join(WORKLOADS), show_default=True, help="What is called."
)
@click.option("--connections", callback=_numbers, default="1,16,64,256", show_default=True, help="Closed loops.")
@click.option("--rate", type=click.FloatRange(0, 5000), default=300.0, show_default=True, help="Open loop; 0: none.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Counted rounds.")
@click.option(
    "--seconds", type=click.FloatRange(0.1, 600), default=2.0, show_default=True, help="Each sample's length."
)
@click.option("--quick", is_flag=True, help="A look in half a minute: 1 and 64 connections, one short round.")
@click.option(
    "--data", type=click.Path(path_type=Path), default=ROOT / "var", help="Folder on a real disk; default var/."
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Write every sample and figure to this file."
)
@click.option(
    "--markdown", "page", type=click.Path(path_type=Path, exists=True), help="Page whose section is replaced."
)
def main(
    systems: list[System],
    base: str,
    workloads: list[str],
    connections: list[int],
    rate: float,
    rounds: int,
    seconds: float,
    quick: bool,
    data: Path,
    json_file: Path | None,
    page: Path | None,
) -> None:
    """Compare systems side by side. Exit code 1: something that was answered was wrong or not proved."""
    absent = {system.name: install for system in systems if (install := system.lacks()) is not None}
    systems = [system for system in systems if system.name not in absent]
    if quick:
        connections, rate, rounds, seconds = [1, 64], 0.0, 1, 0.5
    plan = Plan(
        systems=systems, connections=connections, rate=rate, rounds=rounds, seconds=seconds, workloads=tuple(workloads)
    )
    data.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=data.resolve()))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that `finally` ends what was started
    try:
        machine = facts(folder)
        samples, broken = _measure(plan, folder)
    except (LookupError, RuntimeError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows = summarise(samples, base=base, direct=Direct.name)
    verdicts = judge(samples, sync_us=float(str(machine["fdatasync at 600/s p50 us"])))
    section = render(machine, rows, verdicts, base=base, absent=absent)
    click.echo(section)
    if json_file is not None:
        result = {"machine": machine, "samples": samples, "rows": rows, "verdicts": verdicts}
        json_file.write_text(json.dumps(result, default=asdict, indent=1) + "\n")
    if page is not None:
        page.write_text(replace_section(page.read_text(), section))
    for name, problems in broken.items():
        click.echo(f"{name}: {'; '.join(problems)}", err=True)
    sys.exit(bool(broken) or any(row.problems for row in rows))


def _measure(plan: Plan, folder: Path) -> tuple[list[Sample], dict[str, list[str]]]:
    """Return the samples, and what is wrong with the records of whole systems once all have stopped."""
    samples = []
    cores = Cores.of_this_machine()
    pin(0, cores.load)
    with Arena(plan.systems, folder, cores) as arena:
        for number, point, system in plan.turns():
            seconds = plan.seconds if number else min(_WARM_UP_S, plan.seconds)
            sample = arena.sample(system, point, seconds=seconds, number=number)
            load = f"{point.rate:g}/s" if point.rate else f"x{point.connections}"
            click.echo(
                f"round {number}/{plan.rounds} {point.workload:8} {load:6} {system.name:13}"
                f"{sample.calls_per_s:9,.0f} calls/s  p50 {sample.p50_us:8,.0f} us  p99 {sample.p99_us:8,.0f} us"
                f"{'  INVALID' if sample.problems else ''}",
                err=True,
            )
            if number:
                samples.append(sample)
    return samples, arena.verdicts()


if __name__ == "__main__":
    main()
