"""A connection handed over, and one taken in: what a proxy's CONNECT needs of the front, and nothing of it stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from pathlib import Path
from typing import cast

import pytest

from gateway.core.message import BytesBody
from gateway.ingress.certificates import Authority
from gateway.ingress.http import HttpFront, IncomingRequest, OutgoingResponse
from tests.agent import always, serving

CONNECT = b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n"


class Shout(asyncio.Protocol):
    """Answers in capitals until the peer closes."""

    def __init__(self) -> None:
        self.gone = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data.upper())

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set_result(None)


class Taker:
    def __init__(self) -> None:
        self.early: list[bytes] = []
        self.released = 0

    async def takeover(self, transport: asyncio.Transport, early: bytes) -> None:
        self.early.append(early)
        protocol = Shout()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if early:
            protocol.data_received(early)
        transport.resume_reading()
        await protocol.gone

    async def release(self) -> None:
        self.released += 1

    async def __call__(self, request: IncomingRequest) -> OutgoingResponse:
        assert (request.method, request.target) == ("CONNECT", b"a:443")
        return OutgoingResponse(
            status=200, headers=((b"X", b"1"),), reason=b"Here", takeover=self.takeover, release=self.release
        )


async def idle(front: HttpFront) -> None:
    async with asyncio.timeout(5):
        assert await front.wait_idle(5)


async def test_a_connection_is_handed_over_with_what_has_come_already() -> None:
    taker = Taker()
    async with serving(taker) as (front, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CONNECT + b"early")
        assert (
            await reader.readexactly(len(b"HTTP/1.1 200 Here\r\nX: 1\r\n\r\n")) == b"HTTP/1.1 200 Here\r\nX: 1\r\n\r\n"
        )
        assert await reader.readexactly(5) == b"EARLY"
        for text in (b"more", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"):
            writer.write(text)
            assert await reader.readexactly(len(text)) == text.upper()
        assert (taker.early, front.in_flight) == ([b"early"], 1)
        writer.close()
        await idle(front)
        assert taker.released == 1
        async with asyncio.timeout(5):
            while front.connections:
                await asyncio.sleep(0)


async def test_a_connect_that_is_refused_ends_its_connection() -> None:
    """What follows it could be anything but HTTP."""
    async with serving(always(lambda: OutgoingResponse(status=403))) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CONNECT + b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"Connection: close\r\n" in answer
        assert answer.count(b"HTTP/1.1") == 1
        writer.close()


async def test_a_handed_over_connection_ends_with_the_front() -> None:
    async with serving(Taker()) as (front, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CONNECT)
        await reader.readuntil(b"\r\n\r\n")
        await front.close()
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        assert front.in_flight == 0


async def test_a_bug_in_what_takes_over_ends_the_connection_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async def takeover(transport: asyncio.Transport, early: bytes) -> None:
        raise LookupError("a bug")

    async with serving(always(lambda: OutgoingResponse(status=200, takeover=takeover))) as (front, port):
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(CONNECT)
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
            writer.close()
        await idle(front)
    assert "a bug" in caplog.text


async def test_an_adopted_connection_is_served_with_tls_by_its_own_handler(tmp_path: Path) -> None:
    at = time.time_ns() // 1_000_000
    authority = Authority.create(tmp_path, at=at, days=1, name="test")

    async def own(request: IncomingRequest) -> OutgoingResponse:
        return OutgoingResponse(status=200, body=BytesBody(request.target))

    async with serving(always(lambda: OutgoingResponse(status=500))) as (front, _):
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        serving_it = asyncio.ensure_future(front.adopt(far, authority.context_for("a.example", at), own))
        context = ssl.create_default_context(cadata=authority.pem)
        reader, writer = await asyncio.open_connection(sock=near, ssl=context, server_hostname="a.example")
        await serving_it
        for target in (b"/one", b"/two"):
            writer.write(b"GET %b HTTP/1.1\r\nHost: a.example\r\n\r\n" % target)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert await reader.readexactly(4) == target
        front.stop_accepting()
        assert await reader.read() == b"", "an idle one is closed like any other"
        writer.close()
