"""What the wire promises, through a whole gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.certificates import Issuer, server_context
from tests.gateway.harness import Serving, serving
from tests.origin import Answer, Drop, Origin, Raw

MUTUAL = """
tools:
  pay:
    upstream: https://127.0.0.1:PORT
    tls: {ca: ca.pem, certificate: cert.pem, key: key.pem}
    breaker: {cooldown: 50ms, max_cooldown: 100ms}
"""


async def test_a_renewed_certificate_is_taken_up_by_itself(tmp_path: Path) -> None:
    """First the tool trusts nobody who has ours; then the operator puts the new files in place."""
    issuer, stranger = Issuer(tmp_path), Issuer(tmp_path, "stranger")
    (tmp_path / "ca.pem").write_bytes(issuer.ca.read_bytes())
    _put(tmp_path, stranger.issue("client"))
    async with (
        Origin(tls=server_context(issuer.issue("127.0.0.1"), clients=issuer.ca)) as origin,
        serving(tmp_path, origin.port, MUTUAL, watch=True) as running,
    ):
        assert (await running.agent.send("GET", "/pay/x")).status in (502, 503)
        _put(tmp_path, issuer.issue("client"))
        async with asyncio.timeout(30):
            while (await running.agent.send("GET", "/pay/x")).status != 200:
                await asyncio.sleep(0.1)
        assert running.gateway.reload_problem is None


def _put(folder: Path, issued: Path) -> None:
    for name in ("cert.pem", "key.pem"):
        (folder / name).write_bytes((issued / name).read_bytes())


async def raw(running: Serving, data: bytes, *, more: bytes = b"") -> bytes:
    """Send bytes on a connection of their own, and `more` once something has come back; return all that comes."""
    reader, writer = await running.agent.open()
    writer.write(data)
    received = b""
    if more:
        received = await reader.readuntil(b"\r\n\r\n")
        writer.write(more)
    received += await reader.read()
    writer.close()
    return received


HOST = b"Host: gateway\r\nConnection: close\r\n"
HINTS = (
    b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_informational_answers_end_at_the_gateway(tmp_path: Path, method: str) -> None:
    """docs/adr/0111: much of what agents are made of takes the first head that is not 100 for the answer."""
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        origin.default = Answer(200, b"final", before=HINTS)
        received = await raw(running, b"%b /plain/x HTTP/1.1\r\n%bContent-Length: 0\r\n\r\n" % (method.encode(), HOST))
        assert received.startswith(b"HTTP/1.1 200 OK\r\n")
        assert received.endswith(b"\r\n\r\nfinal")
        assert b"Link" not in received
        assert received.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("method", [b"GET", b"POST"])
async def test_trailers_of_a_request_end_at_the_gateway(tmp_path: Path, method: bytes) -> None:
    """They never become header fields (RFC 9110 section 6.5.1): no credential comes in by that door."""
    trailers = b"Authorization: Bearer evil\r\nX-T: 1\r\n"
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        received = await raw(
            running,
            b"%b /plain/x HTTP/1.1\r\n%bTE: trailers\r\nTrailer: X-T\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3\r\nabc\r\n0\r\n%b\r\n" % (method, HOST, trailers),
        )
        assert received.startswith(b"HTTP/1.1 200 ")
        [request] = origin.requests
        assert request.body == b"abc"
        assert not {b"authorization", b"x-t", b"te", b"trailer"} & {name.lower() for name, _ in request.headers}
        assert request.values(b"content-length") in ([], [b"3"])


@pytest.mark.parametrize("is_pipelined", [True, False])
async def test_trailers_of_a_request_are_not_put_into_the_next_one(tmp_path: Path, is_pipelined: bool) -> None:
    """aiohttp's parser keeps the last trailer and begins the next header with it: a credential from out of a body."""
    first = (
        b"POST /plain/first HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\nabc\r\n0\r\nX-T: 1\r\nAuthorization: Bearer evil\r\n\r\n"
    )
    second = b"GET /plain/second HTTP/1.1\r\n" + HOST + b"\r\n"
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        received = await raw(running, first + second if is_pipelined else first, more=b"" if is_pipelined else second)
        assert received.count(b"HTTP/1.1 200 OK") == (1 if is_pipelined else 2)
        assert [one.path for one in origin.requests] == (["/first"] if is_pipelined else ["/first", "/second"])
        assert all(not one.values(b"authorization") and not one.values(b"x-t") for one in origin.requests)


@pytest.mark.parametrize("method", [b"GET", b"POST"])
async def test_trailers_of_an_answer_end_at_the_gateway(tmp_path: Path, method: bytes) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        origin.default = Raw(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Set-Cookie\r\n\r\n"
            b"3\r\nabc\r\n0\r\nSet-Cookie: evil=1\r\nX-T: 1\r\n\r\n"
        )
        received = await raw(running, b"%b /plain/x HTTP/1.1\r\n%bContent-Length: 0\r\n\r\n" % (method, HOST))
        assert received.startswith(b"HTTP/1.1 200 ")
        assert b"evil" not in received
        assert b"railer" not in received
        assert received.endswith((b"\r\n\r\nabc", b"abc\r\n0\r\n\r\n"))


EXPECT = b"Expect: 100-continue\r\nContent-Length: 4\r\n\r\n"


async def test_an_upload_is_asked_for_once_the_gates_are_passed(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        received = await raw(running, b"POST /plain/x HTTP/1.1\r\n%b%b" % (HOST, EXPECT), more=b"body")
        assert received.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
        assert origin.requests[0].body == b"body"
        assert origin.requests[0].values(b"expect") == []


async def test_an_upload_that_will_be_refused_is_not_asked_for(tmp_path: Path) -> None:
    """The agent has its no before it has sent a byte of the body, whichever gate says it."""
    refused = [
        (b"POST /nowhere/x", b"404"),
        (b"POST /plain/../x", b"422"),
        (b"TRACE /plain/x", b"422"),
        (b"POST /plain/x HTTP/1.1\r\nSeawall-Trajectory: %", b"422"),
    ]
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        for line, status in refused:
            head = line if b"HTTP" in line else line + b" HTTP/1.1"
            received = await raw(running, head + b"\r\n" + HOST + EXPECT)
            assert received.startswith(b"HTTP/1.1 " + status), line
        received = await raw(
            running,
            b"POST /plain/x HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n",
        )
        assert received.startswith(b"HTTP/1.1 413 ")
        assert origin.requests == []


async def test_an_upload_to_a_tool_that_is_left_alone_is_not_asked_for(tmp_path: Path) -> None:
    breaker = "{consecutive: 1, minimum: 1, cooldown: 1h, max_cooldown: 1h}"
    text = f"tools: {{dead: {{upstream: 'http://127.0.0.1:PORT', breaker: {breaker}}}}}"
    async with Origin() as origin, serving(tmp_path, origin.port, text) as running:
        origin.default = Drop()
        await running.agent.send("GET", "/dead/x")
        seen = len(origin.requests)
        received = await raw(running, b"POST /dead/x HTTP/1.1\r\n" + HOST + EXPECT)
        assert received.startswith(b"HTTP/1.1 503 ")
        assert b"ERR_CIRCUIT_OPEN" in received
        assert len(origin.requests) == seen


async def test_an_early_no_reaches_the_agent_in_the_middle_of_its_upload(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        origin.default = Answer(413, b"too much", reads_body=False, ending="close")
        reader, writer = await running.agent.open()
        writer.write(b"GET /plain/x HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 413 ")
        assert (await reader.readuntil(b"too much")).endswith(b"too much")
        writer.close()


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304), ("HEAD", 404)])
async def test_an_answer_without_a_body_keeps_the_connection_in_step(tmp_path: Path, method: str, status: int) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        origin.on(f"{method} /x", Answer(status, b"", ((b"ETag", b'"a"'),), declared_length=1234))
        received = await raw(
            running,
            f"{method} /plain/x HTTP/1.1\r\nHost: g\r\n\r\nGET /plain/y HTTP/1.1\r\n".encode() + HOST + b"\r\n",
        )
        first, second = received.split(b"\r\n\r\n", 1)
        assert first.startswith(b"HTTP/1.1 %d " % status)
        assert (b"Content-Length: 1234" in first) is (status != 204)
        assert b'ETag: "a"' in first
        assert second.startswith(b"HTTP/1.1 200 OK\r\n")
        assert second.endswith(b"\r\n\r\nok")


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_answer_that_only_ends_with_its_connection_says_so(tmp_path: Path, method: str) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        origin.default = Answer(200, b"perhaps all", framing="close")
        answer = await running.agent.send(method, "/plain/x")
        assert (answer.status, answer.body) == (200, b"perhaps all")
        assert answer["Seawall-Completion"] == "unverified"
        origin.default = Raw(b"HTTP/1.0 200 OK\r\n\r\nold")
        answer = await running.agent.send(method, "/plain/old")
        assert (answer.body, answer["Seawall-Completion"]) == (b"old", "unverified")
        origin.default = Answer(200, b"all")
        assert (await running.agent.send(method, "/plain/sure")).get("Seawall-Completion") is None
