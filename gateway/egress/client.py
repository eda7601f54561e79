"""Sends a request to a tool once, over aiohttp's tamed client, and says exactly what became of it.

The one table of foreign errors is `_broken`: what is certain never to have left is `Dispatched.NO` (refused, unknown
name, TLS, connect timeout, a kept connection found dead before the first byte), what broke after an answer had begun is
`YES`, everything between is `MAYBE`.

A request that HTTP cannot carry is refused before a connection is made. What an answer's head says of its length is
held against what came; an answer that ends with the connection (no length, not chunked) cannot be checked, except that
a reset is never taken for its end.

Source: RFC 9112 sections 6.3, 8, 9; the exceptions of aiohttp 3.14.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from typing import NamedTuple

import aiohttp
from yarl import URL

from gateway.core.codes import Dispatched
from gateway.core.fault import Broken, Fault
from gateway.core.headers import answer_head
from gateway.core.message import Body, BytesBody, Reply, Request, first_header
from gateway.core.tool import ToolSpec
from gateway.egress import Egress, StreamBroken, StreamCut, Timings
from gateway.egress.framing import ToolLines, request_bytes, tool_lines
from gateway.egress.spool import Spool, SpoolFailed, TooLarge
from gateway.egress.wire import Attempt, UploadBroken, exchange, open_session

__all__ = ["ClientEgress"]

KEEPALIVE_S = 4.0  # servers commonly close idle connections after 5 s (Node, uvicorn, Apache); be earlier


class _Upstream(NamedTuple):
    """What is the same for all requests to a tool."""

    lines: ToolLines
    url: URL


class ClientEgress:
    """An `Egress` on aiohttp's client. Make it on a running loop.

    Args:
        spool: where captured answers go that are too large for memory.
        answer_limit: a captured answer of more bytes is given up.
        keepalive_s: how long an idle connection is kept.
        ssl_context: instead of the system's trust store.
    """

    def __init__(
        self,
        spool: Spool,
        *,
        answer_limit: int = 1 << 30,
        keepalive_s: float = KEEPALIVE_S,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._spool = spool
        self._answer_limit = answer_limit
        self._session = open_session(keepalive_s=keepalive_s, ssl_context=ssl_context)
        self._upstreams: dict[str, _Upstream] = {}
        self._timeouts: dict[float, aiohttp.ClientTimeout] = {}

    async def send(self, tool: ToolSpec, request: Request, timings: Timings) -> Reply | Broken:
        """Send once; see `Egress`."""
        if request.upgrade:
            return Broken(Fault.CLIENT_ERROR, Dispatched.NO, "WebSockets need telemetry.auto_instrument to be off")
        upstream = self._upstream(tool)
        try:
            head = request_bytes(upstream.lines, request)
        except ValueError as error:
            return Broken(Fault.CLIENT_ERROR, Dispatched.NO, f"nothing was sent to {tool.name}: {error}")
        attempt = Attempt(
            head,
            request.body,
            first_byte_s=timings.first_byte_s,
            total_s=timings.total_s,
            is_fresh=request.fresh_connection,
            tls=tool.tls,
            socket=tool.upstream.socket,
        )
        try:
            url = self._url(upstream, request)
            response = await exchange(self._session, request.method, url, attempt, self._timeout(timings))
        except (aiohttp.ClientError, OSError, UploadBroken) as error:
            return _broken(tool, attempt, error)
        finally:
            attempt.disarm()
        return await self._reply(tool, request, timings, attempt, response)

    async def close(self) -> None:
        """Close all connections. May be repeated."""
        await self._session.close()

    async def _reply(
        self, tool: ToolSpec, request: Request, timings: Timings, attempt: Attempt, response: aiohttp.ClientResponse
    ) -> Reply | Broken:
        content = response.content
        head = answer_head(response.status, response.raw_headers)
        if head.problem:
            response.close()
            return Broken(Fault.PROTOCOL, Dispatched.YES, f"{tool.name} sent {head.problem}")
        attempt.answered(content, idle_s=timings.idle_s, is_bounded=request.capture_answer)
        body: Body
        if content.is_eof() and content.exception() is None:
            body = BytesBody(content.read_nowait())
        elif not request.capture_answer:
            body = _StreamedBody(tool, attempt, response)
        else:
            try:
                body = await self._spool.collect(_pieces(tool, attempt, response), max_bytes=self._answer_limit)
            except StreamBroken as error:
                return _cut_off(attempt, error)
            except (TooLarge, SpoolFailed) as error:
                return Broken(Fault.CANCELLED, Dispatched.YES, f"{tool.name} answered, but {error}")
            finally:
                attempt.disarm()
                response.close()
        reason = (response.reason or "").encode("utf-8", "surrogateescape")
        return Reply(response.status, reason, head.fields, body)

    def _upstream(self, tool: ToolSpec) -> _Upstream:
        known = self._upstreams.get(tool.name)
        if known is None or known.lines.tool is not tool:
            known = self._upstreams[tool.name] = _Upstream(tool_lines(tool), URL(_origin(tool)))
        return known

    def _url(self, upstream: _Upstream, request: Request) -> URL:
        """The pool only needs the origin; traces, where someone has switched them on, want the whole."""
        if not self._session.trace_configs:
            return upstream.url
        target = (upstream.lines.prefix + request.target).decode("ascii")
        return URL(_origin(upstream.lines.tool) + target, encoded=True)

    def _timeout(self, timings: Timings) -> aiohttp.ClientTimeout:
        connect_s = min(timings.connect_s, timings.total_s)
        known = self._timeouts.get(connect_s)
        if known is None:
            known = aiohttp.ClientTimeout(
                total=None, connect=connect_s, sock_connect=None, sock_read=None, ceil_threshold=1e9
            )
            if connect_s == timings.connect_s:
                self._timeouts[connect_s] = known
        return known


class _StreamedBody:
    """An answer's body on its way. Closing it early closes the connection; read to its end, that goes back."""

    __slots__ = ("__weakref__", "_attempt", "_response", "_size", "_tool")

    is_replayable = False

    def __init__(self, tool: ToolSpec, attempt: Attempt, response: aiohttp.ClientResponse) -> None:
        self._tool = tool
        self._attempt = attempt
        self._response = response
        length = first_header(response.raw_headers, b"content-length")
        self._size = int(length) if length is not None else None

    @property
    def size(self) -> int | None:
        """What the tool said, if it did."""
        return self._size

    def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the pieces as they come.

        Raises:
            StreamBroken: the answer was reset, cut off, malformed or stalled.
        """
        return _pieces(self._tool, self._attempt, self._response)

    def cut(self) -> None:
        """Break the answer off: whoever reads it gets `StreamCut`. May be repeated."""
        self._response.content.set_exception(StreamCut("cut off"))
        self._response.close()

    async def aclose(self) -> None:
        """Give the connection back, or close it if the answer has not ended. May be repeated."""
        self._response.close()


async def _pieces(tool: ToolSpec, attempt: Attempt, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    content, protocol = response.content, attempt.protocol
    try:
        while data := await content.readany():
            yield data
    except (aiohttp.ClientError, OSError, UploadBroken) as error:
        raise StreamBroken(_why(tool, attempt, error, "broke off its answer")) from error
    if protocol is not None and isinstance(protocol.exception(), aiohttp.ClientOSError):
        raise StreamBroken(f"{tool.name} reset the connection in the middle of its answer")


def _origin(tool: ToolSpec) -> str:
    return f"http://{tool.upstream.host}" if tool.upstream.socket else tool.upstream.origin


def _why(tool: ToolSpec, attempt: Attempt, error: Exception, otherwise: str) -> str:
    if attempt.timed_out:
        return f"{tool.name}: {attempt.timed_out}"
    if attempt.upload_error is not None:
        return f"the request to {tool.name} could not be sent to its end ({type(attempt.upload_error).__name__})"
    if isinstance(error, aiohttp.SocketTimeoutError):
        return f"{tool.name} stalled in the middle of its answer"
    return f"{tool.name} {otherwise}"


def _cut_off(attempt: Attempt, error: StreamBroken) -> Broken:
    cause = error.__cause__
    if attempt.timed_out or isinstance(cause, aiohttp.SocketTimeoutError):
        fault = Fault.TIMEOUT
    elif isinstance(cause, aiohttp.ClientPayloadError):
        fault = Fault.PROTOCOL
    else:
        fault = Fault.RESET
    return Broken(fault, Dispatched.YES, str(error))


def _broken(tool: ToolSpec, attempt: Attempt, error: Exception) -> Broken:
    """The table: a foreign error before the answer's head as fault, evidence and a clause."""
    sent = Dispatched.MAYBE if attempt.is_sent else Dispatched.NO
    if attempt.timed_out:
        return Broken(Fault.TIMEOUT, sent, _why(tool, attempt, error, ""))
    if attempt.upload_error is not None:
        return Broken(Fault.CANCELLED, sent, _why(tool, attempt, error, ""))
    match error:
        case aiohttp.ConnectionTimeoutError():
            return Broken(Fault.CONNECT_TIMEOUT, sent, f"{tool.name} could not be connected to in time")
        case aiohttp.ClientConnectorDNSError():
            return Broken(Fault.CONNECT, sent, f"the host name of {tool.name} could not be resolved")
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
            return Broken(Fault.CONNECT, sent, f"TLS with {tool.name} failed: {_certificate_problem(error)}")
        case aiohttp.ClientConnectorError():
            reason = error.os_error.strerror or "no connection"
            return Broken(Fault.CONNECT, sent, f"{tool.name} could not be connected to: {reason}")
        case aiohttp.ClientResponseError():
            return Broken(Fault.PROTOCOL, sent, f"{tool.name} sent something that is not an HTTP answer")
        case _ if attempt.is_sent:
            return Broken(Fault.RESET, sent, f"{tool.name} closed the connection without an answer")
        case _:
            return Broken(Fault.CONNECT, sent, f"the connection to {tool.name} closed before anything was sent")


def _certificate_problem(error: aiohttp.ClientConnectorError | aiohttp.ClientConnectorCertificateError) -> str:
    cause = error.__cause__
    return getattr(cause, "verify_message", "") or getattr(cause, "reason", "") or "handshake failed"


_proof: type[Egress] = ClientEgress
