"""JSON-RPC messages of MCP, read strictly and taken apart without changing a byte of what is passed on.

A proxy owns the `id` of a message and nothing else. So `params`, `result` and `error` are kept as the very text that came:
numbers keep their digits, keys their order, unknown members their place. What we must change (the id, one member of
`_meta`) is put in by replacing that member's text.

Refused: batches where the revision has none, repeated keys (two readers could see two messages), ids that are neither text
nor whole number (null included), and texts that are not one JSON object.

Source: JSON-RPC 2.0; MCP revisions 2025-03-26 to 2026-07-28, "Base protocol"; the error codes are theirs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Final

import orjson

__all__ = [
    "HEADER_MISMATCH",
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "MISSING_CAPABILITY",
    "PARSE_ERROR",
    "UNSUPPORTED_VERSION",
    "Kind",
    "Malformed",
    "Message",
    "elements",
    "error_message",
    "members",
    "notification",
    "parse",
    "parse_batch",
    "replaced",
    "request",
    "result_message",
]

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
HEADER_MISMATCH: Final = -32020
MISSING_CAPABILITY: Final = -32021
UNSUPPORTED_VERSION: Final = -32022


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is no JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)
_SPACE: Final = re.compile(r"[ \t\n\r]*")
BATCH_LIMIT: Final = 64


class Kind(StrEnum):
    """What a message is."""

    REQUEST = "request"
    NOTIFICATION = "notification"
    RESPONSE = "response"


class Malformed(ValueError):
    """Not a message. `code` is the JSON-RPC error it is answered with, `id` the raw id as far as one was readable."""

    def __init__(self, code: int, message: str, id: str = "null") -> None:
        super().__init__(message)
        self.code = code
        self.id = id


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message.

    Attributes:
        kind: request, notification or response.
        id: the id as it was written (`7`, `"a"`); empty for notifications.
        method: empty for responses.
        params, result, error: the text of that member, or None.
        value: `params` (of a response: `result` or `error`) as a value, to look into.
    """

    kind: Kind
    id: str = ""
    method: str = ""
    params: str | None = None
    result: str | None = None
    error: str | None = None
    value: Mapping[str, object]

    @property
    def meta(self) -> Mapping[str, object]:
        """`params._meta` (of a response: `result._meta`), empty if there is none."""
        found = self.value.get("_meta")
        return found if isinstance(found, Mapping) else {}


def parse(data: bytes | str) -> Message:
    """Read one message.

    Raises:
        Malformed: it is none.
    """
    return _message(*_object(_text(data)))


def parse_batch(data: bytes | str) -> list[Message] | Message:
    """Read one message, or the array of messages that revision 2025-03-26 allows.

    Raises:
        Malformed: it is neither, or the array is empty or too long.
    """
    text = _text(data)
    if not text.lstrip(" \t\r\n").startswith("["):
        return _message(*_object(text))
    try:
        items = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Malformed(PARSE_ERROR, "the body is not JSON") from error
    if not items or len(items) > BATCH_LIMIT:
        raise Malformed(INVALID_REQUEST, f"a batch holds 1 to {BATCH_LIMIT} messages")
    return [_message(*_object(item)) for item in elements(text)]


def members(text: str) -> dict[str, tuple[str, object]]:
    """Return the members of a JSON object in order: the text of each value as it stands, and the value.

    Raises:
        ValueError: not one JSON object, or a key occurs twice.
    """
    found: dict[str, tuple[str, object]] = {}
    place = _skip(text, 0)
    if text[place : place + 1] != "{":
        raise ValueError("not a JSON object")
    place = _skip(text, place + 1)
    if text[place : place + 1] == "}":
        _ended(text, place + 1)
        return found
    while True:
        if text[place : place + 1] != '"':
            raise ValueError("a key is missing")
        key, place = scanstring(text, place + 1, True)
        place = _skip(text, place)
        if text[place : place + 1] != ":":
            raise ValueError("a colon is missing")
        start = _skip(text, place + 1)
        try:
            value, place = _DECODER.raw_decode(text, start)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if key in found:
            raise ValueError(f"the key {key[:40]!r} occurs twice")
        found[key] = (text[start:place], value)
        place = _skip(text, place)
        mark = text[place : place + 1]
        if mark == "}":
            _ended(text, place + 1)
            return found
        if mark != ",":
            raise ValueError("a comma is missing")
        place = _skip(text, place + 1)


def replaced(text: str, changes: Mapping[str, str | None]) -> str:
    """Return the object `text` with those members set to other texts, or left out (None). The rest keeps its bytes."""
    parts = {key: raw for key, (raw, _) in members(text).items()}
    for key, raw in changes.items():
        if raw is None:
            parts.pop(key, None)
        else:
            parts[key] = raw
    return "{" + ",".join(f"{json.dumps(key)}:{raw}" for key, raw in parts.items()) + "}"


def request(id: str, method: str, params: str | None) -> bytes:
    """Return a request with a raw id and raw params."""
    tail = "" if params is None else f',"params":{params}'
    return f'{{"jsonrpc":"2.0","id":{id},"method":{json.dumps(method)}{tail}}}'.encode()


def notification(method: str, params: str | None) -> bytes:
    """Return a notification with raw params."""
    tail = "" if params is None else f',"params":{params}'
    return f'{{"jsonrpc":"2.0","method":{json.dumps(method)}{tail}}}'.encode()


def result_message(id: str, result: str) -> bytes:
    """Return a response that carries a raw result."""
    return f'{{"jsonrpc":"2.0","id":{id},"result":{result}}}'.encode()


def error_message(id: str, code: int, message: str, data: object = None) -> bytes:
    """Return a response that carries an error."""
    error: dict[str, object] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return f'{{"jsonrpc":"2.0","id":{id or "null"},"error":{orjson.dumps(error).decode()}}}'.encode()


# --- reading --------------------------------------------------------------------------------------------------------


def _text(data: bytes | str) -> str:
    if isinstance(data, str):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Malformed(PARSE_ERROR, "the body is not UTF-8") from None


def _object(text: str) -> tuple[dict[str, tuple[str, object]], str]:
    try:
        found = members(text)
    except ValueError as error:
        code = INVALID_REQUEST if text.lstrip(" \t\r\n")[:1] in ("[", "{") and _is_json(text) else PARSE_ERROR
        raise Malformed(code, f"the body is not one JSON-RPC message: {_reason(error)}") from None
    raw = found.get("id", ("", None))[0]
    return found, raw


def _message(found: dict[str, tuple[str, object]], raw_id: str) -> Message:
    if found.get("jsonrpc", ("", None))[1] != "2.0":
        raise Malformed(INVALID_REQUEST, 'the message must say "jsonrpc":"2.0"', _usable(found, raw_id))
    if "id" in found and not _is_id(found["id"][1]) and not ("error" in found and "method" not in found):
        raise Malformed(INVALID_REQUEST, "an id is a text or a whole number")
    if "method" in found:
        return _asking(found, raw_id)
    if ("result" in found) == ("error" in found) or "id" not in found:
        raise Malformed(INVALID_REQUEST, "the message has no method, and is no response either", _usable(found, raw_id))
    name = "result" if "result" in found else "error"
    text, value = found[name]
    if not isinstance(value, Mapping):
        raise Malformed(INVALID_REQUEST, f"`{name}` must be an object", _usable(found, raw_id))
    if name == "result":
        return Message(kind=Kind.RESPONSE, id=raw_id, result=text, value=value)
    return Message(kind=Kind.RESPONSE, id=raw_id, error=text, value=value)


def _asking(found: dict[str, tuple[str, object]], raw_id: str) -> Message:
    method = found["method"][1]
    if not isinstance(method, str) or not method or len(method) > 256:
        raise Malformed(INVALID_REQUEST, "`method` must be a text", raw_id or "null")
    text, value = found.get("params", (None, {}))
    if not isinstance(value, Mapping):
        raise Malformed(INVALID_REQUEST, "`params` must be an object", raw_id or "null")
    kind = Kind.REQUEST if "id" in found else Kind.NOTIFICATION
    return Message(kind=kind, id=raw_id, method=method, params=text, value=value)


def _is_id(value: object) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _usable(found: dict[str, tuple[str, object]], raw_id: str) -> str:
    return raw_id if "id" in found and _is_id(found["id"][1]) else "null"


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _reason(error: ValueError) -> str:
    return error.msg if isinstance(error, json.JSONDecodeError) else str(error)


def elements(text: str) -> list[str]:
    """Return the texts of the elements of a JSON array, which must not be empty."""
    place, found = _skip(text, text.index("[") + 1), []
    while True:
        _, end = _DECODER.raw_decode(text, place)
        found.append(text[place:end])
        place = _skip(text, end)
        if text[place] == "]":
            return found
        place = _skip(text, place + 1)


def _skip(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    assert found is not None
    return found.end()


def _ended(text: str, place: int) -> None:
    if _skip(text, place) != len(text):
        raise ValueError("something follows the object")
