"""A connection to a tool, without sockets: whatever comes, however cut, an exchange ends in an answer or a known error."""

from __future__ import annotations

import asyncio
import socket
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.clock import Alarms
from gateway.egress.connection import Connection, Exchange, ExchangeError, Garbled
from tests.tools import LONG

TOKENS = [
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 204 No\r\n", b"HTTP/1.0 200 OK\r\n",
    b"HTTP/1.1 101 X\r\n",
    b"Content-Length: 3\r\n", b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"\r\n",
    b"abc", b"3\r\nabc\r\n", b"0\r\n\r\n", b"X: \xff\r\n", b"\x00", b"HTTP", b": ",
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
]  # fmt: skip


class Pipe(asyncio.Transport):
    """Swallows what is written; the test decides what comes."""

    def __init__(self, quiet: socket.socket) -> None:
        super().__init__({"socket": quiet})
        self.is_over = False

    def write(self, data: bytes) -> None:  # type: ignore[override]
        """Gone."""

    def is_closing(self) -> bool:
        return self.is_over

    def pause_reading(self) -> None:
        """The test feeds everything at once anyway."""

    def resume_reading(self) -> None:
        """See `pause_reading`."""

    def close(self) -> None:
        self.is_over = True

    abort = close


async def result(data: bytes, cuts: list[int], *, is_head: bool = False) -> tuple[object, bytes, bool]:
    """Feed an answer cut into pieces, then the end of the connection; return status or error, body, and reusability."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    try:
        connection, exchange = Connection(loop, Alarms(loop), lambda _: None), Exchange(loop, LONG, is_bounded=True)
        connection.connection_made(Pipe(ours))
        connection.begin(exchange, b"GET / HTTP/1.1\r\n\r\n", None, is_head=is_head)
        edges = [0, *sorted({cut for cut in cuts if cut < len(data)}), len(data)]
        for start, end in pairwise(edges):
            if not connection.transport.is_closing() and start < end:  # type: ignore[union-attr]
                connection.data_received(data[start:end])
        was_whole = exchange.has_ended()
        is_reusable = was_whole and connection.finish()
        connection.connection_lost(None)
        try:
            message = await asyncio.wait_for(exchange.answer, 1)
            assert exchange.content is not None
            body = exchange.content.read_nowait()
        except ExchangeError as error:
            return type(error), b"", False
        assert exchange.has_ended()
        return message.code, body, is_reusable
    finally:
        ours.close()
        theirs.close()


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from(TOKENS), st.binary(max_size=6)), max_size=12).map(b"".join),
    st.lists(st.integers(1, 150), max_size=4),
    st.booleans(),
)
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\n", [], False)
def test_any_answer_ends_in_an_answer_or_a_known_error(data: bytes, cuts: list[int], is_head: bool) -> None:
    asyncio.run(result(data, cuts, is_head=is_head))


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(
        [
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: caf\xe9\r\n\r\nabcde",
            b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nT: 1\r\n\r\n",
        ]
    ),
    st.lists(st.integers(1, 150), max_size=8),
)
def test_where_the_network_cuts_an_answer_makes_no_difference(data: bytes, cuts: list[int]) -> None:
    assert asyncio.run(result(data, cuts)) == (200, b"abcde", True)


def test_what_comes_after_an_answer_spoils_the_connection_and_not_the_answer() -> None:
    """aio-libs/aiohttp#13656, in one piece, in two, and as a mere beginning."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"
    for stray in (answer, b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 100 Continue\r\n\r\n"):
        for cuts in ([], [len(answer)]):
            assert asyncio.run(result(answer + stray, cuts)) == (200, b"abc", False)


def test_rubbish_in_the_same_piece_as_an_answer_makes_both_worthless() -> None:
    """The parser cannot tell where one ends: a fault of protocol, so the step is in doubt and is settled."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"
    assert asyncio.run(result(answer + b"?", [])) == (Garbled, b"", False)
    assert asyncio.run(result(answer + b"?", [len(answer)])) == (200, b"abc", False)


def test_a_switch_of_protocols_is_an_answer_that_the_egress_refuses() -> None:
    assert asyncio.run(result(b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", []))[0] == 101


async def test_there_is_a_parser_only_while_an_answer_comes() -> None:
    """A call may wait for long, and a kept connection for longer."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection, exchange = Connection(loop, Alarms(loop), lambda _: None), Exchange(loop, LONG, is_bounded=True)
        connection.connection_made(Pipe(ours))
        connection.begin(exchange, b"GET / HTTP/1.1\r\n\r\n", None, is_head=False)
        assert connection._parser is None
        connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na")
        assert connection._parser is not None
        connection.data_received(b"bc")
        assert exchange.has_ended()
        assert connection.finish()
        assert connection._parser is None
        assert connection.is_usable
        connection.abort()
