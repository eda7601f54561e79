"""Any bytes as a body in chunks: what both of our parsers and writers make of it, against the grammar itself.

Of a request, a body that is taken is one that the grammar has, piece for piece, and what is taken for the next request
begins where the grammar says that it ends. Of an answer, no other body comes out than the grammar's. What we put into
chunks ourselves, towards tools and towards agents, is what went in.

Source: RFC 9112 section 7.1.
"""

from __future__ import annotations

import asyncio
import re
from typing import NamedTuple

from gateway.core.framing import frame_answer
from gateway.core.message import Request
from gateway.ingress.connection import AgentConnection
from gateway.ingress.http import HttpFront, IncomingRequest, OutgoingResponse
from tests.fuzz.answers import received
from tests.fuzz.requests import sent, served
from tests.fuzz.rig import Pieces, Sink, cuts_of, run

__all__ = ["TOKENS", "check"]

TOKENS = (
    b"0", b"1", b"3", b"a", b"A", b"00", b"f", b"\r\n", b"\r", b"\n", b";", b";x=y", b';x="\r"', b" ", b"\t", b"abc",
    b"0\r\n\r\n", b"3\r\nabc\r\n", b"T: 1\r\n", b"ffffffffffffffff", b"10000000000000003", b"-3", b"+3", b"0x3",
    b"|", b"\x00", b"\xff", b"GET /tool/next HTTP/1.1\r\nHost: a\r\n\r\n", b"Content-Length: 3\r\n", b"Host: b\r\n",
)  # fmt: skip
_ASKED = b"POST /tool/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
_ANSWERED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*((?:;[^\r\n]*)?)\r\n")
_TRAILERS = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\x00]*\r\n)*\r\n")


class Whole(NamedTuple):
    """A body as the grammar has it, and what follows it."""

    body: bytes
    left: bytes


def grammar(data: bytes) -> Whole | None:
    """Return the body that some bytes begin with, or None if they begin with none that is whole."""
    body, at = b"", 0
    while found := _SIZE.match(data, at):
        size, at = int(found[1], 16), found.end()
        if not size:
            end = _TRAILERS.match(data, at)
            return Whole(body, data[end.end() :]) if end else None
        body += data[at : at + size]
        if data[at + size : at + size + 2] != b"\r\n":
            return None
        at += size + 2
    return None


def check(data: bytes) -> None:
    """See the module."""
    meant = grammar(data)
    _asked(data, meant)
    _answered(data, meant)
    pieces = data.split(b"|")
    _written(pieces)


def _asked(data: bytes, meant: Whole | None) -> None:
    wire = _ASKED + data
    for cuts in ([], *cuts_of(wire)):
        for place, seen in enumerate(run(served(wire, cuts)).requests):
            assert meant is not None, "a body that the grammar does not have"
            if not place:
                assert seen.body == meant.body
            else:
                assert seen.method in meant.left
                assert seen.target in meant.left


def _answered(data: bytes, meant: Whole | None) -> None:
    wire = _ANSWERED + data
    for cuts in ([], *cuts_of(wire)):
        said = run(received(wire, cuts))
        if said.body is not None and meant is not None and not said.problem:
            assert said.body == meant.body, (said.body, meant.body)
            assert not (said.is_reusable and meant.left.strip(b"\r\n"))


def _written(pieces: list[bytes]) -> None:
    to_tool = sent(Request("POST", b"/x", (), Pieces(pieces)))
    to_agent = run(_to_agent(pieces))
    for wire in (to_tool, to_agent):
        assert grammar(wire.partition(b"\r\n\r\n")[2]) == Whole(b"".join(pieces), b"")


async def _to_agent(pieces: list[bytes]) -> bytes:
    async def handler(request: IncomingRequest) -> OutgoingResponse:
        return OutgoingResponse(status=200, body=Pieces(pieces))

    assert frame_answer("GET", 200, (), None).is_chunked
    front = HttpFront(handler)
    connection, sink = AgentConnection(front, asyncio.get_running_loop()), Sink()
    connection.connection_made(sink)
    connection.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    if connection.task is not None:
        await connection.task
    connection.connection_lost(None)
    await front.close()
    return bytes(sink.written)
