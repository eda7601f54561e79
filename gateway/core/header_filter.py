"""Which of an agent's header fields reach a tool, and what the tool is told of where the request came from.

The same for every method, since a filter that only some of them pass is none. A tool's list says what may pass; besides that
always does what a call means nothing without: the body's type and coding, the trace, the chain of proxies, a WebSocket's
handshake. What the gateway sets itself (Host, framing, credential, idempotency key) is put on later and concerns no list.

Forwarded and its older kin (X-Forwarded-For, X-Real-IP, ...) tell a tool for whom a proxy speaks. A tool that believes them
believes whoever stands in front of it, so an agent's own word is not passed on unless the manifest says that its agents are
proxies to be trusted:

    drop       none of them reaches the tool
    replace    the agent's are dropped, and the gateway says what it saw
    append     the agent's pass, and the gateway adds what it saw
    pass       the agent's pass

A filter is made once per tool; a tool that needs none has none, and pays nothing.

Source: RFC 7239 sections 4 to 7 (Forwarded, obfuscated identifiers); RFC 9110 section 7.6.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, AnyStr, Final

from gateway.core.message import Headers
from gateway.core.setting import Doc

__all__ = ["FORWARDED_FIELDS", "ForwardedMode", "HeaderFilter", "HeaderSettings", "Seen", "forwarded", "header_filter"]

FORWARDED_FIELDS: Final = frozenset(
    {
        b"forwarded",
        b"true-client-ip",
        b"x-client-ip",
        b"x-cluster-client-ip",
        b"x-forwarded",
        b"x-forwarded-by",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-prefix",
        b"x-forwarded-proto",
        b"x-forwarded-scheme",
        b"x-forwarded-server",
        b"x-forwarded-ssl",
        b"x-original-forwarded-for",
        b"x-real-ip",
    }
)
_ALWAYS: Final = frozenset(
    {b"connection", b"content-encoding", b"content-type", b"traceparent", b"tracestate", b"upgrade", b"via"}
)
"""`Connection` and `Upgrade` go no further than egress, which needs them to know what else must not."""

_HANDSHAKE: Final = b"sec-websocket-"
_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class ForwardedMode(StrEnum):
    """What becomes of Forwarded, X-Forwarded-* and the like."""

    DROP = "drop"
    REPLACE = "replace"
    APPEND = "append"
    PASS = "pass"  # noqa: S105


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderSettings:
    """Which header fields of an agent's request reach the tool. A name may end in `*`, which stands for any rest."""

    allow: Annotated[tuple[str, ...], Doc("Those that do; empty: all.")] = ()
    deny: Annotated[tuple[str, ...], Doc("Those that do not, though they are allowed.")] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """What the gateway saw of a request: the peer's address (empty on a Unix socket), Host, scheme, and its own name."""

    peer: str
    host: bytes
    scheme: bytes
    by: bytes


HeaderFilter = Callable[[Headers, Seen], Headers]


def header_filter(settings: HeaderSettings | None, mode: ForwardedMode) -> HeaderFilter | None:
    """Return what turns an agent's fields into those that may reach the tool, or None if all do as they are.

    In the modes `drop` and `pass` there is nothing to do here: egress leaves `FORWARDED_FIELDS` out in `drop`.
    """
    adds = mode in (ForwardedMode.REPLACE, ForwardedMode.APPEND)
    passes = None if settings is None or not (settings.allow or settings.deny) else _passes(settings)
    if passes is None and not adds:
        return None

    def apply(headers: Headers, seen: Seen) -> Headers:
        kept = headers if passes is None else tuple([field for field in headers if passes(field[0].lower())])
        if not adds:
            return kept
        if mode is ForwardedMode.REPLACE:
            kept = tuple([field for field in kept if _dashed(field[0].lower()) not in FORWARDED_FIELDS])
        return kept + forwarded(seen, {name.lower() for name, _ in kept})

    return apply


def _passes(settings: HeaderSettings) -> Callable[[bytes], bool]:
    allowed, denied = _matcher(settings.allow), _matcher(_dashed(name) for name in settings.deny)

    def passes(name: bytes) -> bool:
        if name in _ALWAYS or name.startswith(_HANDSHAKE):
            return True
        return (not settings.allow or allowed(name)) and not denied(_dashed(name))

    return passes


def _dashed(name: AnyStr) -> AnyStr:
    """To many servers `_` and `-` are the same in a name: what is kept from a tool is so in either spelling."""
    return name.replace("_", "-") if isinstance(name, str) else name.replace(b"_", b"-")


def _matcher(names: Iterable[str]) -> Callable[[bytes], bool]:
    lowered = [name.lower().encode("ascii") for name in names]
    exact = frozenset(name for name in lowered if not name.endswith(b"*"))
    prefixes = tuple(name[:-1] for name in lowered if name.endswith(b"*"))
    return lambda name: name in exact or name.startswith(prefixes)


def forwarded(seen: Seen, present: set[bytes]) -> Headers:
    """Return the fields that say what was seen: a Forwarded element, and its parts in the older form.

    A peer without an address is `unknown`; the gateway names itself with an obfuscated identifier. Of X-Forwarded-Host and
    -Proto, which are no lists, the first proxy's word stands: they are left out where `present` (lower-case names) has them.
    """
    peer = seen.peer.partition("%")[0].encode("ascii", "replace") or b"unknown"
    address = b'"[%b]"' % peer if b":" in peer else peer
    element = b"for=%b;by=_%b;proto=%b" % (address, seen.by, seen.scheme)
    if seen.host:
        element += b";host=" + _word(seen.host)
    fields = [(b"Forwarded", element), (b"X-Forwarded-For", peer)]
    if seen.host and b"x-forwarded-host" not in present:
        fields.append((b"X-Forwarded-Host", seen.host))
    if b"x-forwarded-proto" not in present:
        fields.append((b"X-Forwarded-Proto", seen.scheme))
    return tuple(fields)


def _word(text: bytes) -> bytes:
    """A value of Forwarded: a token, else a quoted string. A Host holds nothing that would have to be escaped."""
    return text if _TOKEN.fullmatch(text) else b'"%b"' % text.replace(b"\\", b"").replace(b'"', b"")
