"""Which operation is a call? Patterns as manifests write them, and the dictionary that finds one in constant time.

A pattern is `METHOD /literal/{hole}/literal?key=value`: a hole is one whole segment, a query part is required as it is.
Among the patterns that fit, literal segments win over holes from left to right, then more required query parts win, then
the more careful tier. Segments are compared after decoding unreserved characters only (RFC 3986 section 6.2.2.2).

A path that a tool's server may read otherwise than we do (dot segments, encoded slashes, `//`, matrix parameters on dots,
backslashes, control bytes, broken escapes) could dress a pivot as a read. Against a tool that declares operations such a
path is refused, never guessed at.

Many servers are laxer still: they take no notice of capitals, of `;parameters`, or of a slash or an ending such as `.json`
at the end of a path. A path that such a server could take for an operation which asks for more care than the one that fits
as it is written is refused, too: `/v1/Payouts` is no `/v1/{id}`. Where nothing asks for more care, nothing is refused.

A query that could replace the method (`_method`, see `core/override.py`) is refused unless the pattern asks for it as it is
written, or the operation allows it.

Source: RFC 3986 section 3.3 and 6.2.2; RFC 9110 section 9.2.1 (safe methods), section 9.3.2 (HEAD follows GET).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final
from urllib.parse import unquote, unquote_plus

from gateway.core.manifest import ApprovalPolicy, Tier
from gateway.core.override import objection, parameters
from gateway.core.tool import AmbiguousPath, Match, Operation

__all__ = ["METHOD", "SAFE_METHODS", "Matcher", "Pattern", "PatternError", "normalised_segments", "parse_pattern"]

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

METHOD: Final = re.compile(r"[A-Z][A-Z-]*")
_HOLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LITERAL = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_DOTS = re.compile(r"(?:^|/|\\|%2[fF]|%5[cC])(?:\.|%2[eE]){1,2}(?:(?:;|%3[bB])[^/]*)?(?:$|/|\\|%2[fF]|%5[cC])")
_UNCLEAR = re.compile(r"/(?:/|;|%3[bB])|[^\x21-\x7e]|[\\#]|%(?![0-9A-Fa-f]{2})|%(?:2[fF]|5[cC]|[01][0-9A-Fa-f]|7[fF])")
_PLAIN = re.compile(r"(?:/[A-Za-z0-9_~!$&'()*+,=:@-][A-Za-z0-9._~!$&'()*+,;=:@-]*)*/?")
"""No escapes, no empty segment, none that begins with a dot or a parameter: nothing to look into, as most paths are."""

_CARE: Final = (Tier.PIVOT, Tier.COMPENSABLE, Tier.REVERSIBLE, Tier.UNMANAGED, Tier.READ)
_PARAMETER = re.compile(r"(?:;|%3B).*", re.DOTALL)
_ENDING = re.compile(r"\.[A-Za-z0-9]{1,5}\Z")


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
    """`is_mistakable`: among those with as many segments one asks for more care, so what fits a hole is looked at twice."""

    pattern: Pattern
    found: Operation
    reason: str
    is_mistakable: bool


_Key = tuple[str | None, ...]
_Literals = Callable[[Sequence[str | None]], _Key]
_Index = Mapping[tuple[str, int], Sequence[tuple[tuple[int, ...], _Literals, Mapping[_Key, Sequence[_Candidate]]]]]
"""By method and number of segments; then by which of them are holes, literals first; then by the literals, which are taken
out of the segments."""


class Matcher:
    """Finds the operation of a call to one tool. Immutable; costs the same however many operations there are.

    Args:
        declared: each operation with its pattern and the sentence that `explain` prints for it.
        undeclared_read, undeclared_write: what stands for all other calls, with their sentences.
        has_prefix: the upstream has a path prefix that no call may climb out of.
    """

    __slots__ = ("_has_prefix", "_index", "_is_managed", "_is_read_mistakable", "_lax_index", "_read", "_write")

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
        candidates = _candidates(declared)
        self._index = _index((one.pattern.segments, one) for one in candidates)
        self._lax_index = _index((_lax(one.pattern.segments), one) for one in candidates)
        self._is_read_mistakable = any(
            pattern.method in SAFE_METHODS and _asks_more(operation, undeclared_read[0])
            for pattern, operation, _ in declared
        )

    def __call__(self, method: str, target: str) -> Match:
        """Return the operation of a raw target (path and query below the tool's name).

        Raises:
            AmbiguousPath: the tool's server may read the path otherwise than we do; nothing may be sent.
        """
        path, _, query = target.partition("?")
        if _PLAIN.fullmatch(path) is None:
            self._refuse_unclear(path)
        if query and (named := parameters(query)):
            self._refuse_second_word(named, method, path, query)
        if not self._is_managed:
            return self._read if method in SAFE_METHODS else self._write
        segments = normalised_segments(path) if "%" in path else path.removeprefix("/").split("/")
        found = _find(self._index, method, segments, query)
        if found is None and method == "HEAD":
            found = _find(self._index, "GET", segments, query)
        if found is not None:
            if found.is_mistakable:
                self._refuse_mistakable(method, segments, query, found.found)
            holes = found.pattern.holes
            return Match(found.found, _params(holes, segments) if holes else {}, found.reason)
        if method not in SAFE_METHODS:
            return self._write
        if self._is_read_mistakable:
            self._refuse_mistakable(method, segments, query, self._read.operation)
        return self._read

    def _refuse_second_word(self, named: Sequence[str], method: str, path: str, query: str) -> None:
        segments = normalised_segments(path)
        found = _find(self._index, method, segments, query)
        if found is None and method == "HEAD":
            found = _find(self._index, "GET", segments, query)
        asked = {} if found is None else dict(found.pattern.query)
        other = self._read if method in SAFE_METHODS else self._write
        allowed = other.operation.overrides if found is None else found.found.overrides
        for name in named:
            is_asked = name in asked and named.count(name) == 1
            if not is_asked and name.lower().replace(".", "_") not in allowed:
                raise AmbiguousPath(objection(f"the query parameter `{name}`", "the tool"))

    def _refuse_unclear(self, path: str) -> None:
        if (self._is_managed or self._has_prefix) and _DOTS.search(path):
            raise AmbiguousPath("the path has a `.` or `..` segment; send the path it stands for")
        if self._is_managed and _UNCLEAR.search(path):
            raise AmbiguousPath(
                "the path has an encoded slash, an empty segment (`//`, `/;x`), or a character that is not allowed raw, so "
                "the tool could read it as another operation; send it without"
            )

    def _refuse_mistakable(self, method: str, segments: list[str], query: str, found: Operation) -> None:
        lax = _lax(segments)
        for reading in (lax, (*lax[:-1], _ENDING.sub("", lax[-1] or ""))):
            for verb in ("HEAD", "GET") if method == "HEAD" else (method,):
                other = _find(self._lax_index, verb, reading, query)
                if other is not None and _asks_more(other.found, found):
                    raise AmbiguousPath(
                        f"the tool could read the path as that of `{other.found.name}`, which asks for more care: send it "
                        "as it is declared, without capitals, `;parameters`, or a slash or ending behind it"
                    )


def _candidates(declared: Sequence[tuple[Pattern, Operation, str]]) -> list[_Candidate]:
    tiers: dict[tuple[str, int], int] = {}
    guards: dict[tuple[str, int], bool] = {}
    shapes = [(pattern.method, len(_lax(pattern.segments))) for pattern, _, _ in declared]
    for shape, (_, operation, _) in zip(shapes, declared, strict=True):
        tier, is_guarded = _care(operation)
        tiers[shape] = min(tier, tiers.get(shape, tier))
        guards[shape] = is_guarded or guards.get(shape, False)
    return [
        _Candidate(
            pattern, operation, reason, bool(pattern.holes) and (tiers[shape], guards[shape]) != _care(operation)
        )
        for shape, (pattern, operation, reason) in zip(shapes, declared, strict=True)
    ]


def _asks_more(one: Operation, other: Operation) -> bool:
    (tier, is_guarded), (other_tier, is_other_guarded) = _care(one), _care(other)
    return tier < other_tier or (is_guarded and not is_other_guarded)


def _care(operation: Operation) -> tuple[int, bool]:
    """Return the tier, less for more care, and whether something stands guard."""
    return _CARE.index(operation.tier), operation.approval is ApprovalPolicy.REQUIRED or bool(operation.gates)


def _lax(segments: Sequence[str | None]) -> _Key:
    """Return segments as the laxest servers read them: small letters, no parameters, no slash at the end."""
    lax = [None if one is None else _PARAMETER.sub("", one).lower() for one in segments]
    return tuple(lax[:-1] if len(lax) > 1 and lax[-1] == "" else lax)


def _index(keyed: Iterable[tuple[_Key, _Candidate]]) -> _Index:
    shapes: dict[tuple[str, int], dict[tuple[int, ...], dict[_Key, list[_Candidate]]]] = {}
    for key, candidate in keyed:
        by_holes = shapes.setdefault((candidate.pattern.method, len(key)), {})
        holes = tuple(candidate.pattern.holes)
        by_holes.setdefault(holes, {}).setdefault(_literals(holes, len(key))(key), []).append(candidate)
    for by_holes in shapes.values():
        for by_literals in by_holes.values():
            for candidates in by_literals.values():
                candidates.sort(key=lambda one: (-len(one.pattern.query), _CARE.index(one.found.tier)))
    return {
        shape: [
            (holes, _literals(holes, shape[1]), by_holes[holes])
            for holes in sorted(by_holes, key=lambda holes: _holes_mask(holes, shape[1]))
        ]
        for shape, by_holes in shapes.items()
    }


def _literals(holes: tuple[int, ...], count: int) -> _Literals:
    """Return what takes the segments that are no holes out of so many."""
    places = [place for place in range(count) if place not in holes]
    if len(places) == count:
        return tuple
    if len(places) > 1:
        return itemgetter(*places)
    return lambda segments: tuple(segments[place] for place in places)


def _find(index: _Index, method: str, segments: Sequence[str | None], query: str) -> _Candidate | None:
    for holes, literals, by_literals in index.get((method, len(segments)), ()):
        candidates = by_literals.get(literals(segments))
        if candidates is None or (holes and not all(map(segments.__getitem__, holes))):
            continue
        for candidate in candidates:
            if not candidate.pattern.query or _has_all(candidate.pattern.query, query):
                return candidate
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


def _params(holes: Mapping[int, str], segments: list[str]) -> dict[str, str]:
    try:
        return {
            name: unquote(segments[position], errors="strict") if "%" in segments[position] else segments[position]
            for position, name in holes.items()
        }
    except UnicodeDecodeError:
        raise AmbiguousPath("a path segment that the operation binds is not UTF-8; encode it as UTF-8") from None
