"""What expressions see of a call: plain values made from its bytes.

`request` is `{method, path, query, headers, params, json, form, text}`, `response` is `{status, headers, json, text}`.
Header names are in lower case, repeated fields are joined as RFC 9110 section 5.3 allows; of a repeated query parameter
or form field the first counts. What cannot be read (no JSON, no text) is null, never an error: a call is not refused
because an expression might have wanted more of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final
from urllib.parse import parse_qsl

import orjson

from gateway.core.canonical import digits_alike, is_json, media_type
from gateway.core.message import Headers

__all__ = ["EVALUATED_LIMIT", "Lazily", "Seen", "request_env", "response_env"]

EVALUATED_LIMIT: Final = 1024 * 1024
"""Expressions see bodies up to this many bytes; of larger ones they see none."""

_LONG_INTEGER: Final = b"9" * 19
"""orjson turns integers beyond 64 bits into floats; identifiers of that size must keep their digits."""

_FORM: Final = "application/x-www-form-urlencoded"
_FIELDS_LIMIT: Final = 1_000


def request_env(
    method: str, target: str, headers: Headers, body: bytes, params: Mapping[str, str] | None = None
) -> Seen:
    """Return `request` for expressions.

    Args:
        method: as sent.
        target: raw path and query below the tool's name.
        headers: fields as they came.
        body: the whole body, or b"" where it is not at hand.
        params: values of the matched template's segments, decoded.
    """
    path, _, query = target.partition("?")
    made = _SeenRequest(headers, body, query)
    made["method"], made["path"], made["params"] = method, path, dict(params or {})
    return made


def response_env(status: int, headers: Headers, body: bytes) -> Seen:
    """Return `response` for expressions. `body` is the whole body without content coding, or b""."""
    made = Seen(headers, body)
    made["status"] = status
    return made


class Lazily(dict[str, object]):
    """Names for expressions, each made when somebody looks at it: most look at one.

    Subscripts and `whole` see every name; what else a dict can do sees those made so far. A class says in `_makers` how
    each name is made; every write makes an instance, so nothing is done for them all beforehand.
    """

    __slots__ = ()

    _makers: ClassVar[Mapping[str, Callable[[Any], object]]] = {}

    def __missing__(self, name: str) -> object:
        made = self[name] = self._makers[name](self)
        return made

    def whole(self) -> dict[str, object]:
        """Return a plain dict with every name, all the way down."""
        for name in self._makers:
            self[name]
        return {name: value.whole() if isinstance(value, Lazily) else value for name, value in self.items()}


class Seen(Lazily):
    """A message as expressions see it: what an answer and a request have in common."""

    __slots__ = ("_body", "_headers")

    _makers: ClassVar[Mapping[str, Callable[[Any], object]]] = {
        "headers": lambda seen: _headers(seen._headers),
        "json": lambda seen: _json(seen._content_type(), seen._body),
        "text": lambda seen: _text(seen._body),
    }

    def __init__(self, headers: Headers, body: bytes) -> None:
        self._headers = headers
        self._body = body

    def _content_type(self) -> str:
        kinds = [value for name, value in self._headers if len(name) == 12 and name.lower() == b"content-type"]
        return b", ".join(kinds).decode("latin-1")


class _SeenRequest(Seen):
    __slots__ = ("_query",)

    _makers: ClassVar[Mapping[str, Callable[[Any], object]]] = {
        **Seen._makers,
        "query": lambda seen: _pairs(seen._query),
        "form": lambda seen: seen._form(),
    }

    def __init__(self, headers: Headers, body: bytes, query: str) -> None:
        super().__init__(headers, body)
        self._query = query

    def _form(self) -> dict[str, str] | None:
        return _pairs(self._body.decode("latin-1")) if media_type(self._content_type()) == _FORM else None


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
        return json.loads(body) if digits_alike(body).count(_LONG_INTEGER) else orjson.loads(body)
    except (ValueError, RecursionError):
        return None


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None
