"""What expressions see of a call: plain values made from its bytes.

`request` is `{method, path, query, headers, params, json, form, text}`, `response` is `{status, headers, json, text}`.
Header names are in lower case, repeated fields are joined as RFC 9110 section 5.3 allows; of a repeated query parameter
or form field the first counts. What cannot be read (no JSON, no text) is null, never an error: a call is not refused
because an expression might have wanted more of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

import orjson

from gateway.core.canonical import is_json, media_type
from gateway.core.message import Headers

__all__ = ["EVALUATED_LIMIT", "request_env", "response_env"]

EVALUATED_LIMIT: Final = 1024 * 1024
"""Expressions see bodies up to this many bytes; of larger ones they see none."""

_LONG_INTEGER: Final = re.compile(rb"[0-9]{19}")
"""orjson turns integers beyond 64 bits into floats; identifiers of that size must keep their digits."""

_FORM: Final = "application/x-www-form-urlencoded"
_FIELDS_LIMIT: Final = 1_000


def request_env(
    method: str, target: str, headers: Headers, body: bytes, params: Mapping[str, str] | None = None
) -> dict[str, object]:
    """Return `request` for expressions.

    Args:
        method: as sent.
        target: raw path and query below the tool's name.
        headers: fields as they came.
        body: the whole body, or b"" where it is not at hand.
        params: values of the matched template's segments, decoded.
    """
    path, _, query = target.partition("?")
    fields = _headers(headers)
    content_type = fields.get("content-type", "")
    return {
        "method": method,
        "path": path,
        "query": _pairs(query),
        "headers": fields,
        "params": dict(params or {}),
        "json": _json(content_type, body),
        "form": _pairs(body.decode("latin-1")) if media_type(content_type) == _FORM else None,
        "text": _text(body),
    }


def response_env(status: int, headers: Headers, body: bytes) -> dict[str, object]:
    """Return `response` for expressions. `body` is the whole body without content coding, or b""."""
    fields = _headers(headers)
    return {
        "status": status,
        "headers": fields,
        "json": _json(fields.get("content-type", ""), body),
        "text": _text(body),
    }


def _headers(headers: Headers) -> dict[str, str]:
    fields: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return fields


def _pairs(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="replace", max_num_fields=_FIELDS_LIMIT)
    except ValueError:
        return {}
    return dict(reversed(pairs))


def _json(content_type: str, body: bytes) -> object:
    if not body or not is_json(content_type):
        return None
    try:
        return json.loads(body) if _LONG_INTEGER.search(body) else orjson.loads(body)
    except (ValueError, RecursionError):
        return None


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None
