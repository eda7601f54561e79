"""What is read without a parser is what the parser would have read; all else is left to it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpResponseParser
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.core.answer import _HEADS, FIELDS, HEAD_BYTES, whole_answer
from gateway.core.headers import answer_head
from gateway.core.message import BytesBody, Reply

PLAIN = (
    b"HTTP/1.1 201 Created\r\nServer: nginx/1.22\r\nContent-Type: application/json\r\nContent-Length: 3\r\n"
    b"Connection: keep-alive\r\nKeep-Alive: timeout=5\r\nSeawall-Step: 9\r\nX-Id: caf\xe9 au lait\r\n\r\nabc"
)


class Protocol(BaseProtocol):
    def resume_reading(self, resume_parser: bool = True) -> None:
        """Nothing is ever paused here."""


def parsed(data: bytes) -> Reply | None:
    """Return an answer as aiohttp's parser reads it; None where it is not whole, or not good for another one after it."""

    async def parse() -> Reply | None:
        loop = asyncio.get_running_loop()
        parser: Any = HttpResponseParser(
            Protocol(loop), loop, 1 << 16, payload_exception=ValueError, response_with_body=True, read_until_eof=True,
            auto_decompress=False, max_line_size=8_190, max_field_size=32_768, max_headers=128)  # fmt: skip
        messages, is_switched, _ = parser.feed_data(data)
        if len(messages) != 1 or is_switched or not messages[0][1].is_eof():
            return None
        message, content = messages[0]
        head = answer_head(message.code, message.raw_headers)
        assert not head.problem
        assert not message.should_close
        assert not message.chunked
        assert parser.feed_eof() is None
        reason = message.reason.encode("utf-8", "surrogateescape")
        return Reply(message.code, reason, head.fields, BytesBody(content.read_nowait()))

    return asyncio.run(parse())


def test_a_plain_answer_is_read_whole() -> None:
    assert whole_answer(PLAIN) == parsed(PLAIN)
    assert whole_answer(PLAIN) == Reply(
        201,
        b"Created",
        (
            (b"Server", b"nginx/1.22"),
            (b"Content-Type", b"application/json"),
            (b"Content-Length", b"3"),
            (b"X-Id", b"caf\xe9 au lait"),
        ),
        BytesBody(b"abc"),
    )


def answer(*lines: bytes, status: bytes = b"200 OK", body: bytes = b"abc") -> bytes:
    return b"\r\n".join((b"HTTP/1.1 " + status, *lines, b"", body))


LENGTH = b"Content-Length: 3"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n\r\n",
        answer(b"X: 1"),
        answer(LENGTH, body=b"ab"),
        answer(LENGTH, body=b"abcd"),
        answer(LENGTH, LENGTH),
        answer(b"Content-Length: +3"),
        answer(b"Content-Length: 3 "),
        answer(b"Content-Length:  3"),
        answer(b"Content-Length: " + b"0" * 30 + b"3"),
        answer(LENGTH, b"Transfer-Encoding: chunked"),
        answer(LENGTH, b"Transfer-Encoding: identity"),
        answer(LENGTH, b"Connection: close"),
        answer(LENGTH, b"Connection: keep-alive, x-secret"),
        answer(LENGTH, b"Connection: upgrade", b"Upgrade: h2c"),
        answer(LENGTH, b"X : 1"),
        answer(LENGTH, b"X: 1\r\n folded"),
        answer(LENGTH, b"X: 1\nY: 2"),
        answer(LENGTH, b"X: 1\rY: 2"),
        answer(LENGTH, b"X: a\x00b"),
        answer(LENGTH, b": 1"),
        answer(LENGTH, b"X: \x7f"),
        answer(LENGTH, status=b"204 No Content"),
        answer(LENGTH, status=b"304 Not Modified"),
        answer(LENGTH, status=b"100 Continue"),
        answer(LENGTH, status=b"101 Switching Protocols"),
        answer(LENGTH, status=b"600 What"),
        answer(LENGTH, status=b"200"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc",
        b"http/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
        b"\r\n" + answer(LENGTH),
        answer(LENGTH, *[b"X: 1"] * FIELDS),
        answer(LENGTH, b"X: " + b"x" * HEAD_BYTES),
    ],
)
def test_whatever_is_not_plain_is_for_the_parser(data: bytes) -> None:
    """Two lengths, a coding, a fold, a stray byte: no second reading of such an answer may exist beside the parser's."""
    assert whole_answer(data) is None


NAMES = st.sampled_from(
    [b"X", b"content-length", b"Content-Length", b"Connection", b"Date", b"Seawall-X", b"TE", b"X Y"]
)
KNOWN = [b"0", b"3", b"keep-alive", b"Keep-Alive", b"close", b"a b", b"", b" 3"]
VALUES = st.one_of(st.sampled_from(KNOWN), st.binary(max_size=5))
FIELD_LINES = st.builds(lambda name, value: name + b": " + value + b"\r\n", NAMES, VALUES)
HEADS = st.builds(
    lambda status, fields: b"HTTP/1.1 " + status + b"\r\nContent-Length: 3\r\n" + b"".join(fields) + b"\r\n",
    st.sampled_from([b"200 OK", b"404 Not Found", b"500 x  y", b"201 ", b"299 Odd\xe9"]),
    st.lists(FIELD_LINES, max_size=4),
)


@settings(max_examples=500, deadline=None)
@given(HEADS, st.sampled_from([b"abc", b"", b"ab", b"abc\r\n", b"\r\n\r"]))
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"")
def test_what_is_read_here_is_what_the_parser_reads(head: bytes, body: bytes) -> None:
    read = whole_answer(head + body)
    if read is not None:
        assert read == parsed(head + body)


def test_few_heads_are_kept_and_none_that_is_large() -> None:
    for number in range(600):
        for body, is_whole in ((b"abc", True), (b"ab", False), (b"abcd", False), (b"abc", True)):
            data = b"HTTP/1.1 200 OK\r\nX-Id: %d\r\nContent-Length: 3\r\n\r\n%b" % (number, body)
            assert (whole_answer(data) is not None) is is_whole
        assert 0 < len(_HEADS) <= 256
    _HEADS.clear()
    assert whole_answer(b"HTTP/1.1 200 OK\r\nX: %b\r\nContent-Length: 0\r\n\r\n" % (b"x" * 1024)) is not None
    assert not _HEADS
