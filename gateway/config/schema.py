"""JSON Schema of the manifest and of the server's file, from the same fields that the decoder reads.

Draft 2020-12, kept to keywords that draft 7 has too, because editors and Helm's older validators stop there. Titles and
descriptions are the fields' own sentences; a time or size is text of a pattern, or a number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, get_args, get_origin

from gateway.config.decode import SIZE, TIME
from gateway.config.fields import SHORTHAND, Field, choices, fields_of, is_settings, summary
from gateway.core.manifest import Manifest
from gateway.core.packet import ResultPacket, TaskPacket, TaskResult
from gateway.core.server import ServerSettings
from gateway.core.setting import Format

__all__ = ["duration_text", "json_schema", "manifest_schema", "packet_schemas", "server_schema", "size_text"]

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]


def manifest_schema() -> Schema:
    """Return the schema of a manifest file."""
    return json_schema(Manifest, "Seawall manifest")


def server_schema() -> Schema:
    """Return the schema of the server's own file."""
    return json_schema(ServerSettings, "Seawall server settings")


def packet_schemas() -> dict[str, Schema]:
    """Return the schemas of the packets that agents exchange, by name."""
    return {
        "task_packet": json_schema(TaskPacket, "Seawall task packet"),
        "task_result": json_schema(TaskResult, "Seawall task result"),
        "result_packet": json_schema(ResultPacket, "Seawall result packet"),
    }


def json_schema(settings: type, title: str) -> Schema:
    """Return the schema of a settings dataclass, with each nested one under `definitions`."""
    definitions: dict[str, Schema] = {}
    top = _object(settings, definitions)
    return {"$schema": DRAFT, "title": title, **top, "definitions": dict(sorted(definitions.items()))}


def _object(settings: type, definitions: dict[str, Schema]) -> Schema:
    fields = fields_of(settings)
    schema: Schema = {
        "type": "object",
        "description": summary(settings),
        "additionalProperties": False,
        "properties": {name: _property(field, definitions) for name, field in fields.items()},
    }
    if required := [name for name, field in fields.items() if field.is_required]:
        schema["required"] = required
    return schema


def _property(field: Field, definitions: dict[str, Schema]) -> Schema:
    schema = _kind(field.kind, field.formats, field.bounds, definitions)
    if field.is_optional:
        schema = {"anyOf": [schema, {"type": "null"}]} if "$ref" in schema or "anyOf" in schema else _nullable(schema)
    if "$ref" in schema:
        schema = {"allOf": [schema]}
    described = {"description": field.doc, **schema}
    default = _default(field)
    return described if default is None else {**described, "default": default}


def _nullable(schema: Schema) -> Schema:
    if "enum" in schema:
        return {"enum": [*schema["enum"], None]}
    return {**schema, "type": [schema["type"], "null"]}


def _kind(kind: Any, formats: frozenset[Format], bounds: Mapping[str, float], definitions: dict[str, Schema]) -> Schema:
    if is_settings(kind):
        return _reference(kind, definitions)
    if get_origin(kind) is tuple:
        return {"type": "array", "items": _kind(get_args(kind)[0], frozenset(), {}, definitions)}
    if get_origin(kind) in (Mapping, dict):
        values = get_args(kind)[1]
        inner = (
            {"type": ["string", "number", "boolean"]} if values is str else _kind(values, frozenset(), {}, definitions)
        )
        return {"type": "object", "additionalProperties": inner}
    if (words := choices(kind)) is not None:
        return {"enum": list(words)}
    if Format.SECONDS in formats:
        return {"anyOf": [{"type": "string", "pattern": f"^{TIME}$"}, {"type": "number", **bounds}]}
    if Format.BYTES in formats:
        return {"anyOf": [{"type": "string", "pattern": f"^{SIZE}$"}, {"type": "integer", **bounds}]}
    if kind is object:
        return {}
    names: Mapping[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
    return {"type": names[kind], **bounds}


def _reference(settings: type, definitions: dict[str, Schema]) -> Schema:
    name = settings.__name__.removesuffix("Settings")
    if name not in definitions:
        definitions[name] = {}
        full = _object(settings, definitions)
        if settings in SHORTHAND:
            alone = fields_of(settings)[SHORTHAND[settings]]
            described = "The request line alone." if alone.kind is str else f"`{alone.name}` alone."
            full = {"anyOf": [{"description": described, **_kind(alone.kind, frozenset(), {}, definitions)}, full]}
        definitions[name] = full
    return {"$ref": f"#/definitions/{name}"}


def _default(field: Field) -> object:
    if field.is_required or field.default is None or dataclasses.is_dataclass(field.default):
        return None
    if Format.SECONDS in field.formats and isinstance(field.default, float):
        return duration_text(field.default)
    if Format.BYTES in field.formats and isinstance(field.default, int):
        return size_text(field.default)
    if isinstance(field.default, Enum):
        return field.default.value
    return None if field.default in ((), {}) else field.default


def duration_text(seconds: float) -> str:
    """Return the shortest way to write a time: 0.5 is `500ms`, 86400 is `24h`."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s" if seconds >= 1 or seconds == 0 else f"{seconds * 1000:g}ms"


def size_text(size: int) -> str:
    """Return the shortest way to write a size: 65536 is `64KiB`."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"
