"""A link that can fail: a TCP relay on loopback between the gateway and one tool, and an eyewitness at the tool's door.

Down means down: the listening socket is closed, so connections are refused by the kernel, and those that exist are
reset. `cut_next` breaks connections after the first bytes of a request arrived: the tool never hears of it. No answer is
ever made up.

What passes is told as it reaches the tool: request lines, idempotency keys and statuses, never other headers or bodies.
Reading heads relies on one request at a time per connection (no pipelining, no interim answers), which is how the
gateway uses its connections; a head that does not fit is passed on unread.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Relay", "Sight"]

CHUNK_BYTES = 64 * 1024
MAX_HEAD_BYTES = 32 * 1024
HOST = "127.0.0.1"

_REQUEST_LINE = re.compile(rb"([A-Z]+) (\S+) HTTP/1\.[01]\r\n")
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3})")
_KEY = re.compile(rb"\r\nidempotency-key: *([^\r\n]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Something that the relay saw: `request`, `answer`, `cut`, `down` or `up`."""

    tool: str
    what: str
    method: str = ""
    path: str = ""
    status: int = 0
    key: str | None = None


class Relay:
    """One link to one tool. Start it, switch it, close it; `port` stays the same while it is down."""

    def __init__(self, tool: str, target_port: int, witness: Callable[[Sight], None]) -> None:
        self._tool, self._target_port, self._witness = tool, target_port, witness
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._cuts = 0
        self.port = 0

    @property
    def is_up(self) -> bool:
        """Whether connections are accepted."""
        return self._server is not None

    async def start(self) -> None:
        """Listen; the first time on a free port, later on the same one. Does nothing if the link is up."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, HOST, self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def up(self) -> None:
        """Mend the link."""
        await self.start()
        self._witness(Sight(tool=self._tool, what="up"))

    async def down(self) -> None:
        """Break the link: refuse connections and reset those that exist."""
        await self.close()
        self._witness(Sight(tool=self._tool, what="down"))

    def cut_next(self, connections: int = 1) -> None:
        """Break each of the next connections as soon as a request arrives on it."""
        self._cuts += connections

    async def close(self) -> None:
        """Stop listening and end every connection. May be called again."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if self._cuts:
                self._cuts -= 1
                await self._cut(reader)
            else:
                await self._carry(reader, writer)
        except asyncio.CancelledError:
            pass  # ours, from `close`: the streams' own callback has no use for it
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _cut(self, reader: asyncio.StreamReader) -> None:
        head = await reader.read(CHUNK_BYTES)
        method, path = _request_line(head)
        self._witness(Sight(tool=self._tool, what="cut", method=method, path=path))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            tool_reader, tool_writer = await asyncio.open_connection(HOST, self._target_port)
        except OSError:
            return
        exchange = _Exchange(self._tool, self._witness)
        pumps = (
            asyncio.ensure_future(_pump(reader, tool_writer, exchange.sent)),
            asyncio.ensure_future(_pump(tool_reader, writer, exchange.answered)),
        )
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            if pumps[0].done():
                await asyncio.wait(pumps[1:], timeout=5.0)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            await _close(tool_writer)
            await _close(writer)


class _Exchange:
    """Reads the heads of what passes on one connection: request, answer, request, answer."""

    def __init__(self, tool: str, witness: Callable[[Sight], None]) -> None:
        self._tool, self._witness = tool, witness
        self._request: bytes | None = b""
        self._method = self._path = ""
        self._key: str | None = None

    def sent(self, chunk: bytes) -> None:
        """Take a piece on its way to the tool."""
        if self._request is None:
            return
        self._request += chunk
        if b"\r\n\r\n" in self._request or len(self._request) > MAX_HEAD_BYTES:
            head, self._request = self._request.partition(b"\r\n\r\n")[0] + b"\r\n", None
            self._method, self._path = _request_line(head)
            key = _KEY.search(head)
            self._key = key[1].decode("latin-1").strip().strip('"') if key else None
            self._tell("request")

    def answered(self, chunk: bytes) -> None:
        """Take a piece on its way back."""
        status = _STATUS_LINE.match(chunk)
        if self._request is None and status:
            self._request = b""
            self._tell("answer", status=int(status[1]))

    def _tell(self, what: str, *, status: int = 0) -> None:
        self._witness(
            Sight(tool=self._tool, what=what, method=self._method, path=self._path, status=status, key=self._key),
        )


def _request_line(head: bytes) -> tuple[str, str]:
    line = _REQUEST_LINE.match(head)
    return (line[1].decode("ascii"), line[2].decode("latin-1")) if line else ("", "")


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, look: Callable[[bytes], None]) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            look(chunk)
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def _close(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        writer.close()
        await writer.wait_closed()
