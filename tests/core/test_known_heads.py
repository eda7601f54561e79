"""What is known of a request is what the parser would read in it; all else is left to the parser."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser, HttpVersion11
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.core.headers import first_values
from gateway.core.known_heads import BODY_BYTES, HEAD_BYTES, HEADS, Known, KnownHeads

FIELDS = (
    b"Host: g\r\nAccept: a, b\r\nSeawall-Trajectory: run-%d\r\nX-A: 1\r\nx-a: 2\r\n"
    b"Content-Length: %d\r\nIdempotency-Key: %b\r\n"
)
POST = b"POST /pay/holds?x=1 HTTP/1.1\r\n" + FIELDS % (1, 3, b"k1") + b"\r\nabc"
GET = b"GET /pay/holds/1 HTTP/1.1\r\nHost: g\r\nConnection: keep-alive\r\n\r\n"
MARKED = (
    b"POST /pay/holds HTTP/1.1\r\nHost: g\r\nAccept: a, b\r\0\nSeawall-Trajectory: \0\r\nX-A: 1\r\nx-a: 2\r"
    b"\0\nContent-Length: \0\r\0\nIdempotency-Key: \0\r\n\r\n"
)
"""What stands in a kept head where a value was, sent by an agent."""


class Protocol(BaseProtocol):
    def resume_reading(self, resume_parser: bool = True) -> None:
        """Nothing is ever paused here."""


def parsed(data: bytes) -> Known | None:
    """Return a request as aiohttp's parser reads it; None where it is not whole, plain, and all that has come."""

    async def parse() -> Known | None:
        loop = asyncio.get_running_loop()
        parser: Any = HttpRequestParser(
            Protocol(loop), loop, 1 << 16, payload_exception=ValueError, auto_decompress=False, max_line_size=8_190,
            max_field_size=32_768, max_headers=128, max_msg_queue_size=32)  # fmt: skip
        try:
            messages, is_upgrade, _ = parser.feed_data(data)
            if len(messages) != 1 or is_upgrade or not messages[0][1].is_eof() or parser.feed_eof() is not None:
                return None
        except Exception:
            return None
        message, content = messages[0]
        if message.should_close or message.chunked or message.version != HttpVersion11:
            return None
        headers = message.raw_headers
        body = content.read_nowait() if content.total_bytes else b""
        if data.find(b"\r\n\r\n") + 4 + len(body) != len(data):
            return None
        return Known(message.method, message.path.encode(), headers, first_values(headers), body)

    return asyncio.run(parse())


def knowing(*requests: bytes) -> KnownHeads:
    """Return what knows the heads of these requests, as far as they can be known."""
    heads = KnownHeads()
    for data in requests:
        read = parsed(data)
        if read is not None:
            for _ in range(2):
                heads.took(data, read.headers)
    return heads


def test_a_head_is_known_once_it_has_come_twice() -> None:
    heads, read = KnownHeads(), parsed(POST)
    assert read is not None
    for _ in range(2):
        assert heads(POST) is None
        heads.took(POST, read.headers)
    assert heads(POST) == read
    assert len(heads) == 1


def test_what_differs_from_call_to_call_is_taken_from_the_call() -> None:
    heads = knowing(POST)
    other = b"PUT /mail/send HTTP/1.1\r\n" + FIELDS % (22, 0, b'"k;2"') + b"\r\n"
    assert heads(other) == parsed(other)
    known = heads(other)
    assert known is not None
    assert (known.method, known.target, known.body) == ("PUT", b"/mail/send", b"")
    assert known.headers[2] == (b"Seawall-Trajectory", b"run-22")
    assert known.fields[b"x-a"] == b"1"
    assert heads(POST) == parsed(POST)


def test_of_heads_in_which_nothing_differs_the_fields_are_shared() -> None:
    heads = knowing(GET)
    one, other = heads(GET), heads(GET.replace(b"s/1", b"s/2"))
    assert one is not None
    assert other is not None
    assert one.headers is other.headers
    assert one.fields is other.fields


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\r\n\r\n",
        GET[:-2],
        GET + b"G",
        GET + GET,
        POST[:-1],
        POST + b"d",
        POST.replace(b"Length: 3", b"Length: 03x"),
        POST.replace(b"Length: 3", b"Length: +3"),
        POST.replace(b"Length: 3", b"Length: 0000000003"),
        POST.replace(b"Length: 3", b"Length: "),
        POST.replace(b"Length: 3", b"Length:3"),
        POST.replace(b"-Key: k1", b"-Key: k 1"),
        POST.replace(b"-Key: k1", b"-Key: \0"),
        POST.replace(b"-Key: k1", b"-Key: k\xe9"),
        POST.replace(b"-Key: k1\r\n", b"-Key: k1\r\n\tk2\r\n"),
        POST.replace(b"\nIdempotency-Key: k1", b"\0\nIdempotency-Key: \0"),
        MARKED,
        POST.replace(b"X-A", b"X-B"),
        POST.replace(b"HTTP/1.1", b"HTTP/1.0"),
        POST.replace(b" HTTP/1.1", b"  HTTP/1.1"),
        POST.replace(b" HTTP/1.1", b""),
        POST.replace(b"POST", b"post"),
        POST.replace(b"POST", b"CONNECT"),
        POST.replace(b"POST", b"LOCK"),
        POST.replace(b"/pay", b"http://pay"),
        POST.replace(b"/pay", b"*"),
        POST.replace(b"/pay", b"//pay"),
        POST.replace(b"/pay", b"/\xe9"),
        POST.replace(b"?x", b"#x"),
        POST.replace(b"/pay", b"/p\ray"),
    ],
)
def test_anything_else_is_for_the_parser(data: bytes) -> None:
    assert knowing(GET, POST)(data) is None


@pytest.mark.parametrize(
    "field",
    [
        b"Transfer-Encoding: chunked",
        b"Expect: 100-continue",
        b"Upgrade: h2c",
        b"Connection: close",
        b"Connection: x-a",
        b"Seawall-Trajectory: other",
        b"seawall-trajectory: ",
        b"X-Odd:  two spaces",
        b"X-Odd:none",
        b"X-Odd: behind ",
        b"X-Long: " + b"x" * HEAD_BYTES,
    ],
)
def test_a_head_with_anything_out_of_the_ordinary_is_not_kept(field: bytes) -> None:
    data = POST.replace(b"X-A: 1", b"X-A: 1\r\n" + field)
    headers = tuple(tuple(part.strip() for part in line.split(b":")) for line in data.split(b"\r\n")[1:-2])
    heads = KnownHeads()
    for _ in range(3):
        heads.took(data, headers)  # type: ignore[arg-type]
    assert len(heads) == 0
    assert heads(data) is None


def test_a_large_body_is_for_the_parser() -> None:
    heads = knowing(POST)
    for size, is_known in ((BODY_BYTES, True), (BODY_BYTES + 1, False)):
        data = b"POST /a HTTP/1.1\r\n" + FIELDS % (1, size, b"k") + b"\r\n" + b"x" * size
        assert (heads(data) is not None) is is_known


def test_a_shorter_bound_holds() -> None:
    heads, read = KnownHeads(len(GET) - 3), parsed(GET)
    assert read is not None
    for _ in range(2):
        heads.took(GET, read.headers)
    assert heads(GET) is None


def test_few_are_kept_and_one_that_comes_once_pushes_nothing_out() -> None:
    heads = knowing(GET)
    for number in range(3 * HEADS):
        data = b"GET / HTTP/1.1\r\nHost: g\r\nX-Id: %d\r\n\r\n" % number
        heads.took(data, ((b"Host", b"g"), (b"X-Id", b"%d" % number)))
    assert len(heads) == 1
    assert heads(GET) is not None
    for number in range(3 * HEADS):
        data = b"GET / HTTP/1.1\r\nHost: g\r\nX-Id: %d\r\n\r\n" % number
        for _ in range(2):
            heads.took(data, ((b"Host", b"g"), (b"X-Id", b"%d" % number)))
        assert heads(data) is not None
        assert 0 < len(heads) <= HEADS


WORDS = (
    b"GET", b"POST", b" ", b"/", b"/a", b"?", b"#", b"%2e", b"HTTP/1.1", b"HTTP/1.0", b"\r\n", b"\n", b"\r", b"\0", b"\xff",
    b"Host: a", b": ", b":", b"Content-Length: ", b"content-length: 3", b"0", b"3", b"abc", b"Idempotency-Key: k", b" k",
    b"Traceparent: 00-1", b"Transfer-Encoding: chunked", b"Connection: close", b"Connection: keep-alive", b"\t", b"X: 1",
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from([GET, POST]),
    st.lists(st.tuples(st.integers(0, 200), st.sampled_from([0, 0, 1, 3]), st.sampled_from(WORDS)), max_size=3),
    st.booleans(),
)
@example(POST, [], True)
def test_whatever_is_known_the_parser_reads_the_same(
    data: bytes, changes: list[tuple[int, int, bytes]], is_learned: bool
) -> None:
    """Of a request that was tampered with: after its like was taken as it was, or as it is."""
    changed = data
    for at, less, word in changes:
        changed = changed[:at] + word + changed[at + less :]
    known = knowing(GET, POST, *([changed] if is_learned else []))(changed)
    assert known is None or known == parsed(changed)
    if not changes:
        assert known is not None
