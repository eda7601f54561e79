"""One connection to a tool, carrying one exchange at a time, on aiohttp's response parser and a plain `asyncio.Protocol`.

An exchange knows exactly what was sent, has one moving time bound, and ends in one of four ways: its answer, `Lost`,
`Garbled`, `Overdue` or `UploadBroken`. A connection serves another exchange only if nothing is left of the last one: the
request was written and the answer read to their ends, the tool means to go on, and not a byte came that nobody asked for.

An answer that comes whole and plain is read as it is (`core/answer.py`); for any other aiohttp's parser is made, anew for
each, so that nothing of one message can reach into the next, and only once the answer begins: while a call waits for its
tool there is none, nor on a connection that is kept. It wants a protocol that it can pause, which is
`aiohttp.base_protocol.BaseProtocol`; `tests/test_aiohttp.py` watches over what is relied on.

Source: RFC 9112 sections 6.3, 9.3, 9.5; aiohttp 3.14 `http_parser`, `streams`.
"""

from __future__ import annotations

import asyncio
import select
import ssl
from collections.abc import Callable
from contextlib import aclosing
from enum import Enum
from functools import partial
from typing import Any, Final, cast

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpResponseParser, RawResponseMessage
from aiohttp.streams import StreamReader

from gateway.clock import Alarm, Alarms
from gateway.core.answer import whole_answer
from gateway.core.message import Body, BytesBody, Reply
from gateway.egress import Timings

__all__ = ["Connection", "Exchange", "ExchangeError", "Garbled", "Lost", "NotLetIn", "Overdue", "UploadBroken"]

LINE_BYTES = 8_190
FIELD_BYTES = 32_768
FIELDS = 128
READ_BYTES = 1 << 16
COALESCED_BYTES = 1 << 16


class ExchangeError(Exception):
    """An exchange that did not end as it should."""


class Lost(ExchangeError):
    """The connection ended first. `is_reset` tells a reset from a close."""

    def __init__(self, *, is_reset: bool) -> None:
        super().__init__("reset" if is_reset else "closed")
        self.is_reset = is_reset


class NotLetIn(ExchangeError):
    """The tool's TLS turned us away; the message is OpenSSL's word for why.

    In TLS 1.3 the client may write before the server has looked at its certificate, so this can come after the request:
    but a server that refuses the handshake has not read a byte of it (RFC 8446 section 4.4.2.4 and appendix E.5).
    """


class Garbled(ExchangeError):
    """What came is not an HTTP answer, or not all of one."""


class Overdue(ExchangeError):
    """A time bound was exceeded; the message is a clause for people."""


class UploadBroken(ExchangeError):
    """The request's body could not be read to its end, or had another length than it said."""


class Phase(Enum):
    """What an exchange waits for."""

    UPLOAD = "upload"
    HEAD = "head"
    BODY = "body"


# Members that every call is compared with, looked up once (docs/adr/0092).
_BODY: Final = Phase.BODY
_HEAD: Final = Phase.HEAD
_UPLOAD: Final = Phase.UPLOAD


class Exchange:
    """One request and its answer.

    Attributes:
        answer: done with the answer's head, or all of it, or fails with an `ExchangeError`.
        is_to_head: the answer has no body, whatever it says.
        is_sent: a byte of the request may have left. Never goes back.
        is_written: all of the request was handed to the transport.
        timed_out: which bound was exceeded, as a clause; empty while none was.
        upload_error: why the request's body could not be sent to its end.
    """

    __slots__ = (
        "answer",
        "content",
        "is_bounded",
        "is_sent",
        "is_to_head",
        "is_written",
        "message",
        "phase",
        "timed_out",
        "timings",
        "total_at",
        "upload",
        "upload_error",
        "whole",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, timings: Timings, is_bounded: bool, is_to_head: bool = False
    ) -> None:
        """`is_bounded` keeps the total time bound on for the answer's body; a stream knows only the idle one."""
        self.answer: asyncio.Future[RawResponseMessage | Reply] = loop.create_future()
        self.timings = timings
        self.total_at = loop.time() + timings.total_s
        self.is_bounded = is_bounded
        self.is_to_head = is_to_head
        self.is_sent = False
        self.is_written = False
        self.phase = _UPLOAD
        self.message: RawResponseMessage | None = None
        self.content: StreamReader | None = None
        self.whole: Reply | None = None
        self.timed_out = ""
        self.upload: asyncio.Task[None] | None = None
        self.upload_error: Exception | None = None

    def has_ended(self) -> bool:
        """Return whether the answer has come to its end."""
        return self.whole is not None or (self.content is not None and self.content.is_eof())

    def may_go_on(self) -> bool:
        """Return whether the connection can serve another exchange: both messages are over, and the tool means to go on."""
        if self.whole is not None:
            return self.is_written
        message = self.message
        return self.is_written and self.has_ended() and message is not None and not message.should_close

    def fail(self, error: ExchangeError) -> None:
        """Wake whoever waits for head or body. Once the answer is complete, nothing can take it back."""
        if self.content is None:
            if not self.answer.done():
                self.answer.set_exception(error)
        elif not self.content.is_eof() and self.content.exception() is None:
            self.content.set_exception(error)


_new_parser = partial(
    HttpResponseParser,
    limit=READ_BYTES,
    payload_exception=Garbled,
    read_until_eof=True,
    auto_decompress=False,
    max_line_size=LINE_BYTES,
    max_field_size=FIELD_BYTES,
    max_headers=FIELDS,
)
_new_bodiless_parser = partial(_new_parser, response_with_body=False)


class Connection(BaseProtocol):
    """A connection. `on_idle_end` is called when it ends while it carries nothing, so that a pool can forget it.

    Attributes:
        alarm: its time bound; whoever keeps it idle sets how long.
    """

    __slots__ = ("_early", "_exchange", "_is_spent", "_on_idle_end", "_poll", "alarm")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, alarms: Alarms, on_idle_end: Callable[[Connection], None]
    ) -> None:
        super().__init__(loop)
        self.alarm = Alarm(alarms, self)
        self._early: bytes | None = None
        self._exchange: Exchange | None = None
        self._is_spent = False
        self._on_idle_end = on_idle_end
        self._poll: select.poll | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the transport."""
        self.transport = cast(asyncio.Transport, transport)  # Nagle's algorithm is off: event loops see to that

    @property
    def is_usable(self) -> bool:
        """Whether another exchange may begin: nothing waits on it, no stray bytes, no end of stream.

        Between the arrival of bytes and the loop's next turn only the kernel knows of them, so it is asked
        (aio-libs/aiohttp#13656).
        """
        transport = self.transport
        if transport is None or self._is_spent or transport.is_closing():
            return False
        poll = self._poll or self._watched()
        return not poll.poll(0)

    def _watched(self) -> select.poll:
        """Make what the kernel is asked with; only connections that are kept have one."""
        assert self.transport is not None
        poll = self._poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return poll

    @property
    def is_open(self) -> bool:
        """Whether the connection has not ended yet, as far as the event loop knows."""
        return self.transport is not None and not self._is_spent and not self.transport.is_closing()

    def begin(self, exchange: Exchange, head: bytes, body: Body | None) -> None:
        """Send a request. A small body leaves in one piece with the head; a large one by a task of its own, since the
        answer may come before it ends."""
        transport = self.transport
        assert transport is not None
        self._exchange = exchange
        exchange.is_sent = True
        if body is None:
            transport.write(head)
        elif type(body) is BytesBody and len(body.data) <= COALESCED_BYTES:
            transport.write(head + body.data)
        else:
            transport.write(head)
            self.alarm.set(exchange.total_at)
            exchange.upload = self._loop.create_task(self._upload(exchange, body))
            return
        self._written(exchange)

    def finish(self) -> bool:
        """End the exchange; return whether the connection may serve another. One that may not is closed."""
        exchange, self._exchange, self._parser = self._exchange, None, None
        transport = self.transport
        is_good = transport is not None and not self._is_spent and not transport.is_closing()
        if is_good and exchange is not None and exchange.may_go_on():
            return True
        self._end(exchange)
        return False

    def abort(self) -> None:
        """End at once, whatever is under way. May be repeated."""
        exchange, self._exchange = self._exchange, None
        self._end(exchange)

    def _end(self, exchange: Exchange | None) -> None:
        self._is_spent = True
        self.alarm.stop()
        if exchange is not None and exchange.upload is not None:
            exchange.upload.cancel()
        if self.transport is not None:
            self.transport.abort()

    # --- what the transport and the parser call

    def data_received(self, data: bytes) -> None:
        """Called by the transport; with nothing by the parser's stream, to go on after a pause."""
        exchange, parser = self._exchange, self._parser
        if exchange is None or exchange.whole is not None or exchange.has_ended():
            if self._early is not None:
                self._early += data
            elif data:
                self._stray()
            return
        if parser is None:
            if not exchange.is_to_head and (whole := whole_answer(data)) is not None:
                exchange.whole, exchange.phase = whole, _BODY
                if not exchange.answer.done():
                    exchange.answer.set_result(whole)
                return
            new_parser = _new_bodiless_parser if exchange.is_to_head else _new_parser
            parser = self._parser = new_parser(self, self._loop)
        try:
            messages, is_switched, tail = parser.feed_data(data)
        except Exception as error:
            self._break(exchange, Garbled(type(error).__name__))
            return
        for message, content in messages:
            if exchange.message is not None:
                self._is_spent = True
            elif message.code >= 200 or message.code == 101:
                exchange.message, exchange.content, exchange.phase = message, content, _BODY
                if not exchange.answer.done():
                    exchange.answer.set_result(message)
        if is_switched:
            self._switch(bytes(tail))
        elif exchange.has_ended():
            self.alarm.clear()
            if self._is_in_a_message():
                self._is_spent = True
        elif exchange.phase is _BODY:
            self._arm_body(exchange)

    def _switch(self, early: bytes) -> None:
        """HTTP is over here: what comes is kept for whoever asked for that, or goes with the connection."""
        self.alarm.clear()
        self._is_spent = True
        self._early = early
        if self.transport is not None:
            self.transport.pause_reading()

    def hand_over(self) -> tuple[asyncio.Transport, bytes]:
        """Let go of the transport; see `Switched`."""
        transport, early = self.transport, self._early
        if transport is None or transport.is_closing() or early is None:
            raise ConnectionResetError("the tool has closed the connection")
        self.alarm.stop()
        self._exchange = self.transport = self._parser = None
        return transport, early

    def _is_in_a_message(self) -> bool:
        """Whether something has begun after the answer's end."""
        try:
            return self._parser is not None and self._parser.feed_eof() is not None
        except Exception:
            return True

    def _stray(self) -> None:
        """Bytes that nobody asked for: whatever they are, they are no answer to what comes next."""
        self._is_spent = True
        if self._exchange is None and self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Called by the transport."""
        self.alarm.stop()
        self._is_spent = True
        exchange, parser, self._parser = self._exchange, self._parser, None
        if exchange is None:
            self._on_idle_end(self)
        elif exc is not None:
            exchange.fail(_not_let_in(exc, exchange) or Lost(is_reset=True))
        elif exchange.content is None:
            exchange.fail(Lost(is_reset=False))  # means nothing to one that has all of its answer
        elif parser is not None and not exchange.has_ended():
            try:
                parser.feed_eof()
            except Exception as error:
                exchange.fail(Garbled(type(error).__name__))
        super().connection_lost(exc)

    def pause_reading(self) -> None:
        """Called by the stream: its reader is slow, which is not the tool's fault."""
        super().pause_reading()
        exchange = self._exchange
        if exchange is not None:
            if exchange.is_bounded:
                self.alarm.set(exchange.total_at)
            else:
                self.alarm.clear()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Called by the stream, also where nothing was paused."""
        if not self._reading_paused:
            return
        super().resume_reading(resume_parser)
        exchange = self._exchange
        if exchange is not None and not exchange.has_ended() and self._is_reading():
            self._arm_body(exchange)

    def _is_reading(self) -> bool:
        return not self._reading_paused

    # --- time

    def _written(self, exchange: Exchange) -> None:
        exchange.is_written = True
        if exchange.phase is _UPLOAD:
            exchange.phase = _HEAD
            due = self._loop.time() + exchange.timings.first_byte_s
            self.alarm.set(due if due < exchange.total_at else exchange.total_at)

    def _arm_body(self, exchange: Exchange) -> None:
        due = self._loop.time() + exchange.timings.idle_s
        self.alarm.set(min(due, exchange.total_at) if exchange.is_bounded else due)

    def ring(self) -> None:
        """Called by the alarm: a bound has passed."""
        exchange = self._exchange
        if exchange is None:
            self.abort()
            return
        if exchange.whole is not None:
            return  # all of it is here, and whoever waits for it is about to give the connection back
        exchange.timed_out = self._clause(exchange)
        self._break(exchange, Overdue(exchange.timed_out))

    def _clause(self, exchange: Exchange) -> str:
        timings = exchange.timings
        if (exchange.is_bounded or exchange.phase is not Phase.BODY) and self._loop.time() >= exchange.total_at - 0.01:
            return f"no complete answer within {timings.total_s:g} s"
        match exchange.phase:
            case Phase.UPLOAD:
                return f"the request was not taken for {timings.idle_s:g} s"
            case Phase.HEAD:
                return f"no answer began within {timings.first_byte_s:g} s"
            case Phase.BODY:
                return f"it stalled in the middle of its answer for {timings.idle_s:g} s"

    def _break(self, exchange: Exchange, error: ExchangeError) -> None:
        exchange.fail(error)
        self._end(exchange)

    # --- large requests

    async def _upload(self, exchange: Exchange, body: Body) -> None:
        """Write a body with the tool's backpressure. Whatever stops it leaves the body visibly unfinished."""
        try:
            if await self._write_body(exchange, body):
                self._written(exchange)
        except Exception as error:
            exchange.upload_error = error
            self._break(exchange, UploadBroken(f"the request's body could not be sent: {type(error).__name__}"))

    async def _write_body(self, exchange: Exchange, body: Body) -> bool:
        """Return whether all of it was written; False if the tool hung up (its answer, or the lack of one, tells why)."""
        size, sent = body.size, 0
        async with aclosing(cast(Any, body.chunks())) as chunks:
            async for data in chunks:
                if not data:
                    continue
                sent += len(data)
                if size is not None and sent > size:
                    raise UploadBroken(f"the body is longer than the {size} bytes that it declared")
                if not await self._write(exchange, b"%x\r\n%b\r\n" % (len(data), data) if size is None else data):
                    return False
        if size is not None:
            if sent < size:
                raise UploadBroken(f"the body ended after {sent} of {size} bytes")
            return True
        return await self._write(exchange, b"0\r\n\r\n")

    async def _write(self, exchange: Exchange, data: bytes) -> bool:
        transport = self.transport
        if transport is None or transport.is_closing():
            return False
        transport.write(data)
        if not self._paused:
            return True
        if exchange.phase is Phase.UPLOAD:
            self.alarm.set(min(self._loop.time() + exchange.timings.idle_s, exchange.total_at))
        try:
            await self._drain_helper()
        except ConnectionError:
            return False
        if exchange.phase is Phase.UPLOAD:
            self.alarm.set(exchange.total_at)
        return self.transport is not None


_TURNED_AWAY = (
    "CERTIFICATE_REQUIRED",
    "BAD_CERTIFICATE",
    "CERTIFICATE_EXPIRED",
    "CERTIFICATE_REVOKED",
    "CERTIFICATE_UNKNOWN",
    "UNSUPPORTED_CERTIFICATE",
    "UNKNOWN_CA",
    "ACCESS_DENIED",
)
"""Alerts that end a handshake over the client's certificate, as OpenSSL ends the names of its reasons."""


def _not_let_in(error: BaseException, exchange: Exchange) -> NotLetIn | None:
    if exchange.content is not None or not isinstance(error, ssl.SSLError):
        return None
    reason = error.reason or ""
    is_alert = "ALERT" in reason and reason.endswith(_TURNED_AWAY)
    return NotLetIn(reason.partition("ALERT_")[2].lower().replace("_", " ")) if is_alert else None
