"""REDbot, which lints what a resource sends and how it reacts: its findings through the gateway are those without it."""

from __future__ import annotations

import asyncio
import gzip
import re
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import pytest

from tests.gateway.harness import serving
from tests.origin import Answer, Behaviour, Exchange, Origin
from tests.suites.rig import TOOL, installed, run

TEXT = b"A few words, again and again. " * 40
TYPE = (b"Content-Type", b"text/plain; charset=utf-8")
OLD = (b"Date", b"Sun, 06 Nov 1994 08:49:37 GMT")


def now() -> tuple[bytes, bytes]:
    return (b"Date", formatdate(usegmt=True).encode())


def dated(answer: Answer) -> Behaviour:
    """Have an answer say when it is sent: where a tool does not, the gateway does (RFC 9110 section 6.6.1)."""

    async def send(exchange: Exchange) -> None:
        await replace(answer, headers=(*answer.headers, now()))(exchange)

    return send


async def careful(exchange: Exchange) -> None:
    """A resource that negotiates compression, answers conditional requests and serves ranges."""
    request = exchange.request
    common = (
        TYPE,
        now(),
        (b"Vary", b"Accept-Encoding"),
        (b"Cache-Control", b"max-age=60"),
        (b"Accept-Ranges", b"bytes"),
    )
    is_packed = any(b"gzip" in value for value in request.values(b"accept-encoding"))
    tag = (b"ETag", b'"packed"' if is_packed else b'"plain"')
    if request.values(b"if-none-match") == [tag[1]]:
        await Answer(304, b"", (*common, tag), framing="none")(exchange)
    elif is_packed:
        await Answer(200, gzip.compress(TEXT, mtime=0), (*common, tag, (b"Content-Encoding", b"gzip")))(exchange)
    elif ranges := request.values(b"range"):
        first, _, last = ranges[0].removeprefix(b"bytes=").partition(b"-")
        start, end = int(first or 0), min(int(last or len(TEXT) - 1), len(TEXT) - 1)
        place = (b"Content-Range", b"bytes %d-%d/%d" % (start, end, len(TEXT)))
        await Answer(206, TEXT[start : end + 1], (*common, tag, place))(exchange)
    else:
        await Answer(200, TEXT, (*common, tag))(exchange)


RESOURCES: dict[str, Behaviour] = {
    "careful": careful,
    "plain": dated(Answer(200, TEXT, (TYPE,))),
    "chunked": dated(Answer(200, TEXT, (TYPE,), framing="chunked")),
    "until it closes": dated(Answer(200, TEXT, (TYPE,), framing="close")),
    "sloppy": dated(
        Answer(
            200,
            TEXT,
            (
                (b"content-type", b"text/html"),
                (b"X-A", b"1"),
                (b"x-a", b"2"),
                (b"Pragma", b"no-cache"),
                (b"P3P", b"x"),
                (b"Cache-Control", b"max-age=abc, private"),
                (b"Expires", b"yesterday"),
                (b"Set-Cookie", b"a=1; path=/; Expires=Sun Nov 6 1994"),
                (b"Set-Cookie", b"b=2"),
                (b"Age", b"-1"),
                (b"Vary", b"*"),
            ),
        )
    ),
    "of long ago": Answer(200, TEXT, (TYPE, OLD)),
    "moved": dated(Answer(301, b"", ((b"Location", b"/elsewhere"),))),
    "missing": dated(Answer(404, b"no", (TYPE,))),
    "broken": dated(Answer(500, b"no", (TYPE,))),
    "nothing": dated(Answer(204, b"", ((b"Content-Type", b"text/plain"),))),
}


MEANT = {"chunked": ("* The Content-Length header is correct.",)}
"""Framing is each connection's own: chunks that have come to their end by then are sent on in one piece of known length."""


@pytest.mark.parametrize("name", sorted(RESOURCES))
async def test_the_findings_are_the_same(tmp_path: Path, name: str) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, TOOL.replace("NAME", "tool")) as running:
        origin.default = RESOURCES[name]
        direct, through = await asyncio.gather(
            findings(f"{origin.url}/x"), findings(f"http://127.0.0.1:{running.agent.port}/tool/x")
        )
    assert direct
    assert [note for note in through if note not in MEANT.get(name, ())] == direct


async def test_a_tool_that_does_not_know_the_time_gets_the_gateways(tmp_path: Path) -> None:
    """The one finding that is meant to differ."""
    async with Origin() as origin, serving(tmp_path, origin.port, TOOL.replace("NAME", "tool")) as running:
        origin.default = Answer(200, TEXT, (TYPE,))
        direct, through = await asyncio.gather(
            findings(f"{origin.url}/x"), findings(f"http://127.0.0.1:{running.agent.port}/tool/x")
        )
    assert set(through) - set(direct) == {"* The server's clock is correct."}
    assert len(set(direct) - set(through)) == 1


async def findings(url: str) -> list[str]:
    """Return the notes, without the place of the resource, and without what hangs on the second in which it was asked."""
    code, printed = await run(installed("redbot"), "-o", "text", url)
    assert code == 0, printed
    notes = [line.strip() for line in printed.splitlines() if line.lstrip().startswith(("*", "-"))]
    return sorted(re.sub(r"127\.0\.0\.1:\d+\S*", "HOST", note) for note in notes)
