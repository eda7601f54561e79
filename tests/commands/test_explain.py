"""`seawall explain`: what the gateway would make of a call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main

CONFIG = Path(__file__).parent.parent.parent / "config"


def explain(method: str, target: str, manifest: str = "payments.yaml", *more: str) -> Result:
    return CliRunner().invoke(main, ["explain", method, target, "--manifest", str(CONFIG / manifest), *more])


@pytest.mark.parametrize(
    ("method", "target", "tier", "operation"),
    [
        ("POST", "/payments/v1/payment_intents", "compensable", "hold"),
        ("POST", "/payments/v1/customers/cus_1?x=1", "reversible", "describe"),
        ("GET", "/payments/v1/balance", "read", "undeclared:read"),
        ("DELETE", "/payments/v1/webhooks/1", "pivot", "undeclared:write"),
        ("post", "/payments/v1/payouts", "pivot", "payout"),
    ],
)
def test_a_call_is_explained(method: str, target: str, tier: str, operation: str) -> None:
    """Operation, tier and why."""
    result = explain(method, target, "payments.yaml", "--json")
    facts = json.loads(result.stdout)
    assert (result.exit_code, facts["tier"], facts["operation"]) == (0, tier, operation)
    assert facts["why"].endswith(".")


@pytest.mark.parametrize(
    ("method", "target", "part"),
    [
        (
            "POST",
            "/payments/v1/payment_intents",
            "ask GET /v1/payment_intents?limit=20, else send it again under its key",
        ),
        ("POST", "/payments/v1/payouts", "send it again under its key"),
    ],
)
def test_what_becomes_of_a_lost_answer_is_told(method: str, target: str, part: str) -> None:
    """Who writes a manifest sees before the first incident which steps would need a person."""
    assert part in json.loads(explain(method, target, "payments.yaml", "--json").stdout)["in doubt"]


def test_it_reads_well() -> None:
    """One fact a line."""
    output = explain("POST", "/payments/v1/payment_intents").output
    assert "undone by" in output
    assert "POST /v1/payment_intents/${response.json.id}/cancel" in output


@pytest.mark.parametrize(
    ("target", "manifest", "part"),
    [
        ("/paymens/x", "payments.yaml", "did you mean `payments`?"),
        ("/payments/v1/../x", "payments.yaml", "ERR_INVALID_ARGUMENTS"),
        ("/tickets/x", "unmanaged.yaml", "strict"),
    ],
)
def test_a_call_that_would_be_refused_is_a_finding(target: str, manifest: str, part: str) -> None:
    """Exit code 1, with the code that the agent would get."""
    result = explain("POST", target, manifest)
    assert result.exit_code == 1
    assert part in result.output


def test_a_bad_manifest_is_a_finding(tmp_path: Path) -> None:
    """With its problems."""
    path = tmp_path / "m.yaml"
    path.write_text("tols: {}")
    result = CliRunner().invoke(main, ["explain", "GET", "/a", "--manifest", str(path)])
    assert result.exit_code == 1
    assert "did you mean `tools`?" in result.output


def test_what_stands_in_front_of_a_pivot_is_named() -> None:
    """Who decides, and whether it waits for the run's pivot."""
    output = explain("POST", "/payments/v1/payouts").output
    assert "1 of anyone but the agent" in output
    assert "at once" in output


def test_what_a_call_touches_proves_and_needs_proven_is_told(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(
        """
claims: {fleet: {secret: "${secret:fleet}"}}
tools:
  files:
    upstream: http://127.0.0.1:1
    credentials: {value: "Bearer ${secret:key}", lease: 10m}
    operations:
      put:
        match: "PUT /files/{name}"
        tier: reversible
        claim: {producers: ["tester@*"]}
        artifacts: {reads: ["'index'"], writes: ["'file:' + params.name"]}
"""
    )
    result = CliRunner().invoke(
        main, ["explain", "PUT", "/files/files/a", "--manifest", str(tmp_path / "m.yaml"), "--json"]
    )
    facts = json.loads(result.stdout)
    assert facts["claim"] == "needed, of tester@*"
    assert facts["artifacts"] == "reads 'index'; writes 'file:' + params.name"
    assert facts["credential"] == "leased to each run (static), 10m at most"
