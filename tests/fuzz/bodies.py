"""Any bytes as a JSON body: the canonical form says what the body says, and nothing passes as clear that readers differ on.

Source: gateway/core/canonical.py; RFC 8259 section 4.
"""

from __future__ import annotations

import json
from typing import Any

from gateway.core.canonical import ambiguity, canonical_body, digests

__all__ = ["TOKENS", "check"]

TOKENS = (
    b"{", b"}", b"[", b"]", b":", b",", b'"', b'"a"', b'"b"', b"1", b"-0", b"0", b"1.0", b"1e3", b"12345678901234567",
    b"true", b"false", b"null", b"NaN", b"Infinity", b" ", b"\n", b"\\", b"\\u0061", b"\\ud800", b'"\\"', b"\xc3\xa9",
    b"\xff", b"\xef\xbb\xbf", b"9007199254740993", b'{"a":1,"a":2}', b"E", b"\\/", b"\\u0000",
)  # fmt: skip
_JSON = "application/json"


class _Twice(ValueError):
    """A key occurs twice."""


def check(data: bytes) -> None:
    """See the module."""
    canonical = canonical_body(_JSON, data)
    seen = digests("hold", "POST", "/x", _JSON, data)
    assert seen.is_canonical == (canonical is not data)
    if ambiguity(data) is not None:
        assert canonical == data
    elif (meant := _meaning(data)) is not None:
        assert meant == _meaning(canonical)
    if canonical is data:
        return
    assert _meaning(data) is not None
    assert canonical_body(_JSON, canonical) == canonical
    assert digests("hold", "POST", "/x", _JSON, canonical)[:2] == seen[:2]
    spaced = json.dumps(json.loads(data), indent=1, ensure_ascii=False).encode()
    assert canonical_body(_JSON, spaced) == canonical


def _meaning(data: bytes) -> Any:
    """Return what a body says, numbers as they are written, in a list that tells kinds apart; None if it is no JSON."""
    try:
        return [
            json.loads(
                data.decode(),
                parse_float=lambda text: ("float", text),
                parse_int=lambda text: ("int", text),
                parse_constant=_refuse,
                object_pairs_hook=_members,
            )
        ]
    except _Twice:
        raise AssertionError("a key that occurs twice passes as clear") from None
    except (ValueError, RecursionError):
        return None


def _members(pairs: list[tuple[str, Any]]) -> Any:
    if len({name for name, _ in pairs}) != len(pairs):
        raise _Twice
    return ("object", sorted(pairs, key=lambda pair: pair[0]))


def _refuse(name: str) -> Any:
    raise ValueError(name)
