"""WebSockets through a whole gateway, between the client and the server of the `websockets` package."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import Server, ServerConnection, serve, unix_serve
from websockets.exceptions import InvalidStatus
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.frames import Frame, Opcode

from gateway.config.tokens import TokenFile
from gateway.core.tokens import Scope
from gateway.core.websocket import accept_for
from tests.certificates import Issuer, server_context
from tests.gateway.harness import Serving, serving
from tests.origin import Answer, Drop, Origin, Raw
from tests.tools import MIB, rss_bytes

MANIFEST = """
tools:
  talk:
    upstream: http://127.0.0.1:PORT
    websocket: true
    operations:
      spend: {match: GET /spend, tier: pivot}
  brief: {upstream: 'http://127.0.0.1:PORT', websocket: {idle: 200ms, origins: ['https://app.example']}}
  shut: {upstream: 'http://127.0.0.1:PORT', websocket: false}
  quiet: {upstream: 'http://127.0.0.1:PORT'}
"""

Handler = Callable[[ServerConnection], Awaitable[None]]


async def echo(socket: ServerConnection) -> None:
    async for message in socket:
        await socket.send(message)


@asynccontextmanager
async def talking(
    folder: Path,
    handler: Handler = echo,
    text: str = MANIFEST,
    *,
    server: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Serving, Server]]:
    async with serve(handler, "127.0.0.1", 0, **(server or {})) as tool:
        port = next(iter(tool.sockets)).getsockname()[1]
        async with serving(folder, port, text, **settings) as running:
            yield running, tool


def url(running: Serving, path: str = "/talk/x") -> str:
    return f"ws://127.0.0.1:{running.agent.port}{path}"


def agent(running: Serving, path: str = "/talk/x", **options: Any) -> connect:
    return connect(url(running, path), proxy=None, **options)


async def closed(socket: ClientConnection | ServerConnection) -> tuple[int, str]:
    """Wait for the end of a socket and return its code and reason."""
    async with asyncio.timeout(20):
        await socket.wait_closed()
    return socket.close_code or 0, socket.close_reason or ""


async def test_messages_of_every_kind_pass_both_ways(tmp_path: Path) -> None:
    async with talking(tmp_path, server={"max_size": None}) as (running, _), agent(running, max_size=None) as socket:
        for message in ("text é", b"\0\xff", "", b"x" * 125, b"x" * 126, b"x" * 65_536, b"y" * (4 * MIB)):
            await socket.send(message)
            assert await socket.recv() == message
        await socket.send(["in ", "three ", "frames"])
        assert await socket.recv() == "in three frames"
        assert await (await socket.ping(b"probe")) >= 0


async def test_what_the_two_agree_on_is_their_own_affair(tmp_path: Path) -> None:
    """Subprotocol, compression and fields of the handshake; the agent's fields obey the tool's lists like any others."""
    seen: list[ServerConnection] = []

    async def note(socket: ServerConnection) -> None:
        seen.append(socket)
        await echo(socket)

    async with talking(tmp_path, note, server={"subprotocols": ["v2"]}) as (running, _):
        async with agent(running, "/talk/x?q=1", subprotocols=["v1", "v2"], additional_headers={"X-A": "1"}) as socket:
            assert socket.subprotocol == "v2"
            assert [one.name for one in socket.protocol.extensions] == ["permessage-deflate"]
            await socket.send("a" * 1000)
            assert await socket.recv() == "a" * 1000
        request = seen[0].request
        assert request is not None
        assert (request.path, request.headers["X-A"]) == ("/x?q=1", "1")
        assert request.headers["Via"].startswith("1.1 seawall-")
        assert request.headers["Host"] == f"127.0.0.1:{running.gateway.catalog().tools['talk'].upstream.port}"


COMPRESSIONS = {
    "as it comes": ClientPerMessageDeflateFactory(),
    "small windows": ClientPerMessageDeflateFactory(server_max_window_bits=9, client_max_window_bits=10),
    "no memory": ClientPerMessageDeflateFactory(server_no_context_takeover=True, client_no_context_takeover=True),
}


@pytest.mark.parametrize("compression", sorted(COMPRESSIONS))
@pytest.mark.parametrize("library", ["websockets", "aiohttp"])
async def test_compression_is_agreed_on_as_without_the_gateway(tmp_path: Path, library: str, compression: str) -> None:
    """RFC 7692: what is offered and what is taken up pass as they are, and so do the frames that are compressed by it."""
    seen: list[str | None] = []
    server = websockets_echo(seen) if library == "websockets" else aiohttp_echo(seen)
    async with server as port, serving(tmp_path, port, MANIFEST) as running:
        agreed = []
        for address in (f"ws://127.0.0.1:{port}/x", url(running)):
            async with connect(address, extensions=[COMPRESSIONS[compression]], compression=None) as socket:
                assert socket.response is not None
                agreed.append(socket.response.headers.get("Sec-WebSocket-Extensions"))
                for text in ("a" * 50_000, "abc" * 5_000, "a" * 50_000):
                    await socket.send(text)
                    assert await socket.recv() == text
    assert agreed[0] is not None
    assert agreed[0] == agreed[1]
    assert seen[0] is not None
    assert seen[0] == seen[1]


@asynccontextmanager
async def websockets_echo(seen: list[str | None]) -> AsyncIterator[int]:
    async def note(socket: ServerConnection) -> None:
        assert socket.request is not None
        seen.append(socket.request.headers.get("Sec-WebSocket-Extensions"))
        await echo(socket)

    async with serve(note, "127.0.0.1", 0) as server:
        yield next(iter(server.sockets)).getsockname()[1]


@asynccontextmanager
async def aiohttp_echo(seen: list[str | None]) -> AsyncIterator[int]:
    async def note(request: web.Request) -> web.WebSocketResponse:
        seen.append(request.headers.get("Sec-WebSocket-Extensions"))
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data)
        return socket

    application = web.Application()
    application.router.add_get("/x", note)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


@pytest.mark.parametrize("who", ["agent", "tool"])
async def test_a_closing_code_and_reason_reach_the_other_end(tmp_path: Path, who: str) -> None:
    heard: asyncio.Queue[tuple[int, str]] = asyncio.Queue()

    async def handler(socket: ServerConnection) -> None:
        if who == "tool":
            await socket.close(4321, "enough")
        heard.put_nowait(await closed(socket))

    async with talking(tmp_path, handler) as (running, _), agent(running) as socket:
        if who == "agent":
            await socket.close(4321, "enough")
        assert await closed(socket) == (4321, "enough")
        assert await heard.get() == (4321, "enough")


@pytest.mark.parametrize("who", ["agent", "tool"])
async def test_an_end_that_breaks_off_is_seen_at_the_other(tmp_path: Path, who: str) -> None:
    heard: asyncio.Queue[tuple[int, str]] = asyncio.Queue()

    async def handler(socket: ServerConnection) -> None:
        if who == "tool":
            socket.transport.abort()
        heard.put_nowait(await closed(socket))

    async with talking(tmp_path, handler) as (running, _), agent(running) as socket:
        if who == "agent":
            socket.transport.abort()
        assert (await closed(socket))[0] == 1006
        assert (await heard.get())[0] == 1006
        await gone(running)


async def gone(running: Serving) -> None:
    async with asyncio.timeout(20):
        while (await status(running))["websockets"]:
            await asyncio.sleep(0.01)


async def status(running: Serving) -> Any:
    return (await running.operator.send("GET", "/api/v1/status")).json


async def test_a_socket_holds_a_slot_of_its_domain_until_it_is_over(tmp_path: Path) -> None:
    text = "domains: {one: {concurrency: 1, queue: 0, when_full: refuse}}\n" + MANIFEST.replace(
        "    websocket: true", "    websocket: true\n    domain: one"
    )
    async with talking(tmp_path, text=text) as (running, _):
        async with agent(running):
            assert (await status(running))["websockets"] == 1
            with pytest.raises(InvalidStatus) as refused:
                await agent(running)
            assert refused.value.response.status_code == 503
            assert b"ERR_BULKHEAD_FULL" in (refused.value.response.body or b"")
        await gone(running)
        async with agent(running) as socket:
            await socket.send("again")
            assert await socket.recv() == "again"


async def test_a_tool_that_fails_its_handshakes_is_left_alone(tmp_path: Path) -> None:
    breaker = "{consecutive: 2, minimum: 2, cooldown: 1h, max_cooldown: 1h}"
    more = f"websocket: true, retry: {{attempts: 1}}, breaker: {breaker}"
    text = f"tools: {{talk: {{upstream: 'http://127.0.0.1:PORT', {more}}}}}"
    async with Origin() as origin, serving(tmp_path, origin.port, text) as running:
        origin.default = Drop()
        codes = []
        for _ in range(3):
            with pytest.raises(InvalidStatus) as refused:
                await agent(running)
            codes.append(refused.value.response.status_code)
        assert codes == [502, 502, 503]
        assert len(origin.requests) == 2


async def test_a_no_of_the_tool_comes_back_as_it_is(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST) as running:
        origin.default = Answer(401, b"who are you?", ((b"WWW-Authenticate", b"Tool"),))
        with pytest.raises(InvalidStatus) as refused:
            await agent(running)
        response = refused.value.response
        assert (response.status_code, response.body) == (401, b"who are you?")
        assert response.headers["WWW-Authenticate"] == "Tool"
        [request] = origin.requests
        assert request.values(b"connection") == [b"Upgrade"]
        assert request.values(b"upgrade") == [b"websocket"]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n",
    ],
)
async def test_a_tool_that_switches_to_something_else_is_a_broken_answer(tmp_path: Path, answer: bytes) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST) as running:
        origin.default = Raw(answer)
        with pytest.raises(InvalidStatus) as refused:
            await agent(running)
        assert refused.value.response.status_code == 502


HANDSHAKE = (
    b"GET %b HTTP/1.1\r\nHost: g\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n%b\r\n"
)


async def raw(running: Serving, data: bytes) -> bytes:
    reader, writer = await running.agent.open()
    writer.write(data)
    try:
        async with asyncio.timeout(20):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (HANDSHAKE % (b"/quiet/x", b""), 501),
        (HANDSHAKE % (b"/shut/x", b""), 501),
        (HANDSHAKE % (b"/nowhere/x", b""), 404),
        (HANDSHAKE % (b"/talk/spend", b""), 422),
        (HANDSHAKE % (b"/talk/x", b"Origin: https://evil.example\r\n"), 403),
        (HANDSHAKE % (b"/brief/x", b"Origin: https://evil.example\r\n"), 403),
        ((HANDSHAKE % (b"/talk/x", b"")).replace(b"Version: 13", b"Version: 8"), 426),
        ((HANDSHAKE % (b"/talk/x", b"")).replace(b"GET", b"POST"), 400),
        ((HANDSHAKE % (b"/talk/x", b"")).replace(b"dGhl", b"aGhl aGhl"), 400),
        ((HANDSHAKE % (b"/talk/x", b"")).replace(b"HTTP/1.1", b"HTTP/1.0"), 400),
        ((HANDSHAKE % (b"/talk/x", b"Content-Length: 2\r\n")) + b"hi", 400),
    ],
)
async def test_what_is_refused_reaches_no_tool_and_what_follows_is_never_http(
    tmp_path: Path, data: bytes, status: int
) -> None:
    """A client that goes on in frames, or smuggles a request behind a handshake that it knows will fail."""
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST) as running:
        answer = await raw(running, data + b"GET /quiet/smuggled HTTP/1.1\r\nHost: g\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer
        assert answer.count(b"HTTP/1.1 ") == 1
        assert (b"Sec-WebSocket-Version: 13" in answer) is (status == 426)
        assert origin.requests == []


async def test_a_page_that_is_listed_may_open_one(tmp_path: Path) -> None:
    async with talking(tmp_path) as (running, _), agent(running, "/brief/x", origin="https://app.example") as socket:
        await socket.send("hello")
        assert await socket.recv() == "hello"


async def test_a_gateway_that_is_stopped_closes_its_sockets_and_says_so(tmp_path: Path) -> None:
    heard: asyncio.Queue[tuple[int, str]] = asyncio.Queue()

    async def handler(socket: ServerConnection) -> None:
        heard.put_nowait(await closed(socket))

    async with talking(tmp_path, handler, drain=10.0) as (running, _), agent(running) as socket:
        began = asyncio.get_running_loop().time()
        await running.gateway.stop()
        assert asyncio.get_running_loop().time() - began < 5
        assert await closed(socket) == (1001, "the gateway is shutting down")
        assert await heard.get() == (1001, "the gateway is shutting down")


async def test_a_closing_frame_waits_for_the_frame_that_is_under_way(tmp_path: Path) -> None:
    """The tool has sent half of a frame: what the gateway says to the agent must not land in the middle of it."""
    frame = Frame(Opcode.TEXT, b"a message in two pieces").serialize(mask=False)
    told: asyncio.Queue[bytes] = asyncio.Queue()

    async def tool(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        key = head.partition(b"Sec-WebSocket-Key: ")[2].partition(b"\r\n")[0]
        answer = b"HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %b\r\n\r\n"
        writer.write(answer % accept_for(key) + frame[:7])
        told.put_nowait(await reader.readexactly(2))
        writer.write(frame[7:])
        await reader.read()
        writer.close()

    server = await asyncio.start_server(tool, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with serving(tmp_path, port, MANIFEST, drain=10.0) as running, agent(running) as socket:
        while running.gateway._websockets.statistics()["websockets"] == 0:
            await asyncio.sleep(0)
        stopping = asyncio.create_task(running.gateway.stop())
        assert await socket.recv() == "a message in two pieces"
        assert await closed(socket) == (1001, "the gateway is shutting down")
        assert (await told.get())[0] == 0x88
        await stopping
    server.close()


async def test_a_silent_socket_is_closed_and_a_busy_one_is_not(tmp_path: Path) -> None:
    async with (
        talking(tmp_path) as (running, _),
        agent(running, "/brief/x", ping_interval=0.05) as busy,
        agent(running, "/brief/x") as silent,
    ):
        assert await closed(silent) == (1001, "nothing has passed for 0.2 s")
        await busy.send("still here")
        assert await busy.recv() == "still here"


async def test_a_revoked_token_ends_its_sockets_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    file = TokenFile(path)
    ana, bob = (file.issue(Scope.AGENT, name, 0)[0] for name in ("ana", "bob"))
    async with talking(tmp_path, tokens=str(path)) as (running, _):
        with pytest.raises(InvalidStatus) as refused:
            await agent(running)
        assert refused.value.response.status_code == 401
        async with (
            agent(running, additional_headers={"Seawall-Agent-Token": ana}) as one,
            agent(running, additional_headers={"Seawall-Agent-Token": bob}) as other,
        ):
            await one.send("hello")
            assert await one.recv() == "hello"
            file.revoke("ana", 1)
            assert await closed(one) == (1008, "the token is revoked or has expired")
            await other.send("still here")
            assert await other.recv() == "still here"


async def test_a_reader_that_stops_costs_bounded_memory(tmp_path: Path) -> None:
    sent = 0

    async def flood(socket: ServerConnection) -> None:
        nonlocal sent
        while True:
            await socket.send(b"x" * MIB)
            sent += 1

    async with talking(tmp_path, flood, server={"compression": None}) as (running, _):
        before = rss_bytes()
        reader, writer = await running.agent.open()
        writer.write(HANDSHAKE % (b"/talk/x", b""))
        await reader.readuntil(b"\r\n\r\n")
        previous = -1
        while sent != previous:
            previous = sent
            await asyncio.sleep(0.2)
        assert sent < 32
        assert rss_bytes() - before < 40 * MIB
        writer.transport.abort()
        await gone(running)


async def test_frames_that_come_with_the_handshake_are_not_lost(tmp_path: Path) -> None:
    """Neither those of an agent that does not wait nor those in the tool's own first packet."""

    async def greet(socket: ServerConnection) -> None:
        await socket.send("welcome")
        await echo(socket)

    frame = Frame(Opcode.TEXT, b"early").serialize(mask=True)
    async with talking(tmp_path, greet, server={"compression": None}) as (running, _):
        reader, writer = await running.agent.open()
        writer.write(HANDSHAKE % (b"/talk/x", b"") + frame[:3])
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
        writer.write(frame[3:])
        expected = b"".join(Frame(Opcode.TEXT, text).serialize(mask=False) for text in (b"welcome", b"early"))
        assert await reader.readexactly(len(expected)) == expected
        writer.close()


async def test_a_tool_behind_tls_is_reached(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    (tmp_path / "ca.pem").write_bytes(issuer.ca.read_bytes())
    text = "tools: {talk: {upstream: 'https://127.0.0.1:PORT', tls: {ca: ca.pem}, websocket: true}}"
    tls = server_context(issuer.issue("127.0.0.1"))
    async with talking(tmp_path, text=text, server={"ssl": tls}) as (running, _), agent(running) as socket:
        await socket.send("over TLS")
        assert await socket.recv() == "over TLS"


async def test_a_client_that_takes_the_gateway_for_its_proxy_gets_one_too(tmp_path: Path) -> None:
    """With the whole URL, as clients write it for a proxy of plain HTTP; the tool is found by its host."""
    async with talking(tmp_path, text="tools: {talk: {upstream: 'http://127.0.0.1:PORT', websocket: true}}") as (
        running,
        tool,
    ):
        port = next(iter(tool.sockets)).getsockname()[1]
        reader, writer = await running.agent.open()
        writer.write(HANDSHAKE % (b"http://127.0.0.1:%d/x" % port, b""))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        writer.write(Frame(Opcode.TEXT, b"hello").serialize(mask=True))
        assert await reader.readexactly(7) == Frame(Opcode.TEXT, b"hello").serialize(mask=False)
        writer.close()


async def test_a_tool_behind_a_socket_is_reached(tmp_path: Path) -> None:
    path = tmp_path / "t.sock"
    async with unix_serve(echo, str(path)):
        text = f"tools: {{talk: {{upstream: 'unix:{path}', websocket: true}}}}"
        async with serving(tmp_path, 1, text) as running, agent(running) as socket:
            await socket.send("over a socket")
            assert await socket.recv() == "over a socket"


async def test_many_at_once_stay_apart(tmp_path: Path) -> None:
    text = MANIFEST.replace("    websocket: true", "    websocket: true\n    domain: wide")
    async with talking(tmp_path, text="domains: {wide: {concurrency: 100}}\n" + text) as (running, _):

        async def one(number: int) -> None:
            async with agent(running) as socket:
                for turn in range(20):
                    await socket.send(f"{number}/{turn}")
                    assert await socket.recv() == f"{number}/{turn}"

        await asyncio.gather(*(one(number) for number in range(50)))
        await gone(running)
