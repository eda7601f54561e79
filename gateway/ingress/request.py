"""A request as it came, and its body, read once: whole or piece by piece, within bounds of size and time.

`100 Continue` goes out when, and only when, somebody begins to read (RFC 9110 section 10.1.1).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from aiohttp.http import HttpVersion, HttpVersion11, RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from gateway.core.call import Call
from gateway.core.headers import first_values, with_shared_names
from gateway.core.known_heads import Known
from gateway.core.message import Body, BytesBody, Headers
from gateway.core.tokens import Entry
from gateway.core.websocket import is_websocket
from gateway.egress.spool import Spool, TooLarge

if TYPE_CHECKING:
    from gateway.ingress.connection import AgentConnection

__all__ = ["KNOWN", "READ_BYTES", "IncomingRequest", "Manner", "UploadBroken", "asks_for_websocket"]

READ_BYTES = 1 << 16


class UploadBroken(Exception):
    """The request's body is malformed, or stopped coming. The message is one clause for the caller."""


def asks_for_websocket(message: RawRequestMessage) -> bool:
    """Whether a request with an upgrade in it asks for a WebSocket."""
    return any(name.lower() == b"upgrade" and is_websocket(value) for name, value in message.raw_headers)


class Manner(NamedTuple):
    """How a head has its request treated.

    Attributes:
        version: of HTTP, as the head names it.
        is_kept_alive: the connection may serve another request.
        wants_websocket: it asks for one; what comes behind it is then not read as HTTP.
        is_continue_due: the agent asks whether to go on before it sends the body.
        is_chunked: only the end of the body tells its length.
    """

    version: HttpVersion = HttpVersion11
    is_kept_alive: bool = True
    wants_websocket: bool = False
    is_continue_due: bool = False
    is_chunked: bool = False


KNOWN: Final = Manner()
"""That of a request whose head is known (`core/known_heads.py`), which there is nothing out of the ordinary about."""


def _is_welcome() -> bool:
    return True


def _whole_body(content: StreamReader, max_bytes: int) -> bytes | None:
    """Return a body that is here, in one piece and no larger than `READ_BYTES`, and leave it there; None of any other.

    Most small ones are like that, and taking them out costs a hundred instructions.
    """
    size = content.total_bytes
    if size > READ_BYTES or size > max_bytes or not content.is_eof() or content.exception() is not None:
        return None
    if not size:
        return b""
    pieces = content._buffer
    return pieces[0] if len(pieces) == 1 else None


class _LetGo(dict[bytes, bytes]):
    """In place of the fields of a request that were let go of: it does not say that there are none."""

    def get(self, name: bytes, default: object = None) -> NoReturn:
        raise RuntimeError(f"the field {name!r} is looked up after the request's fields were let go of")


_LET_GO = _LetGo()


class IncomingRequest:
    """A request as it came: raw target, raw header fields in order, and a body that is read once.

    Attributes:
        method: as the agent wrote it.
        target: the raw request target.
        headers: raw fields in order, hop-by-hop ones included.
        manner: how its head has it treated.
        content: what the parser puts the body into, for the connection; let go of once all of it was taken out, empty where
            there was no parser: who wants the body asks for it in one piece, whole, or as a stream.
        fields: the first value of each field, by its name in lower case.
        has_body: whether the request declares one, be it empty (`Content-Length: 0`).
        token: the entry of the token that came with it, once `ingress/caller.py` has looked.
        is_welcome: whether what proved the caller still does; for what outlives its request.
        write: the write that it turned out to be, which is finished though the agent has left once it is on its way.
    """

    __slots__ = (
        "_body_size",
        "_connection",
        "_was_continued",
        "_whole",
        "content",
        "fields",
        "has_body",
        "headers",
        "is_welcome",
        "manner",
        "method",
        "target",
        "token",
        "write",
    )

    def __init__(self, connection: AgentConnection, known: Known, manner: Manner, content: StreamReader | None) -> None:
        """`known`: what the head says, and where there is no `content`, all of the body."""
        self._connection = connection
        self.method, self.target, self.headers, fields, data = known
        self.fields = fields
        self.manner = manner
        length = fields.get(b"content-length")
        self.has_body = length is not None or manner.is_chunked
        self._was_continued = False
        self.token: Entry | None = None
        self.write: Call | None = None
        self.is_welcome: Callable[[], bool] = _is_welcome
        self._whole: BytesBody | None
        self.content: StreamReader
        self._body_size: int | None
        if content is None:
            self._body_size, self.content, self._whole = len(data), EMPTY_PAYLOAD, BytesBody(data)
        else:
            self._body_size = None if manner.is_chunked else int(length or 0)
            self.content, self._whole = content, None

    @classmethod
    def parsed(cls, message: RawRequestMessage, content: StreamReader, connection: AgentConnection) -> IncomingRequest:
        """Return a request as a parser has read it."""
        headers = with_shared_names(message.raw_headers)
        fields = first_values(headers)
        # aiohttp has none where CONNECT names nothing; no version is named then, either, which is what the front refuses.
        target = (message.path or "").encode("utf-8", "surrogateescape")
        wants_websocket = message.upgrade and asks_for_websocket(message)
        manner = Manner(
            message.version,
            not message.should_close and message.method != "CONNECT" and not wants_websocket,
            wants_websocket,
            b"expect" in fields and message.version == HttpVersion11,
            message.chunked,
        )
        return cls(connection, Known(message.method, target, headers, fields, b""), manner, content)

    def again(self) -> IncomingRequest:
        """Return the request as it came, of which nothing is known yet, for who only wants to look at it."""
        known = Known(self.method, self.target, self.headers, self.fields, b"")
        return IncomingRequest(self._connection, known, self.manner, self.content)

    def field(self, name: bytes) -> bytes | None:
        """Return the first field of that name (given in lower case), or None."""
        return self.fields.get(name)

    def let_go(self) -> None:
        """Nobody looks a field up any more: the call is made, and may wait for long."""
        self.fields = _LET_GO

    def replace_headers(self, headers: Headers) -> None:
        """Have the rest of the gateway see other fields."""
        self.headers = headers
        self.fields = first_values(headers)

    @property
    def wants_websocket(self) -> bool:
        """Whether it asks for a WebSocket; what comes behind it is then not read as HTTP."""
        return self.manner.wants_websocket

    @property
    def is_to_finish(self) -> bool:
        """Whether the handler is to finish though the agent has left; else it is cancelled then."""
        return self.write is not None and self.write.is_committed_to_send

    @property
    def proven_agent(self) -> str | None:
        """Whom a token proves the caller to be."""
        return None if self.token is None else self.token.name

    @property
    def peer(self) -> str:
        """Address of the other side; empty on a Unix socket."""
        return self._connection.peer

    @property
    def scheme(self) -> bytes:
        """`https` where the agent's connection is TLS, else `http`."""
        transport = self._connection.transport
        return b"http" if transport is None or transport.get_extra_info("ssl_object") is None else b"https"

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The task that answers it."""
        return self._connection.task

    @property
    def body_size(self) -> int | None:
        """Declared length of the body in bytes, or None where only the end tells."""
        return self._body_size

    @property
    def is_waiting_for_continue(self) -> bool:
        """The agent was told nothing yet and may be holding its body back."""
        return self.manner.is_continue_due and not self._was_continued

    async def read_all(self, spool: Spool, *, max_bytes: int, memory_limit: int | None = None) -> Body:
        """Return the whole body, replayable; the caller closes it.

        Raises:
            TooLarge: more than `max_bytes` were declared or came; declared ones are not waited for.
            SpoolFailed: the disk refused.
            UploadBroken: malformed or stalled.
        """
        if self._body_size is not None and self._body_size > max_bytes:
            raise TooLarge(max_bytes)
        whole = self.whole(max_bytes=max_bytes)
        if whole is not None:
            self._was_continued = True  # all of it is here: nobody waits to be told to go on
            self.content = EMPTY_PAYLOAD
            return whole
        return await spool.collect(self.stream().chunks(), max_bytes=max_bytes, memory_limit=memory_limit)

    @property
    def is_here(self) -> bool:
        """Whether the body has come to its end."""
        return self.content.is_eof()

    def in_one_piece(self) -> bytes | None:
        """Return the body, and leave it there, if all of it is here in one piece; else None."""
        return _whole_body(self.content, READ_BYTES) if self._whole is None else self._whole.data

    def whole(self, *, max_bytes: int) -> BytesBody | None:
        """Return the body if all of it is here, and little enough to be held; the same one if asked again. Else None, and it
        has to be read."""
        if self._whole is None:
            content = self.content
            data = _whole_body(content, max_bytes)
            if data is None and content.is_eof() and content.exception() is None and content.total_bytes <= max_bytes:
                data = content.read_nowait() if content.total_bytes <= READ_BYTES else None
            self._whole = None if data is None else BytesBody(data)
        return self._whole

    def stream(self) -> Body:
        """Return the body as it comes; it can be read once."""
        return _Upload(self)

    async def _pieces(self) -> AsyncIterator[bytes]:
        if self._whole is not None:
            if data := self._whole.data:
                yield data
            return
        content, stalled_s = self.content, self._connection.stalled_s
        if self.is_waiting_for_continue:
            self._was_continued = True
            if not content.total_bytes and (transport := self._connection.transport) is not None:
                transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            while not content.at_eof():
                data = content.read_nowait()
                if not data:
                    async with asyncio.timeout(stalled_s):
                        data = await content.readany()
                if data:
                    yield data
        except TimeoutError as error:
            raise UploadBroken(f"the request's body stopped coming for {stalled_s:g} s") from error
        except (UploadBroken, OSError, RuntimeError) as error:
            raise UploadBroken("the request's body is malformed or was cut off") from error


class _Upload:
    """A request's body on its way."""

    __slots__ = ("_incoming",)

    is_replayable = False

    def __init__(self, incoming: IncomingRequest) -> None:
        self._incoming = incoming

    @property
    def size(self) -> int | None:
        return self._incoming.body_size

    def chunks(self) -> AsyncIterator[bytes]:
        return self._incoming._pieces()

    async def aclose(self) -> None:
        """The connection is the front's to keep or close."""
