"""What the shipped packs decide, by `seawall explain`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main

MANIFEST = """
include: ["seawall:policies/PACK.yaml"]
tools:
  pay:
    upstream: http://127.0.0.1:1
    operations:
      hold: {match: POST /holds, tier: reversible}
      payout: {match: POST /payouts, tier: pivot}
  git:
    mcp: {url: "http://127.0.0.1:3/mcp"}
"""


def decided(folder: Path, pack: str, *arguments: str) -> str:
    path = folder / "m.yaml"
    path.write_text(MANIFEST.replace("PACK", pack))
    result = CliRunner().invoke(main, ["explain", *arguments, "--manifest", str(path), "--json"])
    facts = json.loads(result.stdout)
    assert (result.exit_code == 1) == ("refused" in facts)
    return str(facts.get("decided by", "nothing")).rpartition(": ")[2]


WEEKDAY, WEEKEND, EVENING = "2026-11-30T12:00", "2026-11-28T12:00", "2026-11-30T17:00"


@pytest.mark.parametrize(
    ("pack", "arguments", "decision"),
    [
        ("read-only", ["POST", "/pay/holds", "--agent", "ro-clerk"], "deny"),
        ("read-only", ["POST", "/pay/else", "--agent", "ro-clerk"], "deny"),
        ("read-only", ["POST", "/pay/holds", "--agent", "clerk"], "it passes"),
        ("read-only", ["GET", "/pay/holds", "--agent", "ro-clerk"], "nothing"),
        ("no-delete", ["DELETE", "/pay/holds"], "deny"),
        ("no-delete", ["POST", "/pay/holds"], "it passes"),
        ("no-delete", ["CALL", "/git/git_delete_branch"], "deny"),
        ("no-delete", ["CALL", "/git/Drop-Table"], "deny"),
        ("no-delete", ["CALL", "/git/undeleted_list"], "it passes"),
        ("business-hours", ["POST", "/pay/payouts", "--at", WEEKDAY], "it passes"),
        ("business-hours", ["POST", "/pay/payouts", "--at", WEEKEND], "hold"),
        ("business-hours", ["POST", "/pay/payouts", "--at", EVENING], "hold"),
        ("business-hours", ["POST", "/pay/holds", "--at", WEEKEND], "nothing"),
        ("spend-cap", ["POST", "/pay/holds", "--body", '{"amount": 50000}'], "it passes"),
        ("spend-cap", ["POST", "/pay/holds", "--body", '{"amount": 50001}'], "hold"),
        ("spend-cap", ["POST", "/pay/holds", "--body", '{"amount": 500001}'], "deny"),
        ("spend-cap", ["POST", "/pay/holds", "--body", '{"amount": "500001"}'], "deny"),
        ("spend-cap", ["POST", "/pay/holds", "--body", '{"amount": "a lot"}'], "deny"),
        ("spend-cap", ["POST", "/pay/holds", "--body", "[1]"], "it passes"),
        ("spend-cap", ["POST", "/pay/holds", "--body", "null"], "it passes"),
    ],
)
def test_a_pack_decides(tmp_path: Path, pack: str, arguments: list[str], decision: str) -> None:
    assert decided(tmp_path, pack, *arguments) == decision
