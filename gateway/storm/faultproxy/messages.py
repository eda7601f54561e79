"""HTTP/1.1 messages as raw bytes, read piece by piece: just enough framing to know where a message ends."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

__all__ = ["body_pieces", "field_of", "read_head", "request_line", "status_of"]

HEAD_BYTES = 256 * 1024
_PIECE_BYTES = 64 * 1024


async def read_head(reader: asyncio.StreamReader) -> bytes:
    """Return a message's head with its empty line, or nothing if the peer has ended.

    Raises:
        ConnectionError: the peer left in the middle, or it is too long.
    """
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial.strip():
            raise ConnectionError("the peer left within a head") from None
        return b""
    except asyncio.LimitOverrunError:
        raise ConnectionError("a head is too long") from None


def field_of(head: bytes, name: bytes) -> bytes | None:
    """Return the value of a header field, or None."""
    found = re.search(rb"\r\n" + re.escape(name) + rb":[ \t]*([^\r]*)\r\n", head, re.IGNORECASE)
    return found[1].strip() if found else None


def request_line(head: bytes) -> tuple[str, str]:
    """Return method and target."""
    method, _, rest = head.partition(b" ")
    return method.decode("latin-1"), rest.partition(b" ")[0].decode("latin-1")


def status_of(head: bytes) -> int:
    """Return an answer's status, 0 if it has none."""
    digits = head[9:12]
    return int(digits) if digits.isdigit() else 0


async def body_pieces(
    reader: asyncio.StreamReader, head: bytes, *, is_answer: bool = False, has_body: bool = True
) -> AsyncIterator[bytes]:
    """Yield a message's body as it is on the wire, chunk framing included.

    Raises:
        ConnectionError: the peer left in the middle.
    """
    try:
        if not has_body:
            return
        if (field_of(head, b"transfer-encoding") or b"").lower().endswith(b"chunked"):
            async for piece in _chunks(reader):
                yield piece
        elif (length := field_of(head, b"content-length")) is not None:
            left = int(length)
            while left > 0:
                piece = await reader.read(min(left, _PIECE_BYTES))
                if not piece:
                    raise ConnectionError("the peer left within a body")
                left -= len(piece)
                yield piece
        elif is_answer:
            while piece := await reader.read(_PIECE_BYTES):
                yield piece
    except (asyncio.IncompleteReadError, ValueError):
        raise ConnectionError("the peer left within a body") from None


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        if size == 0:
            trailer = line
            while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
                trailer += line
            yield trailer + line
            return
        yield line + await reader.readexactly(size + 2)
