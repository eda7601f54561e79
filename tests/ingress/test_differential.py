"""Nobody reads a request otherwise than we do: an independent parser of what came, and of what we send on, sees the same.

A difference between two readings of the same bytes is how requests are smuggled (RFC 9112 section 11.2). h11 is the other
reader; where it is stricter and refuses, there is nothing to compare.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import NamedTuple

import h11
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.core.header_filter import FORWARDED_FIELDS
from gateway.core.headers import request_fields
from gateway.core.message import BytesBody, Headers, Request
from gateway.core.paths import BadTarget, split_target
from gateway.egress.framing import request_bytes, tool_lines
from gateway.ingress.connection import AgentConnection
from gateway.ingress.http import HttpFront, IncomingRequest, OutgoingResponse, UploadBroken
from tests.ingress.test_fuzz import TOKENS, Sink, _settle
from tests.tools import make_tool

WHOLE = [
    b"GET /tool/x HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /tool/x?y HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
    b"PUT /tool/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nX-A: 1\r\nx-a: 2\r\n\r\n"
    b"3;x\r\nabc\r\n0\r\nT: 1\r\n\r\n",
    b"GET /tool/x HTTP/1.1\r\nHost: a\r\nConnection: x-a\r\nX-A: 1\r\nExpect: 100-continue\r\n\r\n",
]


class Read(NamedTuple):
    """A request as somebody has read it; names in lower case."""

    method: bytes
    target: bytes
    fields: list[tuple[bytes, bytes]]
    body: bytes


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A few requests, of which some were tampered with."""
    data = b"".join(draw(st.lists(st.sampled_from(WHOLE), min_size=1, max_size=3)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        piece = draw(st.one_of(st.sampled_from(TOKENS), st.binary(max_size=3), st.just(b"")))
        cut = draw(st.sampled_from([0, 0, 1, 2]))
        data = data[:at] + piece + data[at + cut :]
    return data


async def ours(data: bytes, cuts: list[int]) -> list[Read]:
    """Return the requests that the front hands on, with their bodies."""
    seen: list[Read] = []

    async def handler(request: IncomingRequest) -> OutgoingResponse:
        body = b""
        try:
            async for piece in request.stream().chunks():
                body += piece
        except UploadBroken:
            return OutgoingResponse(status=400)
        seen.append(Read(request.method.encode(), request.target, _lowered(request.headers), body))
        return OutgoingResponse(status=200)

    front = HttpFront(handler)
    connection, sink = AgentConnection(front, asyncio.get_running_loop()), Sink()
    connection.connection_made(sink)
    edges = [0, *sorted({cut for cut in cuts if cut < len(data)}), len(data)]
    for start, end in pairwise(edges):
        if not sink.has_ended and start < end:
            connection.data_received(data[start:end])
            await _settle(connection)
    connection.connection_lost(None)
    await _settle(connection)
    await front.close()
    return seen


def theirs(data: bytes) -> tuple[list[Read], bytes]:
    """Return the requests that h11 reads, and what is left."""
    connection, found = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 16), list[Read]()
    connection.receive_data(data)
    current: Read | None = None
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            return found, b"refused"
        match event:
            case h11.Request():
                current = Read(event.method, event.target, _lowered(tuple(event.headers)), b"")
            case h11.Data():
                assert current is not None
                current = current._replace(body=current.body + bytes(event.data))
            case h11.EndOfMessage():
                assert current is not None
                found.append(current)
                connection.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                    return found, connection.trailing_data[0]
                connection.start_next_cycle()
            case _:
                return found, connection.trailing_data[0]


def _lowered(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(bytes(name).lower(), bytes(value)) for name, value in headers]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(requests(), st.lists(st.integers(1, 250), max_size=3))
@example(b"POST /tool/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", [])
def test_two_readers_see_the_same_requests(data: bytes, cuts: list[int]) -> None:
    handed_on = asyncio.run(ours(data, cuts))
    read, _ = theirs(data)
    for mine, other in zip(handed_on, read, strict=False):
        assert mine == other


LINES = tool_lines(make_tool("tool.example", 80, prefix="/v1"))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(requests())
def test_what_is_sent_is_what_was_decided_on(data: bytes) -> None:
    """One request comes out of each, with the method, path, fields and body that every rule has seen, and nothing behind."""
    for seen in asyncio.run(ours(data, [])):
        split = split_target(seen.target)
        if isinstance(split, BadTarget):
            continue
        request = Request(seen.method.decode(), split.rest, tuple(seen.fields), BytesBody(seen.body))
        try:
            sent = request_bytes(LINES, request) + seen.body
        except ValueError:
            continue  # refused: nothing is sent
        [read], left = theirs(sent)
        assert left == b""
        assert (read.method, read.target, read.body) == (seen.method, b"/v1" + split.rest, seen.body)
        kept = [field for field in request_fields(tuple(seen.fields)) if field[0] not in FORWARDED_FIELDS]
        length = (b"content-length", b"%d" % len(seen.body))
        assert read.fields == [(b"host", b"tool.example"), *kept, length]


paths = st.lists(
    st.sampled_from(
        [b"/", b"a", b"b", b".", b"..", b"%2f", b"%2F", b"%2e", b"%41", b";", b"\\", b"%5c", b"//", b"?", b"%"]
    ),
    max_size=10,
).map(lambda parts: b"/" + b"".join(parts))


@given(paths)
def test_a_path_that_is_taken_has_one_reading(rest: bytes) -> None:
    """However far a server decodes and tidies a path (RFC 3986 sections 5.2.4 and 6), no segment of it leads elsewhere."""
    split = split_target(b"/tool" + rest)
    if isinstance(split, BadTarget):
        return
    path = split.rest.partition(b"?")[0].lower()
    for code, byte in ((b"%2e", b"."), (b"%2f", b"/"), (b"%5c", b"/"), (b"\\", b"/")):
        path = path.replace(code, byte)
    segments = [segment.partition(b";")[0] for segment in path.split(b"/")]
    assert b".." not in segments
    assert b"." not in segments


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.lists(st.integers(1, 200), max_size=4))
def test_a_body_is_the_same_however_it_was_put_into_chunks(pieces: list[bytes], cuts: list[int]) -> None:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    data = b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    [seen] = asyncio.run(ours(data, cuts))
    assert seen.body == b"".join(pieces)
