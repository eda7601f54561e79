"""A scripted raw origin with a ledger: the tool server of every whole-gateway test.

It speaks HTTP/1.1 by hand on a loopback socket, so that it sees each request byte for byte and can break every rule. It
records what came, does what the script says, and counts in its ledger what was *done*: the ground truth for "at most
one effect", whatever the gateway's own journal claims.

    async with Origin() as origin:
        origin.on("POST /charges", Drop(applies=True), Answer(201, b'{"id": 1}'))   # first call, every later call
        ...                                                                          # send calls to origin.url
        assert origin.ledger.effects("key-1") == 1
        assert origin.requests[0].head.startswith(b"POST /charges HTTP/1.1")

Ready behaviours: `Answer` (also chunked, short, wrong length, held, dripping, followed by rubbish, 1xx before it),
`Drop` (closes or resets instead of answering), `Hang` (never answers), `Raw` (any bytes). A behaviour is any
`async def (exchange)`, so a test may write its own with `Exchange`'s methods. `Feed` is a body driven by the test, and
`pattern(size)` a large body that takes no memory.

As a process of its own, for tests that kill things: `python -m tests.origin --port 0` prints the port. It is steered by
`Remote`, or by hand over a few paths under `/__` (see `_Control`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import http.client
import json
import socket
import ssl
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, Self

__all__ = [
    "Answer",
    "Behaviour",
    "Drop",
    "Exchange",
    "Feed",
    "Hang",
    "Ledger",
    "Origin",
    "Raw",
    "Received",
    "Remote",
    "pattern",
    "pattern_digest",
]

Behaviour = Callable[["Exchange"], Awaitable[None]]
Framing = Literal["length", "chunked", "close", "none"]
Pairs = Sequence[tuple[bytes, bytes]]

KEPT_BODY_BYTES = 1 << 20
READS = frozenset({"GET", "HEAD", "OPTIONS"})
_BLOCK = bytes(range(256)) * 256


async def pattern(size: int) -> AsyncIterator[bytes]:
    """Yield `size` predictable bytes in blocks of 64 KiB."""
    left = size
    while left > 0:
        yield _BLOCK[: min(left, len(_BLOCK))]
        left -= len(_BLOCK)


def pattern_digest(size: int) -> str:
    """Return the SHA-256 of what `pattern(size)` yields."""
    digest = hashlib.sha256()
    for start in range(0, size, len(_BLOCK)):
        digest.update(_BLOCK[: min(size - start, len(_BLOCK))])
    return digest.hexdigest()


class Feed:
    """A body that the test drives: `feed.send(b"...")`, `feed.end()`."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    def send(self, data: bytes) -> None:
        """Have `data` written, alone in its chunk."""
        self._queue.put_nowait(data)

    def end(self) -> None:
        """End the body."""
        self._queue.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (data := await self._queue.get()) is not None:
            yield data


class Ledger:
    """What was done, counted per idempotency key. Requests without a key count under `METHOD target`.

    With `honours_keys` a repeated key does nothing more, as tools that know keys promise; `repeats` counts those.
    """

    def __init__(self, *, honours_keys: bool = False) -> None:
        self.honours_keys = honours_keys
        self._effects: Counter[str] = Counter()
        self._repeats: Counter[str] = Counter()

    def apply(self, key: str) -> None:
        """Do the thing once more."""
        counter = self._repeats if self.honours_keys and self._effects[key] else self._effects
        counter[key] += 1

    def effects(self, key: str) -> int:
        """Return how often the thing was done under `key`."""
        return self._effects[key]

    def repeats(self, key: str) -> int:
        """Return how often a known key came again and did nothing."""
        return self._repeats[key]

    @property
    def total(self) -> int:
        """All effects."""
        return self._effects.total()

    def by_key(self) -> dict[str, int]:
        """Return all counts."""
        return {key: count for key, count in self._effects.items() if count}


@dataclass(eq=False)
class Received:
    """One request as it came.

    Attributes:
        connection: number of the connection, from 1.
        position: number of the request on its connection, from 1.
        head: request line and header fields, byte for byte, with the empty line.
        body: the body without chunk framing, unless larger than 1 MiB (then empty; see `digest` and `body_bytes`).
        digest: SHA-256 of the body, once `is_complete`.
        is_answered: the behaviour has done all it does.
        gone: set once the peer has closed or reset the connection (unseen while much of what it sent waits unread).
    """

    connection: int
    position: int
    head: bytes
    gone: asyncio.Event
    method: str = ""
    target: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    body_bytes: int = 0
    digest: str = ""
    is_complete: bool = False
    is_answered: bool = False

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of all fields called `name` (any case), in order."""
        return [value for key, value in self.headers if key.lower() == name.lower()]

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.split(b"?")[0].decode("latin-1")

    @property
    def key(self) -> str:
        """What the ledger counts it under."""
        keys = self.values(b"idempotency-key")
        return keys[0].decode("latin-1") if keys else f"{self.method} {self.target.decode('latin-1')}"


@dataclass(eq=False)
class Exchange:
    """One request being handled: the tools a behaviour works with."""

    origin: Origin
    request: Received
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_closing: bool = False
    sent_bytes: int = 0

    async def read_body(self) -> None:
        """Read the body to its end; may be repeated.

        Raises:
            asyncio.IncompleteReadError: the peer left in the middle.
        """
        if self.request.is_complete:
            return
        digest, kept = hashlib.sha256(), bytearray()
        async for data in self._body():
            digest.update(data)
            self.request.body_bytes += len(data)
            if self.request.body_bytes <= KEPT_BODY_BYTES:
                kept += data
        self.request.body = bytes(kept) if self.request.body_bytes <= KEPT_BODY_BYTES else b""
        self.request.digest = digest.hexdigest()
        self.request.is_complete = True
        self.origin.progressed()

    async def _body(self) -> AsyncIterator[bytes]:
        request = self.request
        if any(b"chunked" in value.lower() for value in request.values(b"transfer-encoding")):
            while size := int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16):
                async for data in self._exactly(size):
                    yield data
                await self.reader.readexactly(2)
            while await self.reader.readuntil(b"\r\n") != b"\r\n":
                pass
        elif lengths := request.values(b"content-length"):
            async for data in self._exactly(int(lengths[0])):
                yield data

    async def _exactly(self, size: int) -> AsyncIterator[bytes]:
        while size:
            data = await self.reader.read(min(size, 1 << 16))
            if not data:
                raise asyncio.IncompleteReadError(b"", size)
            size -= len(data)
            yield data

    def apply(self) -> None:
        """Have the effect of the request, in the ledger."""
        self.origin.ledger.apply(self.request.key)
        self.origin.progressed()

    async def send(self, data: bytes) -> None:
        """Write bytes as they are, waiting while the peer does not read.

        Raises:
            ConnectionResetError: the peer has left; uvloop would say so with a RuntimeError.
        """
        try:
            self.writer.write(data)
        except RuntimeError as error:
            raise ConnectionResetError from error
        self.sent_bytes += len(data)
        await self.writer.drain()

    async def answer(self, status: int = 200, body: bytes = b"", headers: Pairs = ()) -> None:
        """Read the request and send a plain answer of known length."""
        await self.read_body()
        await self.send(_head(status, None, (*headers, (b"Content-Length", b"%d" % len(body)))) + body)

    def close(self) -> None:
        """Close the connection once what was written is out."""
        self.is_closing = True
        self.writer.close()

    def reset(self) -> None:
        """Reset the connection (RST), dropping what the kernel has not sent."""
        self.is_closing = True
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@dataclass(frozen=True)
class Answer:
    """Answer, rightly or wrongly.

    Attributes:
        status, body, headers, reason: the answer. A body that is no bytes is iterated, a chunk per piece.
        framing: how its end is told: Content-Length, chunked, closing the connection, or not at all.
        declared_length: a Content-Length other than the true one.
        stop_after: end the connection after so many body bytes, in the middle.
        ending: what follows: keep the connection, close it, or reset it.
        applies: whether the request has its effect; None: yes for non-reads answered below 400.
        reads_body: False answers before the request's body was read.
        hold: set this event to let the answer go (the effect is had before).
        before: raw bytes ahead of the head, such as a 103.
        after: raw bytes behind the answer that nobody asked for, once `after_hold` is set (if given).
        date: False leaves out Date.
    """

    status: int = 200
    body: bytes | AsyncIterable[bytes] | Callable[[], AsyncIterable[bytes]] = b""
    headers: Pairs = ()
    _: KW_ONLY
    reason: bytes | None = None
    framing: Framing = "length"
    declared_length: int | None = None
    stop_after: int | None = None
    ending: Literal["keep", "close", "reset"] = "keep"
    applies: bool | None = None
    reads_body: bool = True
    hold: asyncio.Event | None = None
    before: bytes = b""
    after: bytes = b""
    after_hold: asyncio.Event | None = None

    async def __call__(self, exchange: Exchange) -> None:
        """Play it."""
        if self.reads_body:
            await exchange.read_body()
        if self.applies or (self.applies is None and exchange.request.method not in READS and self.status < 400):
            exchange.apply()
        if self.hold is not None:
            await self.hold.wait()
        await exchange.send(self.before + _head(self.status, self.reason, (*self.headers, *self._framing_fields())))
        if exchange.request.method != "HEAD" and self.status not in (204, 304):
            await self._send_body(exchange)
        if self.after:
            if self.after_hold is not None:
                await self.after_hold.wait()
            await exchange.send(self.after)
        if self.ending == "reset":
            exchange.reset()
        elif self.ending == "close" or self.framing == "close" or self.stop_after is not None:
            exchange.close()

    def _framing_fields(self) -> Pairs:
        if self.framing == "chunked":
            return ((b"Transfer-Encoding", b"chunked"),)
        if self.framing == "close":
            return ((b"Connection", b"close"),)
        if self.framing == "none" or self.status == 204:
            return ()
        length = self.declared_length
        if length is None:
            if not isinstance(self.body, bytes):
                raise TypeError("a streamed body of known length needs declared_length")
            length = len(self.body)
        return ((b"Content-Length", b"%d" % length),)

    async def _send_body(self, exchange: Exchange) -> None:
        left = self.stop_after
        async for data in _pieces(self.body):
            piece = data if left is None else data[:left]
            if piece:
                await exchange.send(b"%x\r\n%b\r\n" % (len(piece), piece) if self.framing == "chunked" else piece)
            if left is not None:
                left -= len(piece)
                if not left:
                    return
        if self.framing == "chunked" and self.stop_after is None:
            await exchange.send(b"0\r\n\r\n")


@dataclass(frozen=True)
class Drop:
    """End the connection without an answer, after the request was read (or before), with or without its effect."""

    applies: bool = False
    when: Literal["after_read", "before_read"] = "after_read"
    how: Literal["close", "reset"] = "close"
    hold: asyncio.Event | None = None

    async def __call__(self, exchange: Exchange) -> None:
        """Play it."""
        if self.when == "after_read":
            await exchange.read_body()
        if self.applies:
            exchange.apply()
        if self.hold is not None:
            await self.hold.wait()
        if self.how == "reset":
            exchange.reset()
        else:
            exchange.close()


@dataclass(frozen=True)
class Hang:
    """Read the request, with or without its effect, and never answer; ends when the peer leaves."""

    applies: bool = False
    reads_body: bool = True

    async def __call__(self, exchange: Exchange) -> None:
        """Play it."""
        if self.reads_body:
            await exchange.read_body()
        if self.applies:
            exchange.apply()
        await exchange.request.gone.wait()
        exchange.close()


@dataclass(frozen=True)
class Raw:
    """Read the request, send these bytes, close."""

    data: bytes
    applies: bool = False

    async def __call__(self, exchange: Exchange) -> None:
        """Play it."""
        await exchange.read_body()
        if self.applies:
            exchange.apply()
        await exchange.send(self.data)
        exchange.close()


class _Connection(asyncio.StreamReaderProtocol):
    """Tells at once that the peer has left, even while nobody reads."""

    def __init__(self, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
        self.gone = asyncio.Event()
        super().__init__(asyncio.StreamReader(limit=1 << 18), serve)

    def eof_received(self) -> bool | None:
        self.gone.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        super().connection_lost(exc)


class Origin:
    """The server. Use it with `async with`, or `start` and `close`.

    Attributes:
        requests: everything received, in the order the heads came; control paths are left out.
        connections: how many connections were made.
        ledger: what was done.
        default: what unscripted paths do: 200, body `ok`.
        errors: what went wrong in behaviours themselves; `close` raises the first, so a broken script fails its test.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        honours_keys: bool = False,
        tls: ssl.SSLContext | None = None,
        path: str = "",
    ) -> None:
        """With `path` it listens on a Unix socket there, with `tls` it speaks TLS."""
        self.tls = tls
        self.path = path
        self.host = host
        self.port = port
        self.requests: list[Received] = []
        self.connections = 0
        self.ledger = Ledger(honours_keys=honours_keys)
        self.default: Behaviour = Answer(200, b"ok")
        self.errors: list[Exception] = []
        self._scripts: dict[str, list[Behaviour]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._progress = asyncio.Event()
        self._control = _Control(self)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Listen; `port` is the real one from here on."""
        loop = asyncio.get_running_loop()
        if self.path:
            self._server = await loop.create_unix_server(lambda: _Connection(self._serve), self.path)
            return
        self._server = await loop.create_server(lambda: _Connection(self._serve), self.host, self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and drop all connections.

        Raises:
            Exception: the first thing that went wrong in a behaviour itself.
        """
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.errors:
            raise self.errors[0]

    @property
    def authority(self) -> str:
        """What a Host field for it says."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """Base URL without a trailing slash."""
        return f"http://{self.authority}"

    def on(self, route: str, *behaviours: Behaviour) -> None:
        """Script a route, `/path` or `METHOD /path`: one behaviour a call, the last one for all later calls.

        Replaces what was scripted for the route before. Queries are not looked at.
        """
        self._scripts[route] = list(behaviours)

    async def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; looked at whenever a head or body was read, or an effect was had."""
        while not condition():
            self._progress.clear()
            await self._progress.wait()

    async def received(self, count: int = 1) -> Received:
        """Wait for the head of the request number `count` (from 1) and return it."""
        await self.wait(lambda: len(self.requests) >= count)
        return self.requests[count - 1]

    async def completed(self, count: int = 1) -> Received:
        """Wait until the request number `count` (from 1) was read to its end and return it."""
        await self.wait(lambda: len(self.requests) >= count and self.requests[count - 1].is_complete)
        return self.requests[count - 1]

    def progressed(self) -> None:
        """Something was recorded; wakes those who wait."""
        self._progress.set()

    def _behaviour(self, request: Received) -> Behaviour:
        if request.path.startswith("/__"):
            return self._control
        for route in (f"{request.method} {request.path}", request.path):
            if script := self._scripts.get(route):
                return script.pop(0) if len(script) > 1 else script[0]
        return self.default

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        protocol = writer.transport.get_protocol()
        assert isinstance(protocol, _Connection)
        try:
            await self._exchanges(reader, writer, protocol.gone, self.connections)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        except Exception as error:
            self.errors.append(error)
        finally:
            protocol.gone.set()
            writer.close()

    async def _exchanges(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Event, connection: int
    ) -> None:
        position = 0
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            position += 1
            request = _parse(connection, position, head, gone)
            behaviour = self._behaviour(request)
            if behaviour is not self._control:
                self.requests.append(request)
                self.progressed()
            exchange = Exchange(self, request, reader, writer)
            await behaviour(exchange)
            request.is_answered = True
            self.progressed()
            if exchange.is_closing:
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()
                return
            await exchange.read_body()


def _parse(connection: int, position: int, head: bytes, gone: asyncio.Event) -> Received:
    line, *fields = head[:-4].split(b"\r\n")
    method, target, _version = line.split(b" ", 2)
    pairs = [tuple(one.split(b":", 1)) for one in fields]
    headers = tuple((name, value.strip(b" \t")) for name, value in pairs)
    return Received(connection, position, head, gone, method.decode("ascii"), target, headers)


def _head(status: int, reason: bytes | None, headers: Pairs) -> bytes:
    if reason is None:
        reason = HTTPStatus(status).phrase.encode() if status in HTTPStatus._value2member_map_ else b""
    lines = [b"HTTP/1.1 %d %b" % (status, reason), *(b"%b: %b" % pair for pair in headers)]
    return b"\r\n".join(lines) + b"\r\n\r\n"


async def _pieces(body: bytes | AsyncIterable[bytes] | Callable[[], AsyncIterable[bytes]]) -> AsyncIterator[bytes]:
    if isinstance(body, bytes):
        yield body
        return
    async for data in body() if callable(body) else body:
        yield data


class _Control:
    """The paths under `/__`, for an origin in a process of its own. All answers are JSON.

    GET  /__ledger             {key: effects}
    GET  /__requests           [{method, target, key, body_bytes, digest, is_complete, connection}]
    GET  /__wait?requests=N    returns once N requests were read to their end; `?effects=N`: once N effects were had
    POST /__script             {route, behaviours: [{kind: answer|drop|hang, …fields, body: text, headers: {}, hold: NAME}]}
    POST /__release?hold=NAME  lets go what is held under NAME, now and later
    """

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._holds: dict[str, asyncio.Event] = {}

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.read_body()
        name, _, query = exchange.request.target.decode("ascii").removeprefix("/__").partition("?")
        argument, _, value = query.partition("=")
        result = await self._do(name, argument, value, exchange.request.body)
        await exchange.answer(200, json.dumps(result).encode(), ((b"Content-Type", b"application/json"),))

    async def _do(self, name: str, argument: str, value: str, body: bytes) -> object:
        origin = self._origin
        if name == "wait":
            count = int(value)
            if argument == "effects":
                await origin.wait(lambda: origin.ledger.total >= count)
            else:
                await origin.wait(lambda: sum(one.is_complete for one in origin.requests) >= count)
        elif name == "script":
            order = json.loads(body)
            origin.on(order["route"], *(self._behaviour(**one) for one in order["behaviours"]))
        elif name == "release":
            self._hold(value).set()
        elif name == "requests":
            names = ("method", "key", "body_bytes", "digest", "is_complete", "connection")
            return [
                {one: getattr(request, one) for one in names} | {"target": request.target.decode("latin-1")}
                for request in origin.requests
            ]
        return origin.ledger.by_key()

    def _hold(self, name: str) -> asyncio.Event:
        return self._holds.setdefault(name, asyncio.Event())

    def _behaviour(self, kind: str = "answer", hold: str | None = None, **fields: Any) -> Behaviour:
        if hold is not None:
            fields["hold"] = self._hold(hold)
        if "body" in fields:
            fields["body"] = fields["body"].encode()
        if "headers" in fields:
            fields["headers"] = tuple((key.encode(), value.encode()) for key, value in fields["headers"].items())
        kinds: dict[str, Callable[..., Behaviour]] = {"answer": Answer, "drop": Drop, "hang": Hang}
        return kinds[kind](**fields)


class Remote:
    """An origin in a process of its own, which outlives a gateway that is killed. Blocking; use it with `with`.

    From a test on an event loop call its methods through `asyncio.to_thread`.
    """

    def __init__(self, *, honours_keys: bool = False) -> None:
        command = [sys.executable, "-m", "tests.origin", "--port", "0", *(["--honours-keys"] if honours_keys else [])]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.authority = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.authority}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def on(self, route: str, *behaviours: dict[str, Any]) -> None:
        """Script a route with behaviours as in `POST /__script`, e.g. `{"kind": "drop", "applies": True}`."""
        self._call("POST", "script", json.dumps({"route": route, "behaviours": behaviours}))

    def release(self, hold: str) -> None:
        """Let go what is held under `hold`."""
        self._call("POST", f"release?hold={hold}")

    def effects(self, key: str) -> int:
        """Return how often the thing was done under `key`."""
        return int(self.ledger().get(key, 0))

    def ledger(self) -> dict[str, int]:
        """Return all counts."""
        return dict(self._call("GET", "ledger"))

    def requests(self) -> list[dict[str, Any]]:
        """Return what was received."""
        return list(self._call("GET", "requests"))

    def wait_requests(self, count: int) -> None:
        """Wait until `count` requests were read to their end."""
        self._call("GET", f"wait?requests={count}")

    def wait_effects(self, count: int) -> None:
        """Wait until `count` effects were had."""
        self._call("GET", f"wait?effects={count}")

    def _call(self, method: str, path: str, body: str | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, f"/__{path}", body)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


async def _main() -> None:
    parser = argparse.ArgumentParser(description="Run the scripted origin until killed; prints its port.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--honours-keys", action="store_true")
    arguments = parser.parse_args()
    async with Origin(port=arguments.port, honours_keys=arguments.honours_keys) as origin:
        print(origin.port, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main())
