"""Any bytes as a request target: which operation it is, against a plain reading of the manifest and of what is sent.

A target that is taken comes back byte for byte. Whatever a server may do with a path (decode it, resolve dots, take a
backslash for a slash, drop `;parameters`, capitals, a slash or an ending at its end), no reading of it leaves the tool's
prefix, and none is an operation that asks for more care than the one that was decided on. What is sent is matched to the
same operation again. No parameter that could replace the method passes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import unquote_plus, unquote_to_bytes

from gateway.core.manifest import Tier, TimeoutSettings
from gateway.core.message import Request
from gateway.core.paths import BadTarget, bad_path, split_target
from gateway.core.routing import Matcher, Pattern, normalised_segments, parse_pattern
from gateway.core.tool import AmbiguousPath, Operation
from gateway.egress.framing import request_bytes, tool_lines
from tests.tools import make_tool

__all__ = ["MANAGED", "TOKENS", "UNMANAGED", "check", "matched"]

TOKENS = (
    b"/", b"a", b"b", b"c", b"x", b".", b"..", b"%2f", b"%2F", b"%2e", b"%2E", b"%41", b"%61", b"%62", b";", b";v=1", b"%3b",
    b"\\", b"%5c", b"//", b"?", b"%", b"op=run", b"op=stop", b"op=%72un", b"&", b"=", b"+", b"%00", b"%ff", b"%c3%a9", b"#",
    b"/tool", b"/v1", b"/payouts", b"/things", b"/search", b"%252e", b"~", b":", b"A", b".json", b"/danger", b"P",
    b"_method=DELETE", b"%5f", b"%5Fmethod=x", b"_HttpMethod=PATCH", b"_METHOD", b".method=", b"_method",
)  # fmt: skip

DECLARED = {
    "POST /v1/payouts": Tier.PIVOT,
    "GET /v1/payouts": Tier.PIVOT,
    "GET /v1/danger": Tier.REVERSIBLE,
    "POST /v1/things": Tier.COMPENSABLE,
    "POST /v1/things/{id}": Tier.REVERSIBLE,
    "POST /v1/things/search": Tier.READ,
    "POST /v1/{kind}/{id}/x": Tier.REVERSIBLE,
    "POST /v1/{kind}/{id}/x?op=run": Tier.PIVOT,
    "POST /v1/{kind}/{id}/x?op=run&dry=1": Tier.READ,
    "DELETE /v1/things/{id}": Tier.REVERSIBLE,
    "GET /v1/{kind}/{id}": Tier.READ,
    "POST /v1/a%20b/{x}": Tier.COMPENSABLE,
    "POST /?op=run": Tier.PIVOT,
    "POST /": Tier.READ,
}
METHODS = ("GET", "HEAD", "POST", "DELETE")
CARE = (Tier.READ, Tier.REVERSIBLE, Tier.COMPENSABLE, Tier.PIVOT)
PATTERNS = tuple((parse_pattern(text), tier) for text, tier in DECLARED.items())


def _operation(name: str, tier: Tier, *, is_declared: bool = True) -> Operation:
    return Operation(name=name, tier=tier, timeouts=TimeoutSettings(), is_declared=is_declared)


_READ = _operation("undeclared:read", Tier.READ, is_declared=False)
_WRITE = _operation("undeclared:write", Tier.PIVOT, is_declared=False)
_LOOSE = _operation("undeclared:write", Tier.UNMANAGED, is_declared=False)
MANAGED = Matcher(
    [(pattern, _operation(pattern.source, tier), "declared") for pattern, tier in PATTERNS],
    (_READ, ""),
    (_WRITE, ""),
    True,
)
UNMANAGED = Matcher([], (_READ, ""), (_LOOSE, ""), True)
_LINES = tool_lines(make_tool("tool.example", 80, prefix="/base"))


def matched(matcher: Matcher, method: str, rest: bytes) -> str:
    """Return the name of the operation that a path below the tool's name stands for.

    Raises:
        AmbiguousPath: none; it is refused.
    """
    return matcher(method, rest.decode("ascii")).operation.name


def check(data: bytes) -> None:
    """See the module."""
    split = split_target(data)
    if isinstance(split, BadTarget):
        assert split.detail.endswith(".")
        return
    tool, rest = split.tool.encode("ascii"), split.rest
    assert b"/%b%b" % (tool, rest) in (data, b"/%b/%b" % (tool, data[1 + len(tool) :]))
    assert rest.startswith(b"/")
    assert bad_path(rest) is None
    for reading in map(_resolved, _readings(rest)):
        assert reading is not None, "some server climbs out of the prefix"
    for method in METHODS:
        line = request_bytes(_LINES, Request(method, rest, ())).partition(b"\r\n")[0]
        assert line == b"%b /base%b HTTP/1.1" % (method.encode(), rest)
        for matcher in (MANAGED, UNMANAGED):
            try:
                found = matcher(method, rest.decode("ascii"))
            except AmbiguousPath:
                continue
            assert matched(matcher, method, line.split(b" ")[1].removeprefix(b"/base")) == found.operation.name
            if matcher is MANAGED:
                _as_a_reader_of_the_manifest_would(method, rest.decode("ascii"), found.operation, found.params)
                _with_no_less_care_than_any_server_needs(method, rest, found.operation)


def _as_a_reader_of_the_manifest_would(method: str, rest: str, found: Operation, params: object) -> None:
    path, _, query = rest.partition("?")
    segments = normalised_segments(path)
    for verb in (method, "GET") if method == "HEAD" else (method,):
        fitting = [
            (tuple(one is None for one in pattern.segments), -len(pattern.query), pattern.source)
            for pattern, _ in PATTERNS
            if pattern.method == verb and _fits(pattern.segments, segments) and set(pattern.query) <= _pairs(query)
        ]
        if fitting:
            assert found.name == min(fitting)[2]
            assert params == {
                name: unquote_to_bytes(segments[at]).decode() for at, name in parse_pattern(found.name).holes.items()
            }
            return
    assert not found.is_declared


def _with_no_less_care_than_any_server_needs(method: str, rest: bytes, found: Operation) -> None:
    query = _pairs(rest.decode("ascii").partition("?")[2])
    assert not {(key.strip().lower(), bool(value)) for key, value in query} & {("_method", True), ("_httpmethod", True)}
    for reading in _readings(rest):
        segments = _resolved(reading)
        assert segments is not None
        for lax, is_caseless in _lax(segments):
            fitting = [
                (tuple(one is None for one in pattern.segments), -len(pattern.query), CARE.index(tier), pattern.source)
                for pattern, tier in PATTERNS
                if pattern.method == ("GET" if method == "HEAD" else method)
                and set(pattern.query) <= query
                and _fits(_names(pattern, is_caseless=is_caseless), lax)
            ]
            if fitting:
                *_, care, name = min(fitting)
                assert care <= CARE.index(found.tier), f"{name} is dressed as {found.name}"


def _lax(segments: list[bytes]) -> list[tuple[list[bytes], bool]]:
    """Return what lax servers make of segments, and whether they tell capitals from small letters."""
    ways = [segments]
    if len(segments) > 1 and not segments[-1]:
        ways.append(segments[:-1])
    ways += [[*one[:-1], re.sub(rb"\.[A-Za-z0-9]{1,5}\Z", b"", one[-1])] for one in ways if one]
    return [(one, False) for one in ways] + [([part.lower() for part in one], True) for one in ways]


def _names(pattern: Pattern, *, is_caseless: bool) -> tuple[bytes | None, ...]:
    names = (None if one is None else unquote_to_bytes(one) for one in pattern.segments)
    return tuple(name.lower() if name is not None and is_caseless else name for name in names)


def _fits(pattern: tuple[object, ...], segments: list[str] | list[bytes]) -> bool:
    return len(pattern) == len(segments) and all(
        one == other or (one is None and bool(other)) for one, other in zip(pattern, segments, strict=True)
    )


def _pairs(query: str) -> set[tuple[str, str]]:
    parts = (part.partition("=") for part in query.split("&"))
    return {(unquote_plus(key), unquote_plus(value)) for key, _, value in parts}


def _readings(rest: bytes) -> list[bytes]:
    """Return the paths that servers may make of one: as it is, decoded once, and tidied before or after that."""
    path = rest.partition(b"?")[0]
    decoded = unquote_to_bytes(path)
    return [path, decoded, *(change(decoded) for change in _CHANGES), unquote_to_bytes(_PARAMETERS.sub(b"", path))]


_PARAMETERS = re.compile(rb"(?:;|%3b)[^/]*", re.IGNORECASE)
_CHANGES: tuple[Callable[[bytes], bytes], ...] = (
    lambda path: path.replace(b"\\", b"/"),
    lambda path: re.sub(rb"/{2,}", b"/", path),
    lambda path: _PARAMETERS.sub(b"", path),
)


def _resolved(path: bytes) -> list[bytes] | None:
    """Return the segments of a path once its dots are resolved (RFC 3986 section 5.2.4), None if they lead out of it."""
    found: list[bytes] = []
    segments = path.split(b"/")[1:]
    for segment in segments:
        if segment == b"..":
            if not found:
                return None
            found.pop()
        elif segment != b".":
            found.append(segment)
    return found
