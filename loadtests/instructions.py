"""Instructions per call, counted by callgrind: the same number each time, whatever else the machine does.

    python -m loadtests.instructions read write        # exit code 1: a call has grown beyond its limit
    python -m loadtests.instructions read write --write

Runs `loadtests.hotpath` under valgrind. Callgrind counts from the first measured call to the last and not before, so a count
takes seconds although the start of a gateway would take minutes. Limits are in `limits.json`, by build of the interpreter.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import click
import uvloop

from loadtests import limits
from loadtests.hotpath import CARRIED, run
from loadtests.process import ROOT, python
from loadtests.wire import WORKLOADS

__all__ = ["KIND", "Callgrind", "instructions_per_call", "main"]

KIND = "instructions"
CALLS, WARM_UP = 160, 160


class Callgrind:
    """Turns the counting on and off in this process (`loadtests.hotpath.Profiler`)."""

    def enable(self) -> None:
        """Begin to count."""
        self._counting("on")

    def disable(self) -> None:
        """Stop."""
        self._counting("off")

    def _counting(self, how: str) -> None:
        subprocess.run(["callgrind_control", "-i", how, str(os.getpid())], check=True, stdout=subprocess.DEVNULL)


def instructions_per_call(workload: str) -> float:
    """Return the instructions of one call.

    Raises:
        LookupError: valgrind is not installed.
        RuntimeError: the run failed; holds the end of what it said.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise LookupError("valgrind is not installed (Debian package valgrind)")
    command = [valgrind, "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=/dev/null"]
    command += python("loadtests.instructions", workload, "--here")
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    ran = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    found = re.search(r"Collected : (\d+)", ran.stderr)
    if ran.returncode or found is None:
        raise RuntimeError(ran.stderr[-2000:])
    return int(found[1]) / CALLS


@click.command()
@click.argument("workloads", nargs=-1, type=click.Choice(CARRIED))
@click.option("--write", is_flag=True, help="Take the counts over as limits of this build instead of judging them.")
@click.option("--here", is_flag=True, hidden=True, help="Make the calls in this process, which runs under callgrind.")
def main(workloads: tuple[str, ...], write: bool, here: bool) -> None:
    """Count the instructions of a call of each of the WORKLOADS. Exit code 1: one has grown."""
    if here:
        uvloop.run(run(WORKLOADS[workloads[0]], CALLS, warm_up=WARM_UP, profiler=Callgrind()))
        return
    counted = {}
    for workload in workloads or CARRIED:
        try:
            counted[workload] = instructions_per_call(workload)
        except (LookupError, RuntimeError) as error:
            raise click.ClickException(str(error)) from error
        click.echo(f"{workload}: {counted[workload]:,.0f} instructions a call")
    limits.conclude(KIND, limits.build(), counted, write=write)


if __name__ == "__main__":
    main()
