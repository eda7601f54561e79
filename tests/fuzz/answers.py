"""Any bytes from a tool: what becomes of them here, against h11's reading and against what leaves for the agent.

They end in an answer or in a known error. Wherever the network cuts them, and to whatever reader, it is the same answer or
none. A connection is used again only if the bytes ended where the answer did (but for empty lines, which the parser takes
along and which are nobody's answer). What the agent is sent of an answer is, read again, its status, its end-to-end fields
and its body, and nothing behind.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from gateway.clock import Alarms
from gateway.core.headers import answer_head
from gateway.core.message import BytesBody, Headers, Reply
from gateway.egress.connection import Connection, Exchange, ExchangeError
from gateway.ingress.connection import AgentConnection
from gateway.ingress.http import HttpFront, IncomingRequest, OutgoingResponse
from tests.fuzz.rig import Pieces, Sink, cut, cuts_of, lowered, read_answer, run
from tests.tools import LONG

__all__ = ["TOKENS", "Received", "check", "received"]

TOKENS = (
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 204 No\r\n", b"HTTP/1.0 200 OK\r\n",
    b"HTTP/1.1 101 X\r\n", b"HTTP/1.1 304 No\r\n", b"HTTP/1.1 103 E\r\n\r\n",
    b"Content-Length: 3\r\n", b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"\r\n",
    b"abc", b"3\r\nabc\r\n", b"0\r\n\r\n", b"X: \xff\r\n", b"\x00", b"HTTP", b": ", b"\n", b"\r", b" folded\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", b"Connection: x-a\r\nX-A: 1\r\n", b"Set-Cookie: a\r\n",
    b"Seawall-Step: 1\r\n", b"Upgrade: x\r\nConnection: upgrade\r\n", b"Date: x\r\n", b"Content-Encoding: gzip\r\n",
)  # fmt: skip


class Received(NamedTuple):
    """What became of an answer: status, fields that go on to the agent and body, all None where it broke, whether the
    connection is kept, and what makes the answer unusable though it is well-formed."""

    status: int | None
    reason: bytes
    headers: Headers
    body: bytes | None
    is_reusable: bool
    problem: str = ""
    error: type[ExchangeError] | None = None


def check(data: bytes) -> None:
    """See the module."""
    for method in ("GET", "HEAD"):
        whole = run(received(data, [], method))
        other = read_answer(data, method)
        if other is not None and whole.status is not None and not whole.problem:
            answer, left = other
            assert (whole.status, whole.body) == (answer.status, answer.body), (whole, answer)
            assert not (whole.is_reusable and left.strip(b"\r\n"))
        for cuts in cuts_of(data):
            parts = run(received(data, cuts, method))
            if parts.status is not None and whole.status is not None:
                assert parts[:4] == whole[:4], (parts, whole)
        if whole.status is not None:
            _passed_on(whole, method)


def _passed_on(said: Received, method: str) -> None:
    """What reaches the agent is what was taken from the tool, with a body at hand and with one still on its way."""
    assert said.status is not None
    assert said.body is not None
    if said.problem:
        return
    head = answer_head(said.status, said.headers)
    kept = [field for field in lowered(head.fields) if field[0] != b"content-length"]
    for body in (BytesBody(said.body), Pieces((said.body[:2], said.body[2:]))):
        answer = OutgoingResponse(status=said.status, headers=head.fields, body=body, reason=said.reason)
        wire = run(_told(answer, method))
        read = read_answer(wire, method)
        if read is None:
            continue  # h11 takes less than we pass on
        answered, left = read
        assert left == b""
        assert (answered.status, answered.body) == (said.status, said.body)
        assert [one for one in answered.fields if one[0] not in _OURS or one in kept] == kept
        if method == "HEAD" or said.status == 304:
            assert _lengths(answered.fields) == _lengths(lowered(head.fields))


_OURS = frozenset({b"content-length", b"transfer-encoding", b"date", b"connection"})


def _lengths(fields: list[tuple[bytes, bytes]]) -> list[bytes]:
    return [value for name, value in fields if name == b"content-length"]


async def _told(answer: OutgoingResponse, method: str) -> bytes:
    async def handler(request: IncomingRequest) -> OutgoingResponse:
        return answer

    front = HttpFront(handler)
    connection, sink = AgentConnection(front, asyncio.get_running_loop()), Sink()
    connection.connection_made(sink)
    connection.data_received(method.encode() + b" / HTTP/1.1\r\nHost: a\r\n\r\n")
    if connection.task is not None:
        await connection.task
    connection.connection_lost(None)
    await front.close()
    return bytes(sink.written)


async def received(data: bytes, cuts: list[int], method: str = "GET") -> Received:
    """Feed a connection an answer cut into pieces, then its end, and return what became of it."""
    loop = asyncio.get_running_loop()
    connection, exchange = Connection(loop, Alarms(loop), lambda _: None), Exchange(loop, LONG, True, method == "HEAD")
    sink = Sink()
    connection.connection_made(sink)
    connection.begin(exchange, method.encode() + b" / HTTP/1.1\r\n\r\n", None)
    for piece in cut(data, cuts):
        if sink.is_closing():
            break
        connection.data_received(piece)
    is_reusable = exchange.has_ended() and connection.finish()
    connection.connection_lost(None)
    try:
        assert exchange.answer.done(), "nobody would ever know"
        message = exchange.answer.result()
        if isinstance(message, Reply):
            return Received(message.status, message.reason or b"", message.headers, _body(message), is_reusable)
        content = exchange.content
        assert content is not None
        error = content.exception()
        if error is not None:
            raise error
        assert exchange.has_ended()
    except ExchangeError as error:
        return Received(None, b"", (), None, False, error=type(error))
    body = content.read_nowait()
    reason = message.reason.encode("utf-8", "surrogateescape")
    head = answer_head(message.code, message.raw_headers, message.chunked)
    return Received(message.code, reason, head.fields, body, is_reusable, head.problem)


def _body(reply: Reply) -> bytes:
    assert type(reply.body) is BytesBody
    return reply.body.data
