"""Towards the tools: one request out, one answer or one `Broken` back.

This is the only place where foreign errors are turned into our words. Backends: `client` (aiohttp's client, tamed).
Nothing of aiohttp crosses this seam, so the wire can be replaced without touching a stage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import NamedTuple, Protocol

from gateway.core.fault import Broken
from gateway.core.message import Reply, Request
from gateway.core.tool import ToolSpec

__all__ = ["Egress", "StreamBroken", "StreamCut", "Switched", "Timings"]


class Timings(NamedTuple):
    """Bounds on one attempt, in seconds. `total_s` bounds a captured exchange as a whole and a streamed one to its head."""

    connect_s: float
    first_byte_s: float
    idle_s: float
    total_s: float


class Switched(Protocol):
    """A connection to a tool on which HTTP is over (`Reply.switched`)."""

    def hand_over(self) -> tuple[asyncio.Transport, bytes]:
        """Return the transport, paused, and what has come behind the answer's head; for who sets a protocol of its own.

        Raises:
            ConnectionError: it has ended.
        """


class Egress(Protocol):
    """Something that can send a request to a tool."""

    def send(self, tool: ToolSpec, request: Request, timings: Timings) -> Awaitable[Reply | Broken]:
        """Send exactly once; never repeat, never follow a redirect, never decode a body.

        Adds Host, framing and the tool's credential; drops hop-by-hop fields both ways. With `request.capture_answer`
        the reply's body is complete and replayable; else it streams, and errors in mid-stream are raised from its
        `chunks()` as `StreamBroken`.

        Cancellation closes the connection and is passed on.
        """

    async def close(self) -> None:
        """Close all connections. May be repeated."""


class StreamBroken(Exception):
    """A streamed answer ended before its end: reset, stalled, or cut off. The agent must see a truncated body too."""


class StreamCut(StreamBroken):
    """We broke the answer off ourselves, because its run is quarantined; it says nothing about the tool."""
