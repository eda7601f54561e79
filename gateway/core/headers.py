"""Which header fields pass through the gateway, and how a head looks on the wire.

A proxy owns the fields of its own two connections and nothing else: it drops the hop-by-hop ones and those that
`Connection` names, sets Host and the framing anew, and leaves every other field as it came, byte for byte, in order,
repeated ones included. Three additions for a gateway that carries money:

* A peer cannot name an end-to-end field that matters away (Authorization, Cookie, Content-*, the idempotency key, the
  trace, our own): such options are ignored here, and `protected_option` lets ingress refuse the request outright.
* `Seawall-*` is our own vocabulary. It reaches no tool, and no tool can speak it.
* What reaches no tool does not reach it with `_` for `-` either: to servers that go by CGI's names (RFC 3875 section 4.1.18)
  that is the same field, and the agent's could count in place of ours.
* A head that we write is checked as a whole. No field, from whatever template, can smuggle in a second one.

Left out: TE and trailers are always dropped, since the parser in use drops trailers (aiohttp#1652).

Source: RFC 9110 sections 5.3, 5.5, 7.6.1; RFC 9112 sections 2.2, 3.2, 5, 6, 11.1.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import compress
from operator import itemgetter
from typing import Final, NamedTuple

from gateway.core.message import Headers
from gateway.core.remembered import Remembered

__all__ = [
    "HOP_BY_HOP",
    "OURS",
    "OURS_IN_REQUESTS",
    "UNASKED",
    "AnswerHead",
    "Sieve",
    "answer_fields",
    "answer_head",
    "basic_password",
    "field_lines",
    "first_values",
    "is_token",
    "lower_names",
    "protected_option",
    "replace_fields",
    "request_fields",
    "request_head",
    "with_shared_names",
]

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
OURS = b"seawall-"
"""Names of our own vocabulary begin so, in lower case."""

OURS_IN_REQUESTS = HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_PROTECTED = frozenset(
    {b"authorization", b"cookie", b"date", b"host", b"idempotency-key", b"set-cookie", b"traceparent", b"tracestate"}
)
_PROTECTED_PREFIXES = (b"content-", OURS)
_NAME: Final = itemgetter(0)
_VALUE: Final = itemgetter(1)
_LOWER: Final = bytes.lower
_LINE: Final = b": ".join
_LINES: Final = b"\r\n".join
# Bytes are counted below: `in` would first take what it looks for for a number, and pay for its mistake each time.
_VISIBLE = bytes(range(0x21, 0x7F))
_TOKEN = bytes(byte for byte in range(0x21, 0x7F) if byte not in b'"(),/:;<=>?@[\\]{}')


def request_fields(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the fields of a request that go on to the tool: without hop-by-hop, Host, framing, Expect and our own.

    May be applied twice. Source: RFC 9110 section 7.6.1.
    """
    return _OF_REQUESTS(headers)


def answer_fields(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the fields of an answer that go on to the agent: without hop-by-hop and anything that poses as ours.

    Content-Length stays: it is the tool's word about its own representation (HEAD, 304). May be applied twice.
    """
    return _OF_ANSWERS(headers)


class Sieve:
    """Takes fields out by name: those it was made for, our own, and those that `Connection` names.

    What becomes of a name is remembered as the name was spelt, within bounds: agents use few spellings, and every call asks.
    """

    __slots__ = ("_fate",)

    def __init__(self, names: Iterable[bytes], *, is_for_tools: bool = True) -> None:
        """`names` in lower case; "connection" has to be one of them. `is_for_tools`: `_` counts as `-`."""
        alike = (_fate_at_tools, map(_dashed, names)) if is_for_tools else (_fate, names)
        self._fate = Remembered[bytes, int](partial(alike[0], names=frozenset(alike[1]))).__getitem__

    def __call__(self, headers: Iterable[tuple[bytes, bytes]]) -> Headers:
        """Return the fields that stay, in order."""
        fields = tuple(headers)
        fates = list(map(self._fate, map(_NAME, fields)))
        if _NAMES_OTHERS not in fates:
            return tuple(compress(fields, fates))
        options = [value for (_, value), fate in zip(fields, fates, strict=True) if fate == _NAMES_OTHERS]
        named = {one for one in _options(options) if not _is_protected(one)}
        kept = compress(fields, map(_STAYS.__eq__, fates))
        return tuple([field for field in kept if field[0].lower() not in named])


def _fate(spelt: bytes, names: frozenset[bytes]) -> int:
    name = spelt.lower()
    if name == b"connection":
        return _NAMES_OTHERS
    return _GOES if name in names or name.startswith(OURS) else _STAYS


def _fate_at_tools(spelt: bytes, names: frozenset[bytes]) -> int:
    return _fate(_dashed(spelt), names)


def _dashed(name: bytes) -> bytes:
    return name.replace(b"_", b"-")


_GOES: Final = 0
_STAYS: Final = 1
_NAMES_OTHERS: Final = 2
_OF_REQUESTS = Sieve(OURS_IN_REQUESTS)
_OF_ANSWERS = Sieve(HOP_BY_HOP, is_for_tools=False)


class AnswerHead(NamedTuple):
    """What the head of a tool's answer says.

    Attributes:
        fields: those that go on to the agent.
        length: the first Content-Length, if there is one.
        problem: what makes a well-formed head unusable, as a clause; empty if nothing does.
    """

    fields: Headers
    length: bytes | None
    problem: str


UNASKED = "101 Switching Protocols, which nobody asked for"
"""The one problem of a head that is none where somebody has asked."""


def answer_head(status: int, headers: Headers, is_chunked: bool = True) -> AnswerHead:
    """Return what is to be known of an answer's head.

    `is_chunked`: whether the parser takes the body out of chunks, if one is announced. aiohttp's does not where a tab stands
    behind the coding's name, and would hand on the chunks themselves.
    """
    names = lower_names(headers)
    problem = ""
    if b"transfer-encoding" in names and (
        not is_chunked
        or any(
            name == b"transfer-encoding" and value.strip().lower() != b"chunked"
            for name, (_, value) in zip(names, headers, strict=True)
        )
    ):
        problem = "a transfer coding other than chunked"
    if b"".join(names).translate(None, _TOKEN):
        # aiohttp lets a space behind the names of fields pass that matter to it, such as Connection (RFC 9112 section 5.1).
        problem = "a header field whose name HTTP does not allow"
    values = b"".join(map(_VALUE, headers))
    if values.count(b"\r") or values.count(b"\n") or values.count(b"\0"):
        problem = "a header field with a line break or NUL in it"
    if status == 101 and not problem:
        problem = UNASKED
    length = headers[names.index(b"content-length")][1] if b"content-length" in names else None
    return AnswerHead(_OF_ANSWERS(headers), length, problem)


def lower_names(headers: Headers) -> list[bytes]:
    """Return the names of fields in lower case, in order."""
    return list(map(_LOWER, map(_NAME, headers)))


def first_values(headers: Headers) -> dict[bytes, bytes]:
    """Return the first value of each field, by its name in lower case."""
    fields = headers[::-1]
    return dict(zip(map(_lowered, map(_NAME, fields)), map(_VALUE, fields), strict=True))


def with_shared_names(headers: Headers) -> Headers:
    """Return equal fields that share their names with those of other messages, where these are spelt the same."""
    return tuple(zip(map(_shared, map(_NAME, headers)), map(_VALUE, headers), strict=True))


_lowered = Remembered[bytes, bytes](bytes.lower).__getitem__
_shared = Remembered[bytes, bytes](bytes).__getitem__


def protected_option(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Return an end-to-end field that the peer tries to have dropped by naming it in Connection, or None."""
    values = [value for name, value in headers if name.lower() == b"connection"]
    return next((one for one in _options(values) if _is_protected(one)), None) if values else None


def _options(values: Iterable[bytes]) -> Iterable[bytes]:
    return (one.strip(b" \t").lower() for value in values for one in value.split(b","))


def _is_protected(name: bytes) -> bool:
    return name in _PROTECTED or name.startswith(_PROTECTED_PREFIXES)


def basic_password(encoded: bytes) -> bytes | None:
    """Return the password of Basic credentials, or None if they are malformed. Source: RFC 7617 section 2."""
    try:
        _, colon, password = binascii.a2b_base64(encoded.strip(), strict_mode=True).partition(b":")
    except binascii.Error:
        return None
    return password if colon else None


def replace_fields(headers: Iterable[tuple[bytes, bytes]], fields: Mapping[bytes, bytes | None]) -> Headers:
    """Return `headers` with each name of `fields` (lower case) set to that value alone, at the end; None removes it."""
    kept = [field for field in headers if field[0].lower() not in fields]
    kept += [(name, value) for name, value in fields.items() if value is not None]
    return tuple(kept)


def is_token(word: bytes) -> bool:
    """Return whether a word may be a name (RFC 9110 section 5.6.2)."""
    return bool(word) and not word.translate(None, _TOKEN)


_IS_TOKEN: Final = Remembered[bytes, bool](is_token).__getitem__


def field_lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return header fields as they stand on the wire, each line ended.

    Raises:
        ValueError: a name or value would change the shape of the message. Says which field, never its value.
    """
    headers = tuple(headers)
    count = len(headers)
    if not count:
        return b""
    lines = b"%b\r\n" % _LINES(map(_LINE, headers))
    if (
        lines.count(b"\n") != count
        or lines.count(b"\r") != count
        or lines.count(b"\0")
        or not all(map(_IS_TOKEN, map(_NAME, headers)))
    ):
        raise ValueError(f"the header field {_offender(headers)!r} has a name or value that HTTP does not allow")
    return lines


def _offender(headers: Headers) -> str:
    for name, value in headers:
        if not is_token(name) or any(byte in value for byte in b"\r\n\0"):
            return name.decode("ascii", "backslashreplace")
    return ""


def request_head(method: str, target: bytes, lines: bytes) -> bytes:
    """Return a request head: the request line, the given field lines, the empty line.

    Raises:
        ValueError: method or target would change the shape of the message.
    """
    verb = _VERB(method)
    if not verb:
        raise ValueError(f"{method!r} is not a method name")
    if target[:1] != b"/" and target != b"*":
        raise ValueError("the request target does not begin with a slash")
    if target.translate(None, _VISIBLE):
        raise ValueError("the request target holds a space, control or non-ASCII byte: percent-encode it")
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (verb, target, lines)


def _verb(method: str) -> bytes:
    """Return a method as it stands on the wire; nothing if it is none."""
    verb = method.encode("ascii", "replace")
    return verb if is_token(verb) else b""


_VERB: Final = Remembered[str, bytes](_verb).__getitem__
