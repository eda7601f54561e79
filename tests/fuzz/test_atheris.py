"""A short run of atheris for each target, the same each time: it starts, is led by what it reaches, and nothing breaks."""

from __future__ import annotations

import re
import sys

import pytest

from tests.fuzz.__main__ import ATHERIS
from tests.fuzz.targets import TARGETS
from tests.lacking import lacking
from tests.suites.rig import ROOT, run

RUNS = 1_000


@pytest.mark.suites
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", sorted(TARGETS))
async def test_a_short_run_breaks_nothing(name: str) -> None:
    if not (ATHERIS / "atheris").is_dir():
        lacking("atheris is not installed: make suites")
    code, said = await run(
        sys.executable, "-m", "tests.fuzz", name, "--runs", RUNS, folder=ROOT, environment={"PYTHONHASHSEED": "0"}
    )
    assert code == 0, said[-4_000:]
    assert f"Done {RUNS} runs" in said
    reached = [int(count) for count in re.findall(r" cov: (\d+) ", said)]
    assert reached[-1] > reached[0], "nothing new was reached: is the gateway instrumented?"
