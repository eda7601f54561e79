"""A Unix socket is open to whom it shall be, replaces a dead one and never a living one."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from gateway.ingress.http import HttpFront, OutgoingResponse
from gateway.ingress.request import IncomingRequest
from gateway.ingress.unix import bind_unix


async def fine(request: IncomingRequest) -> OutgoingResponse:
    assert request.peer == ""
    return OutgoingResponse(status=204)


async def ask(path: Path) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return answer


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
async def test_it_serves_and_leaves_nothing_behind(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "agents.sock"
    front = HttpFront(fine)
    before = os.umask(0o077)
    try:
        await front.listen_unix(path, mode)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode
    assert (await ask(path)).startswith(b"HTTP/1.1 204")
    await front.close()
    assert not path.exists()


async def test_a_dead_one_is_replaced_and_a_living_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "agents.sock"
    bind_unix(path, 0o600).close()
    assert path.is_socket(), "left behind by somebody who was killed"
    front, other = HttpFront(fine), HttpFront(fine)
    await front.listen_unix(path)
    with pytest.raises(OSError) as refused:
        await other.listen_unix(path)
    assert refused.value.errno == errno.EADDRINUSE
    assert (await ask(path)).startswith(b"HTTP/1.1 204")
    await other.close()
    assert path.exists()
    await front.close()


def test_what_is_no_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        bind_unix(path, 0o600)
    assert path.read_text() == "mine"
