"""Whether a call costs more because there is more of something: bytecode instructions, so the answer has no noise.

    python -m loadtests.growth                                   # exit code 1: something grew by more than 5 %
    python -m loadtests.growth tools --markdown docs/performance.md

The gateway of `loadtests.hotpath` is filled first (the journal on disk with records of runs that are over, the manifest with
tools, memory with open runs), and then a call is counted. What SQLite does with a longer table is C, and not in the count.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import uvloop

from gateway.app import Gateway
from gateway.core.records import ReadObserved
from gateway.core.saga import Commit, Open
from gateway.core.server import JournalBackend
from gateway.journal.trajectories import Run
from loadtests.hotpath import standing, watched
from loadtests.opcodes import Opcodes
from loadtests.report import replace_section
from loadtests.stalls import open_runs
from loadtests.wire import WORKLOADS

__all__ = ["AXES", "Axis", "Count", "count", "grown", "table"]

LIMIT = 0.05
_CALLS = 80
_READS = 98
_RECORDS = _READS + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Something that there may be more of.

    Attributes:
        title: what it is, for the table.
        sizes: how many of it are compared, the fewest first.
        fill: brings a gateway to that size.
        more_tools: returns what the manifest holds in addition.
    """

    title: str
    sizes: Sequence[int]
    fill: Callable[[Gateway, int], Awaitable[None]]
    more_tools: Callable[[int], str] = lambda size: ""
    backend: JournalBackend = JournalBackend.MEMORY


@dataclass(frozen=True, slots=True)
class Count:
    """Instructions of one call."""

    axis: str
    size: int
    workload: str
    instructions: float


async def _finish(gateway: Gateway, records: int) -> None:
    """Leave so many records of runs that are over in the journal."""
    trajectories = gateway._trajectories
    observed = [ReadObserved(tool="bench", operation="item", method="GET", path="/", outcome="success", status=200)]
    for number in range(records // _RECORDS):
        run = await trajectories.named(f"over-{number}", Open(agent="ann"))
        assert isinstance(run, Run), run
        trajectories.record(run, observed * _READS, lazy=True)
        trajectories.decide(run, Commit(), lazy=True)
        if number % 20 == 19:
            await trajectories.journal.flush()
    await trajectories.journal.flush()


async def _nothing(gateway: Gateway, size: int) -> None:
    """The manifest has it all."""


def _tools(size: int) -> str:
    return "".join(f"\n  more-{number}:\n    upstream: http://127.0.0.1:9\n" for number in range(size))


AXES: Mapping[str, Axis] = {
    "journal": Axis(
        title="finished records in the journal on disk",
        sizes=(1000, 10_000, 100_000),
        fill=_finish,
        backend=JournalBackend.SQLITE,
    ),
    "tools": Axis(title="tools in the manifest", sizes=(10, 500, 5000), fill=_nothing, more_tools=_tools),
    "runs": Axis(title="open runs in memory", sizes=(1, 10_000, 100_000), fill=open_runs),
}


async def count(name: str, size: int, workload: str, calls: int = _CALLS) -> Count:
    """Return what a call costs at a size of an axis, warm-up not counted."""
    axis, opcodes = AXES[name], Opcodes()
    more = axis.more_tools(size)
    async with standing(WORKLOADS[workload], is_still=True, backend=axis.backend, more_tools=more) as rig:
        await axis.fill(rig.gateway, size)
        await rig.call(calls)
        await watched(rig, calls, opcodes)
    return Count(name, size, workload, opcodes.total / calls)


def grown(counts: Sequence[Count], limit: float = LIMIT) -> list[str]:
    """Return, in words, what costs more than `limit` (a share) above the smallest size of its axis."""
    first = _firsts(counts)
    return [
        f"{one.workload} at {one.size:,} {AXES[one.axis].title}: {_share(one, first):+.1%}"
        for one in counts
        if _share(one, first) > limit
    ]


def table(counts: Sequence[Count]) -> str:
    """Return the counts as a table in Markdown."""
    first = _firsts(counts)
    rows = [
        f"| {AXES[one.axis].title} | {one.size:,} | {one.workload} | {one.instructions:,.0f} | {_share(one, first):+.1%} |"
        for one in counts
    ]
    return "\n".join([
        "| of what | how many | call | instructions | growth |",
        "| ------- | -------- | ---- | ------------ | ------ |",
        *rows,
    ])  # fmt: skip


def _firsts(counts: Sequence[Count]) -> Mapping[tuple[str, str], float]:
    first: dict[tuple[str, str], float] = {}
    for one in counts:
        first.setdefault((one.axis, one.workload), one.instructions)
    return first


def _share(one: Count, first: Mapping[tuple[str, str], float]) -> float:
    return one.instructions / first[(one.axis, one.workload)] - 1


@click.command()
@click.argument("axes", nargs=-1, type=click.Choice(sorted(AXES)))
@click.option(
    "--markdown", "page", type=click.Path(path_type=Path, exists=True), help="Page whose section is replaced."
)
def main(axes: tuple[str, ...], page: Path | None) -> None:
    """Count a read and a write while there is ever more of each of the AXES. Exit code 1: one grew by more than 5 %."""
    counts = [
        uvloop.run(count(name, size, workload))
        for name in axes or AXES
        for workload in ("read", "write")
        for size in AXES[name].sizes
    ]
    click.echo(table(counts))
    if page is not None:
        page.write_text(replace_section(page.read_text(), table(counts) + "\n", "growth"))
    problems = grown(counts)
    click.echo("".join(f"{problem}\n" for problem in problems), err=True, nl=False)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
