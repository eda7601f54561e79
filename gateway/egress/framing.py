"""What a request to a tool looks like on the wire, and what makes an answer's head unusable. Bytes in, bytes out.

Source: RFC 9110 sections 7.6.1 and 8.6; RFC 9112 sections 3, 6 and 9.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.core.header_filter import FORWARDED_FIELDS
from gateway.core.headers import NEVER_PASSED, field_lines, request_fields, request_head
from gateway.core.message import Headers, Request, first_header
from gateway.core.tool import ToolSpec

__all__ = ["ToolLines", "answer_problem", "request_bytes", "tool_lines"]

BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})


class ToolLines(NamedTuple):
    """What is the same for all requests to a tool, made once."""

    tool: ToolSpec
    prefix: bytes
    host_line: bytes
    credential_line: bytes
    credential_name: bytes
    dropped: frozenset[bytes]


def tool_lines(tool: ToolSpec) -> ToolLines:
    """Return what every request to the tool has in common."""
    upstream, credential = tool.upstream, tool.credential
    return ToolLines(
        tool,
        upstream.prefix.encode("ascii"),
        field_lines(((b"Host", upstream.authority.encode("ascii")),)),
        field_lines((credential,)) if credential else b"",
        credential[0].lower() if credential else b"",
        NEVER_PASSED if tool.takes_forwarded else NEVER_PASSED | FORWARDED_FIELDS,
    )


def request_bytes(lines: ToolLines, request: Request) -> bytes:
    """Return the request's head: Host first, the agent's end-to-end fields, the tool's credential, the framing.

    Raises:
        ValueError: HTTP cannot carry this request. The message names the offence and holds no secret.
    """
    if request.method == "CONNECT":
        raise ValueError("CONNECT asks for a tunnel, which a tool call cannot be")
    headers = request_fields(request.headers, lines.dropped)
    if name := lines.credential_name:
        headers = tuple(field for field in headers if field[0].lower() != name)
    fields = lines.host_line + field_lines(headers) + lines.credential_line + _framing(request)
    if request.upgrade:
        fields += b"Connection: Upgrade\r\nUpgrade: %b\r\n" % request.upgrade
    return request_head(request.method, lines.prefix + request.target, fields)


def _framing(request: Request) -> bytes:
    """How the body's end is told. A method that is meant to have a body says so when it has none (RFC 9110 8.6)."""
    if request.body is None:
        return b"Content-Length: 0\r\n" if request.method in BODY_METHODS else b""
    size = request.body.size
    return b"Transfer-Encoding: chunked\r\n" if size is None else b"Content-Length: %d\r\n" % size


def answer_problem(status: int, headers: Headers) -> str:
    """Return what makes a well-formed head unusable, or nothing."""
    if status == 101:
        return "101 Switching Protocols, which nobody asked for"
    coding = first_header(headers, b"transfer-encoding")
    if coding is not None and coding.strip().lower() != b"chunked":
        return "a transfer coding other than chunked"
    values = b"".join([value for _, value in headers])
    if b"\r" in values or b"\n" in values or b"\0" in values:
        return "a header field with a line break or NUL in it"
    return ""
