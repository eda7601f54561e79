"""HTTP operations offered as MCP tools: how an operation looks to a model, and how arguments become a request.

Every hole of the path is a required argument. Further arguments go where the tool's OpenAPI document says (`form`), else
where HTTP has its place for them: into the query of a read or a DELETE, into a JSON body otherwise. A schema in the manifest
(`input:`) or of the document describes them; without one they are free. Against a schema only what it says of the arguments
themselves is checked (which must be there, and of what type): the tool knows the rest better.

Source: design section 7; RFC 9110 section 9.3 (which methods have a body); WHATWG URL section 5 (forms); the brackets of
nested members in forms and queries are what OpenAPI calls `deepObject`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from gateway.core.manifest import Tier
from gateway.core.mcp_tools import Definition
from gateway.core.message import Headers
from gateway.core.tool import CallForm, Operation, ToolSpec

__all__ = ["BadArguments", "Built", "built", "described", "result_of"]

_HOLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})
_JSON: Final = (b"Content-Type", b"application/json")
_FORM: Final = (b"Content-Type", b"application/x-www-form-urlencoded")
_FREE: Final = CallForm()
TEXT_LIMIT = 1 << 20
Built = tuple[str, str, Headers, bytes | None]
"""Method, target, headers, body."""


class BadArguments(ValueError):
    """The arguments do not make a request; the message says why."""


def described(tool: ToolSpec) -> list[Definition]:
    """Return the declared operations of an HTTP tool as tool definitions, in order."""
    return [Definition(name, _definition(operation)) for name, operation in sorted(tool.operations.items())
            if operation.is_declared and operation.source]  # fmt: skip


def _definition(operation: Operation) -> dict[str, object]:
    holes = _HOLE.findall(operation.source)
    schema: Mapping[str, object] = operation.input or {
        "type": "object",
        "properties": {hole: {"type": "string", "description": f"Segment {{{hole}}} of the path."} for hole in holes},
        "required": holes,
    }
    return {
        "name": operation.name,
        "description": operation.description or f"Sends {operation.source}.",
        "inputSchema": schema,
        "annotations": {
            "readOnlyHint": operation.is_read,
            "destructiveHint": operation.tier is Tier.PIVOT,
            "idempotentHint": operation.is_read or operation.is_idempotent,
        },
    }


def built(operation: Operation, arguments: Mapping[str, object]) -> Built:
    """Return the request that an operation and its arguments make.

    Raises:
        BadArguments: one is missing, or does not fit into the path.
    """
    method, _, template = operation.source.partition(" ")
    left = dict(arguments)
    form = operation.form or _FREE
    _check(operation.input, arguments)
    path, _, query = template.strip().partition("?")
    path = _HOLE.sub(lambda hole: _segment(hole.group(1), left), path)
    for hole in _HOLE.findall(template):
        left.pop(hole, None)
    headers = tuple(_header(field, left.pop(name)) for name, field in form.headers.items() if name in left)
    pairs = [query] if query else []
    if method not in _BODY_METHODS:
        pairs += _pairs(left, form.joined)
        return method, _target(path, pairs), headers, None
    pairs += _pairs({name: left.pop(name) for name in form.query & left.keys()}, form.joined)
    content = left.get(form.body) if form.body is not None else left
    if form.is_form:
        members = content if isinstance(content, Mapping) else {}
        return method, _target(path, pairs), (*headers, _FORM), "&".join(_pairs(members, frozenset())).encode("ascii")
    if form.body is not None and form.body not in left:
        return method, _target(path, pairs), headers, None
    body = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return method, _target(path, pairs), (*headers, _JSON), body


def _target(path: str, pairs: list[str]) -> str:
    return path + ("?" + "&".join(pairs) if pairs else "")


def _segment(name: str, arguments: Mapping[str, object]) -> str:
    if name not in arguments:
        raise BadArguments(f"the argument {name!r} is missing")
    text = _plain(name, arguments[name])
    if not text or text in (".", "..") or re.search(r"[/\\\x00-\x1f\x7f]", text):
        raise BadArguments(f"the argument {name!r} does not fit into a path: it is empty, or holds a slash or dots")
    return quote(text, safe="")


def _header(field: str, value: object) -> tuple[bytes, bytes]:
    text = _plain(field, value)
    if not re.fullmatch(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?", text):
        raise BadArguments(f"the argument {field!r} does not fit into a header: it takes visible ASCII alone")
    return field.encode("ascii"), text.encode("ascii")


def _pairs(arguments: Mapping[str, object], joined: frozenset[str]) -> list[str]:
    """`name=value`, lists repeated or joined, what is nested with its path in brackets."""
    found: list[str] = []
    for name in arguments:
        value = arguments[name]
        if isinstance(value, list) and name in joined:
            value = ",".join(_plain(name, item) for item in value)
        if isinstance(value, list):
            found += [pair for item in value for pair in _nested(name, item)]
        else:
            found += _nested(name, value)
    return found


def _nested(name: str, value: object) -> list[str]:
    if isinstance(value, Mapping):
        return [pair for key, inner in value.items() for pair in _nested(f"{name}[{key}]", inner)]
    if isinstance(value, list):
        return [pair for at, inner in enumerate(value) for pair in _nested(f"{name}[{at}]", inner)]
    return [f"{quote(name, safe='[]')}={quote(_plain(name, value), safe='')}"]


def _plain(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise BadArguments(f"the argument {name!r} must be a text, a number or a boolean here")


def _check(schema: Mapping[str, object] | None, arguments: Mapping[str, object]) -> None:
    """Hold arguments to what their schema says of them by name."""
    if schema is None:
        return
    required, properties = schema.get("required"), schema.get("properties")
    for name in required if isinstance(required, list) else ():
        if name not in arguments:
            raise BadArguments(f"the argument {name!r} is missing")
    for name, one in properties.items() if isinstance(properties, Mapping) else ():
        kind = one.get("type") if isinstance(one, Mapping) else None
        if name in arguments and isinstance(kind, str) and not _is(kind, arguments[name]):
            raise BadArguments(f"the argument {name!r} must be of the type {kind}")


def _is(kind: str, value: object) -> bool:
    match kind:
        case "string":
            return isinstance(value, str | int | float) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return value.is_integer() if isinstance(value, float) else type(value) is int
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, Mapping)
        case "null":
            return value is None
    return True


def result_of(status: int, content_type: str, body: bytes) -> str:
    """Return an HTTP answer as the result of a tool: its text, and its JSON if it is an object."""
    text = body[:TEXT_LIMIT].decode("utf-8", "replace")
    if len(body) > TEXT_LIMIT:
        text += f"\n[cut off: the answer has {len(body)} bytes]"
    result: dict[str, object] = {"content": [{"type": "text", "text": text or f"HTTP {status}"}]}
    if "json" in content_type and len(body) <= TEXT_LIMIT:
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            result["structuredContent"] = value
    result["isError"] = status >= 400
    return json.dumps(result)
