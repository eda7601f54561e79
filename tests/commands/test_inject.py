"""`seawall inject` and `uninject` as a person runs them: standard input, files, diffs, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from gateway.cli import main

WORKLOAD = """\
# The agent.
kind: StatefulSet
metadata: {name: agent}
spec:
  template:
    spec:
      containers:
        - name: agent  # the model's
          image: example/agent:1
  volumeClaimTemplates:
    - metadata: {name: seawall-data}
"""
MANIFEST = """\
# The tools.
tools:
  payments:
    upstream: https://api.example.com
    operations:
      hold: {match: POST /holds, tier: compensable, compensator: "POST /holds/${response.json.id}/cancel"}
"""


def run(*arguments: str, stdin: str = WORKLOAD) -> Result:
    return CliRunner().invoke(main, list(arguments), input=stdin)


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    path = tmp_path / "manifest.yaml"
    path.write_text(MANIFEST)
    return str(path)


def test_from_standard_input_to_standard_output_and_back(manifest: str) -> None:
    """`seawall inject … | kubectl apply -f -`: the output is nothing but YAML, and what was told is on stderr."""
    told = run("inject", "--manifest", manifest, "--workload-volume", "--env", "STRIPE_API_BASE=payments/v1")
    assert told.exit_code == 0
    config_map, workload = yaml.safe_load_all(told.stdout)
    assert config_map["data"]["manifest.yaml"] == MANIFEST
    (agent,) = workload["spec"]["template"]["spec"]["containers"]
    assert {item["name"]: item["value"] for item in agent["env"]} == {
        "PAYMENTS_BASE_URL": "http://127.0.0.1:8080/payments",
        "SEAWALL_URL": "http://127.0.0.1:8080",
        "STRIPE_API_BASE": "http://127.0.0.1:8080/payments/v1",
    }
    assert "statefulset/agent: changed" in told.stderr
    back = run("uninject", stdin=told.stdout)
    assert (back.exit_code, back.stdout) == (0, WORKLOAD)


def test_a_dry_run_shows_a_diff(tmp_path: Path) -> None:
    """Exit code 1 where there is one, as diff has it; nothing is changed."""
    file = tmp_path / "agent.yaml"
    file.write_text(WORKLOAD)
    told = run("inject", "-f", str(file), "--dry-run", "--workload-volume")
    assert told.exit_code == 1
    assert told.stdout.startswith(f"--- {file}\n+++ {file} (changed)\n")
    assert "+      initContainers:\n" in told.stdout
    assert not [line for line in told.stdout.splitlines()[2:] if line.startswith("-")]
    assert file.read_text() == WORKLOAD
    assert run("uninject", "--dry-run").exit_code == 0


def test_what_is_injected_already_is_printed_as_it_is() -> None:
    """A pipeline may run twice."""
    once = run("inject", "--workload-volume").stdout
    twice = run("inject", "--workload-volume", stdin=once)
    assert (twice.exit_code, twice.stdout) == (0, once)


@pytest.mark.parametrize(
    ("arguments", "stdin", "why"),
    [
        (["--accept-journal-loss", "--only", "deployment/agent"], WORKLOAD, "holds no deployment/agent"),
        ([], WORKLOAD, "cannot be put into statefulset/agent"),
        (["--accept-journal-loss"], "kind: Service\n", "holds no workload"),
        (["--accept-journal-loss"], "a: [", "this is no YAML: line 1"),
        (["--settings", "gone.yaml"], WORKLOAD, "cannot read it"),
        (["--agents-port", "x"], WORKLOAD, "must be a whole number"),
        (["-f", "gone.yaml"], WORKLOAD, "gone.yaml: cannot read it"),
    ],
)
def test_nothing_is_printed_that_would_leave_an_agent_unguarded(arguments: list[str], stdin: str, why: str) -> None:
    """What goes to kubectl is complete, or it is empty."""
    told = run("inject", *arguments, stdin=stdin)
    assert told.exit_code == 1
    assert told.stdout == ""
    assert why in told.stderr


def test_a_variable_without_a_tool_is_wrong_usage() -> None:
    """Exit code 2."""
    told = run("inject", "--accept-journal-loss", "--env", "STRIPE_API_BASE")
    assert told.exit_code == 2
    assert "expected NAME=TOOL" in told.stderr
