"""A request is handed over byte for byte, and its body is read once, within bounds."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gateway.core.message import Body, BytesBody
from gateway.egress.spool import Spool, SpooledBody, TooLarge
from gateway.ingress.http import IncomingRequest, OutgoingResponse, UploadBroken
from tests.agent import agent, exchange, serving
from tests.origin import pattern, pattern_digest
from tests.tools import MIB, SOON, Stream, rss_bytes


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool", memory_limit=MIB)


async def test_the_request_is_handed_over_byte_for_byte() -> None:
    seen: list[IncomingRequest] = []

    async def handler(request: IncomingRequest) -> OutgoingResponse:
        seen.append(request)
        assert request.peer == "127.0.0.1"
        return OutgoingResponse(status=204)

    target = b"/tool/a%2Fb//c/?q=%zz&x=[1]&#frag"
    fields = b"Host: g\r\nx-a: 1\r\nX-A: caf\xe9\r\nCookie: a\r\ncookie: b\r\n"
    async with serving(handler) as (_, port):
        await exchange(port, b"GET " + target + b" HTTP/1.1\r\n" + fields + b"\r\n")
    (request,) = seen
    assert (request.method, request.target, request.has_body) == ("GET", target, False)
    assert request.headers[:5] == (
        (b"Host", b"g"),
        (b"x-a", b"1"),
        (b"X-A", b"caf\xe9"),
        (b"Cookie", b"a"),
        (b"cookie", b"b"),
    )


@pytest.mark.parametrize("size", [0, 5, 3 * MIB])
@pytest.mark.parametrize("is_chunked", [True, False])
async def test_a_body_is_read_whole(spool: Spool, size: int, is_chunked: bool) -> None:
    bodies: list[tuple[Body, int | None, bool]] = []

    async def handler(request: IncomingRequest) -> OutgoingResponse:
        body = await request.read_all(spool, max_bytes=4 * MIB)
        bodies.append((body, request.body_size, request.has_body))
        return OutgoingResponse(status=200)

    data = b"".join([one async for one in pattern(size)])
    framed = b"%x\r\n%b\r\n" % (size, data) if size else b""
    async with serving(handler) as (_, port):
        if is_chunked:
            await exchange(
                port, b"POST / HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"
            )
        else:
            await exchange(port, b"POST / HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n" % size + data)
    ((body, declared, has_body),) = bodies
    assert b"".join([one async for one in body.chunks()]) == data
    assert (declared, has_body) == (None if is_chunked else size, True)
    assert isinstance(body, SpooledBody if size > MIB else BytesBody)
    await body.aclose()
    spool.close()


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_a_body_beyond_its_limit_is_refused(spool: Spool, is_chunked: bool) -> None:
    """A declared one before a byte of it is read, and the answer comes while the agent still sends."""

    async def handler(request: IncomingRequest) -> OutgoingResponse:
        try:
            await request.read_all(spool, max_bytes=1000)
        except TooLarge as error:
            return OutgoingResponse(status=413, body=BytesBody(b"%d" % error.limit))
        raise AssertionError

    framing = b"Transfer-Encoding: chunked\r\n\r\n7d1\r\n" if is_chunked else b"Content-Length: 2001\r\n\r\n"
    async with serving(handler) as (_, port), agent(port) as one:
        one.send(b"POST / HTTP/1.1\r\nHost: g\r\n" + framing + (b"x" * 2000 if is_chunked else b"x"))
        assert (await one.head()).startswith(b"HTTP/1.1 413 ")
        assert await one.reader.readexactly(4) == b"1000"
    spool.close()


async def test_a_64_mib_body_streams_through_without_memory() -> None:
    size = 64 * MIB
    digests: list[str] = []

    async def handler(request: IncomingRequest) -> OutgoingResponse:
        digest = hashlib.sha256()
        async for data in request.stream().chunks():
            digest.update(data)
        digests.append(digest.hexdigest())
        return OutgoingResponse(status=200, body=Stream(pattern(size), size))

    async with serving(handler) as (_, port), agent(port) as one:
        before = rss_bytes()
        one.send(b"POST / HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n" % size)
        async for data in pattern(size):
            one.send(data)
            await one.writer.drain()
        await one.head()
        left = size
        while left:
            left -= len(await one.reader.read(MIB))
        assert rss_bytes() - before < 16 * MIB
    assert digests == [pattern_digest(size)]


async def test_a_malformed_body_is_told_to_the_handler() -> None:
    async def handler(request: IncomingRequest) -> OutgoingResponse:
        try:
            async for _ in request.stream().chunks():
                pass
        except UploadBroken:
            return OutgoingResponse(status=400)
        raise AssertionError

    async with serving(handler) as (_, port), agent(port) as one:
        one.send(b"POST / HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        assert (await one.head()).startswith(b"HTTP/1.1 400 ")


async def test_a_body_that_stops_coming_does_not_hold_a_handler_for_ever() -> None:
    async def handler(request: IncomingRequest) -> OutgoingResponse:
        try:
            async for _ in request.stream().chunks():
                pass
        except UploadBroken as error:
            return OutgoingResponse(status=408, body=BytesBody(str(error).encode()))
        raise AssertionError

    async with serving(handler, stalled_s=SOON) as (_, port), agent(port) as one:
        one.send(b"POST / HTTP/1.1\r\nHost: g\r\nContent-Length: 10\r\n\r\nx")
        assert (await one.head()).startswith(b"HTTP/1.1 408 ")


async def test_100_continue_is_sent_when_the_body_is_wanted(spool: Spool) -> None:
    """aiohttp's low-level server never sends it: the agent would wait for ever."""

    async def handler(request: IncomingRequest) -> OutgoingResponse:
        if request.target == b"/no":
            return OutgoingResponse(status=403)
        return OutgoingResponse(status=200, body=await request.read_all(spool, max_bytes=100))

    expect = b" HTTP/1.1\r\nHost: g\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    async with serving(handler) as (_, port):
        async with agent(port) as one:
            one.send(b"POST /yes" + expect)
            assert await one.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
            one.send(b"ok")
            assert b"200 OK" in await one.head()
            assert await one.reader.readexactly(2) == b"ok"
        async with agent(port) as one:
            one.send(b"POST /no" + expect)
            head = await one.head()
            assert head.startswith(b"HTTP/1.1 403 ")
            assert b"Connection: close" in head
        async with agent(port) as one:
            one.send(b"POST /yes" + expect.replace(b"100-continue", b"magic"))
            assert (await one.head()).startswith(b"HTTP/1.1 417 ")
    spool.close()
