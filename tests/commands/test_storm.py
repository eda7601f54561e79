"""`seawall storm`: what people type, and the exit codes that build servers read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main

SCENARIO = """
name: short
title: A short outage
seconds: 6s
manifest: |
  version: 1
  tools:
    index:
      upstream: http://127.0.0.1:9
      breaker: {cooldown: 500ms, max_cooldown: 1s}
      operations: {item: {match: GET /items, tier: read}}
load: [{tool: index, arrive: steady, rate: 50}]
faults: [{tool: index, kind: down, start: 1s, end: 2s}]
plots: [flow]
holds: [seawall.amplification <= 1.1]
"""
MINE = """
version: 1
tools:
  orders:
    upstream: http://127.0.0.1:9
    breaker: {consecutive: 1000000, window: 10000, minimum: 10000, cooldown: 500ms}
    operations: {get: {match: "GET /orders/{id}", tier: read}, make: {match: POST /orders, tier: pivot}}
"""


pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "short.yaml"
    path.write_text(SCENARIO)
    return str(path)


def storm(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["storm", *arguments])


def test_ls_lists_scenarios_and_policies() -> None:
    result = storm("ls")
    assert result.exit_code == 0
    assert "collapse\tvirtual\t" in result.output
    assert "portkey\t" in result.output


def test_a_claim_that_holds_is_exit_code_0_and_one_that_does_not_is_1(scenario: str) -> None:
    assert storm("run", scenario).exit_code == 0
    result = storm("run", scenario, "--min-goodput", "0.999")
    assert result.exit_code == 1
    assert "FAILS  seawall.goodput_share >= 0.999" in result.output


def test_a_claim_that_cannot_be_read_fails_too(scenario: str) -> None:
    result = storm("run", scenario, "--assert", "seawall.godput_share >= 0.5")
    assert result.exit_code == 1
    assert "there is no `godput_share`" in result.output


def test_somebodys_own_manifest_is_stormed(scenario: str, tmp_path: Path) -> None:
    """Here one without a working breaker, so that what is measured is the manifest's and not the scenario's."""
    mine = tmp_path / "mine.yaml"
    mine.write_text(MINE)
    result = storm("run", scenario, "--manifest", str(mine), "--max-amplification", "1.5", "--max-recovery", "1")
    assert result.exit_code == 0, result.output
    assert storm("run", scenario, "--manifest", str(mine), "--assert", "seawall.opens >= 1").exit_code == 1
    result = storm("run", scenario, "--manifest", str(mine), "--tool", "order")
    assert result.exit_code == 2
    assert "did you mean `orders`" in result.output


def test_a_run_is_kept_reported_and_compared(scenario: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    result = storm("run", scenario, "--out", out, "--seeds", "2", "--no-plots")
    assert result.exit_code == 0
    assert (tmp_path / "out" / "summary.md").is_file()
    assert storm("report", out).output == f"written: {out}/report.html\n"
    assert storm("compare", out, out).exit_code == 0
    worse = json.loads((tmp_path / "out" / "run.json").read_text())
    worse["figures"]["seawall"]["goodput_share"] /= 2
    (tmp_path / "worse").mkdir()
    (tmp_path / "worse" / "run.json").write_text(json.dumps(worse))
    result = storm("compare", out, str(tmp_path / "worse"))
    assert result.exit_code == 1
    assert "goodput_share" in result.output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["run", "outge"], "did you mean `outage`"),
        (["run", "outage", "--policy", "nave"], "has no policy nave"),
        (["run", "collapse", "--engine", "live"], "runs only virtual"),
        (["report", "."], "holds no storm"),
    ],
)
def test_what_cannot_be_run_is_exit_code_2_with_a_next_step(arguments: list[str], reason: str) -> None:
    result = storm(*arguments)
    assert result.exit_code == 2
    assert reason in result.output
