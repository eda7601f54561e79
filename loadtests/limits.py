"""Recorded counts of a call, and whether a new count keeps within them.

Counts do not depend on how busy the machine is, only on the code and on the interpreter that runs it, so a limit is kept for
each build. A build that has none is held to the highest of the others and half as much again: it is never unguarded.
`loadtests.opcodes` and `loadtests.instructions` take new figures over with `--write`.
"""

from __future__ import annotations

import json
import platform
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import click

__all__ = ["FILE", "TOLERANCE", "build", "conclude", "judge", "load", "record", "version"]

FILE = Path(__file__).with_name("limits.json")
TOLERANCE = 0.02
_UNKNOWN = 1.5

Limits = Mapping[str, Mapping[str, int]]
"""Build, then workload, then count."""


def version() -> str:
    """Return what bytecode depends on: the language's version, such as `3.11`."""
    return ".".join(platform.python_version_tuple()[:2])


def build() -> str:
    """Return what machine instructions depend on: version, processor, and whether the build was optimised."""
    options = sysconfig.get_config_var("CONFIG_ARGS") or ""
    kind = "optimised" if "--enable-optimizations" in options else "plain"
    return f"{platform.python_version()} {platform.machine()} {kind}"


def load(kind: str, file: Path = FILE) -> dict[str, dict[str, int]]:
    """Return the limits of a kind of count (`opcodes`, `instructions`) by build; empty if none was ever recorded."""
    found: dict[str, dict[str, int]] = json.loads(file.read_text()).get(kind, {}) if file.exists() else {}
    return found


def judge(
    counted: Mapping[str, float], limits: Limits, build: str, *, tolerance: float = TOLERANCE, kind: str = "opcodes"
) -> list[str]:
    """Return what is wrong with the counts of some workloads on a build: which have grown, and how to take them over.

    A workload without any limit is wrong, too: it would be unguarded.
    """
    problems = []
    for workload, count in counted.items():
        known = [by_workload[workload] for by_workload in limits.values() if workload in by_workload]
        own = limits.get(build, {}).get(workload)
        limit = own if own is not None else max(known) * _UNKNOWN if known else None
        if limit is None:
            problems.append(f"{workload}: no limit is recorded: python -m loadtests.{kind} --write")
        elif count > limit * (1 + tolerance):
            problems.append(
                f"{workload}: {count:,.0f} a call, {count / limit - 1:.1%} above the limit of {limit:,.0f}."
                f" If that is worth it: python -m loadtests.{kind} --write"
            )
    return problems


def record(kind: str, build: str, counted: Mapping[str, float], file: Path = FILE) -> None:
    """Take counts over as the limits of a build, and leave all others as they are."""
    kept = json.loads(file.read_text()) if file.exists() else {}
    mine = kept.setdefault(kind, {}).setdefault(build, {})
    mine.update({workload: round(count) for workload, count in counted.items()})
    file.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def conclude(kind: str, build: str, counted: Mapping[str, float], *, write: bool) -> None:
    """End a command that has counted: take the counts over, or say what is wrong and exit with 1 if anything is."""
    if write:
        record(kind, build, counted)
        return
    problems = judge(counted, load(kind), build, kind=kind)
    click.echo("".join(f"{problem}\n" for problem in problems), err=True, nl=False)
    sys.exit(bool(problems))
