"""The 33 checks of dropseed/h1spec in our own words, against a whole gateway with a tool behind it: 33 of 33.

Its clients end their sending side after a request; ours do not, since here that means that the agent has left
(docs/adr/0090-own-wire.md). One check is one entry: what is sent, what may come back, and whether the connection must end.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gateway.harness import Serving, serving
from tests.origin import Origin

H = b"Host: localhost\r\n"
GET = b"GET /plain/x HTTP/1.1\r\n" + H + b"\r\n"
LAST = b"GET /plain/last HTTP/1.1\r\n" + H + b"Connection: close\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
BODY = b"5\r\nhello\r\n0\r\n\r\n"


def post(fields: bytes, body: bytes, version: bytes = b"HTTP/1.1") -> bytes:
    return b"POST /plain/x %b\r\n%b%b\r\n%b" % (version, H, fields, body)


def any_status(statuses: list[int]) -> bool:
    return len(statuses) >= 1 and 100 <= statuses[0] <= 599


def not_400(statuses: list[int]) -> bool:
    return any_status(statuses) and statuses[0] != 400


def only(*allowed: int) -> Callable[[list[int]], bool]:
    """The first answer is one of these, and there is no second: what follows was not taken for a request."""
    return lambda statuses: len(statuses) == 1 and statuses[0] in allowed


CHECKS: dict[str, tuple[bytes, Callable[[list[int]], bool]]] = {
    # request line
    "a simple GET": (GET, any_status),
    "a POST with a body": (post(b"Content-Length: 5\r\n", b"hello"), not_400),
    "OPTIONS *": (b"OPTIONS * HTTP/1.1\r\n" + H + b"\r\n", not_400),
    "absolute form": (b"GET http://localhost/ HTTP/1.1\r\n" + H + b"\r\n", not_400),
    "CONNECT with an authority": (b"CONNECT example.com:443 HTTP/1.1\r\n" + H + b"\r\n", not_400),
    "an invalid version": (b"GET /plain/x HTTP/2.0\r\n" + H + b"\r\n", only(400, 505)),
    "a malformed request line": (b"GET /plain/x\r\n" + H + b"\r\n", only(400)),
    # fields
    "no Host": (b"GET /plain/x HTTP/1.1\r\n\r\n", only(400)),
    "two Hosts": (b"GET /plain/x HTTP/1.1\r\n" + H + b"Host: example.com\r\n\r\n", only(400)),
    "an invalid Host": (b"GET /plain/x HTTP/1.1\r\nHost: bad host\r\n\r\n", only(400)),
    "an invalid name": (b"GET /plain/x HTTP/1.1\r\n" + H + b"Bad Header: value\r\n\r\n", only(400)),
    "obsolete folding": (b"GET /plain/x HTTP/1.1\r\n" + H + b"  continued\r\n\r\n", only(400)),
    "a space before the colon": (b"GET /plain/x HTTP/1.1\r\nHost : localhost\r\n\r\n", only(400)),
    "a NUL in a field": (b"GET /plain/x HTTP/1.1\r\nHost: local\0host\r\n\r\n", only(400)),
    # bodies
    "chunks": (post(CHUNKED, BODY), not_400),
    "chunks in HTTP/1.0": (post(CHUNKED, BODY, b"HTTP/1.0"), only(400)),
    "chunks and a length": (post(CHUNKED + b"Content-Length: 5\r\n", BODY), only(400)),
    "chunks and a length end the connection": (post(CHUNKED + b"Content-Length: 5\r\n", BODY) + LAST, only(400)),
    "an unknown coding": (post(b"Transfer-Encoding: nonsense\r\n", b"hello"), only(400, 501)),
    "chunked is not the last coding": (post(b"Transfer-Encoding: chunked, gzip\r\n", BODY) + LAST, only(400)),
    "lengths that conflict": (post(b"Content-Length: 5\r\nContent-Length: 7\r\n", b"hello!!"), only(400)),
    "a length that is no number": (post(b"Content-Length: xyz\r\n", b"hello"), only(400)),
    "a chunk size that is none": (post(CHUNKED, b"Z\r\nhello\r\n0\r\n\r\n") + LAST, only(400, 422)),
    "a chunk without its end": (post(CHUNKED, b"5\r\nhello0\r\n\r\n") + LAST, only(400, 422)),
    # hardening
    "a request line of 9 KB": (b"GET /plain/" + b"a" * 9000 + b" HTTP/1.1\r\n" + H + b"\r\n", any_status),
    "a hundred fields": (GET[:-2] + b"".join(b"X-H-%d: value\r\n" % n for n in range(101)) + b"\r\n", any_status),
    "a field of 9 KB": (GET[:-2] + b"X-Big: " + b"x" * 9000 + b"\r\n\r\n", any_status),
    # connections
    "a connection is kept": (GET + LAST, lambda statuses: statuses == [200, 200]),
    "Connection: close": (LAST, lambda statuses: statuses == [200]),
    "HTTP/1.0 closes": (b"GET /plain/x HTTP/1.0\r\n" + H + b"\r\n", lambda statuses: statuses == [200]),
}

ENDS = {
    "Connection: close",
    "HTTP/1.0 closes",
    "chunks and a length end the connection",
    "chunked is not the last coding",
}


@pytest.mark.parametrize("check", sorted(CHECKS))
async def test_a_check_passes_and_the_gateway_serves_on(tmp_path: Path, check: str) -> None:
    data, holds = CHECKS[check]
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        answers, has_ended = await exchange(running, data)
        assert holds([int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answers)]), answers
        assert has_ended or check not in ENDS
        assert (await running.agent.send("GET", "/plain/alive")).status == 200


async def test_an_expectation_is_met_or_refused(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        reader, writer = await running.agent.open()
        writer.write(post(b"Expect: 100-continue\r\nContent-Length: 5\r\n", b""))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(b"hello")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_head_has_no_body(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        answer, _ = await exchange(running, LAST.replace(b"GET", b"HEAD"))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(b"\r\n\r\n")


async def test_the_end_of_an_error_is_told(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        answer, _ = await exchange(running, b"get /plain/x HTTP/1.1\r\n" + H + b"\r\n")
        assert re.search(rb"\r\n(?:Content-Length: \d+|Transfer-Encoding: chunked|Connection: close)\r\n", answer)


def test_there_are_33() -> None:
    assert len(CHECKS) + 3 == 33


async def exchange(running: Serving, data: bytes) -> tuple[bytes, bool]:
    """Send, and return all that comes until the connection ends or has been quiet for a while, and whether it has ended."""
    reader, writer = await running.agent.open()
    writer.write(data)
    received, has_ended = b"", True
    try:
        while piece := await asyncio.wait_for(reader.read(1 << 16), 0.5 if received else 10):
            received += piece
    except TimeoutError:
        has_ended = False
    finally:
        writer.close()
    return received, has_ended
