"""A connection of an agent, without sockets: how it is cut is the network's affair, and it has no parser while nothing of a
message is in it. See also tests/fuzz."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.message import BytesBody
from gateway.ingress.connection import HEAD_BYTES, AgentConnection
from gateway.ingress.http import HttpFront, IncomingRequest, OutgoingResponse
from tests.fuzz.requests import served
from tests.fuzz.rig import Sink, run

GET = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\n\r\n\r\n\r\nabc"
CHUNKED = b"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"


class Front:
    """A front whose answers wait until they are let go."""

    def __init__(self) -> None:
        self.seen: list[tuple[bytes, bytes]] = []
        self.free = asyncio.Event()
        self.front = HttpFront(self._handle)
        self.sink = Sink()
        self.connection = AgentConnection(self.front, asyncio.get_running_loop())
        self.connection.connection_made(self.sink)

    async def _handle(self, request: IncomingRequest) -> OutgoingResponse:
        body = b"".join([piece async for piece in request.stream().chunks()])
        await self.free.wait()
        self.seen.append((request.target, body))
        return OutgoingResponse(status=200, body=BytesBody(b"ok"))

    async def feed(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.connection.data_received(piece)
            await self.settle()

    async def settle(self) -> None:
        for _ in range(8):
            await asyncio.sleep(0)

    @property
    def has_parser(self) -> bool:
        return self.connection._parser is not None

    async def close(self) -> None:
        self.connection.connection_lost(None)
        await self.front.close()


@pytest.mark.parametrize(
    "pieces", [[GET], [POST], [POST[:-7], POST[-7:]], [POST[:-3], POST[-3:-1], POST[-1:]], [CHUNKED]]
)
async def test_a_whole_request_that_waits_has_no_parser_and_neither_has_an_idle_connection(pieces: list[bytes]) -> None:
    front = Front()
    assert not front.has_parser
    await front.feed(*pieces)
    assert not front.has_parser
    front.free.set()
    await front.settle()
    await front.feed(GET)
    assert [target for target, _ in front.seen] == [pieces[0].split(b" ")[1], b"/a"]
    assert not front.has_parser
    await front.close()


@pytest.mark.parametrize("behind", range(1, len(GET)))
async def test_what_has_begun_behind_a_whole_request_is_kept(behind: int) -> None:
    """The place where the first ends is computed, and nothing behind it may be taken for a beginning."""
    front = Front()
    for first in (GET, POST):
        await front.feed(first + GET[:behind])
        assert front.has_parser
        front.free.set()
        await front.feed(GET[behind:])
    assert [target for target, _ in front.seen] == [b"/a", b"/a", b"/b", b"/a"]
    assert front.seen[2][1] == b"\r\n\r\nabc"
    await front.close()


async def test_a_body_that_looks_like_the_end_of_a_head_hides_nothing_behind_it() -> None:
    front = Front()
    front.free.set()
    await front.feed(POST[:-7] + b"\r\n\r\n\r\n\r" + GET[:9], GET[9:])
    assert front.seen == [(b"/b", b"\r\n\r\n\r\n\r"), (b"/a", b"")]
    await front.close()


@pytest.mark.parametrize("blank", [b"\r\n\r\n", b"\r\n\r\n\r\n", b"\n\r\n\r\n"])
async def test_empty_lines_in_front_of_a_request_hide_nothing_behind_it(blank: bytes) -> None:
    """Where the head ended was looked for from the first of them, so that an agent could choose what was forgotten."""
    head = b"POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
    for size in range(20, 200):
        front = Front()
        front.free.set()
        await front.feed(blank + head % size, b"x" * size + GET[:9], GET[9:])
        assert front.seen == [(b"/b", b"x" * size), (b"/a", b"")], size
        await front.close()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 300), max_size=6), st.integers(1, 4), st.integers(0, 3))
def test_where_the_network_cuts_a_request_makes_no_difference(cuts: list[int], count: int, blank: int) -> None:
    """A difference between two cuts is a request that two servers read differently (RFC 9112 section 11.2)."""
    one = b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nX: caf\xe9\r\n\r\nabc"
    last = b"POST /last HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nX: caf\xe9\r\n\r\n"
    last += b"3\r\nabc\r\n2;x\r\nde\r\n0\r\nT: 1\r\n\r\n"
    data = b"".join(one % number for number in range(count - 1)) + last
    whole = run(served(data, []))
    assert len(whole.requests) == count
    parts = run(served(data, cuts))
    assert (parts.requests, parts.written.count(b"HTTP/1.1 200 ")) == (whole.requests, count)


@pytest.mark.parametrize("size", [HEAD_BYTES, HEAD_BYTES + 1, 4 * HEAD_BYTES])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_large_last_piece_of_a_body_is_no_large_head(size: int, is_chunked: bool) -> None:
    """It was counted as one where it ended the body, and the answer was followed by a 431 that nobody had asked for."""
    head, start, end = b"POST /d HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (size + 2), b"ab", b"x" * size
    if is_chunked:
        head = b"POST /d HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        start, end = b"2\r\nab\r\n", b"%x\r\n%b\r\n0\r\n\r\n" % (size, end)
    front = Front()
    front.free.set()
    await front.feed(head + start, end)
    await front.feed(GET)
    assert [(target, len(body)) for target, body in front.seen] == [(b"/d", size + 2), (b"/a", 0)]
    assert bytes(front.sink.written).count(b"HTTP/1.1 ") == 2
    assert not front.sink.is_closing()
    await front.close()


async def test_a_head_that_does_not_end_is_bounded_also_behind_a_body() -> None:
    front = Front()
    front.free.set()
    await front.feed(
        POST, *[b"GET /a HTTP/1.1\r\nHost: a\r\n" + b"X: 1\r\n" * 20, *[b"Y: " + b"y" * 4000 + b"\r\n"] * 17]
    )
    assert [target for target, _ in front.seen] == [b"/b"]
    assert bytes(front.sink.written).count(b"HTTP/1.1 431 ") == 1
    await front.close()
