"""The chart's generated files: `values.yaml`, `values.schema.json`, the table in its README, and the shipped policies'
time bounds, which the chart needs to compute how long a pod may take to end.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from gateway.config.fields import Field, fields_of, is_settings
from gateway.config.schema import json_schema
from gateway.core.manifest import Manifest, TimeoutSettings
from gateway.core.server import ServerSettings
from gateway.kubernetes.values import ChartValues

__all__ = ["OWNED", "policies_template", "readme", "values_schema", "values_yaml"]

OWNED: Final = frozenset(
    {"manifest", "data", "secrets", "listen", "control", "tokens", "metrics", "allow_unauthenticated"}
)
"""Server settings that the chart sets itself. Of `journal`, the backend: what it refuses rests on the journal's volume."""

_OPAQUE: Final = (Manifest, ServerSettings)
_MARKS: Final = ("<!-- values: begin, written by `make docs` -->", "<!-- values: end -->")


def values_schema() -> str:
    """Return `values.schema.json`."""
    schema = json_schema(ChartValues, "Values of the chart seawall")
    server = schema["definitions"]["Server"]
    for name in OWNED:
        server["properties"].pop(name)
    schema["definitions"]["Journal"]["properties"].pop("backend")
    for name in _unused(schema):
        del schema["definitions"][name]
    schema["properties"]["global"] = {"type": "object", "description": "Helm's own; not used."}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _unused(schema: Mapping[str, Any]) -> list[str]:
    text = json.dumps(schema)
    return [name for name in schema["definitions"] if f'"#/definitions/{name}"' not in text]


def values_yaml() -> str:
    """Return `values.yaml`: every value with its default and its sentence."""
    lines = ["# Written by `make docs` from gateway/kubernetes/values.py; changes made here are lost."]
    for path, field, default in _leaves(ChartValues, ChartValues(), ()):
        indent = "  " * (len(path) - 1)
        if len(path) == 1:
            lines.append("")
        lines.append(f"{indent}# {field.doc}")
        if _is_branch(field):
            lines.append(f"{indent}{field.name}:")
        else:
            lines.append(f"{indent}{field.name}: {_flow(default)}")
    return "\n".join(lines) + "\n"


def readme(text: str) -> str:
    """Return the chart's README with its table of values written anew."""
    head, rest = text.split(_MARKS[0])
    _, tail = rest.split(_MARKS[1])
    rows = ["| value | default | meaning |", "|---|---|---|"]
    for path, field, default in _leaves(ChartValues, ChartValues(), ()):
        if not _is_branch(field):
            doc = field.doc.replace("|", "\\|")
            rows.append(f"| `{'.'.join(path)}` | `{_flow(default)}` | {doc} |")
    return f"{head}{_MARKS[0]}\n\n" + "\n".join(rows) + f"\n\n{_MARKS[1]}{tail}"


def policies_template(policies: Path) -> str:
    """Return a template that knows the longest call of each domain in the shipped policies, in seconds."""
    from gateway.config.decode import parse_duration

    bounds: dict[str, float] = {}
    for file in sorted(policies.glob("*.yaml")):
        for name, domain in (yaml.safe_load(file.read_text("utf-8")).get("domains") or {}).items():
            total = (domain.get("timeouts") or {}).get("total", TimeoutSettings().total)
            seconds = parse_duration(str(total))
            assert seconds is not None, f"{file}: {total}"
            bounds[name] = seconds
    lines = [
        "{{- /* Written by `make docs` from policies/ and core/manifest.py; changes made here are lost. */ -}}",
        '{{- define "seawall.shippedDomains" -}}',
        *(f"{name}: {seconds:g}" for name, seconds in sorted(bounds.items())),
        "{{- end }}",
        f'{{{{- define "seawall.defaultTotal" -}}}}{TimeoutSettings().total:g}{{{{- end }}}}',
    ]
    return "\n".join(lines) + "\n"


def _leaves(settings: type, values: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Field, object]]:
    for name, field in fields_of(settings).items():
        value = getattr(values, name)
        yield (*path, name), field, value
        if _is_branch(field):
            yield from _leaves(field.kind, value, (*path, name))


def _is_branch(field: Field) -> bool:
    return is_settings(field.kind) and field.kind not in _OPAQUE


def _flow(default: object) -> str:
    if isinstance(default, _OPAQUE):
        return "{}"
    if dataclasses.is_dataclass(default):
        raise TypeError(f"{default} is no single value")
    if isinstance(default, tuple):
        default = list(default)
    return json.dumps(default, ensure_ascii=False)
