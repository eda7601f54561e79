"""What docs/storms.md shows works: its scenario runs, its commands have their options, its figures exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.storm.faultproxy.toxics import HTTP, STREAM
from gateway.storm.plots import PLOTS
from gateway.storm.runner import run_storm
from gateway.storm.scenario import load

pytestmark = pytest.mark.timeout(180)
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "storms.md").read_text()


def test_the_scenario_of_the_page_runs_and_its_claims_hold(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "busy-hour.yaml"
    path.write_text(text)
    run = run_storm(load(str(path)))
    assert run.is_good, [str(verdict) for verdict in run.verdicts] + run.problems


def test_every_option_on_the_page_is_one(tmp_path: Path) -> None:
    told = "".join(
        CliRunner().invoke(main, ["storm", command, "--help"]).output for command in ("run", "report", "compare")
    )
    for block in re.findall(r"```\n(.*?)```", PAGE, re.DOTALL):
        for line in block.replace("\\\n", "").splitlines():
            if line.startswith("seawall storm"):
                for option in re.findall(r"--[a-z-]+", line.split("#")[0]):
                    assert option in told, f"{option} in: {line}"


def test_every_fault_plot_and_file_on_the_page_is_there() -> None:
    for fault in (*STREAM, *HTTP):
        assert f"`{fault}`" in PAGE, fault
    for plot in PLOTS:
        assert f"`{plot}`" in PAGE, plot
    for target in re.findall(r"\]\((\.\./[^)#]+|storms/[^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists() or target == "storms/index.md", target


def test_the_lab_is_documented_for_k6_and_locust() -> None:
    compile((ROOT / "loadtests" / "locustfile.py").read_text(), "locustfile.py", "exec")
    assert "dropped_iterations" in (ROOT / "loadtests" / "k6" / "storm.js").read_text()
