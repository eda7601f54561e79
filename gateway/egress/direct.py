"""Sends a request to a tool once, on connections of our own, and says exactly what became of it.

This is the egress of the hot path; `client` does the same over aiohttp's client, for those who want its instrumentation.
What is certain never to have left is `Dispatched.NO` (no connection, a request that HTTP cannot carry), what broke after an
answer had begun is `YES`, everything between is `MAYBE`.

What an answer's head says of its length is held against what came. An answer that ends with the connection (no length, not
chunked) cannot be checked: it is passed on with `Seawall-Completion: unverified`, and a reset is never taken for its end.

Source: RFC 9112 sections 6.3, 8, 9; docs/adr/0090-own-wire.md.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from functools import cache
from typing import NamedTuple

from aiohttp.http import RawResponseMessage
from aiohttp.streams import StreamReader

from gateway.core import websocket
from gateway.core.codes import Dispatched
from gateway.core.fault import Broken, Fault
from gateway.core.headers import UNASKED, answer_fields, answer_head
from gateway.core.message import Body, BytesBody, Headers, Reply, Request, first_header
from gateway.core.tool import ToolSpec
from gateway.egress import Egress, StreamBroken, StreamCut, Timings
from gateway.egress.connection import (
    Connection,
    Exchange,
    ExchangeError,
    Garbled,
    Lost,
    NotLetIn,
    Overdue,
    UploadBroken,
)
from gateway.egress.framing import ToolLines, request_bytes, tool_lines
from gateway.egress.pool import Pool, Resolve, system_names
from gateway.egress.spool import Spool, SpoolFailed, TooLarge

__all__ = ["DirectEgress"]

KEEPALIVE_S = 4.0  # servers commonly close idle connections after 5 s (Node, uvicorn, Apache); be earlier
UNVERIFIED = (b"Seawall-Completion", b"unverified")


class _Route(NamedTuple):
    lines: ToolLines
    pool: Pool


class DirectEgress:
    """An `Egress` on our own protocol. Make it on a running loop.

    Args:
        spool: where captured answers go that are too large for memory.
        answer_limit: a captured answer of more bytes is given up.
        keepalive_s: how long an idle connection is kept.
        ssl_context: instead of the system's trust store.
        resolve: looks names up, instead of the system.
    """

    def __init__(
        self,
        spool: Spool,
        *,
        answer_limit: int = 1 << 30,
        keepalive_s: float = KEEPALIVE_S,
        ssl_context: ssl.SSLContext | None = None,
        resolve: Resolve = system_names,
    ) -> None:
        self._resolve = resolve
        self._spool = spool
        self._answer_limit = answer_limit
        self._keepalive_s = keepalive_s
        self._loop = asyncio.get_running_loop()
        self._tls = _system_trust if ssl_context is None else lambda: ssl_context
        self._routes: dict[str, _Route] = {}
        self._pools: dict[tuple[str, str, str], Pool] = {}

    async def send(self, tool: ToolSpec, request: Request, timings: Timings) -> Reply | Broken:
        """Send once; see `Egress`."""
        route = self._routes.get(tool.name)
        if route is None or route.lines.tool is not tool:
            route = self._new_route(tool)
        try:
            head = request_bytes(route.lines, request)
        except ValueError as error:
            return Broken(Fault.CLIENT_ERROR, Dispatched.NO, f"nothing was sent to {tool.name}: {error}")
        connection = None if request.fresh_connection else route.pool.take()
        exchange = Exchange(self._loop, timings, request.capture_answer, request.method == "HEAD")
        if connection is None:
            made = await route.pool.connect(tool.name, min(timings.connect_s, timings.total_s))
            if isinstance(made, Broken):
                return made
            connection = made
            if not connection.is_open:
                return Broken(
                    Fault.CONNECT, Dispatched.NO, f"the connection to {tool.name} closed before anything was sent"
                )
        connection.begin(exchange, head, request.body)
        key = (first_header(request.headers, b"sec-websocket-key") or b"") if request.upgrade else None
        del head, request  # the wait may be long
        try:
            answer = await exchange.answer
        except ExchangeError as error:
            connection.abort()
            return _broken(tool, exchange, error)
        except BaseException:
            connection.abort()
            raise
        if isinstance(answer, Reply):
            route.pool.put(connection)
            return answer
        return await self._reply(tool, route.pool, connection, exchange, answer, key)

    async def close(self) -> None:
        """Close all connections. May be repeated."""
        for pool in self._pools.values():
            pool.close()

    async def _reply(
        self,
        tool: ToolSpec,
        pool: Pool,
        connection: Connection,
        exchange: Exchange,
        message: RawResponseMessage,
        key: bytes | None,
    ) -> Reply | Broken:
        """Judge and take an answer; `key` is that of a WebSocket's handshake, where one was asked for."""
        content = exchange.content
        assert content is not None
        head = answer_head(message.code, message.raw_headers, message.chunked)
        if head.problem is UNASKED and key is not None:
            return self._switched(tool, key, connection, message.raw_headers)
        if head.problem:
            connection.abort()
            return Broken(Fault.PROTOCOL, Dispatched.YES, f"{tool.name} sent {head.problem}")
        body: Body
        fields = head.fields
        if head.length is None and _is_unverified(message, exchange):
            fields = (*fields, UNVERIFIED)
        if content.is_eof():
            body = BytesBody(content.read_nowait())
            pool.put(connection)
        else:
            streamed = _StreamedBody(tool, pool, connection, exchange, content, head.length)
            if not exchange.is_bounded:
                body = streamed
            else:
                try:
                    body = await self._spool.collect(streamed.chunks(), max_bytes=self._answer_limit)
                except StreamBroken as error:
                    return _cut_off(exchange, error)
                except (TooLarge, SpoolFailed) as error:
                    return Broken(Fault.CANCELLED, Dispatched.YES, f"{tool.name} answered, but {error}")
                finally:
                    streamed.end()
        return Reply(message.code, message.reason.encode("utf-8", "surrogateescape"), fields, body)

    def _switched(self, tool: ToolSpec, key: bytes, connection: Connection, headers: Headers) -> Reply | Broken:
        if problem := websocket.answer_problem(headers, key):
            connection.abort()
            return Broken(Fault.PROTOCOL, Dispatched.YES, f"{tool.name} sent {problem}")
        return Reply(101, b"Switching Protocols", answer_fields(headers), _SwitchedBody(connection), connection)

    def _new_route(self, tool: ToolSpec) -> _Route:
        upstream, tls = tool.upstream, tool.tls
        key = (upstream.origin, tool.reach, "" if tls is None else tls.digest)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = Pool(
                upstream,
                reach=tool.reach,
                tls=self._tls if tls is None or (context := tls.context) is None else lambda: context,
                keepalive_s=self._keepalive_s,
                resolve=self._resolve,
                server_name=None if tls is None else tls.server_name,
            )
        old = self._routes.get(tool.name)
        route = self._routes[tool.name] = _Route(tool_lines(tool), pool)
        if old is not None and all(one.pool is not old.pool for one in self._routes.values()):
            self._drop(old.pool)
        return route

    def _drop(self, pool: Pool) -> None:
        """Close a pool that no tool uses any more; its connections in use end with their answers."""
        pool.close()
        self._pools = {key: one for key, one in self._pools.items() if one is not pool}


@cache
def _system_trust() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _is_unverified(message: RawResponseMessage, exchange: Exchange) -> bool:
    """Whether, without a length, only the end of the connection ends the answer (RFC 9112 section 6.3, rule 8)."""
    return not message.chunked and not exchange.is_to_head and message.code not in (204, 304)


class _StreamedBody:
    """An answer's body on its way. Closing it early closes the connection; read to its end, that goes back."""

    __slots__ = (
        "__weakref__",
        "_connection",
        "_content",
        "_exchange",
        "_is_cut",
        "_is_over",
        "_pool",
        "_size",
        "_tool",
    )

    is_replayable = False

    def __init__(
        self,
        tool: ToolSpec,
        pool: Pool,
        connection: Connection,
        exchange: Exchange,
        content: StreamReader,
        length: bytes | None,
    ) -> None:
        self._tool = tool
        self._pool = pool
        self._connection = connection
        self._exchange = exchange
        self._content = content
        self._is_over = self._is_cut = False
        self._size = int(length) if length is not None else None

    @property
    def size(self) -> int | None:
        """What the tool said, if it did."""
        return self._size

    async def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the pieces as they come.

        Raises:
            StreamBroken: the answer was reset, cut off, malformed or stalled.
        """
        content = self._content
        try:
            while data := await content.readany():
                yield data
        except ExchangeError as error:
            self.end()
            if self._is_cut:
                raise StreamCut("cut off") from error
            raise StreamBroken(_why(self._tool, self._exchange, "broke off its answer", error)) from error
        self.end()

    def cut(self) -> None:
        """Break the answer off: whoever reads it gets `StreamCut`. May be repeated."""
        if not self._is_over:
            self._is_cut = True
            self._exchange.fail(Lost(is_reset=True))
            self._connection.abort()

    def end(self) -> None:
        """Give the connection back, or close it if the answer has not ended. May be repeated."""
        if not self._is_over:
            self._is_over = True
            self._pool.put(self._connection)

    async def aclose(self) -> None:
        """See `end`."""
        self.end()


class _SwitchedBody:
    """What stands for the body of a 101: nothing to read, and a connection to close in the end."""

    __slots__ = ("_connection",)

    is_replayable = False
    size = 0

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield nothing."""
        for _ in ():
            yield b""

    async def aclose(self) -> None:
        """Close the connection, unless it was handed over."""
        self._connection.abort()


def _why(tool: ToolSpec, exchange: Exchange, otherwise: str, error: ExchangeError | None = None) -> str:
    if exchange.timed_out:
        return f"{tool.name}: {exchange.timed_out}"
    if exchange.upload_error is not None:
        return f"the request to {tool.name} could not be sent to its end ({type(exchange.upload_error).__name__})"
    return f"{tool.name} {otherwise}"


def _cut_off(exchange: Exchange, error: StreamBroken) -> Broken:
    match error.__cause__:
        case Overdue():
            fault = Fault.TIMEOUT
        case Garbled():
            fault = Fault.PROTOCOL
        case _:
            fault = Fault.RESET
    return Broken(fault, Dispatched.YES, str(error))


def _broken(tool: ToolSpec, exchange: Exchange, error: ExchangeError) -> Broken:
    """The table: how an exchange broke before the answer's head, as fault, evidence and a clause."""
    sent = Dispatched.MAYBE if exchange.is_sent else Dispatched.NO
    match error:
        case Overdue():
            return Broken(Fault.TIMEOUT, sent, _why(tool, exchange, ""))
        case UploadBroken():
            return Broken(Fault.CANCELLED, sent, _why(tool, exchange, ""))
        case NotLetIn():
            return Broken(Fault.CONNECT, Dispatched.NO, f"TLS with {tool.name} failed: it said {error}")
        case Garbled():
            return Broken(Fault.PROTOCOL, sent, f"{tool.name} sent something that is not an HTTP answer")
        case _:
            return Broken(Fault.RESET, sent, f"{tool.name} closed the connection without an answer")


_proof: type[Egress] = DirectEgress
