"""Two eras of one protocol: which one a message belongs to, and what its headers must say.

*Handshake era* (2025-03-26, 2025-06-18, 2025-11-25): `initialize`, then `Mcp-Session-Id` on every request.
*Stateless era* (2026-07-28): each request says everything itself, in `_meta`, and names its method and its target in
headers too, so that a router need not read bodies. Router and server must not disagree: headers that do not match the
body are refused before anything is looked up.

Each side of the gateway is negotiated on its own; `for_modern` and `for_legacy` are what a result needs to cross.

Source: MCP 2026-07-28, "Transports" (headers, `=?base64?…?=`), "Base protocol" (`_meta`), SEP-2243, SEP-2575.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.core.mcp import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    UNSUPPORTED_VERSION,
    Message,
    members,
    replaced,
)
from gateway.core.message import Headers

__all__ = [
    "CAPABILITIES",
    "CLIENT_INFO",
    "ENVELOPE",
    "LEGACY",
    "LOG_LEVEL",
    "MODERN",
    "REMOVED",
    "SERVER_INFO",
    "SUBSCRIPTION",
    "VERSION",
    "Objection",
    "check_envelope",
    "check_named",
    "decoded_value",
    "encoded_value",
    "for_legacy",
    "for_modern",
    "http_status",
    "is_modern",
    "named",
    "negotiated",
    "request_headers",
]

LEGACY: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Handshake revisions, newest first. The last had another transport, but its messages are the same."""

MODERN: Final = ("2026-07-28",)

_PREFIX: Final = "io.modelcontextprotocol/"
VERSION: Final = _PREFIX + "protocolVersion"
CAPABILITIES: Final = _PREFIX + "clientCapabilities"
CLIENT_INFO: Final = _PREFIX + "clientInfo"
LOG_LEVEL: Final = _PREFIX + "logLevel"
SERVER_INFO: Final = _PREFIX + "serverInfo"
SUBSCRIPTION: Final = _PREFIX + "subscriptionId"
ENVELOPE: Final = frozenset({VERSION, CAPABILITIES, CLIENT_INFO, LOG_LEVEL})
"""What a stateless request says of its sender; each leg has its own."""

NAMES: Final = {
    "tools/call": "name", "prompts/get": "name", "resources/read": "uri",
    "tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId",
}  # fmt: skip
"""The member of `params` that `Mcp-Name` repeats."""

REMOVED: Final = frozenset(
    {
        "ping",
        "initialize",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "tasks/result",
        "tasks/list",
    }
)
"""Methods of the handshake era that the stateless one does not have."""

CACHEABLE: Final = frozenset(
    {"tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read", "server/discover"}
)

_STATUS: Final = {
    -32700: 400, -32600: 400, -32602: 400, HEADER_MISMATCH: 400, -32021: 400, UNSUPPORTED_VERSION: 400, -32601: 404,
}  # fmt: skip
_ENCODED: Final = re.compile(r"=\?base64\?(.*)\?=")
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PLAIN: Final = re.compile(r"[\x20-\x7e]*")
_ROUTING: Final = frozenset({b"mcp-protocol-version", b"mcp-method", b"mcp-name"})


@dataclass(frozen=True, slots=True)
class Objection:
    """What is wrong with a request, as the JSON-RPC error it is answered with."""

    code: int
    message: str
    data: object = None


def is_modern(headers: Headers, message: Message) -> bool:
    """Whether a message is of the stateless era: it says so in `_meta` or in the header."""
    if VERSION in message.meta:
        return True
    version = _only(headers, b"mcp-protocol-version")
    if message.method == "initialize" and message.meta.keys().isdisjoint(ENVELOPE):
        return False
    return version is not None and (version in MODERN or version not in LEGACY) and version > LEGACY[0]


def negotiated(asked: object) -> str:
    """Return the handshake revision for what a client asked: the same if we speak it, else our newest."""
    return asked if isinstance(asked, str) and asked in LEGACY else LEGACY[0]


def check_envelope(headers: Headers, message: Message) -> Objection | None:
    """Return what is wrong with a stateless request, or None.

    The order is the protocol's: the envelope is there, headers and body agree, the version is one that we speak.
    """
    meta = message.meta
    missing = [key for key in (VERSION, CAPABILITIES) if key not in meta]
    if missing:
        return Objection(INVALID_PARAMS, f"params._meta lacks {' and '.join(missing)}")
    if not isinstance(meta[CAPABILITIES], Mapping):
        return Objection(INVALID_PARAMS, f"params._meta[{CAPABILITIES!r}] must be an object")
    version = meta[VERSION]
    if not isinstance(version, str):
        return Objection(INVALID_PARAMS, f"params._meta[{VERSION!r}] must be a text")
    if objection := _check_headers(headers, message, version):
        return objection
    if version not in MODERN:
        data = {"supported": [*MODERN], "requested": version}
        return Objection(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
    return None


def _check_headers(headers: Headers, message: Message, version: str) -> Objection | None:
    for name in sorted(_ROUTING):
        if sum(field[0].lower() == name for field in headers) > 1:
            return Objection(HEADER_MISMATCH, f"the header {name.decode()} is there more than once")
    said = _only(headers, b"mcp-protocol-version")
    if said != version:
        return Objection(HEADER_MISMATCH, "the header MCP-Protocol-Version is missing, or says otherwise than the body")
    if _only(headers, b"mcp-method") != message.method:
        return Objection(HEADER_MISMATCH, "the header Mcp-Method is missing, or says otherwise than the body")
    if (key := NAMES.get(message.method)) is not None:
        header = _only(headers, b"mcp-name")
        if header is None or decoded_value(header) != message.value.get(key):
            return Objection(HEADER_MISMATCH, f"the header Mcp-Name is missing, or says otherwise than params.{key}")
    return None


def request_headers(method: str, params: Mapping[str, object], version: str) -> Headers:
    """Return the routing headers of a stateless request that we send."""
    headers: Headers = (
        (b"MCP-Protocol-Version", version.encode()),
        (b"Mcp-Method", encoded_value(method).encode()),
    )
    if (key := NAMES.get(method)) is not None and isinstance(name := params.get(key), str):
        headers += ((b"Mcp-Name", encoded_value(name).encode()),)
    return headers


def named(schema: object, arguments: object) -> Headers:
    """Return the `Mcp-Param-…` headers that a tool's schema asks for (`x-mcp-header`), with values from the arguments."""
    if not isinstance(schema, Mapping) or not isinstance(arguments, Mapping):
        return ()
    properties = schema.get("properties")
    headers: list[tuple[bytes, bytes]] = []
    for key, inner in properties.items() if isinstance(properties, Mapping) else ():
        value = arguments.get(key)
        if value is None or not isinstance(inner, Mapping):
            continue
        token = inner.get("x-mcp-header")
        if isinstance(token, str) and _TOKEN.fullmatch(token):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if isinstance(value, str | int | float):
                headers.append((f"Mcp-Param-{token}".encode(), encoded_value(text).encode()))
        else:
            headers += named(inner, value)
    return tuple(headers)


def check_named(headers: Headers, schema: object, arguments: object) -> Objection | None:
    """Return what is wrong with the `Mcp-Param-…` headers of a stateless call, or None: each says what the argument says for
    which the tool's schema names it, and is there exactly if the argument is.

    Source: SEP-2243, "Custom headers from tool parameters".
    """
    wanted = {name.lower(): value for name, value in named(schema, arguments)}
    for token in _tokens(schema):
        name = f"mcp-param-{token}".lower().encode()
        said = [value.strip(b" \t").decode("latin-1") for field, value in headers if field.lower() == name]
        value = wanted.get(name)
        meant = None if value is None else decoded_value(value.decode("ascii"))
        if len(said) > 1 or [decoded_value(one) for one in said] != ([] if value is None else [meant]):
            return Objection(
                HEADER_MISMATCH, f"the header Mcp-Param-{token} is missing, or says otherwise than the argument"
            )
    return None


def _tokens(schema: object) -> list[str]:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    found: list[str] = []
    for inner in properties.values() if isinstance(properties, Mapping) else ():
        token = inner.get("x-mcp-header") if isinstance(inner, Mapping) else None
        if isinstance(token, str) and _TOKEN.fullmatch(token):
            found.append(token)
        elif token is None:
            found += _tokens(inner)
    return found


def encoded_value(text: str) -> str:
    """Return a text as a header carries it: bare where that survives, else `=?base64?…?=`."""
    if _PLAIN.fullmatch(text) and text == text.strip() and not _ENCODED.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode('utf-8', 'surrogatepass')).decode()}?="


def decoded_value(header: str) -> str | None:
    """Return the text that a header carries, or None if it is wrapped and broken: then it equals nothing."""
    found = _ENCODED.fullmatch(header)
    if found is None:
        return header
    try:
        data = base64.b64decode(found.group(1), validate=True)
        return data.decode() if base64.b64encode(data).decode() == found.group(1) else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def http_status(code: int) -> int:
    """Return the HTTP status that carries a JSON-RPC error in the stateless era."""
    return _STATUS.get(code, 200)


def for_modern(result: str, method: str, server: Mapping[str, object] | None = None) -> str:
    """Return a result with what the stateless era requires of it; what is there already stays as it is."""
    found = members(result)
    changes: dict[str, str | None] = {}
    if "resultType" not in found:
        changes["resultType"] = '"complete"'
    if method in CACHEABLE:
        changes.update({k: v for k, v in (("ttlMs", "0"), ("cacheScope", '"private"')) if k not in found})
    meta = found.get("_meta", ("{}", {}))
    if server is not None and isinstance(meta[1], Mapping) and SERVER_INFO not in meta[1]:
        changes["_meta"] = replaced(meta[0], {SERVER_INFO: json.dumps(server)})
    return replaced(result, changes) if changes else result


def for_legacy(result: str) -> str:
    """Return a result without what the handshake era does not know: strict clients refuse unknown members of `{}`."""
    if '"resultType"' not in result:
        return result
    return replaced(result, {"resultType": None, "ttlMs": None, "cacheScope": None})


def _only(headers: Headers, name: bytes) -> str | None:
    values = [value for key, value in headers if key.lower() == name]
    return values[0].decode("latin-1").strip(" \t") if values else None
