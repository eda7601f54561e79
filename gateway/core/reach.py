"""Which addresses a tool may lead to, once its name has been looked up.

A manifest names its tools; a name server says where they are. Whoever controls a public name can point it at this machine,
at the network behind it, or at the cloud's metadata service, and a gateway would carry its credentials there. So an address
is judged when it is connected to, and the judgement depends on what the manifest's author wrote:

* an address written out, or an internal name (`localhost`, one label, `.local`, `.internal`, `.svc`, ...), means an address
  of one's own: loopback and private ones are reached
* any other name is a public one, and leads to public addresses only
* link-local addresses, where clouds keep their metadata, are reached only if the manifest says `reach: any`

An IPv4 address inside an IPv6 one (mapped, 6to4, NAT64) is judged as what it is.

Source: OWASP "Server Side Request Forgery Prevention Cheat Sheet"; RFC 6890; RFC 6761 and 8375 (names of one's own).
"""

from __future__ import annotations

from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

__all__ = ["Reach", "is_internal_name", "unreachable"]


class Reach(StrEnum):
    """What kind of addresses a tool's name may lead to."""

    AUTO = "auto"
    PUBLIC = "public"
    PRIVATE = "private"
    ANY = "any"


_INTERNAL = (".cluster.local", ".home.arpa", ".internal", ".intranet", ".lan", ".local", ".localhost", ".svc", ".test")
_METADATA = frozenset(
    {
        ip_address("169.254.169.254"),
        ip_address("100.100.100.200"),
        ip_address("fd00:ec2::254"),
        ip_address("192.0.0.192"),
    }
)
_NAT64 = IPv6Network("64:ff9b::/96")


def unreachable(host: str, address: str, reach: Reach = Reach.AUTO) -> str | None:
    """Return why a tool at `host` may not be connected to at `address`, as a clause, or None if it may.

    Args:
        host: as the manifest has it: a name or an address.
        address: what the name led to; an IPv6 zone is ignored.
        reach: what the manifest allows.
    """
    if reach is Reach.ANY:
        return None
    found = _inner(ip_address(address.partition("%")[0]))
    if found in _METADATA or found.is_link_local:
        return f"{address} is a link-local or cloud metadata address"
    if found.is_multicast or found.is_unspecified:
        return f"{address} is no address of a host"
    if found.is_global or reach is Reach.PRIVATE or (reach is Reach.AUTO and is_internal_name(host)):
        return None
    return f"{address} is a private address, and {host} is not an internal name"


def is_internal_name(host: str) -> bool:
    """Return whether whoever wrote `host` into a manifest means something of their own."""
    name = host.lower().rstrip(".")
    return _is_address(name) or "." not in name or name.endswith(_INTERNAL)


def _is_address(host: str) -> bool:
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _inner(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    return IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else address
