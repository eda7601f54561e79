"""The rules of RFC 9110 and 9112 for a server, one case each: what comes in, the status, and whether the connection lives.

The list is our own; dropseed/h1spec has 33 checks of the same kind. Half-closing clients are left out: here a closed sending
side means that the agent has left (docs/adr/0090-own-wire.md).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.core.message import BytesBody
from gateway.egress.spool import Spool
from gateway.ingress.http import IncomingRequest, OutgoingResponse
from tests.agent import agent, serving

H = b"Host: a\r\n"
OK = b"GET / HTTP/1.1\r\n" + H + b"\r\n"

KEPT = {
    "a plain request": (OK, 200),
    "HTTP/1.0 with keep-alive": (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 200),
    "an empty line before the request (9112 2.2)": (b"\r\n" + OK, 200),
    "field names in any case (9110 5.1)": (b"GET / HTTP/1.1\r\nhOsT: a\r\n\r\n", 200),
    "space around a value (9112 5)": (b"GET / HTTP/1.1\r\nHost:   a  \r\nX:\t1\t\r\n\r\n", 200),
    "an empty value (9110 5.5)": (b"GET / HTTP/1.1\r\n" + H + b"X:\r\n\r\n", 200),
    "a value beyond ASCII (9110 5.5)": (b"GET / HTTP/1.1\r\n" + H + b"X: caf\xe9\r\n\r\n", 200),
    "a host with a port (9110 7.2)": (b"GET / HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n", 200),
    "a body of known length (9112 6.2)": (b"POST / HTTP/1.1\r\n" + H + b"Content-Length: 2\r\n\r\nok", 200),
    "a body in chunks (9112 7.1)": (
        b"POST / HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\n1;x=y\r\no\r\n1\r\nk\r\n0\r\nT: 1\r\n\r\n", 200),
    "the coding's name in any case (9112 7)": (
        b"POST / HTTP/1.1\r\n" + H + b"Transfer-Encoding: CHUNKED\r\n\r\n0\r\n\r\n", 200),
    "a GET with a body (9110 9.3.1)": (b"GET / HTTP/1.1\r\n" + H + b"Content-Length: 2\r\n\r\nok", 200),
    "an upgrade nobody wants (9110 7.8)": (
        b"GET / HTTP/1.1\r\n" + H + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n", 200),
    "an expectation that is met (9110 10.1.1)": (
        b"POST / HTTP/1.1\r\n" + H + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\nok", 200),
}  # fmt: skip

CLOSED = {
    "close asked for (9112 9.3)": (b"GET / HTTP/1.1\r\n" + H + b"Connection: close\r\n\r\n", 200),
    "HTTP/1.0 without keep-alive (9112 9.3)": (b"GET / HTTP/1.0\r\n\r\n", 200),
    "no Host (9112 3.2)": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two Hosts (9112 3.2)": (b"GET / HTTP/1.1\r\n" + H + H + b"\r\n", 400),
    "a Host that is none (9112 3.2)": (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
    "an unknown major version (9110 15.6.6)": (b"GET / HTTP/2.0\r\n" + H + b"\r\n", 505),
    "a major version yet to come (9110 15.6.6)": (b"GET / HTTP/9.9\r\n" + H + b"\r\n", 505),
    "a minor version yet to come (9110 15.6.6)": (b"GET / HTTP/1.7\r\n" + H + b"\r\n", 505),
    "a version of two digits (9112 2.3)": (b"GET / HTTP/10.1\r\n" + H + b"\r\n", 400),
    "a version of letters (9112 2.3)": (b"GET / HTTP/abc\r\n" + H + b"\r\n", 400),
    "no version (9112 3)": (b"GET /\r\n" + H + b"\r\n", 400),
    "no target and no version (9112 3)": (b"CONNECT \r\n" + H + b"\r\n", 400),
    "a space before the colon (9112 5.1)": (b"GET / HTTP/1.1\r\n" + H + b"X : 1\r\n\r\n", 400),
    "a folded line (9112 5.2)": (b"GET / HTTP/1.1\r\n" + H + b"X: 1\r\n 2\r\n\r\n", 400),
    "a NUL in a value (9110 5.5)": (b"GET / HTTP/1.1\r\n" + H + b"X: a\0b\r\n\r\n", 400),
    "a bare CR in a value (9112 2.2)": (b"GET / HTTP/1.1\r\n" + H + b"X: a\rb\r\n\r\n", 400),
    "a name that is no token (9110 5.1)": (b"GET / HTTP/1.1\r\n" + H + b"X(): 1\r\n\r\n", 400),
    "a line without a colon (9112 5)": (b"GET / HTTP/1.1\r\n" + H + b"nonsense\r\n\r\n", 400),
    "a space in the target (9112 3)": (b"GET /a b HTTP/1.1\r\n" + H + b"\r\n", 400),
    "length and chunks (9112 6.1)": (
        b"POST / HTTP/1.1\r\n" + H + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "two lengths (9112 6.3)": (b"POST / HTTP/1.1\r\n" + H + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nx", 400),
    "a list of lengths (9112 6.3)": (b"POST / HTTP/1.1\r\n" + H + b"Content-Length: 1, 1\r\n\r\nx", 400),
    "a length with a sign (9110 8.6)": (b"POST / HTTP/1.1\r\n" + H + b"Content-Length: +1\r\n\r\nx", 400),
    "a negative length (9110 8.6)": (b"POST / HTTP/1.1\r\n" + H + b"Content-Length: -1\r\n\r\n", 400),
    "chunks in HTTP/1.0 (9112 6.1)": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunks not last (9112 6.1)": (
        b"POST / HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400),
    "a coding nobody knows (9112 6.1)": (
        b"POST / HTTP/1.1\r\n" + H + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "a chunk size that is none (9112 7.1)": (
        b"POST / HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
    "a chunk longer than its size (9112 7.1)": (
        b"POST / HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n", 400),
    "a target too long (9110 15.5.15)": (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n" + H + b"\r\n", 414),
    "a field too long (6585 5)": (b"GET / HTTP/1.1\r\n" + H + b"X: " + b"a" * 40_000 + b"\r\n\r\n", 431),
    "too many fields (6585 5)": (b"GET / HTTP/1.1\r\n" + H + b"X: 1\r\n" * 200 + b"\r\n", 431),
    "a head too long as a whole (6585 5)": (
        b"GET / HTTP/1.1\r\n" + H + (b"X: " + b"a" * 30_000 + b"\r\n") * 3, 431),
}  # fmt: skip


def _status(head: bytes) -> int:
    return int(head.split(b" ", 2)[1])


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool")


def _echo(spool: Spool):  # type: ignore[no-untyped-def]
    async def handler(request: IncomingRequest) -> OutgoingResponse:
        body = await request.read_all(spool, max_bytes=1000) if request.has_body else BytesBody(b"none")
        return OutgoingResponse(status=200, body=body)

    return handler


@pytest.mark.parametrize("case", sorted(KEPT))
async def test_a_good_request_is_answered_and_the_connection_lives(case: str, spool: Spool) -> None:
    data, status = KEPT[case]
    async with serving(_echo(spool)) as (_, port), agent(port) as one:
        one.send(data)
        head = await one.head()
        if _status(head) == 100:
            head = await one.head()
        assert _status(head) == status
        if b"chunked" not in head:
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await one.reader.readexactly(int(length.split(b":")[1]))
        one.send(OK)
        assert _status(await one.head()) == 200
    spool.close()


@pytest.mark.parametrize("case", sorted(CLOSED))
async def test_what_ends_the_connection_is_answered_once(case: str, spool: Spool) -> None:
    """A second answer would be taken for that of the next request, by whoever shares the connection (9112 11.2)."""
    data, status = CLOSED[case]
    async with serving(_echo(spool)) as (_, port), agent(port) as one:
        one.send(data)
        answer = await one.rest()
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert len(re.findall(rb"HTTP/1\.1 \d", answer)) == 1
    assert b"Connection: close\r\n" in answer
    spool.close()


async def test_head_gets_no_body_and_keeps_its_length(spool: Spool) -> None:
    async with serving(_echo(spool)) as (_, port), agent(port) as one:
        one.send(b"HEAD / HTTP/1.1\r\n" + H + b"\r\n" + OK)
        assert b"Content-Length: 4\r\n" in await one.head()
        assert _status(await one.head()) == 200
    spool.close()


async def test_an_expectation_nobody_knows_is_refused(spool: Spool) -> None:
    async with serving(_echo(spool)) as (_, port), agent(port) as one:
        one.send(b"POST / HTTP/1.1\r\n" + H + b"Expect: more\r\nContent-Length: 2\r\n\r\n")
        assert _status(await one.head()) == 417
    spool.close()


async def test_good_requests_before_a_bad_one_are_answered_first(spool: Spool) -> None:
    async with serving(_echo(spool)) as (_, port), agent(port) as one:
        one.send(OK + OK)
        assert _status(await one.head()) == 200
        await one.reader.readexactly(4)
        one.send(b"nonsense\r\n\r\n")
        answer = await one.rest()
    assert [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]] == [200, 400]
    spool.close()


async def test_forty_pipelined_requests_overfill_the_queue_and_are_all_answered(spool: Spool) -> None:
    async with serving(_echo(spool)) as (_, port), agent(port) as one:
        one.send(b"".join(b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n%02d" % (n, n) for n in range(99)))
        for number in range(99):
            assert _status(await one.head()) == 200
            assert await one.reader.readexactly(2) == b"%02d" % number
    spool.close()


async def test_a_body_nobody_reads_is_thrown_away_before_the_next_request(spool: Spool) -> None:
    async def handler(request: IncomingRequest) -> OutgoingResponse:
        return OutgoingResponse(status=200, body=BytesBody(request.target))

    async with serving(handler) as (_, port), agent(port) as one:
        size = 3 << 20
        one.send(b"POST /1 HTTP/1.1\r\n" + H + b"Content-Length: %d\r\n\r\n" % size + bytes(size))
        one.send(b"GET /2 HTTP/1.1\r\n" + H + b"\r\n")
        for expected in (b"/1", b"/2"):
            assert _status(await one.head()) == 200
            assert await one.reader.readexactly(2) == expected
    spool.close()


async def test_a_unix_socket_is_for_its_owner_alone(tmp_path: Path) -> None:
    import asyncio
    import stat

    from gateway.ingress.http import HttpFront

    async def handler(request: IncomingRequest) -> OutgoingResponse:
        return OutgoingResponse(status=200, body=BytesBody(request.peer.encode() or b"none"))

    path = tmp_path / "agents.sock"
    for _ in range(2):  # the second finds the file of the first
        front = HttpFront(handler)
        await front.listen_unix(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(OK)
        assert _status(await reader.readuntil(b"\r\n\r\n")) == 200
        writer.close()
        await front.close()
