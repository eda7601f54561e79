"""The full report in small: one short storm, its page, and the index over all that lies there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtests.storms import index, storms

SHORT = """
name: short
title: Short
theory: One and one are two.
seconds: 2s
manifest: |
  version: 1
  tools: {index: {upstream: "http://127.0.0.1:9", operations: {item: {match: GET /items, tier: read}}}}
load: [{tool: index, arrive: steady, rate: 20}]
plots: [flow]
holds: [seawall.goodput_share == 1]
"""


@pytest.fixture
def report(tmp_path: Path) -> Path:
    scenario = tmp_path / "short.yaml"
    scenario.write_text(SHORT)
    out = tmp_path / "out"
    assert storms([str(scenario)], ["virtual"], 2, out)
    return out


def test_a_storm_leaves_tables_plots_and_figures_but_no_recordings(report: Path) -> None:
    (folder,) = report.iterdir()
    assert {path.name for path in folder.iterdir()} == {"run.json", "summary.md", "short-flow.png"}


def test_the_index_puts_both_engines_side_by_side(report: Path) -> None:
    """From the figures that both left, so that nobody types them."""
    (folder,) = [path for path in report.iterdir() if path.is_dir()]
    live = json.loads((folder / "run.json").read_text())
    live["engine"] = "live"
    live["figures"]["seawall"]["p50_ms"] = 24.0
    (report / f"{folder.name}-live").mkdir()
    (report / f"{folder.name}-live" / "run.json").write_text(json.dumps(live))
    (line,) = [line for line in index(report).splitlines() if line.startswith("| short | seawall |")]
    assert "39 / 39" in line
    assert "20.0 / 24.0" in line


def test_the_index_holds_everything_that_lies_there(report: Path) -> None:
    scores = {"name": "bare client", "runs": 10}
    (report / "scoreboard").mkdir()
    (report / "scoreboard" / "scoreboard.md").write_text("| the table |")
    (report / "scoreboard" / "scoreboard.json").write_text(json.dumps({"runs": 10, "seed": 1, "scores": [scores]}))
    (report / "crashes").mkdir()
    (report / "crashes" / "crashes.json").write_text('{"kills": 82, "doubled": 0, "machine": {}}')
    (report / "journal").mkdir()
    (report / "journal" / "journal.json").write_text('[{"writer": "seawall", "rows_per_s": 9}]')
    page = index(report)
    for said in ("| the table |", "| kills | 82 |", "| seawall | 9 |", "1 of 1 claims hold", "One and one are two."):
        assert said in page
    assert "machine" not in page
