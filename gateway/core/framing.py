"""How the end of an answer's body is told to the agent.

Content-Length where the length is known, chunks where it is not, the end of the connection for HTTP/1.0, nothing at all
for answers that have no body. The tool's own Content-Length stands where it describes a body that is not sent (HEAD,
304), or says the same as we know; a wrong or doubled one never passes.

Source: RFC 9112 sections 6.1 to 6.3; RFC 9110 sections 6.4.1, 8.6, 9.3.2, 15.3.5, 15.4.5.
"""

from __future__ import annotations

from dataclasses import field
from operator import itemgetter
from typing import Final

from gateway.core.headers import is_token, lower_names
from gateway.core.message import Headers
from gateway.core.remembered import MOST
from gateway.core.value import frozen

__all__ = ["WITHOUT_BODY", "Framing", "frame_answer", "ordinary_answer"]

WITHOUT_BODY: Final = frozenset({204, 304})
"""Final answers that have no body, whatever was asked."""

_LENGTH: Final = b"content-length"


@frozen(kw_only=False)
class Framing:
    """The header fields with the right framing among them, and what it means for the writer.

    `names`: of the fields the answer came with, in lower case.
    """

    headers: Headers
    is_bodiless: bool = False
    is_chunked: bool = False
    ends_by_closing: bool = False
    names: list[bytes] = field(default_factory=list, compare=False)


def frame_answer(
    method: str, status: int, headers: Headers, body_bytes: int | None, *, is_http_1_0: bool = False
) -> Framing:
    """Return the framing of an answer to `method`; `body_bytes` is None where only the end tells."""
    names = lower_names(headers)
    if status == 204:
        return Framing(_without_length(headers, names), is_bodiless=True, names=names)
    if method == "HEAD" or status == 304:
        if method == "HEAD" and body_bytes and _LENGTH not in names:
            headers = (*headers, (b"Content-Length", b"%d" % body_bytes))
        return Framing(headers, is_bodiless=True, names=names)
    if body_bytes is not None:
        length = b"%d" % body_bytes
        if names.count(_LENGTH) != 1 or headers[names.index(_LENGTH)][1] != length:
            headers = (*_without_length(headers, names), (b"Content-Length", length))
        return Framing(headers, names=names)
    headers = _without_length(headers, names)
    if is_http_1_0:
        return Framing(headers, ends_by_closing=True, names=names)
    return Framing((*headers, (b"Transfer-Encoding", b"chunked")), is_chunked=True, names=names)


def _without_length(headers: Headers, names: list[bytes]) -> Headers:
    if _LENGTH not in names:
        return headers
    return tuple([field for field, name in zip(headers, names, strict=True) if name != _LENGTH])


def ordinary_answer(status: int, reason: bytes, headers: Headers, data: bytes, date: bytes) -> bytes | None:
    """Return a whole answer that has a body, on a connection of HTTP/1.1 that goes on, in one step.

    The same bytes that `frame_answer` and `headers.field_lines` come to; None wherever that takes more than a look, as where
    the tool's length is not that of the body, or a field would change the shape of the message.

    Args:
        date: of the answer, where it says none itself.
    """
    names = tuple(map(_NAME, headers))
    shape = _SHAPES.get(names) or _look_at(names)
    length_at, has_date = shape
    if length_at == _UNUSUAL or reason.count(b"\r") or reason.count(b"\n"):
        return None
    lines, breaks = _LINES(map(_LINE, headers)), len(headers) - 1
    if lines.count(b"\n") != breaks or lines.count(b"\r") != breaks or lines.count(b"\0"):
        return None
    if length_at == _ABSENT:
        lines += b"\r\nContent-Length: %d" % len(data)
    elif headers[length_at][1] != b"%d" % len(data):
        return None
    if has_date:
        return b"HTTP/1.1 %d %b\r\n%b\r\n\r\n%b" % (status, reason, lines, data)
    return b"HTTP/1.1 %d %b\r\n%b\r\nDate: %b\r\n\r\n%b" % (status, reason, lines, date, data)


_NAME: Final = itemgetter(0)
_LINE: Final = b": ".join
_LINES: Final = b"\r\n".join

_ABSENT: Final = -1
_UNUSUAL: Final = -2

_Shape = tuple[int, bool]
"""Where Content-Length stands, if it does, and whether there is a Date."""

_SHAPES: Final[dict[tuple[bytes, ...], _Shape]] = {}
"""By the names of the fields, as spelt: a tool sends the same ones with every answer. As bounded as `Remembered`."""

_SHAPE_BYTES: Final = 1024


def _look_at(names: tuple[bytes, ...]) -> _Shape:
    lowered = [name.lower() for name in names]
    is_usual = names and b"connection" not in lowered and lowered.count(_LENGTH) < 2 and all(map(is_token, names))
    length_at = (lowered.index(_LENGTH) if _LENGTH in lowered else _ABSENT) if is_usual else _UNUSUAL
    shape = (length_at, b"date" in lowered)
    if sum(map(len, names)) <= _SHAPE_BYTES:
        if len(_SHAPES) >= MOST:
            _SHAPES.clear()
        _SHAPES[names] = shape
    return shape
