"""Which operation is a call? Patterns as manifests write them, and the dictionary that finds one in constant time.

A pattern is `METHOD /literal/{hole}/literal?key=value`: a hole is one whole segment, a query part is required as it is.
Among the patterns that fit, literal segments win over holes from left to right, then more required query parts win, then
the more careful tier. Segments are compared after decoding unreserved characters only (RFC 3986 section 6.2.2.2).

A path that a tool's server may read otherwise than we do (dot segments, encoded slashes, `//`, matrix parameters on dots,
backslashes, control bytes, broken escapes) could dress a pivot as a read. Against a tool that declares operations such a
path is refused, never guessed at.

Source: RFC 3986 section 3.3 and 6.2.2; RFC 9110 section 9.2.1 (safe methods), section 9.3.2 (HEAD follows GET).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, unquote_plus

from gateway.core.manifest import Tier
from gateway.core.tool import AmbiguousPath, Match, Operation

__all__ = ["METHOD", "SAFE_METHODS", "Matcher", "Pattern", "PatternError", "normalised_segments", "parse_pattern"]

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

METHOD: Final = re.compile(r"[A-Z][A-Z-]*")
_HOLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LITERAL = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_DOTS = re.compile(r"(?:^|/|\\|%2[fF]|%5[cC])(?:\.|%2[eE]){1,2}(?:(?:;|%3[bB])[^/]*)?(?:$|/|\\|%2[fF]|%5[cC])")
_UNCLEAR = re.compile(r"//|[^\x21-\x7e]|[\\#]|%(?![0-9A-Fa-f]{2})|%(?:2[fF]|5[cC]|[01][0-9A-Fa-f]|7[fF])")
_PLAIN = re.compile(r"(?:/[A-Za-z0-9_~!$&'()*+,;=:@-][A-Za-z0-9._~!$&'()*+,;=:@-]*)*/?")
"""No escapes, no empty segment, none that begins with a dot: nothing to look into, which is how most paths are."""

_CARE: Final = (Tier.PIVOT, Tier.COMPENSABLE, Tier.REVERSIBLE, Tier.UNMANAGED, Tier.READ)


class PatternError(ValueError):
    """A `match` that cannot be read; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A parsed `match`. A segment is its normalised text, or None for a hole; `holes` names them by position."""

    source: str
    method: str
    segments: tuple[str | None, ...]
    holes: Mapping[int, str]
    query: tuple[tuple[str, str], ...]

    @property
    def shape(self) -> tuple[object, ...]:
        """What two patterns have in common that no call can tell apart."""
        return (self.method, self.segments, frozenset(self.query))


def parse_pattern(text: str) -> Pattern:
    """Read `METHOD /path/{hole}?key=value`.

    Raises:
        PatternError: with a sentence that says what is wrong.
    """
    method, _, target = text.strip().partition(" ")
    target = target.strip()
    if "${" in text:
        raise PatternError("`match` takes {name} for a segment, not ${…}: no value is known before the call is made")
    if not METHOD.fullmatch(method):
        raise PatternError("`match` begins with a method in capitals, as in `POST /v1/things`")
    if not target.startswith("/"):
        raise PatternError("`match` is METHOD, one space and a path that begins with `/`, as in `POST /v1/things`")
    path, _, query = target.partition("?")
    segments: list[str | None] = []
    holes: dict[int, str] = {}
    for position, segment in enumerate(path[1:].split("/")):
        if hole := _HOLE.fullmatch(segment):
            if hole.group(1) in holes.values():
                raise PatternError(f"`{{{hole.group(1)}}}` occurs twice")
            holes[position] = hole.group(1)
            segments.append(None)
        elif "{" in segment or "}" in segment:
            raise PatternError("`{name}` stands for one whole segment; it cannot be part of one")
        elif not _LITERAL.fullmatch(segment):
            raise PatternError("the path holds a character that must be percent-encoded")
        else:
            segments.append(_normalised(segment))
    if _DOTS.search(path) or _UNCLEAR.search(path):
        raise PatternError("the path holds `.`, `..`, an empty segment or an encoded slash, which calls may not have")
    return Pattern(text, method, tuple(segments), holes, _required(query))


def _required(query: str) -> tuple[tuple[str, str], ...]:
    if not query:
        return ()
    pairs = [part.partition("=") for part in query.split("&")]
    if any(not key or not equals for key, equals, _ in pairs):
        raise PatternError("each query part is `key=value`; the call needs it as it is")
    decoded = tuple((unquote_plus(key), unquote_plus(value)) for key, _, value in pairs)
    if any("{" in value or "}" in value for _, value in decoded):
        raise PatternError("query values are literal; `{name}` stands for path segments only")
    if len({key for key, _ in decoded}) != len(decoded):
        raise PatternError("a query key occurs twice")
    return decoded


def normalised_segments(path: str) -> list[str]:
    """Return the segments of a raw path, unreserved characters decoded and other escapes in capitals."""
    return [_normalised(segment) for segment in path.removeprefix("/").split("/")]


def _normalised(segment: str) -> str:
    return _ESCAPE.sub(_decode_unreserved, segment) if "%" in segment else segment


def _decode_unreserved(found: re.Match[str]) -> str:
    character = chr(int(found.group(1), 16))
    return character if character in _UNRESERVED else found.group(0).upper()


@dataclass(frozen=True, slots=True)
class _Candidate:
    pattern: Pattern
    found: Operation
    reason: str


class Matcher:
    """Finds the operation of a call to one tool. Immutable; costs the same however many operations there are.

    Args:
        declared: each operation with its pattern and the sentence that `explain` prints for it.
        undeclared_read, undeclared_write: what stands for all other calls, with their sentences.
        has_prefix: the upstream has a path prefix that no call may climb out of.
    """

    __slots__ = ("_by_shape", "_has_prefix", "_is_managed", "_read", "_write")

    def __init__(
        self,
        declared: Sequence[tuple[Pattern, Operation, str]],
        undeclared_read: tuple[Operation, str],
        undeclared_write: tuple[Operation, str],
        has_prefix: bool,
    ) -> None:
        self._is_managed = bool(declared)
        self._has_prefix = has_prefix
        self._read = Match(undeclared_read[0], {}, undeclared_read[1])
        self._write = Match(undeclared_write[0], {}, undeclared_write[1])
        shapes: dict[tuple[str, int], dict[tuple[int, ...], dict[tuple[str | None, ...], list[_Candidate]]]] = {}
        for pattern, operation, reason in declared:
            by_holes = shapes.setdefault((pattern.method, len(pattern.segments)), {})
            by_literals = by_holes.setdefault(tuple(pattern.holes), {})
            by_literals.setdefault(pattern.segments, []).append(_Candidate(pattern, operation, reason))
        self._by_shape = {
            shape: sorted(by_holes.items(), key=lambda item: _holes_mask(item[0], shape[1]))
            for shape, by_holes in shapes.items()
        }
        for masks in self._by_shape.values():
            for _, by_literals in masks:
                for candidates in by_literals.values():
                    candidates.sort(key=lambda one: (-len(one.pattern.query), _CARE.index(one.found.tier)))

    def __call__(self, method: str, target: str) -> Match:
        """Return the operation of a raw target (path and query below the tool's name).

        Raises:
            AmbiguousPath: the tool's server may read the path otherwise than we do; nothing may be sent.
        """
        path, _, query = target.partition("?")
        self._refuse_unclear(path)
        if not self._is_managed:
            return self._read if method in SAFE_METHODS else self._write
        segments = normalised_segments(path)
        found = self._find(method, segments, query)
        if found is None and method == "HEAD":
            found = self._find("GET", segments, query)
        if found is not None:
            return found
        return self._read if method in SAFE_METHODS else self._write

    def _refuse_unclear(self, path: str) -> None:
        if _PLAIN.fullmatch(path):
            return
        if (self._is_managed or self._has_prefix) and _DOTS.search(path):
            raise AmbiguousPath("the path has a `.` or `..` segment; send the path it stands for")
        if self._is_managed and _UNCLEAR.search(path):
            raise AmbiguousPath(
                "the path has an encoded slash, `//`, or a character that is not allowed raw, so the tool could read "
                "it as another operation; send it without"
            )

    def _find(self, method: str, segments: list[str], query: str) -> Match | None:
        for holes, by_literals in self._by_shape.get((method, len(segments)), ()):
            key: tuple[str | None, ...] = tuple(segments)
            if holes:
                masked: list[str | None] = list(segments)
                for position in holes:
                    masked[position] = None
                key = tuple(masked)
                if any(not segments[position] for position in holes):
                    continue
            candidates = by_literals.get(key)
            if candidates is None:
                continue
            for candidate in candidates:
                if not candidate.pattern.query or _has_all(candidate.pattern.query, query):
                    return Match(candidate.found, _params(candidate.pattern, segments), candidate.reason)
        return None


def _holes_mask(holes: tuple[int, ...], count: int) -> tuple[bool, ...]:
    return tuple(position in holes for position in range(count))


def _has_all(required: tuple[tuple[str, str], ...], query: str) -> bool:
    sent: dict[str, list[str]] = {}
    for part in query.split("&"):
        key, _, value = part.partition("=")
        sent.setdefault(unquote_plus(key), []).append(unquote_plus(value))
    for key, value in required:
        values = sent.get(key, [])
        if value in values and len(values) > 1:
            raise AmbiguousPath(f"query parameter {key!r} names the operation and occurs more than once; send it once")
        if value not in values:
            return False
    return True


def _params(pattern: Pattern, segments: list[str]) -> dict[str, str]:
    try:
        return {name: unquote(segments[position], errors="strict") for position, name in pattern.holes.items()}
    except UnicodeDecodeError:
        raise AmbiguousPath("a path segment that the operation binds is not UTF-8; encode it as UTF-8") from None
