"""The alerts, by Prometheus' own tool: each fires when it should and not before, and on series that a real run exposed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.telemetry.metrics import CATALOGUE
from tests.gateway.harness import MANIFEST, serving
from tests.helm.tools import CHART, ROOT
from tests.lacking import lacking
from tests.origin import Answer, Origin

ALERTS = CHART / "files" / "alerts.yaml"
JSON = ((b"Content-Type", b"application/json"),)
WHERE = 'namespace="agents",job="seawall",instance="pod-1"'

TIMED: list[tuple[str, dict[str, str], int, int | None]] = [
    ("SeawallBreakerOpen", {'gateway_breaker_state{tool="pay",state="open"}': "0 1x20"}, 4, 2),
    (
        "SeawallEveryBreakerOpen",
        {
            'gateway_breaker_state{tool="pay",state="open"}': "1x20",
            'gateway_breaker_state{tool="b",state="open"}': "0 1x20",
        },
        4,
        2,
    ),
    ("SeawallRunFrozen", {'gateway_trajectories_open{state="frozen"}': "0 2x20"}, 1, 0),
    ("SeawallCompensationFailed", {'gateway_compensations_total{result="failed"}': "0 0 1x20"}, 3, 1),
    ("SeawallUnwindingStuck", {'gateway_trajectories_open{state="compensating"}': "0 1x40"}, 22, 18),
    ("SeawallStepsInDoubt", {'gateway_steps_total{tier="compensable",state="in_doubt"}': "0+1x30"}, 12, 3),
    ("SeawallJournalUnhealthy", {"gateway_journal_healthy": "1 0x20"}, 3, 1),
    ("SeawallJournalBehind", {"gateway_journal_oldest_queued_seconds": "0 3x20"}, 4, 2),
    (
        "SeawallQueueSaturated",
        {
            'gateway_bulkhead_in_use{domain="saas"}': "16x20",
            'gateway_bulkhead_slots{domain="saas"}': "16x20",
            'gateway_bulkhead_queue_length{domain="saas"}': "0 4x20",
        },
        7,
        5,
    ),
    (
        "SeawallRetryAmplification",
        {
            'gateway_attempts_total{tool="pay",fault="none"}': "0+150x40",
            'gateway_calls_total{tool="pay",domain="saas",tier="read",outcome="success"}': "0+100x40",
        },
        16,
        8,
    ),
    ("SeawallBackgroundFailure", {'gateway_background_failures_total{where="janitor"}': "0 0 1x20"}, 3, 1),
]
"""Alert, series with one value a minute, a minute at which it fires, and one at which it does not yet."""


@pytest.fixture
def promtool(tmp_path: Path) -> Any:
    program = shutil.which("promtool")
    if program is None:
        lacking("the alerts: no promtool (Debian package prometheus)")

    def run(*arguments: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [program, *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, input=stdin, capture_output=True, text=True, timeout=60)

    return run


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def case(series: dict[str, str], alert: str, minute: int, *, fires: bool) -> dict[str, Any]:
    placed = {
        name.replace("{", "{" + WHERE + ",") if "{" in name else name + "{" + WHERE + "}": values
        for name, values in series.items()
    }
    rows = [{"series": name, "values": values} for name, values in placed.items()]
    firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > bool 0 or vector(0)'
    samples = [{"labels": "{}", "value": 1 if fires else 0}]
    count = {"expr": firing, "eval_time": f"{minute}m", "exp_samples": samples}
    return {"interval": "1m", "input_series": rows, "promql_expr_test": [count]}


def test_the_rules_are_sound(promtool: Any) -> None:
    """And every one has a case here, a severity, a sentence and a runbook that exists."""
    told = promtool("check", "rules", "--lint=all", "--lint-fatal", ALERTS)
    assert told.returncode == 0, told.stderr
    assert {rule["alert"] for rule in rules()} == {name for name, *_ in TIMED}
    runbooks = (ROOT / "docs" / "runbooks.md").read_text()
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"].endswith((".", "?"))
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{rule['alert'].lower()}"
        assert f"\n## {rule['alert']}\n" in runbooks


def test_every_metric_in_them_exists() -> None:
    """An alert on a name that nobody exposes never fires."""
    known = {row.name for row in CATALOGUE}
    for rule in rules():
        names = set(re.findall(r"gateway_[a-z_]+", rule["expr"]))
        assert names
        assert names <= known


def test_each_fires_when_it_should_and_not_before(promtool: Any, tmp_path: Path) -> None:
    """Timing is half of an alert: too early wakes people, too late costs money."""
    cases = []
    for alert, series, fires_at, quiet_at in TIMED:
        cases.append(case(series, alert, fires_at, fires=True))
        if quiet_at is not None:
            cases.append(case(series, alert, quiet_at, fires=False))
    document = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": cases}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(document))
    told = promtool("test", "rules", "tests.yaml")
    assert told.returncode == 0, told.stdout + told.stderr


async def test_they_fire_on_what_a_real_run_exposed(promtool: Any, tmp_path: Path) -> None:
    """A tool goes down and its breaker opens; a compensator is refused and the run freezes; the scrape of that very
    gateway, held for twenty minutes, raises the alerts that it should, and no other."""
    async with Origin() as origin:
        origin.on("POST /holds", Answer(201, b'{"id": "h1"}', JSON))
        origin.on("POST /holds/h1/cancel", Answer(422, b'{"error": "no"}', JSON))
        origin.default = Answer(500)
        manifest = MANIFEST.replace("cooldown: 200ms, max_cooldown: 1s", "cooldown: 30s")
        async with serving(tmp_path, origin.port, manifest) as running:
            await running.agent.send("POST", "/pay/holds", {"n": 1}, run="r1")
            await running.agent.send("POST", "/seawall/v1/trajectories/r1/abort", {"reason": "x"})
            for number in range(40):
                await running.agent.send("GET", f"/plain/{number}")
            scrape = (await running.operator.send("GET", "/metrics")).body.decode()
    told = promtool("check", "metrics", stdin=scrape)
    assert told.returncode == 0, told.stdout + told.stderr
    series = {}
    for line in scrape.splitlines():
        if not line.startswith("#") and "_bucket" not in line:
            name, value = line.rsplit(" ", 1)
            is_counter = name.partition("{")[0].endswith(("_total", "_count", "_sum"))
            series[name] = f"0 {value}x30" if is_counter else f"{value}x30"
    assert any(name.startswith("gateway_") for name in series)
    expected = {
        "SeawallBreakerOpen", "SeawallEveryBreakerOpen", "SeawallRunFrozen", "SeawallCompensationFailed",
        "SeawallBackgroundFailure",  # the run froze and no sink is configured: nobody was told
    }  # fmt: skip
    cases = [case(series, rule["alert"], 6, fires=rule["alert"] in expected) for rule in rules()]
    document = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": cases}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(document))
    told = promtool("test", "rules", "tests.yaml")
    assert told.returncode == 0, told.stdout + told.stderr
