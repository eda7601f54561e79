"""One link to one tool: passes bytes on, does to them what its toxics say, and notes every request that it saw.

Down means down: the listening socket is closed, so the kernel refuses connections, and those that exist are reset. With
`is_http` (the default) exchanges are read message by message, so that a fault can fall before the tool heard of a request,
after it acted, or into the middle of its answer. Without it the link is a plain pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass
from http import HTTPStatus

from gateway.storm.faultproxy.messages import HEAD_BYTES, body_pieces, field_of, read_head, request_line, status_of
from gateway.storm.faultproxy.toxics import Toxic

__all__ = ["Proxy", "Seen"]

HOST = "127.0.0.1"
KEPT_REQUESTS = 1_000_000
_GARBAGE = b"\x16\x03\x01 this is not HTTP\x00\xff\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that arrived. `at` is `time.monotonic()`, which all processes of a machine share."""

    at: float
    connection: int
    method: str
    target: str
    key: str
    toxic: str


class _Cut(Exception):
    """The connection is over; with `is_reset` the peer gets a reset instead of an end."""

    def __init__(self, *, is_reset: bool) -> None:
        super().__init__()
        self.is_reset = is_reset


class Proxy:
    """A link. Start it, poison it, close it; its port stays the same while it is down."""

    def __init__(
        self, name: str, upstream: tuple[str, int], *, port: int = 0, seed: int = 0, is_http: bool = True
    ) -> None:
        self.name, self.upstream, self.port, self.is_http = name, upstream, port, is_http
        self.toxics: dict[str, Toxic] = {}
        self.seen: deque[Seen] = deque(maxlen=KEPT_REQUESTS)
        self._seed = seed
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections = 0
        self._requests = 0

    @property
    def is_enabled(self) -> bool:
        """Whether it accepts connections."""
        return self._server is not None

    async def enable(self) -> None:
        """Listen; the first time on a free port if none was given. Does nothing if it listens."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, HOST, self.port, limit=HEAD_BYTES, backlog=4096)
            self.port = self._server.sockets[0].getsockname()[1]

    async def disable(self) -> None:
        """Refuse connections and reset those that exist. May be repeated."""
        if self._server is not None:
            self._server.close()
            self._server = None
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def add(self, toxic: Toxic) -> None:
        """Have a fault happen from now on, also on connections that exist; one of the same name is replaced."""
        self.toxics[toxic.name] = toxic

    def chance(self, *what: object) -> random.Random:
        """Return the source of chance of one thing on this link."""
        return random.Random("/".join(map(str, (self._seed, self.name, *what))))  # noqa: S311 - chance in a test

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._connections += 1
        link = _Link(self, self._connections, reader, writer)
        is_reset = True
        try:
            await (link.exchanges() if self.is_http else link.pipe())
            is_reset = False
        except _Cut as cut:
            is_reset = cut.is_reset
        except (OSError, asyncio.CancelledError):
            pass  # cancelled by `disable`: the streams' own callback has no use for it
        finally:
            self._tasks.discard(task)
            await link.close(is_reset=is_reset)

    def take(self, method: str, target: str, head: bytes, connection: int) -> Toxic | None:
        """Note a request; return the fault of HTTP that it meets."""
        self._requests += 1
        met = None
        for toxic in self.toxics.values():
            if not toxic.is_http or toxic.left == 0 or not toxic.concerns(method, target):
                continue
            if toxic.toxicity < 1 and self.chance("request", self._requests, toxic.name).random() >= toxic.toxicity:
                continue
            if toxic.left is not None:
                toxic.left -= 1
            met = toxic
            break
        key = (field_of(head, b"idempotency-key") or b"").decode("latin-1")
        self.seen.append(Seen(time.monotonic(), connection, method, target, key, met.name if met else ""))
        return met


class _Link:
    """One connection of a caller, and the one to the tool that belongs to it."""

    def __init__(self, proxy: Proxy, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy, self._number, self._reader, self._writer = proxy, number, reader, writer
        self._down = _Pipe(proxy, number, "downstream", writer)
        self._tool: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def close(self, *, is_reset: bool) -> None:
        """End both connections."""
        if self._tool is not None:
            self._tool[1].transport.abort()
        if is_reset:
            _reset(self._writer)
            return
        await self._down.linger()
        with contextlib.suppress(OSError):
            self._writer.close()

    async def pipe(self) -> None:
        """Pass bytes both ways until either side ends."""
        tool_reader, tool_writer = await self._connect()
        up = _Pipe(self._proxy, self._number, "upstream", tool_writer)
        pumps = {
            asyncio.ensure_future(_pump(self._reader, up)),
            asyncio.ensure_future(_pump(tool_reader, self._down)),
        }
        try:
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in done:
                pump.result()
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def exchanges(self) -> None:
        """Pass exchanges on, one after the other, until the caller ends."""
        while head := await read_head(self._reader):
            method, target = request_line(head)
            toxic = self._proxy.take(method, target, head, self._number)
            request = [head]
            if (field_of(head, b"expect") or b"").lower() == b"100-continue":
                self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request += [piece async for piece in body_pieces(self._reader, head)]
            if not await self._exchange(method, request, toxic):
                return

    async def _exchange(self, method: str, request: list[bytes], toxic: Toxic | None) -> bool:
        """Do one exchange; return whether another may follow on this connection."""
        kind = toxic.type if toxic is not None else ""
        if toxic is not None and kind in ("status", "reset_before", "hang_before", "garbage_head"):
            return await self._without_tool(toxic)
        if kind == "duplicate":
            await self._shadow(method, request)
        tool_reader, tool_writer = await self._connect()
        up = _Pipe(self._proxy, self._number, "upstream", tool_writer)
        for piece in request:
            await up.send(piece)
        head = await read_head(tool_reader)
        while 100 <= status_of(head) < 200:
            head = await read_head(tool_reader)
        if not head:
            raise _Cut(is_reset=False)
        has_body = method != "HEAD" and status_of(head) not in (204, 304)
        body = body_pieces(tool_reader, head, is_answer=True, has_body=has_body)
        if toxic is not None and kind != "duplicate":
            return await self._spoilt(toxic, head, [piece async for piece in body])
        await self._down.send(head)
        async for piece in body:
            await self._down.send(piece)
        return _is_kept(request[0], head)

    async def _without_tool(self, toxic: Toxic) -> bool:
        """Answer, or do not, without the tool hearing of it."""
        if toxic.type == "reset_before":
            raise _Cut(is_reset=True)
        if toxic.type == "hang_before":
            await _silence(self._reader, toxic["timeout"])
            raise _Cut(is_reset=False)
        if toxic.type == "garbage_head":
            await self._down.send(_GARBAGE)
            raise _Cut(is_reset=False)
        await self._down.send(_answer(int(toxic["status"]), toxic["retry_after"]))
        return True

    async def _spoilt(self, toxic: Toxic, head: bytes, pieces: list[bytes]) -> bool:
        """Spoil an answer: the tool has done what it was asked."""
        body = b"".join(pieces)
        match toxic.type:
            case "applied_timeout":
                await _silence(self._reader, toxic["timeout"])
                raise _Cut(is_reset=False)
            case "applied_reset":
                raise _Cut(is_reset=True)
            case "applied_status":
                await self._down.send(_answer(int(toxic["status"]), -1))
                return True
            case "truncate":
                await self._down.send(head + body[: int(len(body) * toxic["share"])])
            case "wrong_length":
                length = int(field_of(head, b"content-length") or b"0")
                said = b"Content-Length: %d\r\n" % (length + int(toxic["by"]))
                await self._down.send(_without(head, b"content-length")[:-2] + said + b"\r\n" + body)
            case _:  # slow_headers
                for index in range(len(head)):
                    await self._down.send(head[index : index + 1])
                    await asyncio.sleep(toxic["delay"] / 1000)
                await self._down.send(body)
                return True
        raise _Cut(is_reset=False)

    async def _shadow(self, method: str, request: list[bytes]) -> None:
        """Deliver a request once more than it was sent, on a connection of its own, before it is delivered as such."""
        reader, writer = await asyncio.open_connection(*self._proxy.upstream, limit=HEAD_BYTES)
        try:
            writer.writelines(request)
            await writer.drain()
            head = await read_head(reader)
            has_body = method != "HEAD" and status_of(head) not in (204, 304)
            async for _ in body_pieces(reader, head, is_answer=True, has_body=has_body):
                pass
        finally:
            writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._tool is None or self._tool[0].at_eof():
            self._tool = await asyncio.open_connection(*self._proxy.upstream, limit=HEAD_BYTES)
        return self._tool


class _Pipe:
    """One direction of one connection, with the toxics of streams that are in force at the moment."""

    def __init__(self, proxy: Proxy, number: int, stream: str, writer: asyncio.StreamWriter) -> None:
        self._proxy, self._number, self._stream, self._writer = proxy, number, stream, writer
        self._sent = 0
        self._chances: dict[str, random.Random] = {}
        self._is_hit: dict[str, bool] = {}

    async def send(self, data: bytes) -> None:
        """Pass a piece on.

        Raises:
            _Cut: the connection is over.
        """
        pieces = [data]
        for toxic in self._toxics():
            match toxic.type:
                case "latency":
                    jitter_ms = toxic["jitter"] * (2 * self._chance(toxic).random() - 1)
                    await asyncio.sleep(max(0.0, toxic["latency"] + jitter_ms) / 1000)
                case "timeout":
                    await (asyncio.sleep(toxic["timeout"] / 1000) if toxic["timeout"] else asyncio.Event().wait())
                    raise _Cut(is_reset=False)
                case "reset_peer":
                    await asyncio.sleep(toxic["timeout"] / 1000)
                    raise _Cut(is_reset=True)
                case "bandwidth" if toxic["rate"] > 0:
                    await asyncio.sleep(len(data) / (toxic["rate"] * 1000))
                case "slicer":
                    await self._slices(toxic, data)
                    pieces = []
                case "limit_data":
                    left = int(toxic["bytes"]) - self._sent
                    if len(data) >= left:
                        await self._write(data[: max(0, left)])
                        raise _Cut(is_reset=False)
                case _:
                    pass
        for piece in pieces:
            await self._write(piece)

    async def linger(self) -> None:
        """Wait as long as a slow close takes."""
        for toxic in self._toxics():
            if toxic.type == "slow_close":
                await asyncio.sleep(toxic["delay"] / 1000)

    async def _slices(self, toxic: Toxic, data: bytes) -> None:
        at = 0
        while at < len(data):
            spread = int(toxic["size_variation"])
            size = max(1, int(toxic["average_size"]) + (self._chance(toxic).randint(-spread, spread) if spread else 0))
            await self._write(data[at : at + size])
            at += size
            await asyncio.sleep(toxic["delay"] / 1e6)

    async def _write(self, data: bytes) -> None:
        self._sent += len(data)
        self._writer.write(data)
        await self._writer.drain()

    def _toxics(self) -> list[Toxic]:
        if not self._proxy.toxics:
            return []
        return [
            toxic
            for toxic in tuple(self._proxy.toxics.values())
            if not toxic.is_http and toxic.stream == self._stream and self._hits(toxic)
        ]

    def _hits(self, toxic: Toxic) -> bool:
        if toxic.name not in self._is_hit:
            self._is_hit[toxic.name] = toxic.toxicity >= 1 or self._chance(toxic).random() < toxic.toxicity
        return self._is_hit[toxic.name]

    def _chance(self, toxic: Toxic) -> random.Random:
        if toxic.name not in self._chances:
            self._chances[toxic.name] = self._proxy.chance(self._stream, self._number, toxic.name)
        return self._chances[toxic.name]


async def _pump(reader: asyncio.StreamReader, pipe: _Pipe) -> None:
    while data := await reader.read(64 * 1024):
        await pipe.send(data)


async def _silence(reader: asyncio.StreamReader, timeout_ms: float) -> None:
    """Say nothing until the caller leaves, or for so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_ms / 1000 if timeout_ms else None):
            while await reader.read(64 * 1024):
                pass


def _answer(status: int, retry_after_s: float) -> bytes:
    reason = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Fault"
    wait = f"Retry-After: {retry_after_s:g}\r\n" if retry_after_s >= 0 else ""
    body = f'{{"fault": "{status}"}}'
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{wait}\r\n"
    return (head + body).encode()


def _without(head: bytes, name: bytes) -> bytes:
    lines = head.split(b"\r\n")
    return b"\r\n".join(line for line in lines if line.partition(b":")[0].strip().lower() != name)


def _is_kept(request: bytes, answer: bytes) -> bool:
    """Whether the connection goes on after this exchange."""
    framed = field_of(answer, b"content-length") is not None or field_of(answer, b"transfer-encoding") is not None
    framed = framed or status_of(answer) in (204, 304) or request.startswith(b"HEAD ")
    said = [(field_of(head, b"connection") or b"").lower() for head in (request, answer)]
    return framed and b"close" not in said


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
