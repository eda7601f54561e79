"""The dashboard asks only for metrics that there are, in PromQL that parses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import yaml

from gateway.kubernetes.dashboard import PANELS, dashboard
from gateway.telemetry.metrics import CATALOGUE
from tests.lacking import lacking

SUFFIX = re.compile(r"_(bucket|sum|count)$")


def test_every_metric_is_in_the_catalogue() -> None:
    """A panel on a name that nobody exposes is empty for ever."""
    known = {row.name for row in CATALOGUE}
    for panel in PANELS:
        for expression, _ in panel.expressions:
            names = {SUFFIX.sub("", name) for name in re.findall(r"gateway_[a-z_]+", expression)}
            assert names
            assert names <= known


def test_every_panel_has_its_place() -> None:
    """Two on one spot hide each other."""
    panels = json.loads(dashboard())["panels"]
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(PANELS)


def test_every_expression_parses(tmp_path: Path) -> None:
    """By Prometheus itself."""
    promtool = shutil.which("promtool")
    if promtool is None:
        lacking("the dashboard's PromQL: no promtool (Debian package prometheus)")
    rules = [
        {"record": "a:b", "expr": expression.replace('"$namespace"', '".*"')}
        for panel in PANELS
        for expression, _ in panel.expressions
    ]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    subprocess.run([promtool, "check", "rules", "--lint=none", str(tmp_path / "rules.yaml")], check=True)
