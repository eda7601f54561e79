"""The front towards agents: HTTP/1.1 in and out over aiohttp's low-level server, with bytes and bodies at the seam.

aiohttp accepts, parses and keeps connections alive; everything it would add on the way out is bypassed: the head is
written as it was given (no Server, no Content-Type, no compression), with two fields that are a proxy's own duty, the
framing and a Date where the origin sent none (RFC 9110 section 6.6.1).

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
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, cast

from aiohttp import web
from aiohttp.http import HttpVersion10, HttpVersion11
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.web_protocol import RequestHandler

from gateway.core.framing import Framing, frame_answer
from gateway.core.headers import field_lines
from gateway.core.message import Body, BytesBody, Headers, first_header
from gateway.ingress.request import READ_BYTES, IncomingRequest, UploadBroken
from gateway.ingress.writer import ResponseWriter, write_body

__all__ = ["HttpFront", "IncomingRequest", "OutgoingResponse", "UploadBroken"]

log = logging.getLogger(__name__)

KEEPALIVE_S = 75.0
STALLED_S = 60.0
LINGER_S = 5.0
LINE_BYTES = 16_384
FIELD_BYTES = 32_768
FIELDS = 128
_HOST = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")


@dataclass(slots=True, kw_only=True)
class OutgoingResponse:
    """What goes back to the agent.

    Attributes:
        headers: as they shall appear; the front adds framing where it is missing or wrong, Date where it is missing.
        body: given back (`aclose`, or `release` if given) in every case, also if nothing could be written.
        on_delivered: called once the kernel has taken the last byte; not called otherwise.
    """

    status: int
    headers: Headers = ()
    body: Body = field(default_factory=BytesBody)
    reason: bytes | None = None
    on_delivered: Callable[[], None] | None = None
    release: Callable[[], Awaitable[None]] | None = None


Handler = Callable[[IncomingRequest], Awaitable[OutgoingResponse]]
Refuse = Callable[[int, str], OutgoingResponse]


def _plain_refusal(status: int, detail: str) -> OutgoingResponse:
    body = BytesBody(f"{detail}\n".encode())
    return OutgoingResponse(status=status, headers=((b"Content-Type", b"text/plain; charset=utf-8"),), body=body)


class HttpFront:
    """Listens, and hands each request to `handler`. Make it on a running loop.

    Args:
        handler: answers a request. It is cancelled when the agent leaves. An exception from it is a bug: it is logged
            and answered with 500.
        refuse: words the refusals that the front gives itself: 400, 414, 417, 431, 500, 501, 505.
        line_bytes, field_bytes, fields: bounds of a request's head.
        keepalive_s: how long an idle connection is kept; also bounds a head that does not end.
        stalled_s: how long an upload may pause, and a reader take nothing.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        refuse: Refuse = _plain_refusal,
        line_bytes: int = LINE_BYTES,
        field_bytes: int = FIELD_BYTES,
        fields: int = FIELDS,
        keepalive_s: float = KEEPALIVE_S,
        stalled_s: float = STALLED_S,
    ) -> None:
        self._handler = handler
        self._refuse = refuse
        self._stalled_s = stalled_s
        self._server = _Server(
            cast(Any, self._serve),
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=keepalive_s,
            lingering_time=LINGER_S,
            read_bufsize=READ_BYTES,
            max_line_size=line_bytes,
            max_field_size=field_bytes,
            max_headers=fields,
            timeout_ceil_threshold=1e9,
        )
        self._server.front = self
        self._listener: asyncio.Server | None = None
        self._busy: set[asyncio.BaseTransport] = set()
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False
        self._date = (0, b"")

    async def listen(self, host: str, port: int) -> int:
        """Listen on TCP and return the port; 0 takes a free one."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._server, host, port, backlog=1024)
        return int(self._listener.sockets[0].getsockname()[1])

    @property
    def in_flight(self) -> int:
        """Requests between their head and the last byte of their answer."""
        return self._in_flight

    @property
    def is_draining(self) -> bool:
        """Whether `stop_accepting` was called."""
        return self._is_draining

    def stop_accepting(self) -> None:
        """Take no new connections, close idle ones, and let the others end with their current answer."""
        self._is_draining = True
        if self._listener is not None:
            self._listener.close()
        for connection in self._server.connections:
            if connection.transport not in self._busy:
                connection.force_close()

    async def wait_idle(self, limit_s: float) -> bool:
        """Wait until nothing is in flight; return False if it took longer than `limit_s`."""
        try:
            async with asyncio.timeout(limit_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Stop, drop every connection, and wait for the cancelled handlers. May be repeated."""
        self.stop_accepting()
        for connection in self._server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await self._idle.wait()

    async def _serve(self, request: web.BaseRequest) -> _Written:
        transport = request.transport
        if transport is None:
            raise ConnectionResetError
        self._in_flight += 1
        self._idle.clear()
        self._busy.add(transport)
        try:
            incoming = IncomingRequest(request, self._stalled_s)
            response = self._refusal(incoming, request) or await self._handled(incoming)
            return await self._answered(request, incoming, response)
        finally:
            self._busy.discard(transport)
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    async def _handled(self, incoming: IncomingRequest) -> OutgoingResponse:
        try:
            return await self._handler(incoming)
        except Exception:
            log.exception("the handler failed on %s", incoming.method)
            return self._refuse(500, "The gateway has failed on this request. Nothing can be said about its effect.")

    def _refusal(self, incoming: IncomingRequest, request: web.BaseRequest) -> OutgoingResponse | None:
        """What the parser lets through and RFC 9112 does not (sections 2.3, 3.2, 6.1; RFC 9110 section 10.1.1)."""
        if request.version not in (HttpVersion11, HttpVersion10):
            return self._closing(505, "Only HTTP/1.1 and HTTP/1.0 are spoken here.")
        host = first_header(incoming.headers, b"host")
        if host is not None and not _HOST.fullmatch(host):
            return self._closing(400, "The Host field names no host.")
        if request._message.chunked:
            if request.version == HttpVersion10:
                return self._closing(400, "HTTP/1.0 has no chunked bodies: send Content-Length.")
            codings = [value for name, value in incoming.headers if name.lower() == b"transfer-encoding"]
            if len(codings) != 1 or codings[0].lower() != b"chunked":
                return self._closing(501, "The only transfer coding understood here is 'chunked', alone.")
        if incoming.is_waiting_for_continue:
            expected = first_header(incoming.headers, b"expect")
            if expected is not None and expected.lower() != b"100-continue":
                return self._refuse(417, "The only expectation understood here is '100-continue'.")
        return None

    def _closing(self, status: int, detail: str) -> OutgoingResponse:
        response = self._refuse(status, detail)
        response.headers = (*response.headers, (b"Connection", b"close"))
        return response

    async def _answered(
        self, request: web.BaseRequest, incoming: IncomingRequest, response: OutgoingResponse
    ) -> _Written:
        writer = ResponseWriter(request, self._stalled_s)
        try:
            is_kept = await self._write(writer, request, incoming, response)
            if response.on_delivered is not None:
                await writer.flush()
                _call(response.on_delivered)
            return _Written(is_kept)
        except ConnectionError:
            raise
        except Exception as error:
            log.exception("an answer could not be written")
            if not writer.has_begun:
                raise
            writer.break_off(with_reset=True)
            raise ConnectionResetError("the answer was broken off") from error
        finally:
            await (response.release() if response.release is not None else response.body.aclose())

    async def _write(
        self, writer: ResponseWriter, request: web.BaseRequest, incoming: IncomingRequest, response: OutgoingResponse
    ) -> bool:
        """Write head and body; return whether the connection may serve another request."""
        body, framing = response.body, _frame(request, response)
        is_kept = (
            request.keep_alive
            and not self._is_draining
            and not framing.ends_by_closing
            and not incoming.is_waiting_for_continue
            and first_header(response.headers, b"connection") is None
        )
        head = self._head(request, response, framing, is_kept=is_kept)
        if framing.is_bodiless:
            writer.write(head)
        elif type(body) is BytesBody:
            writer.write(head + body.data)
        else:
            writer.write(head)
            await write_body(writer, body, framing)
        await writer.drain()
        return is_kept

    def _head(self, request: web.BaseRequest, response: OutgoingResponse, framing: Framing, *, is_kept: bool) -> bytes:
        headers = framing.headers
        if first_header(headers, b"date") is None:
            headers = (*headers, (b"Date", self._now()))
        if not is_kept:
            if first_header(headers, b"connection") is None:
                headers = (*headers, (b"Connection", b"close"))
        elif request.version == HttpVersion10:
            headers = (*headers, (b"Connection", b"keep-alive"))
        reason = response.reason
        if reason is None:
            reason = _REASONS.get(response.status, b"")
        elif b"\r" in reason or b"\n" in reason:
            reason = b""
        return b"HTTP/1.1 %d %b\r\n%b\r\n" % (response.status, reason, field_lines(headers))

    def _now(self) -> bytes:
        second = int(time.time())
        if self._date[0] != second:
            self._date = (second, formatdate(second, usegmt=True).encode("ascii"))
        return self._date[1]

    def _malformed(self, error: BaseException | None) -> OutgoingResponse:
        if isinstance(error, LineTooLong):
            if error.args[1] == LINE_BYTES:
                return self._closing(414, f"The request line is longer than {LINE_BYTES} bytes.")
            return self._closing(431, f"A header field is longer than {FIELD_BYTES} bytes.")
        if isinstance(error, HttpProcessingError) and "too many headers" in error.message.lower():
            return self._closing(431, f"There are more than {FIELDS} header fields.")
        return self._closing(400, "The request is not well-formed HTTP/1.1.")


_REASONS = {status.value: status.phrase.encode("ascii") for status in HTTPStatus}


class _Server(web.Server):
    """aiohttp's low-level server with our own words for what its parser refuses."""

    front: HttpFront

    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class _Connection(RequestHandler):
    """Answers what the parser refuses with our refusals instead of aiohttp's page and traceback."""

    __slots__ = ()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        assert self._manager is not None
        front = cast(_Server, self._manager).front
        response = front._malformed(exc) if status == 400 else front._closing(500, "The gateway has failed.")
        return cast(web.StreamResponse, _Refused(front, response))


class _Written:
    """What aiohttp needs to know of an answer that is already out."""

    __slots__ = ("keep_alive",)

    def __init__(self, is_kept: bool) -> None:
        self.keep_alive = is_kept

    async def prepare(self, request: web.BaseRequest) -> None:
        """Nothing left to do."""

    async def write_eof(self) -> None:
        """Nothing left to do."""


class _Refused(_Written):
    """A refusal that is written when aiohttp asks for it."""

    __slots__ = ("_front", "_response")

    def __init__(self, front: HttpFront, response: OutgoingResponse) -> None:
        super().__init__(False)
        self._front = front
        self._response = response

    async def prepare(self, request: web.BaseRequest) -> None:
        framing = _frame(request, self._response)
        data = self._response.body.data if isinstance(self._response.body, BytesBody) else b""
        writer = ResponseWriter(request, self._front._stalled_s)
        writer.write(self._front._head(request, self._response, framing, is_kept=False) + data)
        await writer.drain()


def _frame(request: web.BaseRequest, response: OutgoingResponse) -> Framing:
    is_http_1_0 = request.version == HttpVersion10
    return frame_answer(request.method, response.status, response.headers, response.body.size, is_http_1_0=is_http_1_0)


def _call(on_delivered: Callable[[], None]) -> None:
    """Call back; the answer is out, so a bug in there must not take it back."""
    try:
        on_delivered()
    except Exception:
        log.exception("what follows a delivered answer has failed")
