"""Instructions per call, counted by callgrind: the same number each time, whatever else the machine does.

    python -m loadtests.instructions read write refused --limits loadtests/instructions.json

Runs `loadtests.hotpath` twice under valgrind, with few calls and with more, and takes the slope, so that start-up does not
count. With `--limits` it fails where a call has grown by more than the tolerance; `--write` takes the figures over.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click

from loadtests.process import ROOT, python
from loadtests.wire import WORKLOADS

__all__ = ["instructions_per_call", "main", "verdict"]

FEW, MANY = 160, 800
TOLERANCE = 0.03


def instructions_per_call(workload: str) -> float:
    """Return the instructions of one call.

    Raises:
        LookupError: valgrind is not installed.
        RuntimeError: the run failed.
    """
    return (_count(workload, MANY) - _count(workload, FEW)) / (MANY - FEW)


def verdict(counted: float, limit: float | None, tolerance: float = TOLERANCE) -> str | None:
    """Return what is wrong with a count, or None. Without a limit nothing is."""
    if limit is None or counted <= limit * (1 + tolerance):
        return None
    return f"{counted:,.0f} instructions a call, {counted / limit - 1:.1%} above the limit of {limit:,.0f}"


def _count(workload: str, calls: int) -> int:
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise LookupError("valgrind is not installed")
    command = [valgrind, "--tool=callgrind", "--callgrind-out-file=/dev/null", *python("loadtests.hotpath", workload)]
    ran = subprocess.run(
        [*command, str(calls)], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True
    )
    found = re.search(r"Collected : (\d+)", ran.stderr)
    if ran.returncode or found is None:
        raise RuntimeError(ran.stderr[-2000:])
    return int(found[1])


@click.command()
@click.argument("workloads", nargs=-1, type=click.Choice(sorted(WORKLOADS)))
@click.option("--limits", type=click.Path(path_type=Path), help="JSON file with the limit of each workload.")
@click.option("--write", is_flag=True, help="Write what was counted into the file instead of judging it.")
def main(workloads: tuple[str, ...], limits: Path | None, write: bool) -> None:
    """Count the instructions of a call of each of the WORKLOADS. Exit code 1: one has grown."""
    known: dict[str, float] = json.loads(limits.read_text()) if limits is not None and limits.exists() else {}
    problems = []
    for workload in workloads or sorted(WORKLOADS):
        try:
            counted = instructions_per_call(workload)
        except (LookupError, RuntimeError) as error:
            raise click.ClickException(str(error)) from error
        click.echo(f"{workload}: {counted:,.0f} instructions a call")
        if write:
            known[workload] = round(counted)
        elif (problem := verdict(counted, known.get(workload))) is not None:
            problems.append(f"{workload}: {problem}")
    if write and limits is not None:
        limits.write_text(json.dumps(known, indent=1) + "\n")
    for problem in problems:
        click.echo(problem, err=True)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
