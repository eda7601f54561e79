"""`seawall check`: places and next steps for people, JSON for programs, an exit code for scripts."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from gateway.cli import main

ROOT = Path(__file__).parent.parent.parent
PAYMENTS = str(ROOT / "config" / "payments.yaml")


def test_a_good_manifest_is_called_good() -> None:
    """With what was counted in it."""
    result = CliRunner().invoke(main, ["check", PAYMENTS], env={"SEAWALL_SECRET_PAYMENTS": "x"})
    assert result.exit_code == 0
    assert "good: 2 tools, 6 operations, 2 domains" in result.output


def test_a_missing_secret_is_a_finding_unless_told_otherwise() -> None:
    """A build server has no secrets."""
    result = CliRunner().invoke(main, ["check", PAYMENTS])
    assert result.exit_code == 1
    assert "payments.yaml:19:49: secret `payments` is missing (set SEAWALL_SECRET_PAYMENTS" in result.output
    assert CliRunner().invoke(main, ["check", PAYMENTS, "--without-secrets"]).exit_code == 0


def test_json_says_the_same(tmp_path: Path) -> None:
    """For editors and pipelines."""
    path = tmp_path / "m.yaml"
    path.write_text("tols: {}\n")
    result = CliRunner().invoke(main, ["check", str(path), "--json"])
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["ok"], found["problems"][0]["line"], found["problems"][0]["hint"]) == (
        False,
        1,
        "did you mean `tools`?",
    )
    path.write_text("tools: {a: {upstream: http://a}}\n")
    assert json.loads(CliRunner().invoke(main, ["check", str(path), "--json"]).stdout)["tools"] == ["a"]
