"""What an OpenAPI document (2.0, 3.0, 3.1) says of a call's arguments: their schema, and where in the request each goes.

A model sees one flat object: the path's holes by the manifest's names, the query's and the header's parameters, and the
members of the body if it is an object (as one member `body` if it is none, or if a name would be there twice). References
inside the document are followed, to schemas as `$defs`; nothing is fetched. What only readers of an answer see (`readOnly`)
is left out, and so are header parameters that carry keys and credentials, which are the gateway's and the tool's own.

A schema that would fill a model's context is cut down: first its descriptions go, then everything below its members.

Source: OpenAPI Specification 3.1.1 sections 4.8.10 to 4.8.24, 3.0.4 (nullable, exclusiveMinimum), Swagger 2.0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.core.routing import PatternError, parse_pattern
from gateway.core.tool import CallForm

__all__ = ["KEY_HEADER", "METHODS", "Described", "Document", "followed", "listed", "mapping", "server_url"]

METHODS: Final = ("get", "head", "options", "post", "put", "patch", "delete")
KEY_HEADER: Final = re.compile(r"(?i)(?:x-)?(?:[a-z]+-)*idempotency(?:-key|-token)?|paypal-request-id|x-request-token")
SCHEMA_LIMIT: Final = 64 << 10
"""In characters of JSON; beyond it a schema is cut down."""

_HOLE: Final = re.compile(r"\{([^{}]*)\}")
_FOLLOWED: Final = 20
_DEPTH: Final = 40
_NOT_ARGUMENTS: Final = frozenset({"accept", "content-type", "authorization", "host", "content-length", "cookie"})
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_DROPPED: Final = frozenset({"example", "examples", "xml", "externalDocs", "discriminator", "readOnly", "writeOnly"})
_SCHEMA_PLACES: Final = ("#/components/schemas/", "#/definitions/")
_Segments = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Described:
    """One operation of a document: what it does, what its arguments look like, and where they go."""

    description: str | None
    schema: Mapping[str, object]
    form: CallForm


class Document:
    """A parsed document, asked for one operation at a time."""

    def __init__(self, value: Mapping[str, Any]) -> None:
        self._value = value
        base = re.sub(r"^[a-z]+://[^/]*", "", server_url(value))
        self._base: _Segments = tuple(part for part in base.split("?")[0].strip("/").split("/") if part)
        self._known: dict[tuple[str, _Segments], tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {}
        for path, method, operation, shared in listed(value):
            holes = iter(range(len(path)))
            pattern = _HOLE.sub(lambda _, holes=holes: f"{{p{next(holes)}}}", path)  # type: ignore[misc]
            try:
                segments = parse_pattern(f"{method.upper()} {pattern}").segments
            except PatternError:
                continue
            self._known.setdefault((method.upper(), segments), (path, operation, shared))

    def find(self, match: str) -> Described | None:
        """Return what the document says of an operation by its `match`, None if it is not in there.

        Raises:
            PatternError: `match` cannot be read.
        """
        pattern = parse_pattern(match)
        found = self._known.get((pattern.method, pattern.segments))
        if found is None and self._base and pattern.segments[: len(self._base)] == self._base:
            found = self._known.get((pattern.method, pattern.segments[len(self._base) :]))
        if found is None:
            return None
        path, operation, shared = found
        names = dict(zip(_HOLE.findall(path), (pattern.holes[at] for at in sorted(pattern.holes)), strict=False))
        given = {key for key, _ in pattern.query}
        return _Reader(self._value, operation, shared, names, given).described()


class _Reader:
    """Reads one operation."""

    def __init__(
        self,
        document: Mapping[str, Any],
        operation: Mapping[str, Any],
        shared: Mapping[str, Any],
        names: Mapping[str, str],
        given: set[str],
    ) -> None:
        self._document = document
        self._operation = operation
        self._shared = shared
        self._names = names
        self._given = given
        self._is_old = "swagger" in document
        self._defs: dict[str, object] = {}
        self._properties: dict[str, object] = {}
        self._required: list[str] = []
        self._query: set[str] = set()
        self._joined: set[str] = set()
        self._headers: dict[str, str] = {}
        self._body: str | None = None
        self._is_form = False

    def described(self) -> Described:
        for hole in self._names.values():
            self._put(hole, {"type": "string"}, is_required=True)
        fields: list[Mapping[str, Any]] = []
        for parameter in self._parameters():
            place = parameter.get("in")
            if place == "body":
                self._take_body(self._schema(parameter.get("schema")), parameter.get("required") is True)
            elif place == "formData":
                self._is_form = True
                fields.append(parameter)
            else:
                self._take(parameter, place)
        for parameter in fields:
            self._put(str(parameter.get("name")), self._of(parameter), is_required=parameter.get("required") is True)
        self._take_request_body()
        schema: dict[str, object] = {"type": "object", "properties": self._properties}
        if self._required:
            schema["required"] = self._required
        if self._defs:
            schema["$defs"] = self._defs
        form = CallForm(
            query=frozenset(self._query),
            joined=frozenset(self._joined),
            headers=self._headers,
            body=self._body,
            is_form=self._is_form,
        )
        return Described(self._text(), _cut(schema), form)

    def _text(self) -> str | None:
        for key in ("summary", "description"):
            text = self._operation.get(key)
            if isinstance(text, str) and text.strip():
                return text.strip()[:1_000]
        return None

    def _parameters(self) -> list[Mapping[str, Any]]:
        found: dict[tuple[object, object], Mapping[str, Any]] = {}
        for holder in (self._shared, self._operation):
            parameters = holder.get("parameters")
            for parameter in parameters if isinstance(parameters, list) else ():
                parameter = mapping(followed(self._document, parameter))
                if isinstance(parameter.get("name"), str):
                    found[parameter["name"], parameter.get("in")] = parameter
        return list(found.values())

    def _take(self, parameter: Mapping[str, Any], place: object) -> None:
        name = str(parameter["name"])
        is_required = parameter.get("required") is True
        if place == "path" and name in self._names:
            self._properties[self._names[name]] = self._of(parameter)
        elif place == "query" and name not in self._properties and name not in self._given:
            self._put(name, self._of(parameter), is_required=is_required)
            self._query.add(name)
            is_list = self._is_old and parameter.get("collectionFormat", "csv") != "multi"
            if is_list or parameter.get("explode") is False:
                self._joined.add(name)
        elif place == "header" and name not in self._properties and _TOKEN.fullmatch(name):
            if name.lower() in _NOT_ARGUMENTS or KEY_HEADER.fullmatch(name):
                return
            self._put(name, self._of(parameter), is_required=is_required)
            self._headers[name] = name

    def _of(self, parameter: Mapping[str, Any]) -> dict[str, object]:
        """The schema of a parameter, with the parameter's own description."""
        given = parameter.get("schema")
        if given is None and isinstance(content := mapping(parameter.get("content")), Mapping) and content:
            given = mapping(next(iter(content.values()))).get("schema")
        if given is None:
            kept = ("type", "format", "enum", "items", "default", "minimum", "maximum", "pattern")
            given = {key: parameter[key] for key in kept if key in parameter}
        schema = self._schema(given)
        schema = dict(schema) if isinstance(schema, Mapping) else {}
        if isinstance(text := parameter.get("description"), str):
            schema["description"] = text
        return schema

    def _take_request_body(self) -> None:
        body = mapping(followed(self._document, self._operation.get("requestBody")))
        content = mapping(body.get("content"))
        kinds = sorted(content, key=lambda kind: (_rank(str(kind)), str(kind)))
        if not kinds or _rank(str(kinds[0])) > 1:
            return
        self._is_form = _rank(str(kinds[0])) == 1
        self._take_body(self._schema(mapping(content[kinds[0]]).get("schema")), body.get("required") is True)

    def _take_body(self, schema: object, is_required: bool) -> None:
        members = self._flat(schema)
        own = mapping(members.get("properties")) if members is not None else {}
        if members is None or (not own and not self._is_form) or not self._properties.keys().isdisjoint(own):
            self._body = "body" if "body" not in self._properties else "request_body"
            self._put(self._body, schema, is_required=is_required)
            return
        needed = members.get("required")
        needed = needed if isinstance(needed, list) and is_required else ()
        for name, one in own.items():
            self._put(str(name), one, is_required=name in needed)

    def _flat(self, schema: object) -> Mapping[str, Any] | None:
        """The schema of an object with members, seen through a reference and `allOf`; None if it is something else."""
        schema = mapping(schema)
        for _ in range(_FOLLOWED):
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                break
            schema = mapping(self._defs.get(reference.removeprefix("#/$defs/")))
        if isinstance(parts := schema.get("allOf"), list):
            found = [self._flat(part) for part in parts]
            properties: dict[str, object] = dict(mapping(schema.get("properties")))
            needed: list[object] = list(schema.get("required") or [])
            for part in found:
                if part is None:
                    return None
                properties |= part.get("properties") or {}
                needed += part.get("required") or []
            return {"properties": properties, "required": needed}
        is_object = schema.get("type") == "object" or "properties" in schema
        return schema if is_object and not {"oneOf", "anyOf", "not"} & schema.keys() else None

    def _put(self, name: str, schema: object, *, is_required: bool) -> None:
        self._properties[name] = schema
        if is_required and name not in self._required:
            self._required.append(name)

    # --- schemas

    def _schema(self, value: object, depth: int = 0) -> object:
        if isinstance(value, bool):
            return value
        if not isinstance(value, Mapping) or depth > _DEPTH:
            return {}
        if isinstance(reference := value.get("$ref"), str):
            return self._reference(reference, value, depth)
        schema: dict[str, object] = {}
        for key, inner in value.items():
            if key in _DROPPED or str(key).startswith("x-"):
                continue
            schema[str(key)] = self._member(str(key), inner, depth + 1)
        return _as_2020(schema) if not str(self._document.get("openapi", "")).startswith("3.1") else schema

    def _member(self, key: str, value: object, depth: int) -> object:
        if key in ("properties", "patternProperties", "$defs", "dependentSchemas"):
            members = mapping(value)
            return {
                str(name): self._schema(one, depth)
                for name, one in members.items()
                if mapping(followed(self._document, one)).get("readOnly") is not True
            }
        if key in ("allOf", "anyOf", "oneOf", "prefixItems") and isinstance(value, list):
            return [self._schema(one, depth) for one in value]
        if key in ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else"):
            return self._schema(value, depth) if isinstance(value, Mapping) else value
        return value

    def _reference(self, reference: str, value: Mapping[str, Any], depth: int) -> object:
        place = next((one for one in _SCHEMA_PLACES if reference.startswith(one)), None)
        if place is None or "/" in reference.removeprefix(place):
            return self._schema(followed(self._document, value), depth + 1)
        name = reference.removeprefix(place).replace("~1", "_").replace("~0", "_")
        if name not in self._defs:
            self._defs[name] = {}  # A schema may refer to itself.
            self._defs[name] = self._schema(followed(self._document, value), depth + 1)
        return {"$ref": f"#/$defs/{name}"}


def _rank(kind: str) -> int:
    """JSON before forms; what else there is cannot be made of arguments."""
    plain = kind.partition(";")[0].strip().lower()
    if plain == "application/json" or plain.endswith("+json"):
        return 0
    return 1 if plain == "application/x-www-form-urlencoded" else 2


def _as_2020(schema: dict[str, object]) -> dict[str, object]:
    """What OpenAPI before 3.1 says otherwise than JSON Schema."""
    nullable = schema.pop("nullable", None)
    if nullable is True and isinstance(kind := schema.get("type"), str):
        schema["type"] = [kind, "null"]
    for strict, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if schema.get(strict) is True and bound in schema:
            schema[strict] = schema.pop(bound)
        elif isinstance(schema.get(strict), bool):
            del schema[strict]
    if schema.get("type") == "file":
        schema["type"] = "string"
    return schema


def _cut(schema: dict[str, object]) -> Mapping[str, object]:
    if len(json.dumps(schema)) <= SCHEMA_LIMIT:
        return schema
    shorter = _without_words(schema)
    if len(json.dumps(shorter)) <= SCHEMA_LIMIT:
        return shorter
    members = {name: _top(one) for name, one in mapping(schema.get("properties")).items()}
    cut: dict[str, object] = {"type": "object", "properties": members}
    if "required" in schema:
        cut["required"] = schema["required"]
    return cut


def _top(schema: object) -> dict[str, object]:
    kept = mapping(schema)
    return {key: kept[key] for key in ("type", "format") if key in kept}


def _without_words(schema: Mapping[str, object]) -> dict[str, object]:
    """The same without descriptions, except those of the arguments themselves and of members that are called so."""
    return {key: _silent(value, is_map=key in ("properties", "$defs"), level=0) for key, value in schema.items()}


def _silent(value: object, *, is_map: bool, level: int) -> object:
    if isinstance(value, list):
        return [_silent(one, is_map=False, level=level + 1) for one in value]
    if not isinstance(value, Mapping):
        return value
    maps = ("properties", "patternProperties", "$defs")
    return {
        key: _silent(one, is_map=not is_map and key in maps, level=level + 1)
        for key, one in value.items()
        if is_map or level < 2 or key not in ("description", "title")
    }


# --- documents ------------------------------------------------------------------------------------------------------


def listed(
    document: Mapping[str, Any],
) -> Iterator[tuple[str, str, Mapping[str, Any], Mapping[str, Any]]]:
    """Return path, method, operation, and what the operations of that path share."""
    for path, item in mapping(document.get("paths")).items():
        item = mapping(followed(document, item))
        for method in METHODS:
            if isinstance(item.get(method), Mapping):
                yield str(path).partition("?")[0].partition("#")[0], method, item[method], item


def server_url(document: Mapping[str, Any]) -> str:
    """Return the URL of the document's first server, with its variables' defaults; it may be relative, or empty."""
    if "swagger" in document:
        schemes = document.get("schemes") or ["https"]
        scheme = "https" if "https" in schemes else str(schemes[0])
        base = str(document.get("basePath", ""))
        return f"{scheme}://{document['host']}{base}" if document.get("host") else base
    servers = document.get("servers") or [{}]
    server = mapping(servers[0]) if isinstance(servers, list) else {}
    variables = mapping(server.get("variables"))
    return _HOLE.sub(lambda hole: str(mapping(variables.get(hole[1])).get("default", "")), str(server.get("url", "")))


def followed(document: Mapping[str, Any], value: Any) -> Any:
    """Return what a reference inside the document leads to; anything else as it is."""
    for _ in range(_FOLLOWED):
        reference = value.get("$ref") if isinstance(value, Mapping) else None
        if not isinstance(reference, str):
            return value if value is not None else {}
        if not reference.startswith("#/"):
            return {}
        value = document
        for step in reference[2:].split("/"):
            value = mapping(value).get(step.replace("~1", "/").replace("~0", "~"))
    return {}


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping as it is, and anything else as an empty one."""
    return value if isinstance(value, Mapping) else {}
