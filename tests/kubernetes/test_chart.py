"""The chart's generated files say what the dataclass says; what the chart sets itself is not offered."""

from __future__ import annotations

import json

import jsonschema
import yaml

from gateway.core.server import ServerSettings
from gateway.kubernetes.chart import OWNED, policies_template, readme, values_schema, values_yaml
from tests.helm.tools import CHART, ROOT


def test_the_defaults_meet_the_schema() -> None:
    """A chart whose own values it refuses cannot be installed."""
    schema = json.loads(values_schema())
    values = yaml.safe_load(values_yaml())
    jsonschema.validate(values, schema)
    assert set(values) == set(schema["properties"]) - {"global"}


def test_what_the_chart_sets_itself_is_no_value() -> None:
    """Else a user's `listen` would win or lose in silence."""
    offered = json.loads(values_schema())["definitions"]["Server"]["properties"]
    assert not OWNED & offered.keys()
    assert set(offered) == {name for name in ServerSettings.__dataclass_fields__ if name not in OWNED}


def test_the_readme_keeps_its_prose_and_lists_every_value() -> None:
    """Generated inside the marks alone."""
    text = (CHART / "README.md").read_text()
    assert readme(text) == text
    for name in ("persistence.acceptJournalLoss", "networkPolicy.confineAgents", "injector.tls.caBundle"):
        assert f"| `{name}` |" in text


def test_the_chart_knows_the_shipped_policies_bounds() -> None:
    """It computes grace periods from them."""
    assert "external: 60" in policies_template(ROOT / "policies")
