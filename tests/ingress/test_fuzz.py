"""Whatever comes, and however it is cut: the front neither fails nor answers anything else than the uncut bytes get."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.core.message import BytesBody
from gateway.ingress.connection import AgentConnection
from gateway.ingress.http import HttpFront, IncomingRequest, OutgoingResponse, UploadBroken

TOKENS = [
    b"GET", b"POST", b"HEAD", b" ", b"/", b"/a%2fb", b"http://x/", b"*", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"\r\n",
    b"\n", b"\r", b"Host: a", b"Host:", b"Host: a b", b"Content-Length: ", b"Content-Length: 3", b"0", b"3",
    b"99999999999999999999",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"3\r\nabc\r\n0\r\n\r\n", b"abc", b"\x00", b"\xff", b"X: 1",
    b" folded", b"Expect: 100-continue", b"Connection: close", b"Connection: upgrade\r\nUpgrade: websocket", b":", b";",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
]  # fmt: skip
messages = st.lists(st.one_of(st.sampled_from(TOKENS), st.binary(max_size=8)), max_size=16).map(b"".join)


class Sink(asyncio.Transport):
    """Takes what the front writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.has_ended = False

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.written += data

    def write_eof(self) -> None:
        self.has_ended = True

    def is_closing(self) -> bool:
        return self.has_ended

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """The test feeds everything at once anyway."""

    def resume_reading(self) -> None:
        """See `pause_reading`."""

    def close(self) -> None:
        self.has_ended = True

    abort = close


async def answers(data: bytes, cuts: list[int]) -> tuple[list[bytes], bool]:
    """Feed `data`, cut into pieces, and return the status lines that came, and whether the connection was ended."""
    seen: list[bytes] = []

    async def handler(request: IncomingRequest) -> OutgoingResponse:
        body = b""
        try:
            async for piece in request.stream().chunks():
                body += piece
        except UploadBroken:
            return OutgoingResponse(status=400)
        seen.append(b"%b %b %b" % (request.method.encode(), request.target, body))
        return OutgoingResponse(status=200, body=BytesBody(b"ok"))

    front = HttpFront(handler)
    connection, sink = AgentConnection(front, asyncio.get_running_loop()), Sink()
    connection.connection_made(sink)
    edges = [0, *sorted({cut for cut in cuts if cut < len(data)}), len(data)]
    for start, end in pairwise(edges):
        if not sink.has_ended and start < end:
            connection.data_received(data[start:end])
            await _settle(connection)
    has_ended = sink.has_ended
    connection.connection_lost(None)
    await _settle(connection)
    await front.close()
    statuses = [part[:3] for part in bytes(sink.written).split(b"HTTP/1.1 ")[1:] if part[:1].isdigit()]
    return [one for one in statuses if one != b"100"] + seen, has_ended


async def _settle(connection: AgentConnection) -> None:
    for _ in range(8):
        await asyncio.sleep(0)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(messages, st.lists(st.integers(1, 200), max_size=4))
@example(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", [3, 9])
@example(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", [60, 61, 62])
def test_the_front_survives_anything_and_says_so_once(data: bytes, cuts: list[int]) -> None:
    said, has_ended = asyncio.run(answers(data, cuts))
    refusals = [one for one in said if one in (b"400", b"414", b"431", b"501", b"505")]
    assert len(refusals) <= 1 + said.count(b"501")
    if b"500" in said:
        raise AssertionError("the front has a bug")
    if refusals:
        assert has_ended or b"417" in said


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 300), max_size=6), st.integers(1, 4))
def test_where_the_network_cuts_a_request_makes_no_difference(cuts: list[int], count: int) -> None:
    """A difference between two cuts is a request that two servers read differently (RFC 9112 section 11.2)."""
    one = b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nX: caf\xe9\r\n\r\nabc"
    last = b"POST /last HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nX: caf\xe9\r\n\r\n"
    last += b"3\r\nabc\r\n2;x\r\nde\r\n0\r\nT: 1\r\n\r\n"
    data = b"".join(one % number for number in range(count - 1)) + last
    assert asyncio.run(answers(data, cuts)) == asyncio.run(answers(data, []))
