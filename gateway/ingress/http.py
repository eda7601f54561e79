"""The front towards agents: HTTP/1.1 in and out on connections of our own, with bytes and bodies at the seam.

A head is written as it was given (no Server, no Content-Type, no compression), with two fields that are a proxy's own duty,
the framing and a Date where the origin sent none (RFC 9110 section 6.6.1).

What an agent may rely on:

* A truncated answer looks truncated. A body that breaks closes the connection in the middle, never with a clean end.
* When the agent leaves, the handler is cancelled at once. A half-closed connection counts as left (aiohttp#3659).
* `on_delivered` is called only after the kernel has taken the last byte, so an answer that could not be handed over
  is never mistaken for one that was.
* `100 Continue` is sent when, and only when, the handler begins to read the body (RFC 9110 section 10.1.1).

Bounded: the head by line, field and count; a stalled upload and a reader that takes nothing by time; memory per
connection by the read buffer plus the transport's write buffer.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from weakref import WeakKeyDictionary

from aiohttp.http import HttpVersion, HttpVersion10, HttpVersion11
from aiohttp.http_exceptions import BadStatusLine, HttpProcessingError, LineTooLong

from gateway.clock import Alarms
from gateway.core.framing import WITHOUT_BODY, Framing, frame_answer, ordinary_answer
from gateway.core.headers import field_lines
from gateway.core.known_heads import KnownHeads
from gateway.core.message import Body, BytesBody, Headers, Reply
from gateway.core.problem import Problem
from gateway.core.tokens import Entry
from gateway.ingress.connection import HEAD_BYTES, AgentConnection, HeadTooLarge, Limits
from gateway.ingress.refusing import Refusing
from gateway.ingress.request import KNOWN, IncomingRequest, UploadBroken
from gateway.ingress.unix import bind_unix
from gateway.ingress.writer import ResponseWriter, write_body

__all__ = ["HttpFront", "IncomingRequest", "OutgoingResponse", "UploadBroken"]

log = logging.getLogger(__name__)

KEEPALIVE_S = 75.0
HANDSHAKE_S = 10.0
STALLED_S = 60.0
LINE_BYTES = 16_384
FIELD_BYTES = 32_768
FIELDS = 128
_HEADS = 256
_HEAD_KEPT = 4096
"""So many heads are known at a time, of so many bytes at most: larger ones are looked at each time."""

_SMALL = 1 << 15
"""Bytes of a body with which an idle connection has nobody wait: less than the transports' own mark of 64 KiB."""

_NOT_AT_ONCE = frozenset({"HEAD", "CONNECT"})
_VERSIONS = "Only HTTP/1.1 and HTTP/1.0 are spoken here."
_HOST = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")


@dataclass(slots=True)
class OutgoingResponse:
    """What goes back to the agent.

    Attributes:
        headers: as they shall appear; the front adds framing where it is missing or wrong, Date where it is missing.
        body: given back (`aclose`, or `release` if given) in every case, also if nothing could be written.
        reply: the tool's answer that the body is of, which is given back then.
        on_delivered: called once the kernel has taken the last byte; not called otherwise.
        takeover: after the head, the connection is this one's: it gets the transport and what the client has sent
            already, sets a protocol of its own, and returns once the connection is over. There is no body then.
    """

    status: int
    headers: Headers = ()
    body: Body = field(default_factory=BytesBody)
    reason: bytes | None = None
    on_delivered: Callable[[], None] | None = None
    release: Callable[[], Awaitable[None]] | None = None
    takeover: Takeover | None = None
    reply: Reply | None = None


Takeover = Callable[[asyncio.Transport, bytes], Awaitable[None]]
Handler = Callable[[IncomingRequest], Awaitable[OutgoingResponse]]
Refuse = Callable[[int, str], OutgoingResponse]
AtOnce = Callable[[bytes | None], Problem | None]
"""Answers a request of which the head is known and the body is here, given that body where it came in one piece; None where
it takes more than that, and nothing was done."""

_Head = tuple[str, bytes, Headers, str]
"""Method, target, fields and the peer: all that what is known of a head may depend on."""


def _plain_refusal(status: int, detail: str) -> OutgoingResponse:
    body = BytesBody(f"{detail}\n".encode())
    return OutgoingResponse(status=status, headers=((b"Content-Type", b"text/plain; charset=utf-8"),), body=body)


class HttpFront:
    """Listens, and hands each request to `handler`. Make it on a running loop.

    Args:
        handler: answers a request. It is cancelled when the agent leaves. An exception from it is a bug: it is logged
            and answered with 500.
        refuse: words the refusals that the front gives itself: 400, 414, 417, 431, 500, 501, 505.
        at_once: returns what answers requests with the head of this one without waiting for anything, as long as it can;
            None where nothing does. It keeps nothing of the request, and is asked before `handler` where `refusing` says
            that it may know.
        line_bytes, field_bytes, fields: bounds of a request's head.
        keepalive_s: how long an idle connection is kept; also bounds a head that does not end.
        stalled_s: how long an upload may pause, and a reader take nothing.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        refuse: Refuse = _plain_refusal,
        at_once: Callable[[IncomingRequest], AtOnce | None] | None = None,
        refusing: Refusing | None = None,
        line_bytes: int = LINE_BYTES,
        field_bytes: int = FIELD_BYTES,
        fields: int = FIELDS,
        keepalive_s: float = KEEPALIVE_S,
        stalled_s: float = STALLED_S,
    ) -> None:
        self._handler = handler
        self._refuse = refuse
        self._at_once = at_once
        self._known: dict[_Head, AtOnce] = {}
        self.refusing = Refusing() if refusing is None else refusing
        self.limits = Limits(
            line_bytes=line_bytes,
            field_bytes=field_bytes,
            fields=fields,
            keepalive_s=keepalive_s,
            stalled_s=stalled_s,
        )
        self.heads = KnownHeads(min(line_bytes, field_bytes))
        self.connections: set[AgentConnection] = set()
        self._handlers: WeakKeyDictionary[AgentConnection, Handler] | None = None
        self._loop = asyncio.get_running_loop()
        self.alarms = Alarms(self._loop)
        self._listener: asyncio.Server | None = None
        self._socket: Path | None = None
        self._in_flight = 0
        self._idle: asyncio.Event | None = None
        self.is_draining = False
        self._date = (0, b"")

    async def listen(self, host: str, port: int) -> int:
        """Listen on TCP and return the port; 0 takes a free one."""
        self._listener = await self._loop.create_server(self._accepted, host, port, backlog=1024)
        return int(self._listener.sockets[0].getsockname()[1])

    async def listen_unix(self, path: Path, mode: int = 0o600) -> None:
        """Listen on a Unix socket that those can connect to whom `mode` lets write it.

        Raises:
            OSError: somebody listens there already, or the place cannot be used.
        """
        bound = bind_unix(path, mode)
        self._listener = await self._loop.create_unix_server(self._accepted, sock=bound, backlog=1024)
        self._socket = path

    async def adopt(self, connected: socket.socket, context: ssl.SSLContext, handler: Handler) -> None:
        """Serve a connection made elsewhere, with TLS, its requests answered by `handler`. Returns after the handshake.

        Raises:
            OSError: the handshake failed.
        """

        def accepted() -> AgentConnection:
            connection = self._accepted()
            if self._handlers is None:
                self._handlers = WeakKeyDictionary()
            self._handlers[connection] = handler
            return connection

        await self._loop.connect_accepted_socket(accepted, connected, ssl=context, ssl_handshake_timeout=HANDSHAKE_S)

    @property
    def in_flight(self) -> int:
        """Requests between their head and the last byte of their answer."""
        return self._in_flight

    def stop_accepting(self) -> None:
        """Take no new connections, close idle ones, and let the others end with their current answer."""
        self.is_draining = True
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            if not connection.is_busy:
                connection.close()

    def cut(self, is_good: Callable[[Entry], bool]) -> int:
        """Cut the connections of requests whose token is no longer good, tunnels and open streams among them. Returns how
        many. Open WebSockets ask for themselves (`IncomingRequest.is_welcome`), and say why they close."""
        bad = [
            connection
            for connection in self.connections
            if connection.request is not None
            and connection.request.token is not None
            and not is_good(connection.request.token)
            and not (connection.request.wants_websocket and connection.transport is None)
        ]
        for connection in bad:
            connection.cut()
        return len(bad)

    async def wait_idle(self, limit_s: float) -> bool:
        """Wait until nothing is in flight; return False if it took longer than `limit_s`."""
        try:
            async with asyncio.timeout(limit_s):
                await self._until_idle()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Stop, drop every connection, and wait for the cancelled handlers. May be repeated."""
        self.stop_accepting()
        for connection in list(self.connections):
            connection.abort()
            connection.cancel()
        await self._until_idle()
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)
            self._socket = None

    async def _until_idle(self) -> None:
        while self._in_flight:
            idle = self._idle = self._idle or asyncio.Event()
            idle.clear()
            await idle.wait()

    def _accepted(self) -> AgentConnection:
        return AgentConnection(self, self._loop)

    async def serve(self, request: IncomingRequest, connection: AgentConnection) -> None:
        """Answer a request, and tell its connection when that is over. For connections: all that a request's task does."""
        self._in_flight += 1
        is_kept = False
        try:
            response = None if request.manner is KNOWN else self._refusal(request)
            if response is None:
                handler = self._handlers.get(connection, self._handler) if self._handlers is not None else self._handler
                try:
                    response = await handler(request)
                except Exception:
                    log.exception("the handler failed on %s", request.method)
                    response = self._refuse(
                        500, "The gateway has failed on this request. Nothing is known of its effect."
                    )
            is_kept = self._wrote(request, connection, response) or await self._answered(request, connection, response)
        except ConnectionError:
            pass  # the agent has left
        finally:
            self._in_flight -= 1
            if self._idle is not None and not self._in_flight:
                self._idle.set()
            connection.served(request, is_kept=is_kept)

    def took(self, data: bytes, request: IncomingRequest) -> None:
        """Take note of a head that a parser has read, if there is nothing out of the ordinary about it. For connections."""
        if request.manner == KNOWN and self._refusal(request) is None:
            self.heads.took(data, request.headers)

    def answer_at_once(self, request: IncomingRequest, connection: AgentConnection) -> bool:
        """Answer a request that nobody has to wait for, after which the connection may serve another. For connections.

        False where it has to be served: nothing was done then. So it is wherever anything is out of the ordinary, and while
        an earlier answer has not left yet.
        """
        target, manner = request.target, request.manner
        if not self.refusing.is_meant(target) or not manner.is_kept_alive or manner.version != HttpVersion11:
            return False
        transport = connection.transport
        if self.is_draining or transport is None or transport.is_closing() or transport.get_write_buffer_size():
            return False
        if self._handlers is not None and connection in self._handlers:
            return False
        if not request.is_here:
            return False
        try:
            head = (request.method, target, request.headers, connection.peer)
            known = self._known.get(head) or self._look_at(head, request.again())
            told = None if known is None else known(request.in_one_piece())
            if told is None:
                self._known.pop(head, None)
                return False
            lines = b"\r\n".join(map(b": ".join, told.headers))
            if lines.count(b"\n") != len(told.headers) - 1:
                raise ValueError("a header field holds a line break")
        except Exception:
            log.exception("a request could not be answered at once")
            return False
        status, body = told.status, told.body
        transport.write(
            b"HTTP/1.1 %d %b\r\n%b\r\nContent-Length: %d\r\nDate: %b\r\n\r\n%b"
            % (status, _REASONS[status], lines, len(body), self._now(), body)
        )
        return True

    def _look_at(self, head: _Head, request: IncomingRequest) -> AtOnce | None:
        """Find out what is to be known of requests with this head, where there is nothing out of the ordinary about it."""
        if request.method in _NOT_AT_ONCE or request.wants_websocket or request.is_waiting_for_continue:
            return None
        if self._at_once is None or self._refusal(request) is not None:
            return None
        known = self._at_once(request)
        if known is not None and len(head[1]) + sum(map(len, chain(*head[2]))) <= _HEAD_KEPT:
            if len(self._known) >= _HEADS:
                self._known.clear()
            self._known[head] = known
        return known

    async def refuse_malformed(self, error: Exception, connection: AgentConnection) -> None:
        """Answer what is no request. For connections.

        Raises:
            ConnectionError: the agent has left.
        """
        response = self._malformed(error)
        framing = frame_answer("", response.status, response.headers, response.body.size)
        data = response.body.data if isinstance(response.body, BytesBody) else b""
        writer = ResponseWriter(connection)
        writer.write(self._head(response, framing, is_kept=False) + data)
        await writer.drain()

    def _refusal(self, request: IncomingRequest) -> OutgoingResponse | None:
        """What the parser lets through and RFC 9112 does not (sections 2.3, 3.2, 6.1; RFC 9110 section 10.1.1)."""
        if request.manner.version not in (HttpVersion11, HttpVersion10):
            if request.manner.version == HttpVersion(0, 9):
                return self._closing(400, "The request line names no version of HTTP.")
            return self._closing(505, _VERSIONS)
        host = request.fields.get(b"host")
        if host is not None and not _HOST.fullmatch(host):
            return self._closing(400, "The Host field names no host.")
        if request.body_size is None:
            if request.manner.version == HttpVersion10:
                return self._closing(400, "HTTP/1.0 has no chunked bodies: send Content-Length.")
            codings = [value for name, value in request.headers if name.lower() == b"transfer-encoding"]
            if len(codings) != 1 or codings[0].lower() != b"chunked":
                return self._closing(501, "The only transfer coding understood here is 'chunked', alone.")
        if request.is_waiting_for_continue:
            expected = request.field(b"expect")
            if expected is not None and expected.lower() != b"100-continue":
                return self._refuse(417, "The only expectation understood here is '100-continue'.")
        return None

    def _closing(self, status: int, detail: str) -> OutgoingResponse:
        response = self._refuse(status, detail)
        response.headers = (*response.headers, (b"Connection", b"close"))
        return response

    def _wrote(self, request: IncomingRequest, connection: AgentConnection, response: OutgoingResponse) -> bool:
        """Write a tool's small answer where nobody has to wait for anything. False: it has to be waited for, or more than
        that, and nothing was done."""
        reply, body, transport = response.reply, response.body, connection.transport
        if reply is None or response.on_delivered is not None or type(body) is not BytesBody:
            return False
        if transport is None or transport.is_closing() or transport.get_write_buffer_size() or len(body.data) > _SMALL:
            return False
        data = self._ordinary(request, response, body.data)
        if data is None:
            return False
        transport.write(data)
        reply.end()
        return True

    async def _answered(
        self, request: IncomingRequest, connection: AgentConnection, response: OutgoingResponse
    ) -> bool:
        writer = ResponseWriter(connection)
        try:
            if response.takeover is not None:
                await self._hand_over(writer, connection, response, response.takeover)
                return False
            body = response.body
            data = self._ordinary(request, response, body.data) if type(body) is BytesBody else None
            if data is not None:
                writer.write(data)
                if connection.writing_paused:
                    await writer.drain()
                is_kept = True
            else:
                is_kept = await self._write(writer, request, response)
            if response.on_delivered is not None:
                await writer.flush()
                _call(response.on_delivered)
            return is_kept
        except ConnectionError:
            raise
        except Exception as error:
            log.exception("an answer could not be written")
            if not writer.has_begun:
                await self._write(writer, request, self._closing(500, "The gateway has failed."))
                return False
            writer.break_off(with_reset=True)
            raise ConnectionResetError("the answer was broken off") from error
        finally:
            reply = response.reply
            if reply is not None:
                if type(reply.body) is BytesBody:
                    reply.end()
                else:
                    await reply.aclose()
            elif response.release is not None:
                await response.release()
            elif type(response.body) is not BytesBody:
                await response.body.aclose()

    def _ordinary(self, request: IncomingRequest, response: OutgoingResponse, data: bytes) -> bytes | None:
        """Return an answer whole, if it is an ordinary one; None where there is more to it."""
        status, reason = response.status, response.reason
        if self.is_draining or request.manner != KNOWN or request.method == "HEAD" or status in WITHOUT_BODY:
            return None
        if reason is None:
            reason = _REASONS.get(status, b"")
        return ordinary_answer(status, reason, response.headers, data, self._now())

    async def _hand_over(
        self, writer: ResponseWriter, connection: AgentConnection, response: OutgoingResponse, takeover: Takeover
    ) -> None:
        """Say yes, and let go of the connection."""
        reason = response.reason or _REASONS.get(response.status, b"")
        writer.write(b"HTTP/1.1 %d %b\r\n%b\r\n" % (response.status, reason, field_lines(response.headers)))
        transport, early = connection.hand_over()
        try:
            await takeover(transport, early)
        except Exception:
            log.exception("what took a connection over has failed")
        finally:
            transport.close()

    async def _write(self, writer: ResponseWriter, request: IncomingRequest, response: OutgoingResponse) -> bool:
        """Write head and body; return whether the connection may serve another request."""
        body = response.body
        is_http_1_0 = request.manner.version == HttpVersion10
        framing = frame_answer(request.method, response.status, response.headers, body.size, is_http_1_0=is_http_1_0)
        is_kept = (
            request.manner.is_kept_alive
            and not self.is_draining
            and not framing.ends_by_closing
            and not request.is_waiting_for_continue
            and b"connection" not in framing.names
        )
        head = self._head(response, framing, is_kept=is_kept, is_http_1_0=is_http_1_0)
        if framing.is_bodiless:
            writer.write(head)
        elif type(body) is BytesBody:
            writer.write(head + body.data)
        else:
            writer.write(head)
            await write_body(writer, body, framing)
        await writer.drain()
        return is_kept

    def _head(
        self,
        response: OutgoingResponse,
        framing: Framing,
        *,
        is_kept: bool,
        is_http_1_0: bool = False,
    ) -> bytes:
        headers, names = framing.headers, framing.names
        if b"date" not in names:
            headers = (*headers, (b"Date", self._now()))
        if not is_kept:
            if b"connection" not in names:
                headers = (*headers, (b"Connection", b"close"))
        elif is_http_1_0:
            headers = (*headers, (b"Connection", b"keep-alive"))
        reason = response.reason
        if reason is None:
            reason = _REASONS.get(response.status, b"")
        elif reason.count(b"\r") or reason.count(b"\n"):
            reason = b""
        return b"HTTP/1.1 %d %b\r\n%b\r\n" % (response.status, reason, field_lines(headers))

    def _now(self) -> bytes:
        second = int(time.time())
        if self._date[0] != second:
            self._date = (second, formatdate(second, usegmt=True).encode("ascii"))
        return self._date[1]

    def _malformed(self, error: BaseException | None) -> OutgoingResponse:
        if isinstance(error, LineTooLong):
            if error.args[1] == self.limits.line_bytes:
                return self._closing(414, f"The request line is longer than {self.limits.line_bytes} bytes.")
            return self._closing(431, f"A header field is longer than {self.limits.field_bytes} bytes.")
        if isinstance(error, HeadTooLarge):
            return self._closing(431, f"The request's head is longer than {HEAD_BYTES} bytes.")
        if isinstance(error, HttpProcessingError) and "too many headers" in error.message.lower():
            return self._closing(431, f"There are more than {self.limits.fields} header fields.")
        if isinstance(error, BadStatusLine) and "Invalid HTTP version" in error.message:
            return self._closing(505, _VERSIONS)
        return self._closing(400, "The request is not well-formed HTTP/1.1.")


_REASONS = {status.value: status.phrase.encode("ascii") for status in HTTPStatus}


def _call(on_delivered: Callable[[], None]) -> None:
    """Call back; the answer is out, so a bug in there must not take it back."""
    try:
        on_delivered()
    except Exception:
        log.exception("what follows a delivered answer has failed")
