"""Content coding, undone for expressions only: what the agent gets is never touched.

Source: RFC 9110 section 8.4.1 (gzip, deflate); RFC 1952; RFC 1950. A coding that we cannot undo yields nothing, so that an
expression sees no body rather than a garbled one.
"""

from __future__ import annotations

import zlib

from gateway.core.message import Headers, first_header

__all__ = ["decoded"]

_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32


def decoded(headers: Headers, body: bytes, limit: int) -> bytes:
    """Return a body without its content coding, or b"" if that is unknown, broken, or more than `limit` bytes."""
    coding = (first_header(headers, b"content-encoding") or b"identity").strip().lower()
    if coding == b"identity":
        return body
    if coding not in (b"gzip", b"x-gzip", b"deflate"):
        return b""
    unpacker = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        plain = unpacker.decompress(body, limit)
    except zlib.error:
        return b""
    return plain if unpacker.eof and not unpacker.unconsumed_tail else b""
