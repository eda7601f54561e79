"""HTTP operations offered as MCP tools: how an operation looks to a model, and how arguments become a request.

Every hole of the path is a required argument. Further arguments go where HTTP has its place for them: into the query of a
read or a DELETE, into a JSON body otherwise. A schema in the manifest (`input:`) describes them; without one they are free.

Source: design section 7; RFC 9110 section 9.3 (which methods have a body).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from urllib.parse import quote

from gateway.core.manifest import Tier
from gateway.core.mcp_tools import Definition
from gateway.core.message import Headers
from gateway.core.tool import Operation, ToolSpec

__all__ = ["BadArguments", "Built", "built", "described", "result_of"]

_HOLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})
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
    path, _, query = template.strip().partition("?")
    path = _HOLE.sub(lambda hole: _segment(hole.group(1), left), path)
    for hole in _HOLE.findall(template):
        left.pop(hole, None)
    pairs = [query] if query else []
    if method in _BODY_METHODS:
        body = json.dumps(left, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
        return method, _target(path, pairs), ((b"Content-Type", b"application/json"),), body
    pairs += [
        f"{quote(name, safe='')}={quote(_plain(name, item), safe='')}"
        for name, value in left.items()
        for item in (value if isinstance(value, list) else [value])
    ]
    return method, _target(path, pairs), (), None


def _target(path: str, pairs: list[str]) -> str:
    return path + ("?" + "&".join(pairs) if pairs else "")


def _segment(name: str, arguments: Mapping[str, object]) -> str:
    if name not in arguments:
        raise BadArguments(f"the argument {name!r} is missing")
    text = _plain(name, arguments[name])
    if not text or text in (".", "..") or re.search(r"[/\\\x00-\x1f\x7f]", text):
        raise BadArguments(f"the argument {name!r} does not fit into a path: it is empty, or holds a slash or dots")
    return quote(text, safe="")


def _plain(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise BadArguments(f"the argument {name!r} must be a text, a number or a boolean here")


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
