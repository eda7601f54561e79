"""Bytecode instructions per call, function by function: the same numbers on every run, however busy the machine.

    python -m loadtests.opcodes write --top 40         # exit code 1: a call has grown beyond its limit
    python -m loadtests.opcodes --write                # take the counts over into limits.json

Runs `loadtests.hotpath` under Python's own tracing. It says nothing of C code, which `loadtests.instructions` counts; it
says in a second which of our functions a call spends its instructions in.
"""

from __future__ import annotations

import sys
from collections import Counter
from types import CodeType, FrameType
from typing import Any

import click
import uvloop

from loadtests import limits
from loadtests.hotpath import AGENTS, CARRIED, run
from loadtests.process import ROOT
from loadtests.wire import WORKLOADS

__all__ = ["KIND", "Opcodes", "count"]

KIND = "opcodes"
CALLS = 80


class Opcodes:
    """Counts the instructions of our own code between `enable` and `disable`."""

    def __init__(self) -> None:
        self.counts: Counter[CodeType] = Counter()

    def enable(self) -> None:
        """Start counting, on this thread."""
        sys._getframe().f_trace_opcodes = True  # CPython 3.12 counts nothing unless some frame asks beforehand
        sys.settrace(self._enter)

    def disable(self) -> None:
        """Stop."""
        sys.settrace(None)

    def by_function(self) -> list[tuple[str, int]]:
        """Return place and instructions of each function of ours, the dearest first."""
        return [
            (f"{code.co_filename.removeprefix(f'{ROOT}/')}:{code.co_firstlineno} {code.co_qualname}", count)
            for code, count in self.counts.most_common()
        ]

    @property
    def total(self) -> int:
        """All of them."""
        return self.counts.total()

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if "loadtests" in code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False

        def step(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "opcode":
                self.counts[code] += 1
            return step

        return step


def count(workload: str, calls: int = CALLS) -> Opcodes:
    """Return what `calls` calls of a workload execute, warm-up not counted."""
    opcodes = Opcodes()
    uvloop.run(run(WORKLOADS[workload], calls, warm_up=calls, profiler=opcodes))
    return opcodes


@click.command()
@click.argument("workloads", nargs=-1, type=click.Choice(CARRIED))
@click.option("--top", type=click.IntRange(min=0), default=0, help="Show so many functions, the dearest first.")
@click.option("--write", is_flag=True, help="Take the counts over as limits of this Python instead of judging them.")
def main(workloads: tuple[str, ...], top: int, write: bool) -> None:
    """Count the bytecode instructions of a call of each of the WORKLOADS. Exit code 1: one has grown."""
    counted = {}
    for workload in workloads or CARRIED:
        calls = CALLS // AGENTS * AGENTS
        opcodes = count(workload, calls)
        counted[workload] = opcodes.total / calls
        click.echo(f"{workload}: {counted[workload]:,.0f} instructions a call")
        for place, executed in opcodes.by_function()[:top]:
            click.echo(f"{executed / calls:8.1f}  {place}")
    limits.conclude(KIND, limits.version(), counted, write=write)


if __name__ == "__main__":
    main()
