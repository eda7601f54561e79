"""WebSockets between agent and tool: what a handshake must be, and where in the bytes one may say goodbye.

What passes afterwards is not looked into: frames go through byte for byte, with whatever subprotocol, extension and closing
code the two have agreed on. Only where frames end is followed, since the gateway may have to close a socket that both ends
would keep (it is stopped, the agent's token is revoked, nothing has moved for long), and a closing frame can stand between
frames alone.

`Frames` reads one direction and needs each header once, never the payload, so it costs the same for a frame of any length.

Source: RFC 6455 sections 4.1, 4.2 (handshake), 5.2 (frames), 5.5.1 and 7.4 (closing); RFC 9110 section 7.8.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import Annotated, Final

from annotated_types import Gt

from gateway.core.message import Headers
from gateway.core.setting import SECONDS, Doc

__all__ = [
    "GOING_AWAY",
    "POLICY_VIOLATION",
    "SWITCHING",
    "VERSION",
    "Frames",
    "WebSocketSettings",
    "accept_for",
    "answer_problem",
    "close_frame",
    "is_websocket",
    "request_problem",
    "switching",
]

VERSION: Final = b"13"
SWITCHING: Final = ((b"Connection", b"Upgrade"), (b"Upgrade", b"websocket"))
GOING_AWAY: Final = 1001
POLICY_VIOLATION: Final = 1008

_ASKED: Final = re.compile(rb"(?:^|,)\s*websocket(?:/[^,]*)?\s*(?:,|$)", re.IGNORECASE)
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CLOSE: Final = 8
_REASON_BYTES: Final = 123


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSocketSettings:
    """Whether agents may open WebSockets to the tool: `true`, or these keys. What passes over them is neither recorded nor
    undone; each holds a slot of its domain as long as it is open."""

    enabled: Annotated[bool, Doc("False is as if it were not there.")] = True
    idle: Annotated[
        float, SECONDS, Gt(0), Doc("One on which nothing passes for so long, not even a ping, is closed.")
    ] = 300.0
    origins: Annotated[
        tuple[str, ...],
        Doc(
            "Web pages that may open one, as in `https://app.example`; a request that names another Origin is refused."
        ),
    ] = ()


def is_websocket(upgrade: bytes) -> bool:
    """Whether an Upgrade field asks for a WebSocket."""
    return _ASKED.search(upgrade) is not None


def accept_for(key: bytes) -> bytes:
    """Return the Sec-WebSocket-Accept that answers a key."""
    return b64encode(sha1(key.strip() + _GUID, usedforsecurity=False).digest())


def request_problem(
    method: str, headers: Headers, *, is_http_1_1: bool, has_body: bool, origins: Sequence[str]
) -> tuple[int, str] | None:
    """Return status and sentence for a request for a WebSocket that is none, or None."""
    options = {option.strip().lower() for value in _values(headers, b"connection") for option in value.split(b",")}
    keys = _values(headers, b"sec-websocket-key")
    for is_wrong, status, sentence in (
        (method != "GET" or not is_http_1_1, 400, "A WebSocket is opened with GET in HTTP/1.1."),
        (has_body, 400, "A WebSocket is opened by a request without a body."),
        (b"upgrade" not in options, 400, "A WebSocket is asked for with 'Connection: Upgrade'."),
        (_values(headers, b"sec-websocket-version") != [VERSION], 426, "The only version of WebSocket here is 13."),
        (len(keys) != 1 or not _is_key(keys[0]), 400, "Sec-WebSocket-Key must hold 16 bytes in base64."),
    ):
        if is_wrong:
            return status, sentence
    named = [value.decode("latin-1") for value in _values(headers, b"origin")]
    if named and named not in [[one] for one in origins]:
        return 403, f"The web page {named[0][:100]!r} may not open WebSockets to this tool (setting websocket.origins)."
    return None


def _is_key(value: bytes) -> bool:
    try:
        return len(binascii.a2b_base64(value, strict_mode=True)) == 16
    except binascii.Error:
        return False


def answer_problem(headers: Headers, key: bytes) -> str:
    """Return why a 101 has not switched to a WebSocket, as a noun, or nothing."""
    if not any(is_websocket(value) for value in _values(headers, b"upgrade")):
        return "101 without 'Upgrade: websocket'"
    if [value.strip() for value in _values(headers, b"sec-websocket-accept")] != [accept_for(key)]:
        return "101 with a Sec-WebSocket-Accept that does not answer the key"
    return ""


def switching(headers: Headers) -> Headers:
    """Return the fields of a 101 for the agent: the tool's end-to-end ones, and those that say what is switched to."""
    return (*SWITCHING, *headers)


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key.lower() == name]


def close_frame(code: int, reason: str, mask: bytes | None = None) -> bytes:
    """Return a closing frame; `mask`, four bytes from a secure source, in the direction of a server."""
    said = reason.encode()[:_REASON_BYTES].decode(errors="ignore").encode()
    payload = code.to_bytes(2, "big") + said
    if mask is None:
        return bytes((0x80 | _CLOSE, len(payload))) + payload
    masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
    return bytes((0x80 | _CLOSE, 0x80 | len(payload))) + mask + masked


class Frames:
    """Follows the frames of one direction.

    Attributes:
        is_closing: a closing frame has begun; nothing may be said after it.
    """

    __slots__ = ("_header", "_left", "is_closing")

    def __init__(self) -> None:
        self.is_closing = False
        self._header = b""
        self._left = 0

    @property
    def is_between(self) -> bool:
        """Whether all that has come ends with a frame's end."""
        return not self._left and not self._header

    def feed(self, data: bytes) -> int:
        """Follow some bytes; return how many of them belong to frames that have ended, so that one may speak after them.

        0 if no frame ends in them. Takes any bytes: what is no WebSocket is the ends' own affair.
        """
        at = ended = 0
        size = len(data)
        while at < size:
            if self._left:
                step = min(self._left, size - at)
                self._left -= step
                at += step
            else:
                used = self._read_header(data, at)
                at += used
                if self._header:
                    break
            if not self._left:
                ended = at
        return ended

    def _read_header(self, data: bytes, at: int) -> int:
        """Read a header from what is kept of it and what has come; return how much of `data` it took."""
        kept = len(self._header)
        header = self._header + data[at : at + 14 - kept]
        needed = _header_size(header)
        if needed is None or len(header) < needed:
            self._header = header
            return len(header) - kept
        self._header = b""
        self._left = _payload_size(header)
        self.is_closing = self.is_closing or header[0] & 0x0F == _CLOSE
        return needed - kept


def _header_size(header: bytes) -> int | None:
    if len(header) < 2:
        return None
    mask = 4 if header[1] & 0x80 else 0
    return 2 + {126: 2, 127: 8}.get(header[1] & 0x7F, 0) + mask


def _payload_size(header: bytes) -> int:
    match header[1] & 0x7F:
        case 126:
            return int.from_bytes(header[2:4], "big")
        case 127:
            return int.from_bytes(header[2:10], "big")
        case short:
            return short
