"""One connection of an agent: requests in, one at a time to the front, answers out in order; on aiohttp's request parser.

The parser says where messages begin and end; here is what is done about it. A request has a task, which is cancelled when
the agent leaves; a half-closed connection counts as left (aio-libs/aiohttp#3659). Pipelined requests wait in a short queue,
and a full one stops the reading. What cannot be parsed is answered once, after the answers before it.

The parser keeps a copy of every head that it has read, so a connection has none while nothing of a message is in it: not
while a whole request is answered, and not while it is idle.

A connection that ends while its input may still be under way is closed with care: the sending side first, and what comes is
thrown away for a while, or the kernel would answer it with a reset that takes our answer along (RFC 9112 section 9.6).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Protocol, cast

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser, RawRequestMessage
from aiohttp.streams import StreamReader

from gateway.clock import Alarm, Alarms
from gateway.core.known_heads import KnownHeads
from gateway.ingress.refusing import Refusing
from gateway.ingress.request import KNOWN, READ_BYTES, IncomingRequest, UploadBroken, asks_for_websocket

__all__ = ["AgentConnection", "HeadTooLarge", "Limits", "Server"]

PIPELINED = 32
LINGER_S = 5.0
HEAD_BYTES = 1 << 16
_HEAD_END = b"\r\n\r\n"
_UNKNOWN = -1


class HeadTooLarge(Exception):
    """A head that does not end within `HEAD_BYTES`."""


class Limits:
    """Bounds of a connection: a head's bytes and fields, and how long it may stay idle."""

    __slots__ = ("field_bytes", "fields", "keepalive_s", "line_bytes", "new_parser", "stalled_s")

    def __init__(self, *, line_bytes: int, field_bytes: int, fields: int, keepalive_s: float, stalled_s: float) -> None:
        self.line_bytes = line_bytes
        self.field_bytes = field_bytes
        self.fields = fields
        self.keepalive_s = keepalive_s
        self.stalled_s = stalled_s
        self.new_parser = partial(
            HttpRequestParser,
            limit=READ_BYTES,
            payload_exception=UploadBroken,
            auto_decompress=False,
            max_line_size=line_bytes,
            max_field_size=field_bytes,
            max_headers=fields,
            max_msg_queue_size=PIPELINED,
        )


class Server(Protocol):
    """What a connection asks of the front."""

    limits: Limits
    alarms: Alarms
    heads: KnownHeads
    refusing: Refusing
    is_draining: bool
    connections: set[AgentConnection]

    async def serve(self, request: IncomingRequest, connection: AgentConnection) -> None:
        """Answer a request, and call `served` in the end."""

    def answer_at_once(self, request: IncomingRequest, connection: AgentConnection) -> bool:
        """Answer a request that nobody has to wait for, after which the connection may serve another. False: it has to be
        served, and nothing was done. Only asked while any tools are known to be `refusing`."""

    def took(self, data: bytes, request: IncomingRequest) -> None:
        """Take note of the head of a request that a parser has read from `data`, which is all of it."""

    async def refuse_malformed(self, error: Exception, connection: AgentConnection) -> None:
        """Answer what is no request."""


class AgentConnection(BaseProtocol):
    """See the module."""

    __slots__ = (
        "__weakref__",
        "_alarm",
        "_early",
        "_head_bytes",
        "_incoming",
        "_is_after_chunks",
        "_is_closing",
        "_is_deaf",
        "_left_over",
        "_missing",
        "_queue",
        "_request",
        "_server",
        "_task",
        "_unconsumed",
        "peer",
    )

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._server = server
        self._alarm = Alarm(server.alarms, self)
        self._queue: tuple[tuple[RawRequestMessage, StreamReader] | Exception, ...] = ()
        self._task: asyncio.Task[None] | None = None
        self._request: IncomingRequest | None = None
        self._incoming: StreamReader | None = None
        self._left_over: StreamReader | None = None
        self._is_after_chunks = False
        self._is_deaf = False
        self._is_closing = False
        self._early: bytes | None = None
        self._head_bytes = 0
        self._unconsumed = 0
        self._missing = _UNKNOWN
        self.peer = ""

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self._task is not None

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The task that answers the current request."""
        return self._task

    @property
    def stalled_s(self) -> float:
        """How long an upload may pause, and a reader take nothing."""
        return self._server.limits.stalled_s

    @property
    def request(self) -> IncomingRequest | None:
        """The request that is being answered; of a connection that was handed over, the one that asked for that."""
        return self._request

    # --- what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the transport."""
        self.transport = cast(asyncio.Transport, transport)  # Nagle's algorithm is off: event loops see to that
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if isinstance(address, tuple) else ""
        self._server.connections.add(self)
        self._alarm.set(self._loop.time() + self._server.limits.keepalive_s)

    def data_received(self, data: bytes) -> None:
        """Called by the transport; with nothing by the stream of a body, to go on after a pause."""
        if self._early is not None:
            self._keep_early(data)
            return
        if self._is_deaf:
            return
        parser, is_from_its_head = self._parser, False
        if parser is None:
            if self._task is None and (known := self._server.heads(data)) is not None:
                self._take(IncomingRequest(self, known, KNOWN, None))
                return
            # Behind empty lines, which a parser skips (RFC 9112 section 2.2), nobody can tell from here where the head ends.
            parser, is_from_its_head = self._server.limits.new_parser(self, self._loop), data[:1] > b"\r"
            self._parser = parser
        elif self._missing > 0:
            self._missing -= len(data)
        incoming = self._incoming
        is_of_body = incoming is not None and not incoming.is_eof()
        try:
            messages, is_upgrade, tail = parser.feed_data(data)
            if is_from_its_head and len(messages) == 1 and self._task is None and not is_upgrade:
                message, content = messages[0]
                if content.is_eof() and data.find(_HEAD_END) + 4 + content.total_bytes == len(data):
                    self._parser = None  # exactly one request is what nearly always comes
                    request = IncomingRequest.parsed(message, content, self)
                    self._server.took(data, request)
                    self._take(request)
                    return
            self._enqueue(messages)
            if (
                is_upgrade
                and not self._is_deaf
                and (messages[-1][0].method == "CONNECT" or asks_for_websocket(messages[-1][0]))
            ):
                self._early, is_upgrade = tail, False
            while is_upgrade:  # nobody takes up an upgrade here: it stays plain HTTP (RFC 9110 section 7.8)
                parser.set_upgraded(False)
                messages, is_upgrade, tail = parser.feed_data(tail)
                self._enqueue(messages)
            if not messages and not is_of_body:
                self._count_head(len(data))
            if self._is_after_chunks and self._incoming is not None and self._incoming.is_eof():
                self._begin_anew()
        except Exception as error:
            self._garbled(error)
        if self._left_over is not None:
            self._throw_away()
        elif self._task is None and self._queue:
            self._next()
            if is_from_its_head and self._request is not None and (size := self._request.body_size) is not None:
                self._missing = data.find(_HEAD_END) + 4 + size - len(data)
        if not self._missing and ((incoming := self._incoming) is None or incoming.is_eof()):
            self._parser, self._incoming, self._missing = None, None, _UNKNOWN
        if self._unconsumed >= PIPELINED and not self._buffer_paused:
            self._pause_reading_for_buffer()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Called by the transport: the agent has left."""
        self._alarm.stop()
        self._server.connections.discard(self)
        self._is_deaf = True
        self._fail_body(ConnectionResetError("the agent has left"))
        self._queue = ()
        self._parser = None
        super().connection_lost(exc)
        self._left_over = None
        request = self._request
        if request is None or not request.is_to_finish:
            self.cancel()

    def cut(self) -> None:
        """End at once what is being answered here, as if the agent had left: a write that was sent is finished."""
        if self.transport is None:
            self.cancel()
        self.abort()

    def cancel(self) -> None:
        """Cancel the handler of the current request, whatever it does."""
        if self._task is not None:
            self._task.cancel()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Called by the stream, also where nothing was paused."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def _keep_early(self, data: bytes) -> None:
        """Keep what follows a CONNECT or a handshake: it is for whoever takes the connection over, never HTTP for us."""
        assert self._early is not None
        self._early += data
        if len(self._early) >= READ_BYTES and self.transport is not None and not self._is_deaf:
            self.transport.pause_reading()

    def hand_over(self) -> tuple[asyncio.Transport, bytes]:
        """Let go of the transport, and of what came behind the CONNECT. Whoever gets them sets a protocol of its own.

        The request's task goes on, and is cancelled with the front; nothing else here touches the transport any more.
        """
        transport, early = self.transport, self._early or b""
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the agent has left")
        transport.pause_reading()
        self._alarm.stop()
        self._is_deaf = self._is_closing = True
        self.transport = self._parser = None
        self._early = b""
        return transport, early

    # --- ending

    def close(self) -> None:
        """End after what was written. May be repeated."""
        self._is_closing = True
        self._alarm.stop()
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """End at once. May be repeated."""
        self._is_closing = True
        self._alarm.stop()
        if self.transport is not None:
            self.transport.abort()

    def _close_with_care(self) -> None:
        self._is_deaf = self._is_closing = True
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        with contextlib.suppress(OSError, RuntimeError, NotImplementedError):
            transport.write_eof()
        self._resume_transport_reading()
        self._alarm.set(self._loop.time() + LINGER_S)

    def ring(self) -> None:
        """Called by the alarm: a bound has passed. While a request is answered there is none; it is set anew in the end."""
        if self._task is not None:
            return
        self.abort() if self._is_closing or self._left_over is not None else self.close()

    # --- requests

    def _enqueue(self, messages: Sequence[tuple[RawRequestMessage, StreamReader]]) -> None:
        if not messages:
            return
        if self._is_after_chunks:
            self._is_deaf = True
            return
        if len(messages) > 1:
            messages = self._without_those_behind_chunks(messages)
        self._head_bytes = 0
        self._unconsumed += len(messages)
        self._queue += tuple(messages)
        message, content = messages[-1]
        self._is_after_chunks = message.chunked
        self._incoming = content if message.chunked or not content.is_eof() else None

    def _without_those_behind_chunks(
        self, messages: Sequence[tuple[RawRequestMessage, StreamReader]]
    ) -> Sequence[tuple[RawRequestMessage, StreamReader]]:
        for place, (message, _) in enumerate(messages[:-1], 1):
            if message.chunked:
                self._is_deaf = True
                return messages[:place]
        return messages

    def _begin_anew(self) -> None:
        """Take a fresh parser once a chunked request has ended: aiohttp's puts the last of its trailers into the header of
        the next request. Where that has begun already, the connection is closed after the answer, and it goes unread."""
        parser, self._is_after_chunks = self._parser, False
        try:
            is_clean = parser is not None and self._unconsumed < PIPELINED and parser.feed_eof() is None
        except Exception:
            is_clean = False
        if is_clean:
            self._parser = None
        else:
            self._is_deaf = True

    def _count_head(self, size: int) -> None:
        """Bound a head as a whole: the parser only knows lines and fields. What came together with the end of a body is not
        counted, which is one piece at most."""
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES:
            raise HeadTooLarge

    def _garbled(self, error: Exception) -> None:
        """What came is no request, or no body: nothing after it can be read."""
        self._is_deaf = True
        if not self._fail_body(UploadBroken("malformed")):
            self._queue += (error,)

    def _fail_body(self, error: Exception) -> bool:
        """Tell whoever reads the body that is under way; return whether there is one."""
        incoming = self._incoming
        if incoming is None or incoming.is_eof() or incoming.exception() is not None:
            return False
        incoming.set_exception(error)
        return True

    def _take(self, request: IncomingRequest) -> None:
        """Take the one request that has come on an idle connection."""
        if self._server.refusing and self._server.answer_at_once(request, self):
            self._alarm.set(self._loop.time() + self._server.limits.keepalive_s)
        else:
            self._begin(request)

    def _begin(self, request: IncomingRequest) -> None:
        self._request = request
        self._task = self._loop.create_task(self._server.serve(request, self))

    def _next(self) -> None:
        item, self._queue = self._queue[0], self._queue[1:]
        if isinstance(item, Exception):
            self._alarm.clear()
            self._task = self._loop.create_task(self._refuse(item))
            return
        request = IncomingRequest.parsed(*item, self)
        # Not with others behind it: so many answers in one pass of the loop would hold up everybody else's.
        if self._server.refusing and not self._queue and self._server.answer_at_once(request, self):
            self._consumed()
            self._go_on(is_kept=True)
            return
        self._begin(request)
        self._consumed()

    def _consumed(self) -> None:
        """A request was taken off the queue: the parser may go on with the next, the transport read more."""
        was_full = self._unconsumed >= PIPELINED
        self._unconsumed -= 1
        if self._parser is not None:
            self._parser.message_consumed()
            if was_full:  # the parser stopped in the middle of what it has
                self.data_received(b"")
        if self._buffer_paused and self._unconsumed < PIPELINED:
            self._resume_reading_for_buffer()

    async def _refuse(self, error: Exception) -> None:
        try:
            await self._server.refuse_malformed(error, self)
        except ConnectionError:
            pass
        finally:
            self._task = None
            self._close_with_care()

    def served(self, request: IncomingRequest, *, is_kept: bool) -> None:
        """Called by the server: the request is answered, or broken off; `is_kept` if the connection may serve another."""
        self._task = self._request = None
        transport, content = self.transport, request.content
        if transport is None:
            self._server.connections.discard(self)
            return
        if transport.is_closing():
            return
        if content.is_eof():
            self._go_on(is_kept=is_kept)
        elif is_kept and not self._is_deaf:
            self._left_over = content
            self._alarm.set(self._loop.time() + LINGER_S)
            self._throw_away()
        else:
            self._close_with_care()

    def _throw_away(self) -> None:
        """Read what is left of a body that nobody wanted, so that the next request can be seen."""
        content = self._left_over
        assert content is not None
        if content.exception() is not None:
            self._left_over = None
            self._close_with_care()
            return
        content.read_nowait()
        if content.is_eof():
            self._left_over = None
            self._go_on(is_kept=True)

    def _go_on(self, *, is_kept: bool) -> None:
        if is_kept and not self._server.is_draining and not self._is_closing:
            if self._queue:
                self._next()
                return
            if not self._is_deaf:
                self._alarm.set(self._loop.time() + self._server.limits.keepalive_s)
                return
        if self._is_deaf or self._queue:
            self._close_with_care()
        else:
            self.close()
