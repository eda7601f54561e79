"""Generated pages: written by `python -m gateway.docs`, and with `--check` only compared, so that none goes stale.

`docs/errors.md` is printed from the table of codes, `docs/configuration.md` and the schemas from the settings' fields.
"""

from __future__ import annotations

import dataclasses
import json
import posixpath
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final, get_args, get_origin

from gateway.config.fields import Field, choices, fields_of, is_settings, summary
from gateway.config.options import option_of, server_options, variable_of
from gateway.config.schema import duration_text, manifest_schema, packet_schemas, server_schema, size_text
from gateway.core.codes import CODES
from gateway.core.manifest import Manifest
from gateway.core.setting import Format
from gateway.kubernetes import chart
from gateway.kubernetes.dashboard import dashboard
from gateway.pages import recovery_page, watchdogs_page

__all__ = ["PAGES", "main"]

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"
_NOTE: Final = "<!-- Written by `make docs` from the source; changes made here are lost. -->\n"


def errors_page() -> str:
    """Return the page of refusals."""
    lines = [
        "# Errors",
        "",
        _NOTE,
        "Every refusal is RFC 9457 problem JSON with `code`, `class`, `retryable`, `retry_after_ms`, `dispatched` and one",
        "sentence written for the model. `dispatched` tells whether the request left for the tool: `no` means that it",
        "certainly did not, so repeating is safe. Where `client retry` is no, `x-should-retry: false` is sent, which",
        "keeps client libraries from repeating on their own.",
        "",
        "| code | HTTP | class | retryable | client retry | dispatched |",
        "|---|---|---|---|---|---|",
    ]
    for code, row in CODES.items():
        lines.append(
            f"| [{code.value}](#{code.value.lower()}) | {row.status} | {row.error_class.value} | {_yes(row.retryable)} "
            f"| {_yes(row.client_may_retry)} | {row.dispatched.value} |"
        )
    for code, row in CODES.items():
        lines += [
            "",
            f"## {code.value}",
            "",
            f"**{row.title}** (HTTP {row.status}). {row.when}",
            "",
            f"*What to do:* {row.advice}",
        ]
    return "\n".join(lines) + "\n"


def configuration_page() -> str:
    """Return the reference of the manifest and of the server's settings."""
    lines = [
        "# Configuration",
        "",
        _NOTE,
        "Two files: the *manifest* says what the tools are and what their operations do; the *server file* says how the",
        "gateway itself runs. `seawall check` names everything that is wrong with a manifest, `seawall schema` prints its",
        "JSON Schema.",
        "",
        "Times are written `500ms`, `2s`, `10m`, `24h`, `7d` or combined (`1h30m`); a bare number is seconds. Sizes are",
        "written `64KiB`, `10MiB`, `1GB`; a bare number is bytes.",
        "",
        "YAML is read strictly: keys once, no anchors, aliases, tags or merge keys, one document, at most 256 KiB and 20",
        "levels a file. In a field of text a value is its text as written (`no`, `012`, `1.10` stay what they are). In any",
        "other field only `true`, `false` and decimal numbers count; what YAML 1.1 and 1.2 read differently (`yes`, `on`,",
        "`012`, `12:30:45`, `1_000`) is an error. Unknown keys are errors.",
        "",
        "`${…}` in a template is a CEL expression over `request`, `response`, `key`, `trajectory`, `step` and `params`",
        "(values of the matched path segments); `${secret:NAME}` is a secret, allowed in `credentials` and `headers`;",
        "`$${` is the text `${`.",
        "",
        "Settings written nearer win key by key: operation over tool over domain over the defaults below.",
        "",
        "`include` takes paths relative to the including file, and `seawall:policies/local.yaml`,",
        "`seawall:policies/internal.yaml`, `seawall:policies/external.yaml`, which come with Seawall.",
        "",
        "# Manifest",
    ]
    for settings in _reachable(Manifest):
        lines += ["", f"## {_name(settings)}", "", summary(settings).replace("<", "&lt;"), "", *_table(settings)]
    lines += [
        "",
        "# Server",
        "",
        "Each setting is a key of the server file, an option of `seawall serve` and a variable. The option wins over the",
        "variable, the variable over the file, the file over the default.",
        "",
        "| key | option | variable | default | meaning |",
        "|---|---|---|---|---|",
    ]
    for path, field in server_options():
        lines.append(
            f"| `{'.'.join(path)}` | `{option_of(path)}` | `{variable_of(path)}` | {_default(field)} | {_meaning(field)} |"
        )
    return "\n".join(lines) + "\n"


def _reachable(settings: type) -> Iterator[type]:
    found: list[type] = []

    def visit(kind: Any) -> None:
        if is_settings(kind):
            if kind not in found:
                found.append(kind)
                for field in fields_of(kind).values():
                    visit(field.kind)
        elif get_origin(kind) is not None:
            for argument in get_args(kind):
                visit(argument)

    visit(settings)
    yield from found


def _name(settings: type) -> str:
    return settings.__name__.removesuffix("Settings")


def _table(settings: type) -> list[str]:
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{field.name}` | {_value(field)} | {_default(field)} | {_meaning(field)} |"
        for field in fields_of(settings).values()
    ]
    return lines


def _value(field: Field) -> str:
    if field.formats & {Format.SECONDS, Format.BYTES, Format.CEL}:
        return next(mark.value for mark in (Format.SECONDS, Format.BYTES, Format.CEL) if mark in field.formats)
    return _kind(field.kind) + (", template" if Format.TEMPLATE in field.formats else "")


def _kind(kind: Any) -> str:
    if is_settings(kind):
        return f"[{_name(kind)}](#{_name(kind).lower()})"
    if get_origin(kind) is tuple:
        return f"list of {_kind(get_args(kind)[0])}"
    if get_origin(kind) in (Mapping, dict):
        return f"mapping of names to {_kind(get_args(kind)[1])}"
    if (words := choices(kind)) is not None:
        return ", ".join(f"`{word}`" for word in words)
    return {str: "text", int: "whole number", float: "number", bool: "`true`, `false`", object: "any"}[kind]


def _default(field: Field) -> str:
    default = field.default
    if field.is_required:
        return "required"
    if default is None or default in ((), {}) or dataclasses.is_dataclass(default):
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if Format.SECONDS in field.formats and isinstance(default, float | int):
        return f"`{duration_text(default)}`"
    if Format.BYTES in field.formats and isinstance(default, int):
        return f"`{size_text(default)}`"
    return f"`{default.value if isinstance(default, Enum) else default}`"


def _meaning(field: Field) -> str:
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "more than",
        "maximum": "at most",
        "exclusiveMaximum": "less than",
    }
    bounds = ", ".join(f"{words[name]} {bound:g}" for name, bound in field.bounds.items() if name in words)
    text = field.doc.replace("|", "\\|")
    return f"{text} ({bounds})" if bounds else text


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _json(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "errors.md": errors_page,
    "configuration.md": configuration_page,
    "recovery.md": recovery_page,
    "watchdogs.md": watchdogs_page,
    "manifest.schema.json": lambda: _json(manifest_schema()),
    "server.schema.json": lambda: _json(server_schema()),
    "task-packet.schema.json": lambda: _json(packet_schemas()["task_packet"]),
    "task-result.schema.json": lambda: _json(packet_schemas()["task_result"]),
    "result-packet.schema.json": lambda: _json(packet_schemas()["result_packet"]),
    "../helm/seawall/files/dashboard.json": dashboard,
    "../helm/seawall/values.yaml": chart.values_yaml,
    "../helm/seawall/values.schema.json": chart.values_schema,
    "../helm/seawall/templates/_policies.tpl": lambda: chart.policies_template(ROOT / "policies"),
    "../helm/seawall/README.md": lambda: chart.readme((ROOT / "helm/seawall/README.md").read_text("utf-8")),
}


def main(arguments: list[str]) -> int:
    """Write the pages, or with `--check` name those that are stale; returns the exit code."""
    stale = [name for name, page in PAGES.items() if not _is_fresh(DOCS / name, page())]
    if arguments == ["--check"]:
        for name in stale:
            print(f"{posixpath.normpath(f'docs/{name}')} is stale; run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    if arguments:
        print("usage: python -m gateway.docs [--check]", file=sys.stderr)
        return 2
    for name in stale:
        (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / name).write_text(PAGES[name](), encoding="utf-8")
    return 0


def _is_fresh(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
