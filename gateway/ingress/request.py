"""A request as it came, and its body, read once: whole or piece by piece, within bounds of size and time.

`100 Continue` goes out when, and only when, somebody begins to read (RFC 9110 section 10.1.1).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import ClientError, web
from aiohttp.http import HttpVersion11
from aiohttp.http_exceptions import HttpProcessingError

from gateway.core.message import Body, BytesBody, Headers, first_header
from gateway.egress.spool import Spool, TooLarge

__all__ = ["READ_BYTES", "IncomingRequest", "UploadBroken"]

READ_BYTES = 1 << 16


class UploadBroken(Exception):
    """The request's body is malformed, or stopped coming. The message is one clause for the caller."""


class IncomingRequest:
    """A request as it came: raw target, raw header fields in order, and a body that is read once.

    Attributes:
        method: as the agent wrote it.
        target: the raw request target.
        headers: raw fields in order, hop-by-hop ones included.
        has_body: whether the request declares one, be it empty (`Content-Length: 0`).
    """

    __slots__ = (
        "_body_size",
        "_is_continue_due",
        "_request",
        "_stalled_s",
        "_was_continued",
        "has_body",
        "headers",
        "method",
        "target",
    )

    def __init__(self, request: web.BaseRequest, stalled_s: float) -> None:
        message = request._message
        self._request = request
        self._stalled_s = stalled_s
        self.method: str = message.method
        self.target: bytes = message.path.encode("utf-8", "surrogateescape")
        self.headers: Headers = message.raw_headers
        length = first_header(self.headers, b"content-length")
        self._body_size = None if message.chunked else int(length or 0)
        self.has_body = message.chunked or length is not None
        self._is_continue_due = message.version == HttpVersion11 and first_header(self.headers, b"expect") is not None
        self._was_continued = False

    @property
    def peer(self) -> str:
        """Address of the other side; empty on a Unix socket."""
        return self._request.remote or ""

    @property
    def body_size(self) -> int | None:
        """Declared length of the body in bytes, or None where only the end tells."""
        return self._body_size

    @property
    def is_waiting_for_continue(self) -> bool:
        """The agent was told nothing yet and may be holding its body back."""
        return self._is_continue_due and not self._was_continued

    async def read_all(self, spool: Spool, *, max_bytes: int, memory_limit: int | None = None) -> Body:
        """Return the whole body, replayable; the caller closes it.

        Raises:
            TooLarge: more than `max_bytes` were declared or came; declared ones are not waited for.
            SpoolFailed: the disk refused.
            UploadBroken: malformed or stalled.
        """
        if self._body_size is not None and self._body_size > max_bytes:
            raise TooLarge(max_bytes)
        content = self._request.content
        if content.is_eof() and content.exception() is None and content.total_bytes <= READ_BYTES:
            data = content.read_nowait()
            if len(data) > max_bytes:
                raise TooLarge(max_bytes)
            return BytesBody(data)
        return await spool.collect(self.stream().chunks(), max_bytes=max_bytes, memory_limit=memory_limit)

    def stream(self) -> Body:
        """Return the body as it comes; it can be read once."""
        return _Upload(self)

    async def _pieces(self) -> AsyncIterator[bytes]:
        content = self._request.content
        if self.is_waiting_for_continue:
            self._was_continued = True
            if not content.total_bytes and (transport := self._request.transport) is not None:
                transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            while not content.at_eof():
                data = content.read_nowait()
                if not data:
                    async with asyncio.timeout(self._stalled_s):
                        data = await content.readany()
                if data:
                    yield data
        except TimeoutError as error:
            raise UploadBroken(f"the request's body stopped coming for {self._stalled_s:g} s") from error
        except (ClientError, HttpProcessingError, web.RequestPayloadError, OSError) as error:
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
