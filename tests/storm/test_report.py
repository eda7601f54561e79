"""What is left of a run: figures, tables and a page that stands alone."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gateway.storm.compare import compare_runs, read_run
from gateway.storm.plots import PLOTS
from gateway.storm.report import write_report
from gateway.storm.runner import run_storm
from gateway.storm.scenario import load

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short storm with every plot there is, run with two seeds."""
    out = tmp_path_factory.mktemp("storm")
    scenario = dataclasses.replace(load("trip"), seconds=8.0, plots=tuple(PLOTS))
    run_storm(scenario, seeds=(1, 2), out=out, claims=["seawall.canaries_at_once <= 1", "naive.opens >= 1"])
    write_report(out)
    return out


def test_every_plot_is_written_as_svg_and_png(folder: Path) -> None:
    for kind in PLOTS:
        ElementTree.fromstring((folder / f"trip-{kind}.svg").read_text())
        assert (folder / f"trip-{kind}.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_stands_alone_and_says_what_holds_and_what_does_not(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert page.count("<svg") == len(PLOTS)
    assert not re.search(r'(?:src|href)="(?!#)', page), "nothing is fetched from elsewhere"
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids)), "plots on one page must not share ids, or they clip each other"
    assert "holds: <code>seawall.canaries_at_once" in page
    assert "<b>does not hold</b>: <code>naive.opens" in page


def test_the_run_says_on_what_it_was_made(folder: Path) -> None:
    document = json.loads((folder / "run.json").read_text())
    assert document["seeds"] == [1, 2]
    assert {"seawall", "python", "platform", "cores"} <= document["machine"].keys()
    assert document["figures"]["naive"]["recovery_s"] == "never" or document["figures"]["naive"]["recovery_s"] >= 0
    assert (folder / "events" / "naive-2.jsonl.gz").is_file()
    assert "Medians" in (folder / "summary.md").read_text()


def test_a_figure_that_got_worse_is_named(folder: Path) -> None:
    before, after = read_run(folder), read_run(folder)
    assert not any(row.is_worse for row in compare_runs(before, after, 0.05))
    after["figures"]["seawall"]["amplification"] *= 1.2
    after["figures"]["seawall"]["goodput_share"] *= 1.2
    after["figures"]["naive"]["recovery_s"] = "never"
    worse = {(row.policy, row.figure) for row in compare_runs(before, after, 0.05) if row.is_worse}
    assert ("seawall", "amplification") in worse
    assert ("seawall", "goodput_share") not in worse


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="another format"):
        read_run(tmp_path)
