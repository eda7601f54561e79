"""Which tool a raw request target names, and what is left of it, without decoding a byte.

What is matched and what is sent are the same bytes, so that no difference in decoding between the gateway and a tool
can turn one operation into another. Whatever a tool might normalise into a different path is refused instead: dot
segments, also percent-encoded, behind an encoded slash or backslash, or with a `;parameter`, encoded or not. Double
slashes, odd percent-encodings and the whole query pass untouched.

Source: RFC 9112 section 3.2 (request target), RFC 3986 sections 2.1, 3.3 and 5.2.4, RFC 9110 section 7.7.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.core.value import frozen

__all__ = ["BadTarget", "ToolTarget", "bad_path", "split_target"]


@frozen(kw_only=False)
class ToolTarget:
    """A target taken apart: `tool` as written, `rest` as path and query below it, always beginning with a slash."""

    tool: str
    rest: bytes


@frozen(kw_only=False)
class BadTarget:
    """A target that no call may have; `detail` is one sentence for the caller."""

    detail: str


_SEGMENT: Final = rb"[A-Za-z0-9_~!$&'()*+,=:@-][A-Za-z0-9._~!$&'()*+,=:@-]*"
_PLAIN: Final = re.compile(rb'/(%b)(?:/%b)*/?(?:\?[!"$-\[\]-~]*)?' % (_SEGMENT, _SEGMENT))
"""No escape, no parameter, no empty segment and none that begins with a dot: nothing to look into, as most targets are."""

_SHAPE = re.compile(rb"/(?P<tool>[^/?]+)(?P<path>[^?]*)(?P<query>(?:\?.*)?)", re.DOTALL)
_FORBIDDEN = re.compile(rb"[\x00-\x20\x7f-\xff#\\]")
_SEPARATORS = re.compile(rb"[/\\]|%2f|%5c", re.IGNORECASE)
_DOT = re.compile(rb"%2e", re.IGNORECASE)
_SEMICOLON = re.compile(rb"%3b", re.IGNORECASE)


def split_target(target: bytes) -> ToolTarget | BadTarget:
    """Return tool and rest of an origin-form target `/{tool}/{path}?{query}`, or why it cannot be used."""
    plain = _PLAIN.fullmatch(target)
    if plain is not None:
        rest = target[plain.end(1) :]
        return ToolTarget(plain[1].decode("ascii"), rest if rest[:1] == b"/" else b"/" + rest)
    if found := _FORBIDDEN.search(target):
        return BadTarget(_why_forbidden(found.group()))
    match = _SHAPE.fullmatch(target)
    if match is None:
        return BadTarget(
            "The request target must be /{tool}/{path}; absolute URLs and empty tool names are not accepted."
        )
    tool, path, query = match.group("tool", "path", "query")
    if _has_dot_segment(tool + path):
        return BadTarget("The path holds a '.' or '..' segment, plain or encoded: send the path that you mean.")
    return ToolTarget(tool.decode("ascii"), (path or b"/") + query)


def bad_path(rest: bytes) -> BadTarget | None:
    """Return why a path and query, beginning with a slash, cannot be used, or None if they can."""
    if found := _FORBIDDEN.search(rest):
        return BadTarget(_why_forbidden(found.group()))
    if _has_dot_segment(rest.partition(b"?")[0]):
        return BadTarget("The path holds a '.' or '..' segment, plain or encoded: send the path that you mean.")
    return None


def _why_forbidden(byte: bytes) -> str:
    if byte == b"#":
        return "The request target holds a fragment ('#'): leave it out, or write it as %23."
    if byte == b"\\":
        return "The request target holds a backslash: write it as %5C, or use '/'."
    return f"The request target holds the byte 0x{byte.hex()}: percent-encode control and non-ASCII bytes."


def _has_dot_segment(path: bytes) -> bool:
    if not path.count(b".") and not path.count(b"%"):
        return False
    segments = _SEPARATORS.split(_SEMICOLON.sub(b";", _DOT.sub(b".", path)))
    return any(segment.partition(b";")[0] in (b".", b"..") for segment in segments)
