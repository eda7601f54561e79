"""Hosts as clients write them, made comparable: authorities, absolute URLs, and the patterns that operators list.

A host is compared as text, in lower case and without a trailing dot, and never looked up to be matched: a name that is not
listed does not become listed by where it leads. Odd spellings of an IPv4 address (`0x7f.1`, `2130706433`) are names like
any other, and match nothing. User names in a URL are refused: they are how one host is dressed as another.

Source: RFC 9112 sections 3.2.2 and 3.2.3 (absolute-form, authority-form); RFC 3986 sections 3.2 and 6.2.2.1; RFC 9110
sections 4.2.4 and 7.2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Final

from gateway.core.paths import BadTarget, bad_path

__all__ = [
    "DEFAULT_PORTS",
    "AbsoluteTarget",
    "Authority",
    "HostPattern",
    "absolute_target",
    "is_address",
    "parse_authority",
    "parse_host_pattern",
]

DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_](?:[a-z0-9_-]{0,62})(?:\.[a-z0-9_](?:[a-z0-9_-]{0,62}))*")
_AUTHORITY = re.compile(rb"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]@/?#\\]+))(?::(?P<port>[0-9]{0,5}))?")
_ABSOLUTE = re.compile(rb"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<rest>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Authority:
    """A host in its comparable form, without brackets, and a port, or None where none was written."""

    host: str
    port: int | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class AbsoluteTarget:
    """An absolute URL as a request target: `rest` is path and query, byte for byte, and begins with a slash."""

    scheme: str
    host: str
    port: int
    rest: bytes

    @property
    def authority(self) -> Authority:
        """Host and port."""
        return Authority(self.host, self.port)


def parse_authority(text: bytes) -> Authority | BadTarget:
    """Read `host`, `host:port` or `[IPv6]:port`."""
    if b"@" in text:
        return BadTarget("The host of the URL has a user name in front: leave it out.")
    found = _AUTHORITY.fullmatch(text)
    if found is None:
        return BadTarget("The URL names no host, or its port is no number.")
    host = _host(found["six"] or found["name"], is_six=found["six"] is not None)
    if host is None:
        return BadTarget("The URL's host is neither a name in ASCII nor an IP address.")
    port = int(found["port"]) if found["port"] else None
    if port is not None and not 0 < port < 65536:
        return BadTarget("The URL's port is not between 1 and 65535.")
    return Authority(host, port)


def _host(text: bytes, *, is_six: bool) -> str | None:
    host = text.decode("ascii", "replace").lower()
    if is_six:
        try:
            return str(IPv6Address(host))
        except ValueError:
            return None
    host = host.removesuffix(".")
    return host if _NAME.fullmatch(host) else None


def absolute_target(target: bytes) -> AbsoluteTarget | BadTarget | None:
    """Read a target in absolute-form; None if it is in another form."""
    found = _ABSOLUTE.fullmatch(target)
    if found is None:
        return None
    scheme = found["scheme"].decode("ascii").lower()
    if scheme not in DEFAULT_PORTS:
        return BadTarget("Only http:// and https:// URLs are passed on.")
    authority = parse_authority(found["authority"])
    if isinstance(authority, BadTarget):
        return authority
    rest = found["rest"]
    if not rest.startswith(b"/"):
        rest = b"/" + rest
    bad = bad_path(rest)
    if bad is not None:
        return bad
    return AbsoluteTarget(scheme, authority.host, authority.port or DEFAULT_PORTS[scheme], rest)


def is_address(host: str) -> bool:
    """Whether a host is an IP address rather than a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class HostPattern:
    """What an operator lists: a host, or with `is_suffix` every name below it (not the name itself).

    `port` None means the ports that the schemes have of their own, 80 and 443.
    """

    host: str
    port: int | None = None
    is_suffix: bool = False

    def covers(self, host: str, port: int) -> bool:
        """Whether a host, in its comparable form, and a port are meant."""
        is_host = host.endswith(f".{self.host}") if self.is_suffix else host == self.host
        return is_host and (port in DEFAULT_PORTS.values() if self.port is None else port == self.port)

    def __str__(self) -> str:
        return ("*." if self.is_suffix else "") + str(Authority(self.host, self.port))


def parse_host_pattern(text: str) -> HostPattern:
    """Read `host`, `host:port`, `*.suffix` or `*.suffix:port`.

    Raises:
        ValueError: it is none of these; the message says what is wrong.
    """
    is_suffix = text.startswith("*.")
    authority = parse_authority(text.removeprefix("*.").encode("utf-8", "replace"))
    if isinstance(authority, BadTarget):
        raise ValueError("expected a host, host:port, or *.domain")
    if is_suffix and (is_address(authority.host) or "." not in authority.host):
        raise ValueError("`*.` stands in front of a domain with a dot in it, as in *.example.com")
    return HostPattern(authority.host, authority.port, is_suffix)
