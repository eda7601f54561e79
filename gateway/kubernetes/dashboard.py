"""The Grafana dashboard that the chart ships, written from one list of panels."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["PANELS", "Panel", "dashboard"]

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS: Final = 3
_WIDTH: Final = 24 // _COLUMNS
_HEIGHT: Final = 8


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph: a title that is a question, its expressions by legend, and their unit."""

    title: str
    expressions: tuple[tuple[str, str], ...]
    unit: str = "short"


_PICK: Final = 'namespace=~"$namespace"'

PANELS: Final[tuple[Panel, ...]] = (
    Panel("How many calls, and how do they end?",
          ((f"sum by (outcome) (rate(gateway_calls_total{{{_PICK}}}[5m]))", "{{outcome}}"),), "reqps"),
    Panel("How long do they take (p50, p99)?",
          tuple((f"histogram_quantile({q}, sum by (le, tool) (rate(gateway_call_duration_seconds_bucket{{{_PICK}}}[5m])))",
                 f"{{{{tool}}}} p{round(q * 100)}") for q in (0.5, 0.99)), "s"),
    Panel("What is refused, and why?",
          ((f"sum by (code) (rate(gateway_refusals_total{{{_PICK}}}[5m]))", "{{code}}"),), "reqps"),
    Panel("Which breakers are open?",
          ((f'max by (tool) (gateway_breaker_state{{state!="closed",{_PICK}}})', "{{tool}}"),)),
    Panel("How full are the domains?",
          ((f"sum by (domain) (gateway_bulkhead_in_use{{{_PICK}}}) / sum by (domain) (gateway_bulkhead_slots{{{_PICK}}})",
            "{{domain}}"),), "percentunit"),
    Panel("Who waits for a slot?",
          ((f"sum by (domain) (gateway_bulkhead_queue_length{{{_PICK}}})", "{{domain}}"),)),
    Panel("How many attempts does a call cost?",
          ((f"sum by (tool) (rate(gateway_attempts_total{{{_PICK}}}[5m])) / sum by (tool) "
            f"(rate(gateway_calls_total{{{_PICK}}}[5m]))", "{{tool}}"),)),
    Panel("Which runs are open?",
          ((f"sum by (state) (gateway_trajectories_open{{{_PICK}}})", "{{state}}"),)),
    Panel("What becomes of steps?",
          ((f"sum by (state) (rate(gateway_steps_total{{{_PICK}}}[5m]))", "{{state}}"),), "reqps"),
    Panel("Is everything undone that has to be?",
          ((f"sum by (result) (increase(gateway_compensations_total{{{_PICK}}}[1h]))", "{{result}}"),)),
    Panel("How long does the journal's disk take (p99)?",
          ((f"histogram_quantile(0.99, sum by (le) (rate(gateway_journal_commit_seconds_bucket{{{_PICK}}}[5m])))", "p99"),),
          "s"),
    Panel("Does the journal keep up?",
          ((f"sum(gateway_journal_queue{{{_PICK}}})", "entries waiting"),
           (f"min(gateway_journal_healthy{{{_PICK}}})", "healthy"))),
)  # fmt: skip


def dashboard() -> str:
    """Return the dashboard as Grafana imports it."""
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus"},
        {
            "name": "namespace",
            "type": "query",
            "datasource": _SOURCE,
            "query": "label_values(gateway_build_info, namespace)",
            "includeAll": True,
            "allValue": ".*",
            "multi": True,
            "current": {"text": "All", "value": "$__all"},
            "refresh": 2,
        },
    ]
    whole = {
        "uid": "seawall",
        "title": "Seawall",
        "tags": ["seawall"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": expression, "legendFormat": legend, "datasource": _SOURCE}
            for place, (expression, legend) in enumerate(panel.expressions)
        ],
    }
