"""A connection to a tool, without sockets: how an answer ends, and what is left of the connection. See also tests/fuzz."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.clock import Alarms
from gateway.egress.connection import Connection, Exchange, ExchangeError, Garbled
from tests.fuzz.answers import received
from tests.fuzz.rig import Sink, run
from tests.tools import LONG


def result(data: bytes, cuts: list[int]) -> tuple[int | type[ExchangeError] | None, bytes | None, bool]:
    """Return status or error, body, and whether the connection can be used again."""
    said = run(received(data, cuts))
    return said.error or said.status, said.body, said.is_reusable


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
    assert result(data, cuts) == (200, b"abcde", True)


def test_what_comes_after_an_answer_spoils_the_connection_and_not_the_answer() -> None:
    """aio-libs/aiohttp#13656, in one piece, in two, and as a mere beginning."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"
    for stray in (answer, b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 100 Continue\r\n\r\n"):
        for cuts in ([], [len(answer)]):
            assert result(answer + stray, cuts) == (200, b"abc", False)


def test_rubbish_in_the_same_piece_as_an_answer_makes_both_worthless() -> None:
    """The parser cannot tell where one ends: a fault of protocol, so the step is in doubt and is settled."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"
    assert result(answer + b"?", []) == (Garbled, None, False)
    assert result(answer + b"?", [len(answer)]) == (200, b"abc", False)


def test_a_switch_of_protocols_is_an_answer_that_the_egress_refuses() -> None:
    assert result(b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", [])[0] == 101


async def test_there_is_a_parser_only_while_an_answer_comes_in_pieces() -> None:
    """A call may wait for long, and a kept connection for longer."""
    loop = asyncio.get_running_loop()
    connection = Connection(loop, Alarms(loop), lambda _: None)
    connection.connection_made(Sink())
    for pieces in (
        [b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na", b"bc"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"],
    ):
        exchange = Exchange(loop, LONG, is_bounded=True)
        connection.begin(exchange, b"GET / HTTP/1.1\r\n\r\n", None)
        assert connection._parser is None
        for piece in pieces:
            connection.data_received(piece)
            assert (connection._parser is not None) == (len(pieces) > 1)
        assert exchange.has_ended()
        assert connection.finish()
        assert connection._parser is None
        assert connection.is_usable
    connection.abort()


async def test_a_bound_that_passes_once_all_of_an_answer_is_here_means_nothing() -> None:
    """Whoever waits for it may be woken later in the same turn of the loop."""
    loop = asyncio.get_running_loop()
    connection = Connection(loop, Alarms(loop), lambda _: None)
    connection.connection_made(Sink())
    exchange = Exchange(loop, LONG, is_bounded=True)
    connection.begin(exchange, b"GET / HTTP/1.1\r\n\r\n", None)
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    connection.ring()
    assert exchange.timed_out == ""
    assert connection.finish()
    connection.ring()
    assert not connection.is_open
