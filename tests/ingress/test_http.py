"""The front hands over bytes and bodies, and tells the agent the truth about how an answer ended."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.core.message import Body, BytesBody
from gateway.egress import StreamBroken
from gateway.egress.spool import Spool, SpooledBody, TooLarge
from gateway.ingress.http import Handler, HttpFront, IncomingRequest, OutgoingResponse, UploadBroken
from tests.origin import Feed, pattern, pattern_digest
from tests.tools import MIB, SOON, Stream, rss_bytes

GET = b"GET /tool/x HTTP/1.1\r\nHost: g\r\n\r\n"
HEAD = b"HEAD /tool/x HTTP/1.1\r\nHost: g\r\n\r\n"


@asynccontextmanager
async def serving(handler: Handler, **settings: float) -> AsyncIterator[tuple[HttpFront, int]]:
    front = HttpFront(handler, **settings)  # type: ignore[arg-type]
    port = await front.listen("127.0.0.1", 0)
    yield front, port
    await front.close()


class Agent:
    """A raw connection to the front."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def rest(self) -> bytes:
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b"<reset>"


@asynccontextmanager
async def agent(port: int) -> AsyncIterator[Agent]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    yield Agent(reader, writer)
    writer.close()


def always(response: Callable[[], OutgoingResponse]) -> Handler:
    async def handler(request: IncomingRequest) -> OutgoingResponse:
        return response()

    return handler


async def exchange(port: int, request: bytes) -> bytes:
    """Send, ask for the connection to be closed, and return all that comes."""
    async with agent(port) as one:
        one.send(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
        return await one.rest()


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool", memory_limit=MIB)


# What comes in


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


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: bad host\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"GET /\r\nHost: a\r\n\r\n", 505),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX : 1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", 400),
        (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 40_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: 1\r\n" * 200 + b"\r\n", 431),
    ],
)
async def test_what_is_not_clean_http_is_refused_and_reaches_no_handler(request_bytes: bytes, status: int) -> None:
    """Two readings of one message are how requests are smuggled (RFC 9112 section 11.2)."""
    calls: list[IncomingRequest] = []

    async def handler(request: IncomingRequest) -> OutgoingResponse:
        calls.append(request)
        return OutgoingResponse(status=200)

    async with serving(handler) as (_, port), agent(port) as one:
        one.send(request_bytes)
        answer = await one.rest()
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert b"Connection: close\r\n" in answer
    assert b"Server:" not in answer
    assert b"<html" not in answer
    assert calls == []


async def test_refusals_are_worded_by_the_caller() -> None:
    async def handler(request: IncomingRequest) -> OutgoingResponse:
        raise LookupError("a bug")

    front = HttpFront(handler, refuse=lambda status, detail: OutgoingResponse(status=status, body=BytesBody(b"mine")))
    port = await front.listen("127.0.0.1", 0)
    assert (await exchange(port, b"bad\r\n\r\n")).endswith(b"mine")
    answer = await exchange(port, GET)
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"a bug" not in answer
    await front.close()


# What goes out


async def test_the_answer_goes_out_as_it_was_given() -> None:
    headers = (
        (b"date", b"Mon, 01 Jan 2024 00:00:00 GMT"),
        (b"Set-Cookie", b"a=1"),
        (b"set-cookie", b"caf\xe9"),
        (b"Content-Length", b"2"),
        (b"X-Empty", b""),
    )
    answer = OutgoingResponse(status=299, reason=b"Quite \xe9", headers=headers, body=BytesBody(b"ok"))
    async with serving(always(lambda: answer)) as (_, port), agent(port) as one:
        for _ in range(2):
            one.send(GET)
            expected = b"HTTP/1.1 299 Quite \xe9\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in headers) + b"\r\n"
            assert await one.head() == expected
            assert await one.reader.readexactly(2) == b"ok"


async def test_only_framing_and_date_are_added() -> None:
    answer = OutgoingResponse(status=200, body=BytesBody(b"ok"))
    async with serving(always(lambda: answer)) as (_, port), agent(port) as one:
        one.send(GET)
        lines = (await one.head()).split(b"\r\n")
    assert lines[:2] == [b"HTTP/1.1 200 OK", b"Content-Length: 2"]
    assert lines[2].startswith(b"Date: ")
    assert lines[3:] == [b"", b""]


@pytest.mark.parametrize(
    ("request_bytes", "status", "headers", "body", "expected"),
    [
        (HEAD, 200, ((b"Content-Length", b"1234"),), b"", [b"1234"]),
        (HEAD, 200, (), b"12345", [b"5"]),
        (HEAD, 200, (), b"", []),
        (GET, 304, ((b"Content-Length", b"1234"),), b"", [b"1234"]),
        (GET, 204, ((b"Content-Length", b"0"),), b"", []),
        (GET, 200, ((b"Content-Length", b"77"),), b"abc", [b"3"]),
        (GET, 200, ((b"content-length", b"3"), (b"Content-Length", b"3")), b"abc", [b"3"]),
        (GET, 500, (), b"", [b"0"]),
    ],
)
async def test_framing_is_right_for_every_kind_of_answer(
    request_bytes: bytes, status: int, headers: tuple[tuple[bytes, bytes], ...], body: bytes, expected: list[bytes]
) -> None:
    answer = OutgoingResponse(status=status, headers=headers, body=BytesBody(body))
    async with serving(always(lambda: answer)) as (_, port):
        head, _, rest = (await exchange(port, request_bytes)).partition(b"\r\n\r\n")
    said = [line.split(b": ")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    assert said == expected
    assert rest == (b"" if request_bytes == HEAD or status in (204, 304) else body)


async def test_events_go_out_as_they_come() -> None:
    feed = Feed()
    headers = ((b"Content-Type", b"text/event-stream"),)
    answer = OutgoingResponse(status=200, headers=headers, body=Stream(aiter(feed)))
    async with serving(always(lambda: answer)) as (_, port), agent(port) as one:
        one.send(GET)
        assert b"Transfer-Encoding: chunked\r\n" in await one.head()
        for event in (b"data: 1\n\n", b"data: 2\n\n"):
            feed.send(event)
            assert await one.reader.readuntil(event + b"\r\n") == b"9\r\n" + event + b"\r\n"
        feed.end()
        assert await one.reader.readexactly(5) == b"0\r\n\r\n"


async def test_http_1_0_gets_no_chunks() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    answer = OutgoingResponse(status=200, body=Stream(body()))
    async with serving(always(lambda: answer)) as (_, port), agent(port) as one:
        one.send(b"GET / HTTP/1.0\r\nHost: g\r\n\r\n")
        head, _, rest = (await one.rest()).partition(b"\r\n\r\n")
    assert b"Transfer-Encoding" not in head
    assert rest == b"onetwo"


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize("size", [None, 10])
async def test_a_body_that_breaks_looks_broken_to_the_agent(version: bytes, size: int | None) -> None:
    """A clean end would turn half an answer into a whole one."""

    async def breaks() -> AsyncIterator[bytes]:
        yield b"half"
        raise StreamBroken("the tool reset the connection")

    delivered: list[bool] = []
    answer = OutgoingResponse(status=200, body=Stream(breaks(), size), on_delivered=lambda: delivered.append(True))
    async with serving(always(lambda: answer)) as (_, port), agent(port) as one:
        one.send(b"GET / HTTP/%b\r\nHost: g\r\n\r\n" % version)
        rest = await one.rest()
    assert not rest.endswith(b"0\r\n\r\n")
    if version == b"1.0" and size is None:
        assert rest == b"<reset>"
    assert delivered == []


@pytest.mark.parametrize("size", [3, 5])
async def test_a_body_of_another_length_than_it_said_looks_broken(size: int) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"four"

    answer = OutgoingResponse(status=200, body=Stream(body(), size))
    async with serving(always(lambda: answer)) as (_, port), agent(port) as one:
        one.send(GET)
        rest = await one.rest()
    assert len(rest.partition(b"\r\n\r\n")[2]) != size


async def test_a_bug_in_the_middle_of_an_answer_breaks_it_off() -> None:
    """A second head inside the first body would be read as its content."""

    async def buggy() -> AsyncIterator[bytes]:
        yield b"half"
        raise LookupError("a bug")

    answer = OutgoingResponse(status=200, body=Stream(buggy(), 1000))
    async with serving(always(lambda: answer)) as (_, port), agent(port) as one:
        one.send(GET)
        assert b"500" not in await one.rest()


async def test_a_bug_before_the_first_byte_is_a_500() -> None:
    released = asyncio.Event()

    async def release() -> None:
        released.set()

    answer = OutgoingResponse(status=200, headers=((b"X", b"a\r\nY: b"),), release=release)
    async with serving(always(lambda: answer)) as (_, port):
        received = await exchange(port, GET)
    assert received.startswith(b"HTTP/1.1 500 ")
    assert b"Y: b" not in received
    assert released.is_set()


async def test_an_upgrade_that_nobody_takes_up_leaves_plain_http() -> None:
    upgrade = b"GET / HTTP/1.1\r\nHost: g\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    answer = OutgoingResponse(status=200, body=BytesBody(b"ok"))
    async with serving(always(lambda: answer)) as (_, port), agent(port) as one:
        for request in (upgrade, GET):
            one.send(request)
            assert (await one.head()).startswith(b"HTTP/1.1 200 ")
            assert await one.reader.readexactly(2) == b"ok"


async def test_a_head_that_does_not_end_is_dropped() -> None:
    """A connection that never becomes a request costs nothing for long (slow loris)."""
    async with serving(always(lambda: OutgoingResponse(status=200)), keepalive_s=SOON) as (_, port), agent(port) as one:
        one.send(b"GET / HTTP/1.1\r\nHost:")
        assert await one.rest() == b""


async def test_delivered_is_said_once_the_last_byte_is_out() -> None:
    delivered = asyncio.Event()
    size = 8 * MIB
    answer = OutgoingResponse(status=200, body=Stream(pattern(size), size), on_delivered=delivered.set)
    async with serving(always(lambda: answer)) as (_, port), agent(port) as one:
        one.send(GET)
        await one.head()
        await asyncio.sleep(SOON)
        assert not delivered.is_set()
        left = size
        while left:
            left -= len(await one.reader.read(MIB))
        await delivered.wait()


async def test_an_answer_the_agent_did_not_take_was_not_delivered() -> None:
    delivered: list[bool] = []
    released = asyncio.Event()

    async def release() -> None:
        released.set()

    answer = OutgoingResponse(
        status=200,
        body=BytesBody(bytes(32 * MIB)),
        on_delivered=lambda: delivered.append(True),
        release=release,
    )
    async with serving(always(lambda: answer)) as (_, port), agent(port) as one:
        one.send(GET)
        await one.head()
        one.writer.transport.abort()
        await released.wait()
    assert delivered == []


async def test_the_handler_is_cancelled_when_the_agent_leaves() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(request: IncomingRequest) -> OutgoingResponse:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError

    async with serving(handler) as (front, port):
        async with agent(port) as one:
            one.send(GET)
            await started.wait()
            assert front.in_flight == 1
        await cancelled.wait()
        assert await front.wait_idle(20)


async def test_a_stalled_reader_costs_bounded_memory_and_time() -> None:
    released = asyncio.Event()
    sent = 0

    async def counted() -> AsyncIterator[bytes]:
        nonlocal sent
        async for data in pattern(64 * MIB):
            sent += len(data)
            yield data

    async def release() -> None:
        released.set()

    answer = OutgoingResponse(status=200, body=Stream(counted()), release=release)
    async with serving(always(lambda: answer), stalled_s=4 * SOON) as (_, port):
        with socket.create_connection(("127.0.0.1", port)) as stalled:
            stalled.sendall(GET)
            await released.wait()
            assert sent < 16 * MIB


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def handler(request: IncomingRequest) -> OutgoingResponse:
        await asyncio.sleep(0)
        return OutgoingResponse(status=200, body=BytesBody(request.target))

    async with serving(handler) as (_, port), agent(port) as one:
        one.send(b"".join(b"GET /%d HTTP/1.1\r\nHost: g\r\n\r\n" % number for number in range(5)))
        for number in range(5):
            await one.head()
            assert await one.reader.readexactly(2) == b"/%d" % number


# Drain


async def test_draining_lets_calls_finish_and_closes_the_rest() -> None:
    entered, gate = asyncio.Event(), asyncio.Event()

    async def handler(request: IncomingRequest) -> OutgoingResponse:
        entered.set()
        await gate.wait()
        return OutgoingResponse(status=200, body=BytesBody(b"done"))

    async with serving(handler) as (front, port), agent(port) as idle, agent(port) as busy:
        busy.send(GET)
        await entered.wait()
        front.stop_accepting()
        assert front.is_draining
        assert await idle.rest() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        assert not await front.wait_idle(SOON)
        gate.set()
        assert await front.wait_idle(20)
        answer = await busy.rest()
        assert b"Connection: close\r\n" in answer
        assert answer.endswith(b"done")


async def test_closing_cancels_what_is_still_running() -> None:
    entered = asyncio.Event()

    async def handler(request: IncomingRequest) -> OutgoingResponse:
        entered.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(handler) as (front, port), agent(port) as one:
        one.send(GET)
        await entered.wait()
        await front.close()
        assert front.in_flight == 0
