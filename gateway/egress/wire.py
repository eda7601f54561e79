"""aiohttp's client, tamed: its pool, name resolution, TLS and parser, but our head, our timers and no second sending.

What aiohttp 3.14 would do on its own, and what stands here instead:

* merges, re-encodes and adds header fields  -> `WireRequest` writes the head it is given, byte for byte
* sends GET, PUT and DELETE twice when a kept connection drops (aiohttp#10790)  -> the retry is switched off, and a
  `WireRequest` can only be made from an `Attempt`, which a repeat does not have
* hands an idle connection out although bytes nobody asked for wait on it (aiohttp#13656)  -> `Pool` looks first
* spends part of each call on redirects, cookies, proxies and a second timer  -> `exchange` goes to the pool itself,
  unless somebody wants traces of the session
* rounds timers, and cannot tell "never sent" from "sent and lost"  -> `Attempt` keeps exact timers and that one fact

The names with an underscore are aiohttp's own; the version is pinned to a minor release, and tests fail if one of them
vanishes or stops having its effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import ssl
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import aiohttp
from aiohttp.client_exceptions import UnixClientConnectorError
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.http import StreamWriter
from multidict import CIMultiDict
from yarl import URL

from gateway.core.message import Body, BytesBody
from gateway.core.tool import Tls

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection

__all__ = ["Attempt", "Pool", "UploadBroken", "WireRequest", "exchange", "open_session"]

_LINE_BYTES = 8_190
_FIELD_BYTES = 32_768
_FIELDS = 128
_READ_BYTES = 1 << 16
_COALESCED_BYTES = 1 << 16


def open_session(*, keepalive_s: float, ssl_context: ssl.SSLContext | None) -> aiohttp.ClientSession:
    """Return a session that adds nothing, follows nothing, remembers nothing and sends once. Needs a running loop."""
    session = aiohttp.ClientSession(
        connector=Pool(
            limit=0,
            limit_per_host=0,
            ttl_dns_cache=10,
            keepalive_timeout=keepalive_s,
            timeout_ceil_threshold=1e9,
            ssl=ssl_context or True,
        ),
        request_class=WireRequest,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        raise_for_status=False,
        read_bufsize=_READ_BYTES,
        max_line_size=_LINE_BYTES,
        max_field_size=_FIELD_BYTES,
        max_headers=_FIELDS,
    )
    session._retry_connection = False
    return session


async def exchange(
    session: aiohttp.ClientSession, method: str, url: URL, attempt: Attempt, bounds: aiohttp.ClientTimeout
) -> aiohttp.ClientResponse:
    """Send an attempt and return the response once its head is here.

    This is what `ClientSession.request` does for a request without redirects, cookies, proxies and session timers. With
    trace configurations on the session (aiohttp's instrumentation) it is that method.

    Raises:
        aiohttp.ClientError, OSError, UploadBroken: it broke; `attempt` knows whether anything was sent.
    """
    if session.trace_configs:
        return await session.request(method, url, data=attempt, allow_redirects=False, timeout=bounds)
    connector = session.connector
    if connector is None:
        raise RuntimeError("the session is closed")
    loop = asyncio.get_running_loop()
    request = WireRequest(method, url, data=attempt, loop=loop, session=session)
    try:
        connection = await connector.connect(request, [], bounds)
    except TimeoutError as error:
        raise aiohttp.ConnectionTimeoutError from error
    try:
        assert connection.protocol is not None
        connection.protocol.set_response_params(
            skip_payload=method == "HEAD",
            read_until_eof=True,
            auto_decompress=False,
            read_bufsize=_READ_BYTES,
            max_line_size=_LINE_BYTES,
            max_field_size=_FIELD_BYTES,
            max_headers=_FIELDS,
        )
        response = await request.send(connection)
        try:
            return await response.start(connection)
        except BaseException:
            response.close()
            raise
    except BaseException:
        connection.close()
        raise


class UploadBroken(Exception):
    """The request's body could not be read to its end, or had another length than it said."""


_NO_FIELDS: CIMultiDict[str] = CIMultiDict()
_WRITTEN = SimpleNamespace(output_size=0)


class _FreshKey(ConnectionKey):
    """Equal to a plain key, so that the connection is pooled afterwards, but never served from the pool."""

    __slots__ = ()


class Pool(aiohttp.TCPConnector):
    """Hands out a kept connection only if nothing waits on it: no stray bytes, no end of stream. Knows Unix sockets, too."""

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 (the base's own word; its caller bounds the whole)
    ) -> ResponseHandler:
        path = req._attempt.socket if isinstance(req, WireRequest) else ""
        if not path:
            return await super()._create_connection(req, traces, timeout)
        factory: Any = self._factory
        try:
            _, protocol = await asyncio.get_running_loop().create_unix_connection(factory, path)
        except OSError as error:
            raise UnixClientConnectorError(path, req.connection_key, error) from error
        return cast("ResponseHandler", protocol)

    async def _get(self, key: ConnectionKey, traces: list[Any]) -> Connection | None:
        if type(key) is _FreshKey:
            return None
        while (connection := await super()._get(key, traces)) is not None:
            protocol = connection.protocol
            assert protocol is not None
            if not protocol.should_close and not _has_begun_a_message(protocol) and not _has_input(protocol):
                return connection
            connection.close()
        return None


def _has_begun_a_message(protocol: ResponseHandler) -> bool:
    """Whether the parser of an idle connection sits in the middle of an answer that nobody asked for."""
    try:
        return protocol._parser is not None and protocol._parser.feed_eof() is not None
    except Exception:
        return True


def _has_input(protocol: ResponseHandler) -> bool:
    """Whether the kernel holds bytes or the end of the stream for a connection that should be silent."""
    assert protocol.transport is not None
    poll = select.poll()
    poll.register(protocol.transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0))


class Attempt:
    """One sending: what to send, its timers, and what is known of it.

    Attributes:
        is_sent: a byte of the request may have left. Never goes back.
        timed_out: which bound was exceeded, as a clause for people; empty while none was.
        upload_error: why the request's body could not be sent to its end.
    """

    __slots__ = (
        "_content",
        "_first_byte_s",
        "_handle",
        "_has_head",
        "_loop",
        "_total_at",
        "_total_s",
        "body",
        "head",
        "is_fresh",
        "is_sent",
        "protocol",
        "socket",
        "timed_out",
        "tls",
        "upload_error",
    )

    def __init__(
        self,
        head: bytes,
        body: Body | None,
        *,
        first_byte_s: float,
        total_s: float,
        is_fresh: bool = False,
        tls: Tls | None = None,
        socket: str = "",
    ) -> None:
        """`tls` and `socket`: how the tool is connected to, if not as any server."""
        self.head = head
        self.body = body
        self.is_fresh = is_fresh
        self.tls = tls
        self.socket = socket
        self.is_sent = False
        self.timed_out = ""
        self.upload_error: Exception | None = None
        self.protocol: ResponseHandler | None = None
        self._loop = asyncio.get_running_loop()
        self._first_byte_s = first_byte_s
        self._total_s = total_s
        self._total_at = self._loop.time() + total_s
        self._handle: asyncio.TimerHandle | None = None
        self._content: aiohttp.StreamReader | None = None
        self._has_head = False

    def began(self, protocol: ResponseHandler, *, is_upload: bool) -> None:
        """The first byte is about to be written; an upload is bounded by the total until its last byte is out."""
        self.is_sent = True
        self.protocol = protocol
        if is_upload:
            self._handle = self._loop.call_at(self._total_at, self._expire, self._total_clause)

    def written(self) -> None:
        """The whole request was written: the first-byte timer starts."""
        if self._has_head or self.timed_out:
            return
        self.disarm()
        first_byte_at = self._loop.time() + self._first_byte_s
        if first_byte_at < self._total_at:
            self._handle = self._loop.call_at(
                first_byte_at, self._expire, f"no answer began within {self._first_byte_s:g} s"
            )
        else:
            self._handle = self._loop.call_at(self._total_at, self._expire, self._total_clause)

    def answered(self, content: aiohttp.StreamReader, *, idle_s: float, is_bounded: bool) -> None:
        """The answer's head is here; `is_bounded` keeps the total timer on for a body still on its way."""
        self._has_head = True
        self.disarm()
        protocol = self.protocol
        if content.is_eof() or protocol is None:
            return
        self._content = content
        protocol.read_timeout = idle_s
        protocol.start_timeout()
        if is_bounded:
            self._handle = self._loop.call_at(self._total_at, self._expire, self._total_clause)

    def disarm(self) -> None:
        """Stop our timer. May be repeated."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    @property
    def _total_clause(self) -> str:
        return f"no complete answer within {self._total_s:g} s"

    def _expire(self, clause: str) -> None:
        self._handle = None
        self.timed_out = clause
        self.break_off(aiohttp.SocketTimeoutError(clause))

    def break_off(self, error: Exception) -> None:
        """Wake whoever waits for the answer with `error`; the connection is not used again."""
        if self.protocol is not None:
            self.protocol.set_exception(error)
        if self._content is not None and not self._content.is_eof():
            self._content.set_exception(error)


class WireRequest(aiohttp.ClientRequest):
    """Writes an `Attempt` to a connection: the given head, then the body as it is."""

    def __init__(
        self,
        method: str,
        url: URL,
        *,
        data: Any = None,
        loop: asyncio.AbstractEventLoop | None = None,
        response_class: type[aiohttp.ClientResponse] | None = None,
        timer: Any = None,
        session: aiohttp.ClientSession | None = None,
        ssl: Any = True,
        traces: list[Any] | None = None,
        **_: object,
    ) -> None:
        if type(data) is not Attempt or data.is_sent:
            raise RuntimeError("a request is made from an attempt, and an attempt is sent once")
        assert loop is not None
        assert session is not None
        self._attempt = data
        self.method = method
        self.url = self.original_url = url
        self.headers = _NO_FIELDS
        self.loop = loop
        self.response_class = response_class or aiohttp.ClientResponse
        self.proxy = self.proxy_auth = self.proxy_headers = None
        tls = data.tls
        self.server_hostname = None if tls is None else tls.server_name
        self._session = session
        self._timer = timer
        self._ssl = ssl if tls is None or tls.context is None else tls.context
        self._traces = traces or []

    @property
    def connection_key(self) -> ConnectionKey:
        """The pool's key; one of its own kind where a kept connection is not wanted."""
        key = super().connection_key
        if self._attempt.socket:
            key = key._replace(host=self._attempt.socket)
        return _FreshKey(*key) if self._attempt.is_fresh else key

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        """Write the request and return the response that will be read.

        A small body leaves in one piece with the head; a large one is written by a task of its own, since the answer
        may come before it ends.
        """
        protocol, attempt = conn.protocol, self._attempt
        transport = protocol.transport if protocol is not None else None
        if protocol is None or transport is None or transport.is_closing():
            raise aiohttp.ServerDisconnectedError
        body = attempt.body
        data = b"" if body is None else body.data if type(body) is BytesBody else None
        upload: asyncio.Task[None] | None = None
        writer: Any = _WRITTEN
        if body is None or (data is not None and len(data) <= _COALESCED_BYTES):
            attempt.began(protocol, is_upload=False)
            transport.write(attempt.head + data if data else attempt.head)
            attempt.written()
        else:
            attempt.began(protocol, is_upload=True)
            transport.write(attempt.head)
            writer = StreamWriter(protocol, self.loop)
            upload = self.loop.create_task(_upload(writer, body, attempt))
        response = self.response_class(
            self.method,
            self.original_url,
            writer=upload,
            continue100=None,
            timer=self._timer,
            request_info=self.request_info,
            traces=self._traces,
            loop=self.loop,
            session=self._session,
            stream_writer=writer,
        )
        cast(Any, self).response = response  # the base declares it as None
        return response


async def _upload(writer: StreamWriter, body: Body, attempt: Attempt) -> None:
    """Write a body with the tool's backpressure. Whatever stops it leaves the body visibly unfinished."""
    transport = writer.transport
    is_whole = False
    try:
        is_whole = await _write_body(writer, body)
    except Exception as error:
        attempt.upload_error = error
        attempt.break_off(UploadBroken(f"the request's body could not be sent: {type(error).__name__}"))
    finally:
        if is_whole:
            attempt.written()
        elif transport is not None:
            transport.abort()


async def _write_body(writer: StreamWriter, body: Body) -> bool:
    """Return whether all of it was written; False if the tool hung up (its answer, or the lack of one, tells why)."""
    size, sent = body.size, 0
    if size is None:
        writer.enable_chunking()
    async with contextlib.aclosing(cast(Any, body.chunks())) as chunks:
        async for data in chunks:
            sent += len(data)
            if size is not None and sent > size:
                raise UploadBroken(f"the body is longer than the {size} bytes that it declared")
            try:
                await writer.write(data)
            except ConnectionError:
                return False
    if size is not None and sent < size:
        raise UploadBroken(f"the body ended after {sent} of {size} bytes")
    try:
        await writer.write_eof()
    except ConnectionError:
        return False
    return True
