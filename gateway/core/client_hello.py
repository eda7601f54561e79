"""The host name in the first bytes that a TLS client sends (SNI), read without a TLS library.

A tunnel is blind to what goes through it, but not to whom it is for: the client names the host in clear in its first
message, and the tunnel is opened only if that is the host it was asked for. Everything here is a bounds check; what does not
add up is `NotTls`, never an exception.

Left out: Encrypted Client Hello. Its outer name is another host's, so such a tunnel is refused where names are checked.

Source: RFC 8446 sections 4.1.2 and 5.1 (ClientHello, records); RFC 6066 section 3 (server_name).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["LIMIT_BYTES", "Hello", "NeedMore", "NotTls", "read_hello"]

LIMIT_BYTES: Final = 16_384
"""Of a ClientHello; real ones have 200 to 2,000 bytes, with post-quantum keys."""

_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME, _HOST_NAME = 22, 1, 0, 0


@dataclass(frozen=True, slots=True)
class Hello:
    """A whole ClientHello; `name` is the host it names, in lower case, or None if it names none."""

    name: str | None


@dataclass(frozen=True, slots=True)
class NeedMore:
    """Not there yet."""


@dataclass(frozen=True, slots=True)
class NotTls:
    """No ClientHello will come of this. `why` is a clause."""

    why: str


class _Short(Exception):
    """The bytes end before what they announce."""


class _Cursor:
    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, count: int) -> bytes:
        if self._at + count > len(self._data):
            raise _Short
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> bytes:
        return self.take(self.number(size))

    @property
    def is_done(self) -> bool:
        return self._at == len(self._data)


def read_hello(data: bytes) -> Hello | NeedMore | NotTls:
    """Read what a client has sent so far; may be called again with more."""
    message = _message(data)
    if not isinstance(message, bytes):
        return message
    try:
        return Hello(_name(message))
    except (_Short, UnicodeDecodeError):
        return NotTls("its ClientHello is malformed")


def _message(data: bytes) -> bytes | NeedMore | NotTls:
    """Return the body of the ClientHello, put together from its records."""
    records, message = _Cursor(data), b""
    while True:
        try:
            kind, version, length = records.number(1), records.take(2), records.number(2)
            if kind != _HANDSHAKE or version[0] != 3 or not 0 < length <= LIMIT_BYTES:
                return NotTls("it does not begin like TLS")
            message += records.take(length)
        except _Short:
            return NotTls("it does not begin like TLS") if data[:1] not in (b"", b"\x16") else _unless_too_long(data)
        if message[0] != _CLIENT_HELLO:
            return NotTls("it does not begin with a ClientHello")
        if len(message) >= 4:
            size = int.from_bytes(message[1:4], "big")
            if size > LIMIT_BYTES:
                return NotTls(f"its ClientHello is longer than {LIMIT_BYTES} bytes")
            if len(message) >= 4 + size:
                return message[4 : 4 + size]


def _unless_too_long(data: bytes) -> NeedMore | NotTls:
    too_long = len(data) > 2 * LIMIT_BYTES
    return NotTls(f"its ClientHello is longer than {LIMIT_BYTES} bytes") if too_long else NeedMore()


def _name(message: bytes) -> str | None:
    hello = _Cursor(message)
    hello.take(2 + 32)
    hello.vector(1)
    hello.vector(2)
    hello.vector(1)
    if hello.is_done:
        return None
    extensions = _Cursor(hello.vector(2))
    while not extensions.is_done:
        kind, body = extensions.number(2), extensions.vector(2)
        if kind == _SERVER_NAME:
            names = _Cursor(_Cursor(body).vector(2))
            while not names.is_done:
                is_host, name = names.number(1) == _HOST_NAME, names.vector(2)
                if is_host:
                    return name.decode("ascii").lower().removesuffix(".")
    return None
