"""Both ends of the wire together: what an agent writes reaches the tool, and what happens there reaches the agent."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.core.fault import Broken
from gateway.core.headers import request_fields
from gateway.core.message import BytesBody, Request
from gateway.core.paths import BadTarget, split_target
from gateway.egress import Timings
from gateway.egress.direct import DirectEgress
from gateway.egress.spool import Spool
from gateway.ingress.http import HttpFront, IncomingRequest, OutgoingResponse
from tests.origin import Answer, Drop, Feed, Hang, Origin, pattern, pattern_digest
from tests.tools import LONG, MIB, make_tool, rss_bytes


@asynccontextmanager
async def proxy(origin: Origin, folder: Path, timings: Timings = LONG) -> AsyncIterator[int]:
    """A gateway without a pipeline: reads stream, writes are captured. Yields its port."""
    spool = Spool(folder / "spool")
    egress = DirectEgress(spool)
    tool = make_tool("127.0.0.1", origin.port)

    async def handler(incoming: IncomingRequest) -> OutgoingResponse:
        split = split_target(incoming.target)
        if isinstance(split, BadTarget):
            return OutgoingResponse(status=400, body=BytesBody(split.detail.encode()))
        is_read = incoming.method in ("GET", "HEAD")
        body = None
        if incoming.has_body:
            body = incoming.stream() if is_read else await incoming.read_all(spool, max_bytes=100 * MIB)
        request = Request(incoming.method, split.rest, request_fields(incoming.headers), body, not is_read, not is_read)
        try:
            outcome = await egress.send(tool, request, timings)
        finally:
            if body is not None:
                await body.aclose()
        if isinstance(outcome, Broken):
            return OutgoingResponse(status=502, body=BytesBody(f"{outcome.fault}/{outcome.dispatched}".encode()))
        return OutgoingResponse(
            status=outcome.status,
            reason=outcome.reason,
            headers=outcome.headers,
            body=outcome.body,
            release=outcome.aclose,
        )

    front = HttpFront(handler)
    yield await front.listen("127.0.0.1", 0)
    await front.close()
    await egress.close()
    spool.close()


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    async with Origin() as made:
        yield made


async def open_agent(port: int, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=MIB)
    writer.write(data)
    return reader, writer


async def test_bytes_pass_unchanged_in_both_directions(origin: Origin, tmp_path: Path) -> None:
    answer = (
        (b"Date", b"d"),
        (b"Set-Cookie", b"a"),
        (b"set-cookie", b"\xe9"),
        (b"Server", b"tool"),
        (b"ETag", b'W/"x"'),
    )
    origin.default = Answer(299, b"\x1f\x8b", answer, reason=b"Odd")
    fields = b"X-A: 1\r\nx-a: caf\xe9\r\nAccept-Encoding: br\r\n"
    async with proxy(origin, tmp_path) as port:
        head = b"POST /tool/a%2Fb//?q=%zz& HTTP/1.1\r\nHost: gateway\r\n" + fields
        reader, writer = await open_agent(port, head + b"Content-Length: 2\r\nConnection: close\r\n\r\n{}")
        received = await reader.read()
        writer.close()
    sent = b"POST /a%2Fb//?q=%zz& HTTP/1.1\r\nHost: " + origin.authority.encode() + b"\r\n" + fields
    assert origin.requests[0].head == sent + b"Content-Length: 2\r\n\r\n"
    lines = b"".join(b"%b: %b\r\n" % pair for pair in answer)
    assert received == b"HTTP/1.1 299 Odd\r\n" + lines + b"Content-Length: 2\r\nConnection: close\r\n\r\n\x1f\x8b"


@pytest.mark.parametrize("method", [b"GET", b"POST"])
async def test_64_mib_pass_in_both_directions_without_memory(origin: Origin, tmp_path: Path, method: bytes) -> None:
    size = 64 * MIB
    origin.default = Answer(200, lambda: pattern(size), declared_length=size)
    async with proxy(origin, tmp_path) as port:
        before = rss_bytes()
        reader, writer = await open_agent(
            port, method + b" /tool/x HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n" % size
        )
        async for data in pattern(size):
            writer.write(data)
            await writer.drain()
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        digest, left = hashlib.sha256(), size
        while left:
            data = await reader.read(MIB)
            digest.update(data)
            left -= len(data)
        writer.close()
        assert rss_bytes() - before < 24 * MIB
    assert origin.requests[0].digest == digest.hexdigest() == pattern_digest(size)


async def test_an_event_reaches_the_agent_before_the_next_is_made(origin: Origin, tmp_path: Path) -> None:
    feed = Feed()
    origin.default = Answer(200, feed, ((b"Content-Type", b"text/event-stream"),), framing="chunked")
    async with proxy(origin, tmp_path) as port:
        reader, writer = await open_agent(port, b"GET /tool/x HTTP/1.1\r\nHost: g\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        for number in range(3):
            event = b"data: %d\n\n" % number
            feed.send(event)
            await reader.readuntil(event)
        feed.end()
        await reader.readuntil(b"0\r\n\r\n")
        writer.close()


@pytest.mark.parametrize("is_streaming", [True, False])
async def test_an_agent_that_leaves_stops_the_tool_at_once(origin: Origin, tmp_path: Path, is_streaming: bool) -> None:
    feed = Feed()
    feed.send(b"x")
    origin.default = Answer(200, feed, framing="chunked") if is_streaming else Hang()
    async with proxy(origin, tmp_path) as port:
        reader, writer = await open_agent(port, b"GET /tool/x HTTP/1.1\r\nHost: g\r\n\r\n")
        request = await origin.completed(1)
        if is_streaming:
            await reader.readuntil(b"x")
        writer.transport.abort()
        await request.gone.wait()


async def test_an_upload_the_agent_breaks_off_looks_broken_to_the_tool(origin: Origin, tmp_path: Path) -> None:
    async with proxy(origin, tmp_path) as port:
        _, writer = await open_agent(
            port, b"GET /tool/x HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"
        )
        request = await origin.received(1)
        writer.transport.abort()
        await request.gone.wait()
        assert not request.is_complete


@pytest.mark.parametrize("ending", ["close", "reset"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_half_an_answer_never_looks_whole(origin: Origin, tmp_path: Path, framing: str, ending: str) -> None:
    origin.default = Answer(200, b"0123456789" * 10_000, framing=framing, stop_after=70_000, ending=ending)  # type: ignore[arg-type]
    async with proxy(origin, tmp_path) as port:
        reader, writer = await open_agent(port, b"GET /tool/x HTTP/1.1\r\nHost: g\r\n\r\n")
        received = await reader.read()
        writer.close()
    if received.startswith(b"HTTP/1.1 200"):
        assert not received.endswith(b"0\r\n\r\n")
        assert len(received.partition(b"\r\n\r\n")[2]) < 100_000


async def test_a_dead_tool_is_a_gateway_error_and_the_connection_lives_on(origin: Origin, tmp_path: Path) -> None:
    origin.on("/x", Drop(), Answer(200, b"fine"))
    async with proxy(origin, tmp_path) as port:
        reader, writer = await open_agent(port, b"POST /tool/x HTTP/1.1\r\nHost: g\r\nContent-Length: 0\r\n\r\n" * 2)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 502 ")
        await reader.readuntil(b"reset/maybe")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_a_tool_that_stalls_in_the_middle_cuts_the_agents_answer(origin: Origin, tmp_path: Path) -> None:
    feed = Feed()
    feed.send(b"half")
    origin.default = Answer(200, feed, framing="chunked")
    async with proxy(origin, tmp_path, Timings(20, 20, 0.05, 20)) as port:
        reader, writer = await open_agent(port, b"GET /tool/x HTTP/1.1\r\nHost: g\r\n\r\n")
        received = await reader.read()
        writer.close()
    assert received.endswith(b"half\r\n")


async def test_a_stalled_agent_stops_the_tool_not_the_memory(origin: Origin, tmp_path: Path) -> None:
    size = 64 * MIB
    origin.default = Answer(200, lambda: pattern(size), declared_length=size)
    async with proxy(origin, tmp_path) as port:
        before = rss_bytes()
        agents = [await open_agent(port, b"GET /tool/x HTTP/1.1\r\nHost: g\r\n\r\n") for _ in range(5)]
        await origin.received(5)
        for reader, _ in agents:
            await reader.readuntil(b"\r\n\r\n")
        previous = -1
        while previous != (previous := rss_bytes()):
            await asyncio.sleep(0.05)
        assert previous - before < 40 * MIB
        for _, writer in agents:
            writer.transport.abort()
