"""Whether a call costs more because there is more of something: bytecode instructions, so the answer has no noise.

    python -m loadtests.growth                                   # exit code 1: something grew by more than 5 %
    python -m loadtests.growth --most 10_000_000 --markdown docs/performance.md    # ten minutes and 7 GB of disk more

The gateway of `loadtests.hotpath` is filled first (the journal on disk with records of runs that are over, the manifest with
tools, memory with open runs), and then a call is counted. What SQLite does with a longer table is C, and not in the count:
`loadtests.lengths` measures that.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import uvloop

from gateway.app import Gateway
from gateway.core.server import JournalBackend
from loadtests.bulk import prefill
from loadtests.hotpath import standing, watched
from loadtests.opcodes import Opcodes
from loadtests.report import replace_section
from loadtests.stalls import open_runs
from loadtests.wire import WORKLOADS

__all__ = ["AXES", "Axis", "Count", "count", "counts_at", "grown", "table"]

LIMIT = 0.05
_CALLS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Something that there may be more of.

    Attributes:
        title: what it is, for the table.
        sizes: how many of it are compared, the fewest first.
        fill: brings a gateway to that size.
        more_tools: returns what the manifest holds in addition.
        has_history: so many finished records lie in the journal before the gateway starts.
    """

    title: str
    sizes: Sequence[int]
    fill: Callable[[Gateway, int], Awaitable[None]]
    more_tools: Callable[[int], str] = lambda size: ""
    backend: JournalBackend = JournalBackend.MEMORY
    has_history: bool = False


@dataclass(frozen=True, slots=True)
class Count:
    """Instructions of one call."""

    axis: str
    size: int
    workload: str
    instructions: float


async def _nothing(gateway: Gateway, size: int) -> None:
    """The manifest has it all, or the journal."""


def _tools(size: int) -> str:
    return "".join(f"\n  more-{number}:\n    upstream: http://127.0.0.1:9\n" for number in range(size))


AXES: Mapping[str, Axis] = {
    "journal": Axis(
        title="finished records in the journal on disk",
        sizes=(1000, 10_000, 100_000, 1_000_000, 10_000_000),
        fill=_nothing,
        backend=JournalBackend.SQLITE,
        has_history=True,
    ),
    "tools": Axis(title="tools in the manifest", sizes=(10, 500, 5000), fill=_nothing, more_tools=_tools),
    "runs": Axis(title="open runs in memory", sizes=(1, 10_000, 100_000), fill=open_runs),
}


async def count(name: str, size: int, workload: str, calls: int = _CALLS, data: Path | None = None) -> Count:
    """Return what a call costs at a size of an axis, warm-up not counted; `data`: the journal, where it has a history."""
    axis, opcodes = AXES[name], Opcodes()
    more = axis.more_tools(size)
    async with standing(WORKLOADS[workload], is_still=True, backend=axis.backend, more_tools=more, data=data) as rig:
        await axis.fill(rig.gateway, size)
        await rig.call(calls)
        await watched(rig, calls, opcodes)
    return Count(name, size, workload, opcodes.total / calls)


async def counts_at(name: str, size: int, calls: int = _CALLS) -> list[Count]:
    """Return what a read and a write cost at a size of an axis."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data" if AXES[name].has_history else None
        if data is not None:
            await prefill(data, size)
        return [await count(name, size, workload, calls, data) for workload in ("read", "write")]


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
@click.option("--most", type=int, default=100_000, help="No more than this of anything.")
def main(axes: tuple[str, ...], page: Path | None, most: int) -> None:
    """Count a read and a write while there is ever more of each of the AXES. Exit code 1: one grew by more than 5 %."""
    counts = [
        one
        for name in axes or AXES
        for size in AXES[name].sizes
        if size <= most
        for one in uvloop.run(counts_at(name, size))
    ]
    counts.sort(key=lambda one: (list(AXES).index(one.axis), one.workload))
    click.echo(table(counts))
    if page is not None:
        page.write_text(replace_section(page.read_text(), table(counts) + "\n", "growth"))
    problems = grown(counts)
    click.echo("".join(f"{problem}\n" for problem in problems), err=True, nl=False)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
