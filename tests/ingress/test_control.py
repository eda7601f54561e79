"""What the control plane makes of requests that aiohttp's server would mix up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.gateway.harness import serving
from tests.origin import Origin

FIRST = (
    b"POST /api/v1/quarantine HTTP/1.1\r\nHost: c\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2\r\n{}\r\n0\r\nX-T: 1\r\nOrigin: http://evil.example\r\n\r\n"
)
SECOND = b"POST /api/v1/quarantine HTTP/1.1\r\nHost: c\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize("target", [b"/api/v1/quarantine", b"/nowhere", b"/healthz"])
async def test_a_chunked_request_is_the_last_of_its_connection(tmp_path: Path, target: bytes) -> None:
    """aiohttp's parser puts its last trailer into the next request: behind a proxy, into another person's."""
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        reader, writer = await running.operator.open()
        writer.write(FIRST.replace(b"/api/v1/quarantine", target) + SECOND)
        async with asyncio.timeout(10):
            said = await reader.read()
        writer.close()
    assert said.count(b"HTTP/1.1 ") == 1
    assert b"\r\nConnection: close\r\n" in said
    assert b"are not taken from web pages" not in said


async def test_other_requests_keep_their_connection(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        reader, writer = await running.operator.open()
        for _ in range(2):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: c\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
            assert head.startswith(b"HTTP/1.1 200 ")
        writer.close()
