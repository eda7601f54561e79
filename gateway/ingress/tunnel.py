"""Tunnels: the connection of a CONNECT request, carried on to a host or read here.

Either way the client's first bytes are looked at before anything is passed on: they must be a TLS hello that names the host
that CONNECT named, so that a tunnel to one host is not used to reach another one behind the same address. A tunnel that is
read ends at a connection of the gateway's own front, over a socket pair, under a certificate for that host; what comes out
of it are requests like any others.

Bounded: tunnels in number, the hello in bytes and time, silence in time; bytes under way by the kernel's buffers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol

from gateway.clock import Clock
from gateway.core.authority import Authority, is_address
from gateway.core.client_hello import Hello, NeedMore, NotTls, read_hello
from gateway.core.codes import Code
from gateway.core.fault import Broken
from gateway.core.outcome import Refusal
from gateway.egress.dial import Streams, dial
from gateway.ingress.forward import NOBODY, Handler, Traveller
from gateway.ingress.http import OutgoingResponse

__all__ = ["Adopt", "Certificates", "TunnelDoor"]

_log = logging.getLogger(__name__)

CONNECT_S = 10.0
HELLO_S = 10.0
HALF_CLOSED_S = 30.0
DRAINING_S = 1.0
PIECE_BYTES = 1 << 16


class Certificates(Protocol):
    """What makes certificates (`ingress/certificates.py`)."""

    def context_for(self, host: str, at: int) -> ssl.SSLContext:
        """Return a server's context with a certificate for a host, good at `at`, UTC milliseconds."""


Adopt = Callable[[socket.socket, ssl.SSLContext, Handler], Awaitable[None]]
"""The front's way to serve one more connection: `HttpFront.adopt`."""


class TunnelDoor:
    """Opens tunnels (`Tunnels` of `ingress/forward.py`).

    Args:
        limit: tunnels open at once.
        idle_s: how long a tunnel may be silent.
        certificates: None where no tunnel is read.

    Attributes:
        adopt: where the requests of a tunnel that is read go; set once the front is there.
    """

    def __init__(self, clock: Clock, *, limit: int, idle_s: float, certificates: Certificates | None) -> None:
        self.adopt: Adopt | None = None
        self._clock = clock
        self._limit = limit
        self._idle_s = idle_s
        self._certificates = certificates
        self._open = 0
        self._tunnels: set[_Tunnel] = set()
        self._draining = asyncio.Event()

    def statistics(self) -> dict[str, int]:
        """Return the number of open tunnels."""
        return {"tunnels": self._open}

    def drain(self) -> None:
        """Close blind tunnels as soon as they fall silent; those that are read end with their connections."""
        self._draining.set()

    def cut(self, is_meant: Callable[[Traveller], bool]) -> int:
        """Break off the tunnels that are meant, both ends at once; return how many."""
        meant = [tunnel for tunnel in self._tunnels if is_meant(tunnel.whose)]
        for tunnel in meant:
            tunnel.cut()
        return len(meant)

    async def blind(self, authority: Authority, whose: Traveller = NOBODY) -> OutgoingResponse | Refusal:
        """Carry bytes to and from a host."""
        if (full := self._full()) is not None:
            return full
        found = await dial(authority.host, authority.port or 443, CONNECT_S)
        if isinstance(found, Broken):
            return Refusal(
                code=Code.UPSTREAM_CONNECT, detail=f"No tunnel was opened: {found.detail}.", retry_after_ms=1000
            )
        return _opened(_Tunnel(self, authority, _given(found), whose), lambda: _close(found[1]))

    async def read(
        self, authority: Authority, handler: Handler, whose: Traveller = NOBODY
    ) -> OutgoingResponse | Refusal:
        """Read the HTTPS to a host."""
        if (full := self._full()) is not None:
            return full
        assert self._certificates is not None
        assert self.adopt is not None
        context = self._certificates.context_for(authority.host, self._clock.at())
        adopt = self.adopt

        async def far_end() -> Streams:
            near, far = socket.socketpair()
            try:
                near.setblocking(False)
                far.setblocking(False)
                serving = asyncio.ensure_future(adopt(far, context, handler))
                streams = await asyncio.open_connection(sock=near)
            except BaseException:
                near.close()
                far.close()
                raise
            serving.add_done_callback(_seen)
            return streams

        return _opened(_Tunnel(self, authority, far_end, whose, is_read=True), lambda: None)

    def _full(self) -> Refusal | None:
        if self._open < self._limit:
            return None
        return Refusal(
            code=Code.RESOURCE_EXHAUSTED,
            detail=f"{self._open} tunnels are open already (setting forward.tunnels). Close some, then try again.",
            retry_after_ms=1000,
        )


class _Tunnel:
    """One tunnel, from the answer to CONNECT until both ends are closed."""

    def __init__(
        self,
        door: TunnelDoor,
        authority: Authority,
        far_end: Callable[[], Awaitable[Streams]],
        whose: Traveller,
        *,
        is_read: bool = False,
    ) -> None:
        self._door = door
        self._authority = authority
        self._far_end = far_end
        self._is_read = is_read
        self._moved_s = 0.0
        self._ends: list[asyncio.StreamWriter] = []
        self.whose = whose

    def cut(self) -> None:
        """Break it off: what was not written yet is thrown away."""
        for end in self._ends:
            end.transport.abort()

    async def __call__(self, transport: asyncio.Transport, early: bytes) -> None:
        """Take the client's connection over; returns once it is closed."""
        self._door._open += 1
        near = _streams(transport, early)
        self._ends.append(near[1])
        self._door._tunnels.add(self)
        far: Streams | None = None
        try:
            hello = await self._hello(near[0])
            if hello is None:
                return
            far = await self._far_end()
            self._ends.append(far[1])
            far[1].write(hello)
            await self._carry(near, far)
        except (OSError, ssl.SSLError, asyncio.IncompleteReadError):
            pass
        finally:
            self._door._open -= 1
            self._door._tunnels.discard(self)
            _close(near[1])
            if far is not None:
                _close(far[1])

    async def _hello(self, reader: asyncio.StreamReader) -> bytes | None:
        """Return the client's first bytes, if they name the right host."""
        data = b""
        seen: Hello | NeedMore | NotTls = NeedMore()
        try:
            async with asyncio.timeout(HELLO_S):
                while isinstance(seen, NeedMore):
                    piece = await reader.read(4096)
                    if not piece:
                        return None
                    data += piece
                    seen = read_hello(data)
        except TimeoutError:
            seen = NotTls(f"it said nothing for {HELLO_S:g} s")
        why = _why_not(seen, self._authority.host)
        if why is None:
            return data
        _log.warning("a tunnel to %s was closed: %s", self._authority, why, extra={"event": "tunnel_refused"})
        return None

    async def _carry(self, near: Streams, far: Streams) -> None:
        loop = asyncio.get_running_loop()
        self._moved_s = loop.time()
        pumps = {loop.create_task(self._pump(near[0], far[1])), loop.create_task(self._pump(far[0], near[1]))}
        draining = loop.create_task(self._door._draining.wait())
        try:
            while pumps:
                silent_s = loop.time() - self._moved_s
                if silent_s >= (bound := self._bound_s(is_half_closed=len(pumps) == 1)):
                    return
                waited: set[asyncio.Task[object]] = {*pumps} if draining.done() else {*pumps, draining}
                done, _ = await asyncio.wait(waited, timeout=bound - silent_s, return_when=asyncio.FIRST_COMPLETED)
                if any(task.exception() is not None for task in done):
                    return
                pumps -= done
        finally:
            for task in (*pumps, draining):
                task.cancel()
            await asyncio.gather(*pumps, draining, return_exceptions=True)

    def _bound_s(self, *, is_half_closed: bool) -> float:
        if self._door._draining.is_set() and not self._is_read:
            return DRAINING_S
        return min(HALF_CLOSED_S, self._door._idle_s) if is_half_closed else self._door._idle_s

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(PIECE_BYTES):
            self._moved_s = asyncio.get_running_loop().time()
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


def _why_not(seen: Hello | NotTls | NeedMore, host: str) -> str | None:
    match seen:
        case Hello(name) if name == host or (name is None and is_address(host)):
            return None
        case Hello(None):
            return "its TLS hello names no host"
        case Hello(name):
            return f"its TLS hello names {name[:100] if name else name!r}"
        case NotTls(why):
            return why
        case NeedMore():
            return "it ended in the middle of its TLS hello"


def _given(streams: Streams) -> Callable[[], Awaitable[Streams]]:
    async def give() -> Streams:
        return streams

    return give


def _opened(tunnel: _Tunnel, give_up: Callable[[], None]) -> OutgoingResponse:
    async def release() -> None:
        give_up()

    return OutgoingResponse(status=200, reason=b"Connection established", takeover=tunnel, release=release)


def _streams(transport: asyncio.Transport, early: bytes) -> Streams:
    """Return streams over a connection that another protocol has had so far."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=PIECE_BYTES, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    if early:
        reader.feed_data(early)
    with contextlib.suppress(RuntimeError):
        transport.resume_reading()
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _close(writer: asyncio.StreamWriter) -> None:
    writer.transport.close()


def _seen(serving: asyncio.Future[None]) -> None:
    """A client that breaks off its handshake is no error of ours."""
    if not serving.cancelled() and (error := serving.exception()) is not None:
        _log.info("a TLS handshake in a tunnel failed: %s", error, extra={"event": "handshake_failed"})
