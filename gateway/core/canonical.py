"""When are two calls the same action? Digests of what a call asks for, equal for equal meaning.

An agent that repeats itself often writes the same JSON with other spacing or key order. Such bodies are compared in a
canonical form, but only where that form is lossless: a float, an exponent, a long run of digits or a repeated key may
mean one thing to us and another to the tool, so then the raw bytes are compared. The error is one-sided: two calls of
equal meaning may be told apart, two calls of different meaning are never taken for one.

Source: RFC 8785 (JSON canonicalisation) for the idea; its number rules are left out because they lose digits.
Left out: sorting form fields and query parameters, whose order some tools obey.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from hashlib import blake2b
from typing import Final, NamedTuple, NoReturn

import orjson

from gateway.core.remembered import Remembered

__all__ = [
    "Digests",
    "action_digest",
    "action_namer",
    "ambiguity",
    "canonical_body",
    "digests",
    "digits_alike",
    "fingerprint",
    "is_json",
    "media_type",
]

DIGEST_BYTES: Final = 16
"""128 bits: collisions are out of reach within one run, which is the only place where digests are compared."""

CANONICAL_LIMIT_BYTES: Final = 256 << 10
"""Larger bodies are compared as they are: parsing them would hold up every other call."""

_STRING = re.compile(rb'"(?:[^"\\]|\\.|\\\Z)*+(?:"|\Z)', re.DOTALL)
"""Ends at the end of the text too, so that an unclosed string costs one scan and not one a quote."""

_LENGTH: Final = struct.Struct(">Q").pack

_SHAPES: Final = bytes(0x39 if 0x30 <= byte < 0x3A else 0x2E if byte in b".eE" else 0x20 for byte in range(256))
"""Digits to 9, what follows the digits of a float to a full stop, all else to a space."""


def media_type(content_type: str) -> str:
    """Return the lower-case media type without its parameters."""
    return _MEDIA_TYPE(content_type)


def is_json(content_type: str) -> bool:
    """Whether a Content-Type names JSON (`application/json`, `application/problem+json` and the like)."""
    return _IS_JSON(content_type)


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _is_json(content_type: str) -> bool:
    kind = _media_type(content_type)
    return kind == "application/json" or kind.endswith("+json")


_MEDIA_TYPE: Final = Remembered[str, str](_media_type).__getitem__
_IS_JSON: Final = Remembered[str, bool](_is_json).__getitem__


def canonical_body(content_type: str, body: bytes) -> bytes:
    """Return the bytes that stand for a body: JSON with sorted keys where that loses nothing, else the body itself."""
    if not is_json(content_type) or len(body) > CANONICAL_LIMIT_BYTES:
        return body
    # Most bodies hold nothing that looks lossy even within their texts, and looking is cheaper than taking these out.
    if _looks_lossy(body) and _looks_lossy(_STRING.sub(b"", body)):
        return body
    try:
        # Compact text that comes back as it was holds no key twice and no number that orjson would round.
        value = orjson.loads(body)
        if orjson.dumps(value) == body:
            return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except (TypeError, ValueError):
        pass  # what one parser does not take another may, and what is nested deeper than it writes stays as it is
    try:
        return orjson.dumps(_DECODER.decode(body.decode()), option=orjson.OPT_SORT_KEYS)
    except (TypeError, ValueError, RecursionError):
        return body


def action_digest(operation: str, method: str, target: str, content_type: str, body: bytes) -> bytes:
    """Return 16 bytes that name the action: equal for calls that ask the operation for the same thing.

    `target` is the raw path and query. For a body that is not in memory pass its own digest as `body`.
    """
    return digests(operation, method, target, content_type, body).action


def fingerprint(method: str, target: str, content_type: str, body: bytes) -> bytes:
    """Return 16 bytes that name the content, to tell a repeat from another call under the same key.

    Unlike `action_digest` it knows nothing of the manifest, so a reload does not change it.
    """
    return digests("", method, target, content_type, body).fingerprint


def digits_alike(text: bytes) -> bytes:
    """Return a text's shape: 9 for each digit, a full stop for what follows the digits of a float, a space for all else."""
    return text.translate(_SHAPES)


def _looks_lossy(text: bytes) -> bool:
    """Whether there is a float, an exponent, 16 digits in a row, or a minus before a zero."""
    shape = digits_alike(text)
    # `in` would take bytes for a number first, at three times the price.
    return shape.find(b"9.") >= 0 or shape.find(b"9999999999999999") >= 0 or text.find(b"-0") >= 0


class Digests(NamedTuple):
    """The digests of one call. `is_canonical`: its body was found to be JSON that everybody reads in the same way."""

    action: bytes
    fingerprint: bytes
    is_canonical: bool


def digests(operation: str, method: str, target: str, content_type: str, body: bytes) -> Digests:
    """Return `action_digest` and `fingerprint` of one call, for the price of one look at its body.

    What is digested is each part with its length in front, so that no two lists of parts look alike.
    """
    canonical, raw = canonical_body(content_type, body), target.encode("utf-8", "surrogatepass")
    asked, length = _LENGTH(len(raw)) + raw, _LENGTH(len(canonical))
    action = blake2b(_PART(operation) + _PART(method) + asked + length, digest_size=DIGEST_BYTES)
    action.update(canonical)
    content = blake2b(_PART(method) + asked + _PART(media_type(content_type)) + length, digest_size=DIGEST_BYTES)
    content.update(canonical)
    return Digests(action.digest(), content.digest(), canonical is not body)


def action_namer(operation: str, method: str, target: str, content_type: str) -> Callable[[bytes], tuple[bytes, bool]]:
    """Return what names the actions of calls that differ in nothing but their bodies.

    It takes a body and returns its `action_digest`, and whether the body was found to be JSON that everybody reads in the
    same way.
    """
    raw = target.encode("utf-8", "surrogatepass")
    begun = blake2b(_PART(operation) + _PART(method) + _LENGTH(len(raw)) + raw, digest_size=DIGEST_BYTES)

    def named(body: bytes) -> tuple[bytes, bool]:
        canonical, digest = canonical_body(content_type, body), begun.copy()
        digest.update(_LENGTH(len(canonical)))
        digest.update(canonical)
        return digest.digest(), canonical is not body

    return named


def ambiguity(text: bytes) -> str | None:
    """Return what makes JSON mean one thing to one reader and another to the next, as a clause, or None.

    That is a key that occurs twice in an object: some readers take the first value, some the last, so what is decided on
    could differ from what is done. Text that is no JSON is ambiguous to nobody. Nesting that is too deep to be looked
    through counts as ambiguous.

    Source: RFC 8259 section 4 ("unpredictable"); RFC 7493 section 2.3 (I-JSON).
    """
    try:
        _STRICT.decode(text.decode())
    except _Repeated as repeated:
        return f"the key {repeated.args[0][:60]!r} occurs twice in one object"
    except RecursionError:
        return "it is nested too deeply to be looked through"
    except ValueError:
        return None
    return None


def _part(text: str) -> bytes:
    data = text.encode()
    return _LENGTH(len(data)) + data


_PART: Final = Remembered[str, bytes](_part).__getitem__


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("a key occurs twice")
    return unique


class _Repeated(ValueError):
    """A key occurs twice."""


def _strict(pairs: list[tuple[str, object]]) -> dict[str, object]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        seen: set[str] = set()
        raise _Repeated(next(name for name, _ in pairs if name in seen or seen.add(name)))  # type: ignore[func-returns-value]
    return unique


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse)
_STRICT: Final = json.JSONDecoder(object_pairs_hook=_strict)
