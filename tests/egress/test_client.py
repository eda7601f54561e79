"""Egress sends once, byte for byte, and knows exactly what became of it. All of it against a raw origin."""

from __future__ import annotations

import asyncio
import hashlib
import random
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.core.codes import Dispatched
from gateway.core.fault import Broken, Fault
from gateway.core.headers import HOP_BY_HOP
from gateway.core.message import BytesBody, Reply, Request
from gateway.egress import Egress, StreamBroken, Timings
from gateway.egress.client import ClientEgress
from gateway.egress.direct import DirectEgress
from gateway.egress.spool import Spool, SpooledBody
from tests.origin import Answer, Drop, Exchange, Feed, Hang, Origin, Raw, pattern, pattern_digest
from tests.tools import LONG, MIB, SOON, Stream, answered, broken, get, make_tool, post, read, rss_bytes

# What is sent


async def test_the_request_leaves_byte_for_byte(origin: Origin, egress: Egress) -> None:
    """aiohttp alone would merge `x-a` and `X-A`, delete \\xe9, and add Accept, User-Agent and Content-Type."""
    tool = make_tool("127.0.0.1", origin.port, prefix="/v1%2F")
    headers = ((b"x-a", b"1"), (b"X-A", b"caf\xe9 \xff"), (b"Cookie", b"a"), (b"cookie", b"b"), (b"X-Empty", b""))
    target = b"/a%2Fb//c/?q=%zz&x=[1]&a+b=%20&"
    await read(answered(await egress.send(tool, get(target, headers), LONG)))
    await read(answered(await egress.send(tool, post(b"{}", headers, target), LONG)))
    fields = b"x-a: 1\r\nX-A: caf\xe9 \xff\r\nCookie: a\r\ncookie: b\r\nX-Empty: \r\n"
    host = b"Host: 127.0.0.1:%d\r\n" % origin.port
    assert origin.requests[0].head == b"GET /v1%2F" + target + b" HTTP/1.1\r\n" + host + fields + b"\r\n"
    assert (
        origin.requests[1].head
        == b"POST /v1%2F" + target + b" HTTP/1.1\r\n" + host + fields + b"Content-Length: 2\r\n\r\n"
    )
    assert origin.requests[1].body == b"{}"


async def test_an_empty_query_survives(origin: Origin, egress: Egress) -> None:
    """yarl drops a lone question mark."""
    await egress.send(make_tool("127.0.0.1", origin.port), get(b"/x?"), LONG)
    assert origin.requests[0].target == b"/x?"


async def test_hop_by_hop_fields_stay_here_in_both_directions(origin: Origin, egress: Egress) -> None:
    odd = tuple((name.title(), b"x-named") for name in sorted(HOP_BY_HOP - {b"transfer-encoding", b"upgrade"}))
    origin.default = Answer(200, b"ok", (*odd, (b"X-Named", b"1"), (b"X-Kept", b"caf\xe9")))
    headers = (*odd, (b"Transfer-Encoding", b"chunked"), (b"X-Named", b"1"), (b"Seawall-Key", b"1"), (b"X-Kept", b"2"))
    reply = answered(await egress.send(make_tool("127.0.0.1", origin.port), get(b"/", headers), LONG))
    await reply.aclose()
    assert reply.headers == ((b"X-Kept", b"caf\xe9"), (b"Content-Length", b"2"))
    assert [name for name, _ in origin.requests[0].headers] == [b"Host", b"X-Kept"]


async def test_the_tools_credential_replaces_what_the_agent_sent(origin: Origin, egress: Egress) -> None:
    tool = make_tool("127.0.0.1", origin.port, credential=(b"Authorization", b"Bearer tool"))
    await egress.send(tool, get(b"/", ((b"authorization", b"Bearer agent"), (b"AUTHORIZATION", b"x"))), LONG)
    assert origin.requests[0].values(b"authorization") == [b"Bearer tool"]


@pytest.mark.parametrize(
    ("method", "body", "framing"),
    [
        ("POST", None, [b"0"]),
        ("POST", b"", [b"0"]),
        ("DELETE", None, []),
        ("OPTIONS", None, []),
        ("DELETE", b"x", [b"1"]),
        ("GET", b"xy", [b"2"]),
    ],
)
async def test_framing_is_ours_and_minimal(
    origin: Origin, egress: Egress, method: str, body: bytes | None, framing: list[bytes]
) -> None:
    request = Request(method, b"/", ((b"Content-Length", b"99"),), None if body is None else BytesBody(body))
    await egress.send(make_tool("127.0.0.1", origin.port), request, LONG)
    assert origin.requests[0].values(b"content-length") == framing
    assert origin.requests[0].values(b"transfer-encoding") == []


async def test_a_request_that_http_cannot_carry_is_not_sent(origin: Origin, egress: Egress) -> None:
    tool = make_tool("127.0.0.1", origin.port)
    bad = [get(b"/a b"), get(b"x"), get(b"/", ((b"X", b"secret\r\nY: 1"),)), Request("CONNECT", b"/", ())]
    for request in bad:
        outcome = await egress.send(tool, request, LONG)
        assert broken(outcome) == (Fault.CLIENT_ERROR, Dispatched.NO)
        assert "secret" not in str(outcome)
    assert origin.connections == 0


@pytest.mark.parametrize("is_sized", [True, False])
async def test_a_64_mib_upload_needs_no_memory(origin: Origin, egress: Egress, is_sized: bool) -> None:
    size = 64 * MIB
    tool = make_tool("127.0.0.1", origin.port)
    before = rss_bytes()
    body = Stream(pattern(size), size if is_sized else None)
    await read(answered(await egress.send(tool, post(body), LONG)))
    assert rss_bytes() - before < 16 * MIB
    received = origin.requests[0]
    assert (received.body_bytes, received.digest) == (size, pattern_digest(size))
    assert received.values(b"transfer-encoding") == ([] if is_sized else [b"chunked"])


async def test_a_large_body_held_in_memory_is_sent_whole(origin: Origin, egress: Egress) -> None:
    data = bytes(range(256)) * 2000
    await read(answered(await egress.send(make_tool("127.0.0.1", origin.port), post(data), LONG)))
    assert origin.requests[0].digest == hashlib.sha256(data).hexdigest()


async def test_an_answer_may_come_before_the_upload_ends(origin: Origin, egress: Egress) -> None:
    feed = Feed()
    feed.send(b"x" * 100)
    origin.default = Answer(413, b"too large", reads_body=False, ending="close")
    reply = answered(await egress.send(make_tool("127.0.0.1", origin.port), post(Stream(aiter(feed))), LONG))
    assert (reply.status, await read(reply)) == (413, b"too large")


@pytest.mark.parametrize("size", [None, 1000, 5])
async def test_an_upload_that_breaks_off_looks_broken_to_the_tool(
    origin: Origin, egress: Egress, size: int | None
) -> None:
    async def breaks() -> AsyncIterator[bytes]:
        yield b"x" * 10
        await origin.received(1)
        raise ConnectionResetError("the agent left")

    outcome = await egress.send(make_tool("127.0.0.1", origin.port), post(Stream(breaks(), size)), LONG)
    assert broken(outcome) == (Fault.CANCELLED, Dispatched.MAYBE)
    request = await origin.received(1)
    await request.gone.wait()
    assert not request.is_complete
    assert origin.ledger.total == 0


# What comes back


async def test_the_answer_comes_back_unchanged(origin: Origin, egress: Egress) -> None:
    headers = ((b"Set-Cookie", b"a=1"), (b"set-cookie", b"b=2"), (b"Content-Encoding", b"gzip"), (b"ETag", b'"x"'))
    origin.default = Answer(299, b"\x1f\x8bnot really gzip", headers, reason=b"Quite \xe9 Fine")
    for request in (get(), post()):
        reply = answered(await egress.send(make_tool("127.0.0.1", origin.port), request, LONG))
        assert (reply.status, reply.reason) == (299, b"Quite \xe9 Fine")
        assert reply.headers == (*headers, (b"Content-Length", b"17"))
        assert await read(reply) == b"\x1f\x8bnot really gzip"


async def test_redirects_and_cookies_are_the_agents_business(origin: Origin, egress: Egress) -> None:
    """aiohttp's cookie jar would replay one agent's cookie to the next."""
    origin.default = Answer(302, b"", ((b"Location", b"/elsewhere"), (b"Set-Cookie", b"a=1; Path=/")))
    tool = make_tool("127.0.0.1", origin.port)
    for _ in range(2):
        assert answered(await egress.send(tool, get(), LONG)).status == 302
    assert len(origin.requests) == 2
    assert origin.requests[1].values(b"cookie") == []


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304), ("HEAD", 404)])
async def test_answers_without_a_body(origin: Origin, egress: Egress, method: str, status: int) -> None:
    origin.default = Answer(status, b"", declared_length=1234)
    tool = make_tool("127.0.0.1", origin.port)
    for capture in (True, False):
        request = Request(method, b"/", (), capture_answer=capture)
        reply = answered(await egress.send(tool, request, LONG))
        assert (reply.status, await read(reply)) == (status, b"")
        expected = () if status == 204 else ((b"Content-Length", b"1234"),)
        assert reply.headers == expected
    assert origin.connections == 1


async def test_informational_answers_are_skipped(origin: Origin, egress: Egress) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
    origin.default = Answer(200, b"ok", before=early)
    assert await read(answered(await egress.send(make_tool("127.0.0.1", origin.port), post(), LONG))) == b"ok"


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_64_mib_down_need_no_memory(origin: Origin, egress: Egress, framing: str) -> None:
    size = 64 * MIB
    origin.default = Answer(200, lambda: pattern(size), framing=framing, declared_length=size)  # type: ignore[arg-type]
    tool = make_tool("127.0.0.1", origin.port)
    before = rss_bytes()
    reply = answered(await egress.send(tool, get(), LONG))
    digest = hashlib.sha256()
    async for data in reply.body.chunks():
        digest.update(data)
    await reply.aclose()
    assert digest.hexdigest() == pattern_digest(size)
    captured = answered(await egress.send(tool, post(), LONG))
    assert isinstance(captured.body, SpooledBody)
    assert captured.body.size == size
    await captured.aclose()
    assert rss_bytes() - before < 16 * MIB


async def test_a_captured_answer_beyond_its_limit_is_given_up(origin: Origin, egress: Egress) -> None:
    origin.default = Answer(200, lambda: pattern(90 * MIB), declared_length=90 * MIB, applies=True)
    outcome = await egress.send(make_tool("127.0.0.1", origin.port), post(), LONG)
    assert broken(outcome) == (Fault.CANCELLED, Dispatched.YES)
    assert isinstance(outcome, Broken)
    assert "limit" in outcome.detail


async def test_events_stream_as_they_come(origin: Origin, egress: Egress) -> None:
    feed = Feed()
    origin.default = Answer(200, feed, ((b"Content-Type", b"text/event-stream"),), framing="chunked")
    reply = answered(await egress.send(make_tool("127.0.0.1", origin.port), get(), LONG))
    assert reply.body.size is None
    chunks = reply.body.chunks()
    for event in (b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n"):
        feed.send(event)
        assert await anext(chunks) == event
    feed.end()
    with pytest.raises(StopAsyncIteration):
        await anext(chunks)
    await reply.aclose()


async def test_a_reader_that_stops_stops_the_tool(origin: Origin, egress: Egress) -> None:
    """Backpressure: what is under way is bounded by buffers, not by the answer."""
    sent: list[Exchange] = []

    async def endless(exchange: Exchange) -> None:
        sent.append(exchange)
        await Answer(200, lambda: pattern(64 * MIB), declared_length=64 * MIB)(exchange)

    origin.default = endless
    reply = answered(await egress.send(make_tool("127.0.0.1", origin.port), get(), LONG))
    chunks = reply.body.chunks()
    await anext(chunks)
    assert len(sent) == 1
    previous = -1
    while sent[0].sent_bytes != previous:
        previous = sent[0].sent_bytes
        await asyncio.sleep(SOON)
    assert previous < 16 * MIB
    await chunks.aclose()  # type: ignore[attr-defined]
    await reply.aclose()


async def test_giving_up_a_stream_closes_the_connection_at_once(origin: Origin, egress: Egress) -> None:
    feed = Feed()
    feed.send(b"1")
    origin.default = Answer(200, feed, framing="chunked")
    reply = answered(await egress.send(make_tool("127.0.0.1", origin.port), get(), LONG))
    async for _ in reply.body.chunks():
        break
    await reply.aclose()
    await origin.requests[0].gone.wait()


async def test_a_finished_stream_gives_its_connection_back(origin: Origin, egress: Egress) -> None:
    origin.default = Answer(200, lambda: pattern(MIB), declared_length=MIB)
    tool = make_tool("127.0.0.1", origin.port)
    for _ in range(3):
        await read(answered(await egress.send(tool, get(), LONG)))
    assert origin.connections == 1


# How it breaks


TRUNCATED = [
    Answer(200, b"0123456789", stop_after=4, applies=True),
    Answer(200, b"0123456789", framing="chunked", stop_after=4, applies=True),
    Answer(200, b"0123", declared_length=10, ending="close", applies=True),
    Answer(200, b"0123", framing="none", ending="reset", applies=True),
    Answer(200, b"0123456789", stop_after=4, ending="reset", applies=True),
]


@pytest.mark.parametrize("answer", TRUNCATED)
async def test_a_truncated_answer_is_never_taken_for_a_whole_one(
    origin: Origin, egress: Egress, answer: Answer
) -> None:
    origin.default = answer
    tool = make_tool("127.0.0.1", origin.port)
    fault, dispatched = broken(await egress.send(tool, post(), LONG))
    assert fault in (Fault.PROTOCOL, Fault.RESET)
    assert dispatched in (Dispatched.YES, Dispatched.MAYBE)
    outcome = await egress.send(tool, get(), LONG)
    if isinstance(outcome, Reply):
        with pytest.raises(StreamBroken):
            await read(outcome)
    else:
        assert outcome.dispatched is Dispatched.MAYBE


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX" + b"x" * 100_000 + b": 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 1000 + b"\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection : x-a\r\nX-A: 1\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding : gzip\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    ],
)
async def test_an_answer_that_is_no_answer(origin: Origin, egress: Egress, garbage: bytes) -> None:
    origin.default = Raw(garbage)
    outcome = await egress.send(make_tool("127.0.0.1", origin.port), post(), LONG)
    fault, dispatched = broken(outcome)
    assert fault is Fault.PROTOCOL
    assert dispatched in (Dispatched.YES, Dispatched.MAYBE)


@pytest.mark.parametrize("request_", [get(), post()])
async def test_chunks_that_the_parser_does_not_take_off_are_no_body(
    origin: Origin, spool: Spool, request_: Request
) -> None:
    """aiohttp reads `chunked` with a tab behind it as no coding, and the chunks themselves as the body. Its own client hides
    which it was, so the second backend passes them on."""
    egress = DirectEgress(spool)
    origin.default = Raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\t\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
    outcome = await egress.send(make_tool("127.0.0.1", origin.port), request_, LONG)
    assert broken(outcome) == (Fault.PROTOCOL, Dispatched.YES)
    await egress.close()


@pytest.mark.parametrize("head", [b"200 OK", b"204 No", b"304 No"])
async def test_a_coding_of_a_body_that_is_not_sent_is_no_fault(origin: Origin, egress: Egress, head: bytes) -> None:
    """RFC 9112 section 6.1: it may be named in the answer to HEAD, and in a 304."""
    origin.default = Raw(b"HTTP/1.1 %b\r\nTransfer-Encoding: chunked\r\n\r\n" % head)
    reply = answered(await egress.send(make_tool("127.0.0.1", origin.port), Request("HEAD", b"/x", ()), LONG))
    assert await read(reply) == b""


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST", "HEAD"])
async def test_a_dropped_call_is_dispatched_once(origin: Origin, egress: Egress, method: str, how: str) -> None:
    """aio-libs/aiohttp#10790: the client silently sends idempotent methods a second time on a kept connection."""
    tool = make_tool("127.0.0.1", origin.port)
    await read(answered(await egress.send(tool, get(), LONG)))
    origin.default = Drop(applies=True, how=how)  # type: ignore[arg-type]
    body = BytesBody(b"x") if method in ("PUT", "POST") else None
    outcome = await egress.send(tool, Request(method, b"/x", ((b"Idempotency-Key", b"k"),), body), LONG)
    assert broken(outcome) == (Fault.RESET, Dispatched.MAYBE)
    assert [one.method for one in origin.requests] == ["GET", method]
    assert origin.connections == 1
    assert origin.ledger.effects("k") == 1


async def test_nothing_left_if_there_was_no_connection(egress: Egress, origin: Origin) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = make_tool("127.0.0.1", free.getsockname()[1])
        assert broken(await egress.send(closed, post(), LONG)) == (Fault.CONNECT, Dispatched.NO)
    unknown = make_tool("does-not-exist.invalid", 80)
    assert broken(await egress.send(unknown, post(), LONG)) == (Fault.CONNECT, Dispatched.NO)
    no_tls = make_tool("127.0.0.1", origin.port, scheme="https")
    origin.default = Raw(b"")
    fault, dispatched = broken(await egress.send(no_tls, post(), Timings(0.5, 0.5, 0.5, 0.5)))
    assert fault in (Fault.CONNECT, Fault.CONNECT_TIMEOUT)
    assert dispatched is Dispatched.NO


async def test_a_connect_timeout_is_exact_and_sent_nothing(egress: Egress) -> None:
    """A listener whose backlog is full answers no SYN."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [_connecting(full.getsockname()) for _ in range(4)]
        loop = asyncio.get_running_loop()
        started = loop.time()
        outcome = await egress.send(make_tool(*full.getsockname()), post(), Timings(0.2, 20, 20, 20))
        assert broken(outcome) == (Fault.CONNECT_TIMEOUT, Dispatched.NO)
        assert loop.time() - started < 5
        for one in fillers:
            one.close()


@pytest.mark.parametrize("capture", [True, False])
async def test_no_first_byte_is_a_timeout_and_in_doubt(origin: Origin, egress: Egress, capture: bool) -> None:
    origin.default = Hang(applies=True)
    request = Request("POST", b"/", ((b"Idempotency-Key", b"k"),), BytesBody(b"x"), capture_answer=capture)
    outcome = await egress.send(make_tool("127.0.0.1", origin.port), request, Timings(20, SOON, 20, 20))
    assert broken(outcome) == (Fault.TIMEOUT, Dispatched.MAYBE)
    assert isinstance(outcome, Broken)
    assert "0.05 s" in outcome.detail
    await origin.requests[0].gone.wait()
    assert origin.ledger.effects("k") == 1


async def test_the_first_byte_timer_ends_with_the_head(origin: Origin, egress: Egress) -> None:
    """envoyproxy/envoy#3221: a per-try timer cut an answer that was already streaming."""
    feed = Feed()
    origin.default = Answer(200, feed, framing="chunked")
    feed.send(b"head")
    reply = answered(await egress.send(make_tool("127.0.0.1", origin.port), get(), Timings(20, SOON, 20, SOON)))
    chunks = reply.body.chunks()
    assert await anext(chunks) == b"head"
    await asyncio.sleep(3 * SOON)
    feed.send(b"tail")
    feed.end()
    assert [data async for data in chunks] == [b"tail"]
    await reply.aclose()


async def test_the_first_byte_timer_waits_for_the_upload(origin: Origin, egress: Egress) -> None:
    """A slow upload is not a slow tool."""

    async def slow() -> AsyncIterator[bytes]:
        yield b"a"
        await asyncio.sleep(3 * SOON)
        yield b"b"

    tool = make_tool("127.0.0.1", origin.port)
    answered(await egress.send(tool, post(Stream(slow(), 2)), Timings(20, SOON, 20, 20)))
    assert origin.requests[0].body == b"ab"


async def test_a_tool_that_does_not_read_is_bounded_by_the_total(origin: Origin, egress: Egress) -> None:
    origin.default = Hang(reads_body=False)
    body = Stream(pattern(64 * MIB), 64 * MIB)
    outcome = await egress.send(make_tool("127.0.0.1", origin.port), post(body), Timings(20, 20, 20, 4 * SOON))
    assert broken(outcome) == (Fault.TIMEOUT, Dispatched.MAYBE)


async def test_an_answer_that_stalls_is_cut_by_the_idle_timer(origin: Origin, egress: Egress) -> None:
    feed = Feed()
    feed.send(b"1")
    origin.default = Answer(200, feed, framing="chunked", applies=True)
    tool = make_tool("127.0.0.1", origin.port)
    timings = Timings(20, 20, SOON, 20)
    reply = answered(await egress.send(tool, get(), timings))
    with pytest.raises(StreamBroken, match="stalled"):
        await read(reply)
    await origin.requests[0].gone.wait()
    assert broken(await egress.send(tool, post(), timings)) == (Fault.TIMEOUT, Dispatched.YES)


async def test_a_captured_answer_is_bounded_as_a_whole(origin: Origin, egress: Egress) -> None:
    """A tool that drips a byte now and then would keep the idle timer quiet for ever."""

    async def drip() -> AsyncIterator[bytes]:
        while True:
            yield b"."
            await asyncio.sleep(SOON / 5)

    origin.default = Answer(200, drip, framing="chunked")
    outcome = await egress.send(make_tool("127.0.0.1", origin.port), post(), Timings(20, 20, 20, 4 * SOON))
    assert broken(outcome) == (Fault.TIMEOUT, Dispatched.YES)


async def test_cancelling_closes_the_connection_and_passes_on(origin: Origin, egress: Egress) -> None:
    origin.default = Hang()
    sending = asyncio.create_task(egress.send(make_tool("127.0.0.1", origin.port), post(), LONG))
    request = await origin.completed(1)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await request.gone.wait()


async def test_no_answer_reaches_another_call_whatever_is_cancelled(origin: Origin, egress: Egress) -> None:
    """aio-libs/aiohttp#12795, #12953, #7864: cancelled and timed-out calls left poisoned connections behind.

    10,000 calls in all: 2,500 on each event loop with each egress.
    """
    chance = random.Random(7)

    async def nonce(exchange: Exchange) -> None:
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0)
        body = exchange.request.target * chance.choice((1, 40_000))
        await exchange.answer(200, body)

    origin.default = nonce
    tool = make_tool("127.0.0.1", origin.port)

    async def call(number: int) -> int:
        target = b"/%d" % number
        timings = Timings(20, chance.choice((20, 0.001)), 20, 20)
        outcome = await egress.send(tool, Request("GET", target, (), capture_answer=number % 2 == 0), timings)
        if isinstance(outcome, Broken):
            return 0
        assert set((await read(outcome)).split(b"/")) == {b"", target[1:]}
        return 1

    async def perhaps_cancelled(number: int) -> int:
        task = asyncio.create_task(call(number))
        for _ in range(chance.randrange(12)):
            await asyncio.sleep(0)
        if chance.random() < 0.5:
            task.cancel()
        return sum(one for one in await asyncio.gather(task, return_exceptions=True) if isinstance(one, int))

    good = 0
    for start in range(0, 2_500, 20):
        results = await asyncio.gather(*(perhaps_cancelled(start + offset) for offset in range(20)))
        good += sum(results)
    assert good > 200


async def test_calls_that_time_out_leave_room_for_as_many_as_come(origin: Origin, egress: Egress) -> None:
    """aio-libs/aiohttp#9670: after timeouts, callers waited for ever for connections that nobody held.

    The pools have no bound of their own, so nobody waits there: admission decides, further out.
    """
    tool = make_tool("127.0.0.1", origin.port)
    hasty = Timings(20, 0.001, 20, 20)
    origin.default = Hang()
    for _ in range(20):
        outcomes = await asyncio.gather(*(egress.send(tool, get(), hasty) for _ in range(25)))
        assert {broken(outcome)[0] for outcome in outcomes} == {Fault.TIMEOUT}
    here, all_here = 0, asyncio.Event()

    async def wait_for_all(exchange: Exchange) -> None:
        nonlocal here
        here += 1
        if here == 200:
            all_here.set()
        await all_here.wait()
        await exchange.answer(200, b"in")

    origin.default = wait_for_all
    replies = await asyncio.gather(*(egress.send(tool, get(), LONG) for _ in range(200)))
    assert [await read(answered(reply)) for reply in replies] == [b"in"] * 200


async def test_an_ipv6_tool_is_reached(egress: Egress) -> None:
    if not _has_ipv6():
        return
    async with Origin(host="::1") as origin:
        await read(answered(await egress.send(make_tool("::1", origin.port), post(), LONG)))
        assert origin.requests[0].values(b"host") == [b"[::1]:%d" % origin.port]


async def test_a_certificate_nobody_signed_is_refused_before_anything_is_sent(egress: Egress, tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(record, "127.0.0.1", 0, ssl=_self_signed(tmp_path))
    tool = make_tool("127.0.0.1", server.sockets[0].getsockname()[1], scheme="https")
    outcome = await egress.send(tool, post(b"secret"), LONG)
    server.close()
    assert broken(outcome) == (Fault.CONNECT, Dispatched.NO)
    assert b"".join(seen) == b""


@pytest.mark.parametrize("backend", [DirectEgress, ClientEgress])
async def test_a_trusted_tool_is_reached_over_tls_and_its_connection_kept(
    spool: Spool, tmp_path: Path, backend: type[DirectEgress] | type[ClientEgress]
) -> None:
    connections: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        while head := await reader.readuntil(b"\r\n\r\n"):
            assert head.startswith(b"GET /x HTTP/1.1\r\nHost: 127.0.0.1:")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=_self_signed(tmp_path))
    trusting = ssl.create_default_context(cafile=tmp_path / "cert.pem")
    egress = backend(spool, ssl_context=trusting)
    tool = make_tool("127.0.0.1", server.sockets[0].getsockname()[1], scheme="https")
    for _ in range(3):
        assert await read(answered(await egress.send(tool, get(), LONG))) == b"ok"
    assert len(connections) == 1
    for one in connections:
        one.transport.abort()
    await egress.close()
    server.close()


def _self_signed(folder: Path) -> ssl.SSLContext:
    subprocess.run(
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 "
        f"-keyout {folder}/key.pem -out {folder}/cert.pem".split(),
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


def _connecting(address: tuple[str, int]) -> socket.socket:
    one = socket.socket()
    one.setblocking(False)
    one.connect_ex(address)
    return one


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
