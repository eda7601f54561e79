"""How the end of an answer's body is told to the agent.

Content-Length where the length is known, chunks where it is not, the end of the connection for HTTP/1.0, nothing at all
for answers that have no body. The tool's own Content-Length stands where it describes a body that is not sent (HEAD,
304), or says the same as we know; a wrong or doubled one never passes.

Source: RFC 9112 sections 6.1 to 6.3; RFC 9110 sections 6.4.1, 8.6, 9.3.2, 15.3.5, 15.4.5.
"""

from __future__ import annotations

from dataclasses import field
from typing import Final

from gateway.core.headers import lower_names
from gateway.core.message import Headers
from gateway.core.value import frozen

__all__ = ["Framing", "frame_answer"]


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


_LENGTH: Final = b"content-length"
