"""What the wire relies on in aiohttp's parsers, some of it undocumented: if aiohttp changes it, this fails first."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp import http_parser
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser, HttpResponseParser
from aiohttp.http_exceptions import BadStatusLine


class Protocol(BaseProtocol):
    def resume_reading(self, resume_parser: bool = True) -> None:
        """Nothing is ever paused here."""


def response_parser(**settings: Any) -> HttpResponseParser:
    loop = asyncio.get_running_loop()
    return HttpResponseParser(Protocol(loop), loop, 1 << 16, auto_decompress=False, read_until_eof=True, **settings)


def test_the_parsers_are_the_compiled_ones() -> None:
    """The pure Python ones take three times as long and judge differently."""
    assert http_parser.HttpRequestParser is http_parser.HttpRequestParserC  # type: ignore[attr-defined]
    assert aiohttp.__version__.startswith("3.14.")


async def test_raw_fields_keep_bytes_case_and_order() -> None:
    (message, _), *rest = response_parser().feed_data(
        b"HTTP/1.1 200 \xe9\r\nx: 1\r\nX: caf\xe9\r\nContent-Length: 0\r\n\r\n"
    )[0]
    assert rest == []
    assert message.raw_headers == ((b"x", b"1"), (b"X", b"caf\xe9"), (b"Content-Length", b"0"))
    assert message.reason.encode("utf-8", "surrogateescape") == b"\xe9"


async def test_the_end_of_an_answer_can_be_told_at_once() -> None:
    for data in (b"Content-Length: 2\r\n\r\nok", b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"):
        ((_, content),) = response_parser().feed_data(b"HTTP/1.1 200 OK\r\n" + data)[0]
        assert content.is_eof()
        assert content.read_nowait() == b"ok"


async def test_a_body_that_came_in_one_piece_lies_in_its_stream_as_it_came() -> None:
    for data, pieces in ((b"2\r\nok\r\n0\r\n\r\n", [b"ok"]), (b"1\r\no\r\n1\r\nk\r\n0\r\n\r\n", [b"o", b"k"])):
        ((_, content),) = response_parser().feed_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + data)[
            0
        ]
        assert (list(content._buffer), content.total_bytes) == (pieces, 2)


async def test_feeding_the_end_tells_a_whole_answer_from_a_part() -> None:
    whole = response_parser()
    whole.feed_data(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    assert whole.feed_eof() is None
    begun = response_parser()
    begun.feed_data(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nX: ")
    assert begun.feed_eof() is not None
    part = response_parser()
    part.feed_data(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok")
    with pytest.raises(Exception, match="Not enough data"):
        part.feed_eof()


async def test_an_answer_to_head_has_no_body_whatever_its_length_says() -> None:
    ((_, content),) = response_parser(response_with_body=False).feed_data(
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
    )[0]
    assert content.is_eof()


async def test_an_upgrade_can_be_left_alone() -> None:
    loop = asyncio.get_running_loop()
    parser = HttpRequestParser(Protocol(loop), loop, 1 << 16, auto_decompress=False)
    upgrade = b"GET /1 HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    messages, is_upgrade, tail = parser.feed_data(upgrade + b"GET /2 HTTP/1.1\r\nHost: a\r\n\r\n")
    assert ([one.path for one, _ in messages], is_upgrade) == (["/1"], True)
    parser.set_upgraded(False)
    messages, is_upgrade, tail = parser.feed_data(tail)
    assert ([one.path for one, _ in messages], is_upgrade, tail) == (["/2"], False, b"")


async def test_a_full_queue_stops_the_parser_until_a_message_is_taken() -> None:
    loop = asyncio.get_running_loop()
    parser = HttpRequestParser(Protocol(loop), loop, 1 << 16, auto_decompress=False, max_msg_queue_size=2)
    assert len(parser.feed_data(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 5)[0]) == 2
    parser.message_consumed()
    assert len(parser.feed_data(b"")[0]) == 1


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize(
    ("version", "is_unknown"), [(b"HTTP/9.9", True), (b"HTTP/1.7", True), (b"HTTP/abc", False), (b"HTTP/10.1", False)]
)
async def test_a_version_that_it_does_not_know_is_called_one(version: bytes, is_unknown: bool, is_cut: bool) -> None:
    """The words by which `HttpFront` tells 505 from 400; they may not depend on how the bytes were cut."""
    parser = HttpRequestParser(BaseProtocol(asyncio.get_running_loop()), asyncio.get_running_loop(), 1 << 16)
    data = b"GET / " + version + b"\r\nHost: a\r\n\r\n"
    with pytest.raises(BadStatusLine) as raised:
        list(map(parser.feed_data, [data[at : at + 1] for at in range(len(data))] if is_cut else [data]))
    assert ("Invalid HTTP version" in raised.value.message) is is_unknown


async def test_the_last_trailer_of_a_request_is_put_into_the_next_one() -> None:
    """A bug that `AgentConnection` works around with a fresh parser after each chunked request; without it, it need not."""
    parser = HttpRequestParser(BaseProtocol(asyncio.get_running_loop()), asyncio.get_running_loop(), 1 << 16)
    first = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: 1\r\nAuthorization: evil\r\n\r\n"
    messages, _, _ = parser.feed_data(first + b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert messages[1][0].raw_headers == ((b"Authorization", b"evil"), (b"Host", b"a"))
