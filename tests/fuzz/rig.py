"""What the targets share: a loop for as long as the process lives, transports without sockets, and h11 as a reader."""

from __future__ import annotations

import asyncio
import atexit
import random
import socket
import zlib
from collections.abc import AsyncIterator, Coroutine, Iterable
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import h11

from gateway.core.message import Headers

__all__ = ["Answer", "Pieces", "Read", "Sink", "cut", "cuts_of", "lowered", "read_answer", "read_requests", "run"]

T = TypeVar("T")
_QUIET = socket.socketpair()
_loop: asyncio.AbstractEventLoop | None = None
_faults: list[dict[str, Any]] = []


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, as `asyncio.run`, without a new loop each time; what goes wrong beside it counts, too."""
    global _loop
    if _loop is None:
        _loop = asyncio.new_event_loop()
        _loop.set_exception_handler(lambda _, context: _faults.append(context))
    found = _loop.run_until_complete(work)
    if _faults:
        context = _faults.pop()
        _faults.clear()
        raise AssertionError(context["message"]) from context.get("exception")
    return found


@atexit.register
def _close() -> None:
    if _loop is not None:
        _loop.close()
    for end in _QUIET:
        end.close()


class Sink(asyncio.Transport):
    """Keeps what is written. Its socket is one on which nothing ever comes."""

    def __init__(self) -> None:
        super().__init__({"socket": _QUIET[0]})
        self.written = bytearray()
        self.has_ended = False

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.written += data

    def write_eof(self) -> None:
        self.has_ended = True

    def is_closing(self) -> bool:
        return self.has_ended

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """The target feeds everything at once anyway."""

    def resume_reading(self) -> None:
        """See `pause_reading`."""

    def close(self) -> None:
        self.has_ended = True

    abort = close


class Pieces:
    """A body in pieces whose length nobody knows beforehand."""

    size = None
    is_replayable = False

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces

    async def chunks(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece

    async def aclose(self) -> None:
        """Nothing to give back."""


def cuts_of(data: bytes) -> list[list[int]]:
    """Return a few ways of cutting some bytes, always the same ones for the same bytes."""
    chance = random.Random(zlib.crc32(data))
    return [[chance.randrange(1, len(data)) for _ in range(count)] for count in (1, 4)] if len(data) > 1 else []


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    """Return the pieces."""
    edges = [0, *sorted({one for one in cuts if 0 < one < len(data)}), len(data)]
    return [data[start:end] for start, end in pairwise(edges) if start < end]


class Read(NamedTuple):
    """A request as somebody has read it; names in lower case."""

    method: bytes
    target: bytes
    fields: list[tuple[bytes, bytes]]
    body: bytes


class Answer(NamedTuple):
    """An answer as somebody has read it; names in lower case."""

    status: int
    fields: list[tuple[bytes, bytes]]
    body: bytes


def lowered(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return fields with their names in lower case, and the codings, whose names h11 shows in lower case, too."""
    fields = ((bytes(name).lower(), bytes(value)) for name, value in headers)
    return [(name, value.lower() if name == b"transfer-encoding" else value) for name, value in fields]


def read_requests(data: bytes) -> tuple[list[Read], bytes | None]:
    """Return the requests that h11 reads, and what is left of the bytes; None where it refuses."""
    connection, found = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 16), list[Read]()
    connection.receive_data(data)
    current: Read | None = None
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            return found, None
        match event:
            case h11.Request():
                current = Read(event.method, event.target, lowered(tuple(event.headers)), b"")
            case h11.Data():
                assert current is not None
                current = current._replace(body=current.body + bytes(event.data))
            case h11.EndOfMessage():
                assert current is not None
                found.append(current)
                if current.method == b"CONNECT":  # what follows is no HTTP
                    return found, connection.trailing_data[0]
                connection.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                    return found, connection.trailing_data[0]
                connection.start_next_cycle()
            case _:
                return found, connection.trailing_data[0]


def read_answer(data: bytes, method: str = "GET") -> tuple[Answer, bytes] | None:
    """Return the answer to `method` that h11 reads, and what is left after it; None where it refuses, or it is not whole."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 16)
    connection.send(h11.Request(method=method, target="/", headers=[("Host", "a")]))
    connection.send(h11.EndOfMessage())
    answer, is_over = Answer(0, [], b""), False
    try:
        connection.receive_data(data)
        while True:
            match connection.next_event():
                case h11.Response(status_code=code, headers=headers):
                    answer = Answer(code, lowered(tuple(headers)), b"")
                case h11.Data(data=piece):
                    answer = answer._replace(body=answer.body + bytes(piece))
                case h11.EndOfMessage():
                    return answer, connection.trailing_data[0]
                case h11.NEED_DATA if not is_over:
                    connection.receive_data(b"")
                    is_over = True
                case h11.InformationalResponse():
                    continue
                case _:
                    return None
    except h11.RemoteProtocolError:
        return None
