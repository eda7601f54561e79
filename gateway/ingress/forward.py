"""The gateway as its clients' proxy: which tool a URL means, and what becomes of CONNECT.

    GET http://api.example/v1/x      the tool that lives there, found by host; the same pipeline as under /{tool}/
    CONNECT api.example:443          read under a certificate of our own (`intercept`), or carried blindly (`tunnel`)

What a blind tunnel carries is not recorded, not repeated and cannot be undone, so a tunnel is opened only to hosts that the
operator lists for it, and only for a client that then names that very host in its TLS hello. HTTPS to a tool is otherwise
refused, with the ways in which the call can be recorded. No certificate is ever made for a host that is no tool's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from zlib import crc32

from gateway.core.admission import AdmissionSettings
from gateway.core.authority import (
    AbsoluteTarget,
    Authority,
    HostPattern,
    absolute_target,
    parse_authority,
    parse_host_pattern,
)
from gateway.core.breaker import BreakerSettings
from gateway.core.codes import Code
from gateway.core.hosts import Found, HostIndex, Several
from gateway.core.manifest import Tier, TimeoutSettings
from gateway.core.message import BytesBody, Headers, first_header
from gateway.core.outcome import Refusal
from gateway.core.paths import BadTarget
from gateway.core.problem import problem
from gateway.core.reach import Reach
from gateway.core.retry import RetrySettings
from gateway.core.routing import SAFE_METHODS
from gateway.core.server import ForwardSettings, UnknownHosts
from gateway.core.tool import Catalog, Domain, Match, Operation, ToolSpec, Upstream
from gateway.ingress.http import IncomingRequest, OutgoingResponse

__all__ = ["NOBODY", "STRANGER", "Forward", "Traveller", "Tunnels"]

STRANGER = "unknown.host"
"""The tool that stands for all hosts that are no tool's, in metrics and in the journal; no manifest can use the name."""

_REMEMBERED = 256
_BREAKERS = 64

Handler = Callable[[IncomingRequest], Awaitable[OutgoingResponse]]


@dataclass(frozen=True, slots=True)
class Traveller:
    """Whose tunnel it is: an agent, and the run that it named, if it did."""

    agent: str = ""
    run: str = ""


NOBODY = Traveller()


class Tunnels(Protocol):
    """What opens tunnels (`ingress/tunnel.py`)."""

    async def blind(self, authority: Authority, whose: Traveller = ...) -> OutgoingResponse | Refusal:
        """Return an answer that carries bytes to and from a host."""

    async def read(self, authority: Authority, handler: Handler, whose: Traveller = ...) -> OutgoingResponse | Refusal:
        """Return an answer that reads the HTTPS to a host, and has its requests answered by `handler`."""


class Forward:
    """Routes what comes in a proxy's forms.

    Args:
        catalog: returns the tools in force.
        tunnels: None refuses every CONNECT.

    Attributes:
        handler: answers the requests read inside a tunnel, like any others; set once it is there.
        own: authorities under which the gateway itself is reached; URLs there are its own paths.
    """

    def __init__(self, settings: ForwardSettings, catalog: Callable[[], Catalog], tunnels: Tunnels | None) -> None:
        self.own: frozenset[Authority] = frozenset()
        self.handler: Handler | None = None
        self._settings = settings
        self._catalog = catalog
        self._tunnels = tunnels
        self._tunnelled: tuple[HostPattern, ...] = tuple(parse_host_pattern(text) for text in settings.tunnel)
        self._index: tuple[Catalog, HostIndex] | None = None
        self._strangers: OrderedDict[tuple[str, Authority], ToolSpec] = OrderedDict()

    def is_betrayed_by(self, refusal: Refusal) -> bool:
        """Whether whoever got a refusal tried to reach a host that is no tool's, and is to be locked away for it."""
        return self._settings.unknown_hosts is UnknownHosts.QUARANTINE and refusal.code is Code.UNKNOWN_TOOL

    def localise(self, request: IncomingRequest) -> None:
        """Give a URL of the gateway's own the form of a plain path: servers must take both (RFC 9112 section 3.2.2)."""
        target = absolute_target(request.target)
        if isinstance(target, AbsoluteTarget) and target.authority in self.own:
            request.target = target.rest

    def find(self, method: str, raw: bytes) -> Found | Refusal:
        """Return the tool that a URL means, with path and query below it, or why it is refused."""
        target = absolute_target(raw)
        if target is None:
            return Refusal(
                code=Code.INVALID_ARGUMENTS,
                detail="The request target must be /{tool}/{path}, or a whole URL where the gateway is your proxy.",
            )
        if isinstance(target, BadTarget):
            return Refusal(code=Code.INVALID_ARGUMENTS, detail=target.detail)
        found = self._hosts().find(target)
        if isinstance(found, Found):
            return found
        if isinstance(found, Several):
            return Refusal(
                code=Code.INVALID_ARGUMENTS,
                detail=f"{target.authority} is the address of {' and '.join(found.names)}. Send the call to "
                f"/{found.names[0]}/… at the gateway itself, so that it is clear which one is meant.",
            )
        if found.prefixes:
            return _unknown(target.authority, f"its tools begin at {' and '.join(found.prefixes)}")
        if self._settings.unknown_hosts is not UnknownHosts.READ:
            return _unknown(target.authority, "it is not in the manifest")
        if method not in SAFE_METHODS:
            return _unknown(
                target.authority, "it is not in the manifest, and hosts that are not may only be read (GET)"
            )
        return Found(self._stranger(target), target.rest)

    async def connect(self, request: IncomingRequest, whose: Traveller = NOBODY) -> OutgoingResponse | Refusal:
        """Answer CONNECT."""
        authority = parse_authority(request.target)
        if isinstance(authority, BadTarget) or authority.port is None:
            return Refusal(code=Code.INVALID_ARGUMENTS, detail="CONNECT takes HOST:PORT, as in api.example.com:443.")
        if self._tunnels is None:
            return Refusal(code=Code.POLICY_DENIED, detail="This gateway opens no tunnels.")
        if any(pattern.covers(authority.host, authority.port) for pattern in self._tunnelled):
            return await self._tunnels.blind(authority, whose)
        tools = self._hosts().at(authority.host, authority.port)
        if not tools:
            return _unknown(authority, "it is neither in the manifest nor among the hosts for tunnels (forward.tunnel)")
        if not self._settings.intercept:
            return Refusal(
                code=Code.POLICY_DENIED,
                dependency=tools[0].name,
                detail=f"A tunnel to {authority.host} would hide the calls from the gateway. Call http://{authority.host}/… "
                f"through the proxy (the gateway speaks TLS with the tool), or /{tools[0].name}/… at the gateway; the "
                "operator can also set forward.intercept or list the host in forward.tunnel.",
            )
        return await self._tunnels.read(authority, partial(self._inside, _Outer.of(request, authority)), whose)

    async def _inside(self, outer: _Outer, request: IncomingRequest) -> OutgoingResponse:
        """Answer a request from inside a tunnel as if it had come to the proxy with its whole URL."""
        assert self.handler is not None
        origin = b"https://%b" % str(outer.authority).encode("ascii")
        if request.method == "CONNECT":
            return _misdirected(400, "There is no tunnel inside a tunnel.")
        if request.target.startswith(b"/"):
            request.target = origin + request.target
        target = absolute_target(request.target)
        host = parse_authority(first_header(request.headers, b"host") or b"")
        if not isinstance(target, AbsoluteTarget) or target.authority != outer.authority:
            return _misdirected(421, f"This tunnel leads to {outer.authority}; the request is for somewhere else.")
        if isinstance(host, BadTarget) or host not in (
            outer.authority,
            Authority(outer.authority.host, outer.usual_port),
        ):
            return _misdirected(421, f"This tunnel leads to {outer.authority}; the Host field names another host.")
        request.replace_headers(outer.beneath(request.headers))
        return await self.handler(request)

    def _hosts(self) -> HostIndex:
        catalog = self._catalog()
        if self._index is None or self._index[0] is not catalog:
            self._index = (catalog, HostIndex(catalog.tools.values()))
            self._strangers.clear()  # rules may have changed
        return self._index[1]

    def _stranger(self, target: AbsoluteTarget) -> ToolSpec:
        key = (target.scheme, target.authority)
        tool = self._strangers.get(key)
        if tool is None:
            tool = self._strangers[key] = _stranger(target, self._catalog())
            if len(self._strangers) > _REMEMBERED:
                self._strangers.popitem(last=False)
        self._strangers.move_to_end(key)
        return tool


@dataclass(frozen=True, slots=True)
class _Outer:
    """What CONNECT said, and holds for every request inside: where to, who, and which run."""

    authority: Authority
    fields: Headers

    @classmethod
    def of(cls, request: IncomingRequest, authority: Authority) -> _Outer:
        fields = tuple(
            field
            for field in request.headers
            if field[0].lower() == b"proxy-authorization" or field[0].lower().startswith(b"seawall-")
        )
        if first_header(fields, b"seawall-agent") is None and request.peer:
            # A name begins with a letter or digit, an IPv6 address need not.
            name = f"ip-{request.peer}" if ":" in request.peer else request.peer
            fields = (*fields, (b"Seawall-Agent", name.partition("%")[0].encode("ascii", "replace")))
        return cls(authority, fields)

    @property
    def usual_port(self) -> int | None:
        return None if self.authority.port == 443 else self.authority.port

    def beneath(self, headers: Headers) -> Headers:
        """Return the fields of a request, with those of ours that it did not say itself."""
        said = {name.lower() for name, _ in headers}
        return (*headers, *(field for field in self.fields if field[0].lower() not in said))


def _stranger(target: AbsoluteTarget, catalog: Catalog) -> ToolSpec:
    """A tool that is not in the manifest: it is only read, at public addresses, and shares one domain with its like."""
    timeouts = TimeoutSettings()
    read = Operation(name="read", tier=Tier.READ, timeouts=timeouts, is_declared=False, rules=catalog.stranger_rules)
    match = Match(read, {}, "The host is not in the manifest, and such hosts may be read (forward.unknown_hosts).")
    bucket = crc32(str(target.authority).encode()) % _BREAKERS
    return ToolSpec(
        name=STRANGER,
        upstream=Upstream(target.scheme, target.host, target.port),
        domain=Domain(name=STRANGER, admission=AdmissionSettings(), timeouts=timeouts),
        breaker=BreakerSettings(),
        retry=RetrySettings(),
        match=lambda method, rest: match,
        operations={read.name: read},
        reach=Reach.PUBLIC,
        breaker_key=f"{STRANGER}:{bucket}",
    )


def _unknown(authority: Authority, why: str) -> Refusal:
    return Refusal(
        code=Code.UNKNOWN_TOOL,
        detail=f"Nothing is sent to {str(authority)[:300]}: {why}. Ask the operator to add it, or do without it.",
    )


def _misdirected(status: int, detail: str) -> OutgoingResponse:
    told = problem(Refusal(code=Code.INVALID_ARGUMENTS, detail=detail), status=status)
    return OutgoingResponse(status=told.status, headers=told.headers, body=BytesBody(told.body))
