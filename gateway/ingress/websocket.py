"""Open WebSockets: bytes carried between an agent and a tool, and closed where the gateway has to.

Two protocols, one on each connection, hand each other what comes; a slow reader on one side stops the reading on the other.
Nothing is buffered here. One loop for all looks now and then whether a socket is idle or its agent's token no longer good.

A socket that the gateway closes gets a closing frame in both directions, between frames (`core/websocket.py`), then a
moment to end by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

from gateway.clock import Clock
from gateway.core.websocket import GOING_AWAY, POLICY_VIOLATION, Frames, close_frame

__all__ = ["WebSockets"]

GOODBYE_S = 2.0
FLUSH_S = 10.0
LOOK_S = 1.0


class WebSockets:
    """All that are open. `run` looks after them; until it runs only their ends close them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: set[_Bridge] = set()
        self._is_draining = False

    def statistics(self) -> dict[str, int]:
        """Return the number of open ones."""
        return {"websockets": len(self._open)}

    async def carry(
        self,
        agent: asyncio.Transport,
        from_agent: bytes,
        tool: asyncio.Transport,
        from_tool: bytes,
        *,
        idle_s: float,
        is_welcome: Callable[[], bool],
        whose: tuple[str, str] = ("", ""),
    ) -> None:
        """Carry a WebSocket between two connections until it is over; both are closed then, in every case.

        Args:
            from_agent, from_tool: what has come from them already.
            idle_s: closed when nothing has passed for so long.
            is_welcome: whether the agent may still have it.
            whose: the agent, and the run that it is part of.
        """
        bridge = _Bridge(self._clock, idle_s, is_welcome, whose)
        self._open.add(bridge)
        try:
            bridge.begin(agent, from_agent, tool, from_tool)
            if self._is_draining:
                bridge.leave()
            await bridge.over.wait()
        finally:
            self._open.discard(bridge)
            bridge.abort()

    def cut(self, is_meant: Callable[[str, str], bool]) -> int:
        """Break off those that are meant (by agent and run), both ends at once and without a goodbye; return how many."""
        meant = [bridge for bridge in self._open if is_meant(*bridge.whose)]
        for bridge in meant:
            bridge.abort()
        return len(meant)

    def drain(self) -> None:
        """Close all; more may come and are closed at once."""
        self._is_draining = True
        for bridge in list(self._open):
            bridge.leave()

    async def run(self) -> None:
        """Close those that are idle or no longer welcome, for ever."""
        while True:
            await self._clock.sleep(LOOK_S)
            self.run_once()

    def run_once(self) -> None:
        """Look at each once."""
        for bridge in list(self._open):
            bridge.look()


class _Bridge:
    """One WebSocket. `over` is set once both connections are gone."""

    def __init__(self, clock: Clock, idle_s: float, is_welcome: Callable[[], bool], whose: tuple[str, str]) -> None:
        self.whose = whose
        self.over = asyncio.Event()
        self.moved = clock.now()
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._idle_s = idle_s
        self._is_welcome = is_welcome
        self._agent = _Side(self, is_tool=False)
        self._tool = _Side(self, is_tool=True)
        self._agent.peer, self._tool.peer = self._tool, self._agent
        self._end: asyncio.TimerHandle | None = None

    def begin(self, agent: asyncio.Transport, from_agent: bytes, tool: asyncio.Transport, from_tool: bytes) -> None:
        self._agent.transport, self._tool.transport = agent, tool
        for side, transport, early in ((self._agent, agent, from_agent), (self._tool, tool, from_tool)):
            transport.set_protocol(side)
            if transport.is_closing():
                side.connection_lost(None)
                continue
            if early:
                side.data_received(early)
            with contextlib.suppress(RuntimeError):
                transport.resume_reading()

    def has_moved(self) -> None:
        self.moved = self._clock.now()

    def look(self) -> None:
        if not self._is_welcome():
            self._close(POLICY_VIOLATION, "the token is revoked or has expired")
        elif self._clock.now() - self.moved >= self._idle_s:
            self._close(GOING_AWAY, f"nothing has passed for {self._idle_s:g} s")

    def leave(self) -> None:
        """Close it because the gateway is stopped."""
        self._close(GOING_AWAY, "the gateway is shutting down")

    def _close(self, code: int, reason: str) -> None:
        if self._end is None:
            self._end = self._loop.call_later(GOODBYE_S, self.abort)
            self._agent.say_goodbye(code, reason)
            self._tool.say_goodbye(code, reason)

    def has_lost(self, side: _Side) -> None:
        """One end is gone: the other gets what is under way to it, within bounds."""
        if side.peer.is_gone:
            self._stop_clock()
            self.over.set()
            return
        side.peer.transport.close()
        if self._end is None:
            self._end = self._loop.call_later(FLUSH_S, self.abort)

    def abort(self) -> None:
        self._stop_clock()
        for side in (self._agent, self._tool):
            if not side.is_gone:
                side.transport.abort()

    def _stop_clock(self) -> None:
        if self._end is not None:
            self._end.cancel()


class _Side(asyncio.Protocol):
    """One of the two connections. `frames` follows what comes from it."""

    peer: _Side
    transport: asyncio.Transport

    def __init__(self, bridge: _Bridge, *, is_tool: bool) -> None:
        self.is_gone = False
        self._bridge = bridge
        self._is_tool = is_tool
        self._frames = Frames()
        self._last_words = b""
        self._is_silenced = False

    def data_received(self, data: bytes) -> None:
        """Called by the transport."""
        self._bridge.has_moved()
        if self._is_silenced:
            return
        ended = self._frames.feed(data)
        if self._last_words and ended:
            self.peer.write(data[:ended])
            self._finish()
        else:
            self.peer.write(data)

    def write(self, data: bytes) -> None:
        """Send something to this end."""
        if not self.is_gone and not self.transport.is_closing():
            self.transport.write(data)

    def say_goodbye(self, code: int, reason: str) -> None:
        """End what comes from the other end with a closing frame to this one, as soon as a frame has ended there."""
        source = self.peer
        if source._frames.is_closing or source._is_silenced:
            return
        source._last_words = close_frame(code, reason, os.urandom(4) if self._is_tool else None)
        if source._frames.is_between:
            source._finish()

    def _finish(self) -> None:
        if not self._frames.is_closing:
            self.peer.write(self._last_words)
        self._is_silenced = True

    def pause_writing(self) -> None:
        """Called by the transport: this end takes nothing more for now."""
        with contextlib.suppress(RuntimeError):
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        """Called by the transport."""
        with contextlib.suppress(RuntimeError):
            self.peer.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the transport."""
        if not self.is_gone:
            self.is_gone = True
            self._bridge.has_lost(self)
