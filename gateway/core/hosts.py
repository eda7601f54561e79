"""Which tool is meant by a URL? For clients that take the gateway for their proxy and know the tools' own addresses.

A tool is known by the host and port of its upstream, and by those that its `hosts` lists. A URL that says `http://` where
the tool is on https is that tool all the same: the gateway makes the call safer than it was written, never the reverse.
Where tools share a host, the longest path prefix decides; a path under no prefix is no tool's. The prefix is cut off, since
egress puts the upstream's own in front.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.core.authority import DEFAULT_PORTS, AbsoluteTarget, HostPattern
from gateway.core.tool import ToolSpec

__all__ = ["Found", "HostIndex", "Several", "Unknown"]


@dataclass(frozen=True, slots=True)
class Found:
    """The tool, and path and query below its upstream."""

    tool: ToolSpec
    rest: bytes


@dataclass(frozen=True, slots=True)
class Several:
    """Tools that the URL could equally mean."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """No tool. `prefixes`: where tools of that host begin, if it is known at all."""

    prefixes: tuple[str, ...] = ()


class HostIndex:
    """Tools by host. Immutable; costs the same however many tools there are."""

    __slots__ = ("_exact", "_suffixes")

    def __init__(self, tools: Iterable[ToolSpec]) -> None:
        self._exact: dict[tuple[str, int], list[ToolSpec]] = {}
        self._suffixes: dict[str, list[tuple[HostPattern, ToolSpec]]] = {}
        for tool in tools:
            for key in _own(tool):
                _add(self._exact, key, tool)
            for pattern in tool.hosts:
                if pattern.is_suffix:
                    self._suffixes.setdefault(pattern.host, []).append((pattern, tool))
                else:
                    for port in DEFAULT_PORTS.values() if pattern.port is None else (pattern.port,):
                        _add(self._exact, (pattern.host, port), tool)

    def find(self, target: AbsoluteTarget) -> Found | Several | Unknown:
        """Return the tool that a URL means."""
        tools = self.at(target.host, target.port)
        path = target.rest.partition(b"?")[0]
        below = [tool for tool in tools if _is_below(path, tool.upstream.prefix.encode("ascii"))]
        if not below:
            return Unknown(tuple(sorted(tool.upstream.prefix or "/" for tool in tools)))
        longest = max(len(tool.upstream.prefix) for tool in below)
        nearest = [tool for tool in below if len(tool.upstream.prefix) == longest]
        if len(nearest) > 1:
            return Several(tuple(sorted(tool.name for tool in nearest)))
        rest = target.rest[longest:]
        return Found(nearest[0], rest if rest.startswith(b"/") else b"/" + rest)

    def at(self, host: str, port: int) -> list[ToolSpec]:
        """Return the tools that live at a host and port, nearest first: the host itself before what a pattern covers."""
        tools = self._exact.get((host, port))
        if tools is not None:
            return tools
        while dot := host.find(".") + 1:
            host = host[dot:]
            covering = [tool for pattern, tool in self._suffixes.get(host, ()) if _has_port(pattern, port)]
            if covering:
                return covering
        return []


def _own(tool: ToolSpec) -> Iterable[tuple[str, int]]:
    upstream = tool.upstream
    if upstream.scheme not in DEFAULT_PORTS:
        return
    host = upstream.host.lower().removesuffix(".")
    yield host, upstream.port
    if (upstream.scheme, upstream.port) == ("https", 443):
        yield host, 80


def _add(exact: dict[tuple[str, int], list[ToolSpec]], key: tuple[str, int], tool: ToolSpec) -> None:
    listed = exact.setdefault(key, [])
    if tool not in listed:
        listed.append(tool)


def _has_port(pattern: HostPattern, port: int) -> bool:
    return port in DEFAULT_PORTS.values() if pattern.port is None else port == pattern.port


def _is_below(path: bytes, prefix: bytes) -> bool:
    return path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in (b"", b"/")
