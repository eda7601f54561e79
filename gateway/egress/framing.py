"""What a request to a tool looks like on the wire, and what makes an answer's head unusable. Bytes in, bytes out.

Source: RFC 9110 sections 7.6.1 and 8.6; RFC 9112 sections 3, 6 and 9.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.core.header_filter import FORWARDED_FIELDS
from gateway.core.headers import OURS_IN_REQUESTS, Sieve, field_lines, request_head
from gateway.core.message import Request
from gateway.core.sigv4 import SIGNED_BY_US
from gateway.core.tool import ToolSpec

__all__ = ["ToolLines", "never_passed", "request_bytes", "tool_lines"]

BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})


class ToolLines(NamedTuple):
    """What is the same for all requests to a tool, made once."""

    tool: ToolSpec
    prefix: bytes
    host_line: bytes
    credential_line: bytes
    sieve: Sieve


def tool_lines(tool: ToolSpec) -> ToolLines:
    """Return what every request to the tool has in common."""
    upstream, credential = tool.upstream, tool.credential
    return ToolLines(
        tool,
        upstream.prefix.encode("ascii"),
        field_lines(((b"Host", upstream.authority.encode("ascii")),)),
        field_lines((credential,)) if credential else b"",
        Sieve(never_passed(tool)),
    )


def never_passed(tool: ToolSpec) -> frozenset[bytes]:
    """Return the names, in lower case, of the fields that no request may bring along to the tool."""
    names = OURS_IN_REQUESTS if tool.takes_forwarded else OURS_IN_REQUESTS | FORWARDED_FIELDS
    leases = tool.leases
    if leases is not None:
        return names | (SIGNED_BY_US if leases.kind == "aws" else frozenset({leases.header.lower().encode("ascii")}))
    return names | {tool.credential[0].lower()} if tool.credential else names


def request_bytes(lines: ToolLines, request: Request) -> bytes:
    """Return the request's head: Host first, the agent's end-to-end fields, the tool's credential, the framing.

    Raises:
        ValueError: HTTP cannot carry this request. The message names the offence and holds no secret.
    """
    method, body = request.method, request.body
    if method == "CONNECT":
        raise ValueError("CONNECT asks for a tunnel, which a tool call cannot be")
    headers = request.headers if request.is_sifted else lines.sieve(request.headers)
    if body is None:
        # A method that is meant to have a body says so when it has none (RFC 9110 section 8.6).
        framing = b"Content-Length: 0\r\n" if method in BODY_METHODS else b""
    elif (size := body.size) is None:
        framing = b"Transfer-Encoding: chunked\r\n"
    else:
        framing = b"Content-Length: %d\r\n" % size
    if request.upgrade:
        framing += b"Connection: Upgrade\r\nUpgrade: %b\r\n" % request.upgrade
    fields = lines.host_line + field_lines(headers) + lines.credential_line + framing
    return request_head(method, lines.prefix + request.target, fields)
