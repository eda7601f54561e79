"""Any bytes from an agent: what the front makes of them, against h11's reading and against what leaves for the tool.

Wherever the network cuts them, and whether or not their like has come before, the front hands on the same requests, or stops
earlier. Another reader sees the same ones.
Of each, what is sent to the tool is, read again, the method, path, fields and body that every rule has seen, and nothing
behind; and nothing in it has a server that takes a second word about method or path do something else than was decided on.
The agent gets whole answers, at most one refusal of what is no request, and never a failure of the front.
"""

from __future__ import annotations

import asyncio
import json
import re
from email.parser import BytesParser
from typing import NamedTuple
from urllib.parse import parse_qsl

from gateway.clock import Alarms
from gateway.core.header_filter import FORWARDED_FIELDS
from gateway.core.headers import protected_option, request_fields
from gateway.core.message import Body, BytesBody, Request
from gateway.core.override import SPELLINGS, lookout, second_field
from gateway.core.paths import BadTarget, split_target
from gateway.core.tool import AmbiguousPath
from gateway.egress.connection import Connection, Exchange
from gateway.egress.framing import request_bytes, tool_lines
from gateway.ingress.connection import AgentConnection
from gateway.ingress.http import HttpFront, IncomingRequest, OutgoingResponse, UploadBroken
from tests.fuzz.paths import MANAGED, matched
from tests.fuzz.rig import Pieces, Read, Sink, cut, cuts_of, lowered, read_requests, run
from tests.tools import LONG, make_tool

__all__ = ["TOKENS", "Served", "check", "sent", "served"]

TOKENS = (
    b"GET", b"POST", b"HEAD", b" ", b"/", b"/a%2fb", b"http://x/", b"*", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"\r\n",
    b"\n", b"\r", b"Host: a", b"Host:", b"Host: a b", b"Content-Length: ", b"Content-Length: 3", b"0", b"3",
    b"99999999999999999999",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"3\r\nabc\r\n0\r\n\r\n", b"abc", b"\x00", b"\xff", b"X: 1",
    b" folded", b"Expect: 100-continue", b"Connection: close", b"Connection: upgrade\r\nUpgrade: websocket", b":", b";",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
    b"Connection: keep-alive", b"Upgrade: h2c", b"CONNECT", b"Via: 1.1 x", b"Seawall-Trajectory: r", b"TE: trailers",
    b"X-HTTP-Method-Override: DELETE\r\n", b"x_method_override: PUT\r\n", b"X-Original-URL: /v1/danger\r\n", b"&_method=PUT",
    b"Content-Type: application/x-www-form-urlencoded\r\n", b"Content-Type: application/json\r\n", b"?_method=PUT",
    b"%5fmethod=", b'{"_method":"PUT"}', b'{"\\u005fmethod":1}', b"Content-Type: multipart/form-data; boundary=b\r\n",
    b"X_Forwarded_For: 1\r\n", b"Seawall_X: 1\r\n", b"Content_Length: 9\r\n",
    b"--b\r\n", b"--b--", b'Content-Disposition: form-data; name="_method"\r\n\r\nPUT\r\n',
)  # fmt: skip

_MALFORMED = (b"400", b"414", b"431", b"501", b"505")
_ANSWERS = re.compile(
    rb"(?:HTTP/1\.1 100 Continue\r\n\r\n"
    rb"|HTTP/1\.1 (?:200|400|414|417|431|501|505) [^\r\n]*\r\n(?:[!-9;-~]+: [^\r\n]*\r\n)+\r\n(?:yes|no)?)*"
)
_LINES = tool_lines(make_tool("tool.example", 80, prefix="/v1"))
_DATE = re.compile(rb"Date: [^\r\n]*\r\n")
_TIMES = 3
"""The front knows a head once it has come twice."""

_TURNS = 8
"""Turns of the loop in which a piece that came, and the answers to it, are through with."""


class Served(NamedTuple):
    """The requests that were handed on whole, what the agent was sent, and whether its connection was ended."""

    requests: list[Read]
    written: bytes
    has_ended: bool


def check(data: bytes) -> None:
    """See the module."""
    read, left = read_requests(data)
    longest: list[Read] = []
    for cuts in ([], *cuts_of(data)):
        said = run(served(data, cuts))
        _sound(said)
        assert left is None or len(said.requests) <= len(read)
        for others in (read, longest):
            for mine, other in zip(said.requests, others, strict=False):
                assert mine == other, (mine, other)
        longest = max(longest, said.requests, key=len)
    for seen in longest:
        _decided(seen)


def _sound(said: Served) -> None:
    assert _ANSWERS.fullmatch(said.written), said.written
    statuses = re.findall(rb"HTTP/1\.1 (\d{3}) ", said.written)
    refusals = [one for one in statuses if one in _MALFORMED]
    assert len(refusals) <= 1
    assert not refusals or said.has_ended
    assert not refusals or statuses[-1] == refusals[0]


def _decided(seen: Read) -> None:
    """What is sent is what was decided on, with a body of known length and with one in pieces."""
    split = split_target(seen.target)
    if isinstance(split, BadTarget) or protected_option(seen.fields) is not None:
        return
    method = seen.method.decode()
    try:
        operation = matched(MANAGED, method, split.rest)
    except AmbiguousPath:
        return
    if _says_more(seen):
        return
    _says_it_once(seen)
    kept = [
        field for field in request_fields(tuple(seen.fields)) if field[0].replace(b"_", b"-") not in FORWARDED_FIELDS
    ]
    for body in (BytesBody(seen.body), Pieces((seen.body[:2], seen.body[2:]))):
        try:
            data = sent(Request(method, split.rest, tuple(seen.fields), body))
        except ValueError:
            return  # refused: nothing is sent
        [read], left = read_requests(data)
        framing = (b"transfer-encoding", b"chunked") if body.size is None else (b"content-length", b"%d" % body.size)
        expected = [(b"host", b"tool.example"), *kept, framing]
        assert left == b""
        assert read == Read(seen.method, b"/v1" + split.rest, expected, seen.body), (read, expected)
        assert matched(MANAGED, read.method.decode(), read.target.removeprefix(b"/v1")) == operation
        assert run(served(data, [])).requests in ([read], [])


def _says_more(seen: Read) -> bool:
    """Whether ingress refuses it for a second word; wherever its body is cut, the answer is the same."""
    fields = tuple(seen.fields)
    found = second_field(fields, ())
    assert (found is None) is SPELLINGS.isdisjoint(name for name, _ in fields)
    kind = dict(reversed(fields)).get(b"content-type", b"").decode("latin-1")
    said = {_found(kind, seen.body, cuts) for cuts in ([], *cuts_of(seen.body))}
    assert len(said) == 1
    return found is not None or said == {True}


def _found(kind: str, body: bytes, cuts: list[int]) -> bool:
    looking = lookout(kind)
    return looking is not None and any(looking.finds(piece) for piece in cut(body, cuts))


def _says_it_once(seen: Read) -> None:
    """Read it as frameworks do that let fields and parameters replace method or path."""
    fields = {name.replace(b"_", b"-"): value for name, value in reversed(seen.fields)}
    assert not fields.keys() & _REPLACING
    query = seen.target.partition(b"?")[2]
    kind = fields.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
    body = seen.body
    named = _keys(query) | (_keys(body) if kind in ("", "application/x-www-form-urlencoded") else set())
    if kind == "application/json":
        named |= _members(body)
    elif kind == "multipart/form-data":
        named |= _parts(b"content-type: %b\r\n\r\n%b" % (fields[b"content-type"], body))
    assert not {"_method", "_METHOD"} & named, named


_REPLACING = frozenset(
    {
        b"x-http-method-override",
        b"x-http-method",
        b"x-method-override",
        b"x-original-url",
        b"x-rewrite-url",
        b"script-name",
    }
)


def _keys(text: bytes) -> set[str]:
    return {
        key.lstrip(" ").replace(".", "_")
        for separator in "&;"
        for key, _ in parse_qsl(text.decode("latin-1"), separator=separator)
    }


def _members(body: bytes) -> set[str]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return set()
    return set(value) if isinstance(value, dict) else set()


def _parts(message: bytes) -> set[str]:
    parts = BytesParser().parsebytes(message).walk()
    return {str(part.get_param("name", "", "content-disposition")) for part in parts}


def sent(request: Request) -> bytes:
    """Return what is written to the tool.

    Raises:
        ValueError: HTTP cannot carry this request.
    """
    return run(_sent(request_bytes(_LINES, request), request.body))


async def _sent(head: bytes, body: Body | None) -> bytes:
    loop = asyncio.get_running_loop()
    sink, connection = Sink(), Connection(loop, Alarms(loop), lambda _: None)
    exchange = Exchange(loop, LONG, True)
    connection.connection_made(sink)
    connection.begin(exchange, head, body)
    if exchange.upload is not None:
        await exchange.upload
    assert exchange.is_written
    connection.abort()
    exchange.answer.cancel()
    connection.connection_lost(None)
    return bytes(sink.written)


async def served(data: bytes, cuts: list[int]) -> Served:
    """Feed the front, cut into pieces, until it knows them, and return what it made of it each time."""
    seen: list[Read] = []

    async def handler(request: IncomingRequest) -> OutgoingResponse:
        body = b""
        try:
            async for piece in request.stream().chunks():
                body += piece
        except UploadBroken:
            return _refuse(400, "")
        seen.append(Read(request.method.encode(), request.target, lowered(request.headers), body))
        return OutgoingResponse(status=200, body=BytesBody(b"yes"))

    front = HttpFront(handler, refuse=_refuse)
    said: list[Served] = []
    for _ in range(_TIMES):
        connection, sink = AgentConnection(front, asyncio.get_running_loop()), Sink()
        connection.connection_made(sink)
        for piece in cut(data, cuts):
            if sink.has_ended:
                break
            connection.data_received(piece)
            await _settle(connection, seen)
        has_ended = sink.has_ended
        connection.connection_lost(None)
        await _settle(connection, seen)
        said.append(Served(seen.copy(), _DATE.sub(b"", sink.written), has_ended))
        seen.clear()
    await front.close()
    assert said == [said[0]] * _TIMES
    return said[0]


def _refuse(status: int, _: str) -> OutgoingResponse:
    return OutgoingResponse(status=status, body=BytesBody(b"no"))


async def _settle(connection: AgentConnection, seen: list[Read]) -> None:
    """Wait until nothing more comes of what has been fed."""
    before = -1
    while before != (before := len(seen)):
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        if not connection.is_busy:
            return
