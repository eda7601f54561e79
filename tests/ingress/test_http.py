"""The front hands over bytes and bodies, and tells the agent the truth about how an answer ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from weakref import WeakKeyDictionary

import pytest

from gateway.core.codes import Code
from gateway.core.message import BytesBody
from gateway.core.problem import Problem
from gateway.ingress.http import AtOnce, HttpFront, IncomingRequest, OutgoingResponse
from tests.agent import GET, Agent, agent, always, exchange, serving
from tests.origin import Feed
from tests.tools import SOON, Stream

# What comes in


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: bad host\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"GET /\r\nHost: a\r\n\r\n", 400),
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
    ("method", "status", "body", "expected"),
    [("HEAD", 200, b"12345", b""), ("GET", 304, b"", b""), ("GET", 204, b"", b""), ("GET", 500, b"abc", b"abc")],
)
async def test_the_connection_stays_in_step(method: str, status: int, body: bytes, expected: bytes) -> None:
    """A byte too many or too few would be read as part of the next answer."""
    answer = OutgoingResponse(status=status, headers=((b"Content-Length", b"1234"),), body=BytesBody(body))
    async with serving(always(lambda: answer)) as (_, port), agent(port) as one:
        for _ in range(2):
            one.send(f"{method} / HTTP/1.1\r\nHost: g\r\n\r\n".encode())
            assert (await one.head()).startswith(b"HTTP/1.1 %d " % status)
            assert await one.reader.readexactly(len(expected)) == expected


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
    upgrade = b"GET / HTTP/1.1\r\nHost: g\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
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


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def handler(request: IncomingRequest) -> OutgoingResponse:
        await asyncio.sleep(0)
        return OutgoingResponse(status=200, body=BytesBody(request.target))

    async with serving(handler) as (_, port), agent(port) as one:
        one.send(b"".join(b"GET /%d HTTP/1.1\r\nHost: g\r\n\r\n" % number for number in range(5)))
        for number in range(5):
            await one.head()
            assert await one.reader.readexactly(2) == b"/%d" % number


# At once

NO = Problem(503, ((b"X", b"1"), (b"Y", b"2")), b"no")
HOT = b"GET /hot/a HTTP/1.1\r\nHost: g\r\n\r\n"
POST = b"POST /hot/a HTTP/1.1\r\nHost: g\r\nContent-Length: 2\r\n\r\nhi"


class Knows:
    """Has the front ask about `/hot/`. `heads`: how often it was asked about a head, `bodies`: how often it answered."""

    def __init__(self, front: HttpFront, answers: int = 1000) -> None:
        self.heads = self.bodies = 0
        self.left = answers
        front._at_once = self.about
        front.refusing.refused("hot", Code.CIRCUIT_OPEN)

    def about(self, request: IncomingRequest) -> AtOnce:
        self.heads += 1
        return self.answer

    def answer(self, body: bytes | None) -> Problem | None:
        if not self.left or body is None:
            return None
        self.left -= 1
        self.bodies += 1
        return NO


async def served(request: IncomingRequest) -> OutgoingResponse:
    body = b"" if not request.has_body else b"".join([chunk async for chunk in request.stream().chunks()])
    return OutgoingResponse(status=200, body=BytesBody(b"served " + body))


def refused() -> OutgoingResponse:
    return OutgoingResponse(status=NO.status, headers=NO.headers, body=BytesBody(NO.body))


async def answered(one: Agent) -> tuple[bytes, bytes]:
    head = await one.head()
    length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    return head, await one.reader.readexactly(int(length.partition(b":")[2]))


@pytest.mark.parametrize("request_bytes", [HOT, POST])
async def test_what_is_known_at_once_is_answered_without_a_task_and_the_connection_goes_on(
    request_bytes: bytes,
) -> None:
    """In the same bytes as any other answer; about a head that comes again nobody is asked twice."""
    async with serving(always(refused)) as (front, port), agent(port) as one:
        one.send(request_bytes)
        plain = await answered(one)
        knows = Knows(front)
        for _ in range(3):
            one.send(request_bytes)
            quick = await answered(one)
            assert [part.split(b"Date: ")[0] for part in quick] == [part.split(b"Date: ")[0] for part in plain]
            assert front.in_flight == 0
        assert (knows.heads, knows.bodies) == (1, 3)
        one.send(b"GET /cold/a HTTP/1.1\r\nHost: g\r\n\r\n")
        await answered(one)
        assert knows.bodies == 3


async def test_what_is_not_known_at_once_is_served_with_its_whole_body() -> None:
    async with serving(served) as (front, port), agent(port) as one:
        knows = Knows(front, answers=1)
        for expected in (b"no", b"served hi", b"served hi"):
            one.send(POST)
            assert (await answered(one))[1] == expected
        assert knows.heads == 2  # forgotten once it knew no answer


async def test_only_the_same_head_is_known() -> None:
    async with serving(served) as (front, port), agent(port) as one:
        knows = Knows(front)
        for fields in (b"A: 1\r\n", b"A: 2\r\n", b"a: 1\r\n", b"A: 1\r\nB: 1\r\n"):
            one.send(b"GET /hot/a HTTP/1.1\r\nHost: g\r\n" + fields + b"\r\n")
            await answered(one)
        one.send(b"DELETE /hot/a HTTP/1.1\r\nHost: g\r\nA: 1\r\n\r\n")
        await answered(one)
        assert (knows.heads, knows.bodies) == (5, 5)


@pytest.mark.parametrize(
    "request_bytes",
    [
        POST.replace(b"Host: g\r\n", b"Host: g\r\nExpect: 100-continue\r\n"),
        POST.replace(b"Host: g", b"Host: g/h"),
        HOT.replace(b"HTTP/1.1", b"HTTP/1.0"),
        HOT.replace(b"GET", b"HEAD"),
        HOT.replace(b"Host: g\r\n", b"Host: g\r\nConnection: close\r\n"),
        HOT.replace(b"Host: g\r\n", b"Host: g\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"),
    ],
)
async def test_about_anything_out_of_the_ordinary_nobody_is_asked(request_bytes: bytes) -> None:
    async with serving(served) as (front, port), agent(port) as one:
        knows = Knows(front)
        one.send(request_bytes)
        await one.head()
    assert (knows.heads, knows.bodies) == (0, 0)


async def test_a_body_in_pieces_is_not_asked_about_before_it_is_here() -> None:
    async with serving(served) as (front, port), agent(port) as one:
        knows = Knows(front)
        one.send(POST)
        assert (await answered(one))[1] == b"no"
        one.send(POST[:-1])
        await asyncio.wait_for(_until(lambda: front.in_flight == 1), 20)
        one.send(POST[-1:])
        assert (await answered(one))[1] == b"served hi"
        assert (knows.heads, len(front._known)) == (1, 1)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


async def test_pipelined_requests_keep_their_order_whoever_answers_them() -> None:
    """Only the last of them may be answered at once, after all before it."""
    async with serving(served) as (front, port), agent(port) as one:
        knows = Knows(front)
        one.send(HOT * 5)
        bodies = [(await answered(one))[1] for _ in range(5)]
    assert bodies in ([b"served "] * 4 + [b"no"], [b"served "] * 5)
    assert knows.bodies <= 1


async def test_while_the_front_drains_every_answer_is_the_last() -> None:
    async with serving(always(refused)) as (front, port), agent(port) as one:
        knows = Knows(front)
        front.is_draining = True
        one.send(HOT)
        assert b"Connection: close\r\n" in await one.rest()
        assert knows.bodies == 0


async def test_a_connection_that_somebody_else_serves_is_none_of_its_business() -> None:
    """The same head means another thing inside an intercepted tunnel."""
    async with serving(served) as (front, port), agent(port) as one:
        knows = Knows(front)
        one.send(HOT)
        assert (await answered(one))[1] == b"no"
        (connection,) = front.connections
        front._handlers = WeakKeyDictionary({connection: served})
        one.send(HOT)
        assert (await answered(one))[1] == b"served "
        assert knows.bodies == 1


@pytest.mark.parametrize("where", ["about", "answer", "field"])
async def test_a_bug_in_an_answer_at_once_costs_the_agent_nothing(where: str) -> None:
    def broken(_: object) -> Problem:
        if where == "field":
            return Problem(503, ((b"X", b"1\r\nY: 2"),), b"no")
        raise ZeroDivisionError

    async with serving(served) as (front, port), agent(port) as one:
        Knows(front)
        front._at_once = broken if where == "about" else lambda request: broken  # type: ignore[assignment,return-value]
        one.send(HOT)
        assert (await answered(one))[1] == b"served "


async def test_few_heads_are_known_at_a_time_and_none_that_is_large() -> None:
    async with serving(served) as (front, port), agent(port) as one:
        knows = Knows(front)
        for number in range(300):
            one.send(HOT.replace(b"/a", b"/%d" % number))
            await answered(one)
        assert 0 < len(front._known) <= 256
        front._known.clear()
        for _ in range(2):
            one.send(HOT.replace(b"Host", b"A: " + b"x" * 5000 + b"\r\nHost"))
            assert (await answered(one))[1] == b"no"
        assert (knows.heads, len(front._known)) == (302, 0)


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
