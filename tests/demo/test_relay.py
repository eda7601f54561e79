"""The link must break for real and see only what it may see."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from gateway.demo.relay import Relay, Sight

ANSWER = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok"
REQUEST = (
    b"POST /v1/holds HTTP/1.1\r\nHost: tool\r\nAuthorization: Bearer sk_live_secret\r\n"
    b"Idempotency-Key: key-1\r\nContent-Length: 4\r\n\r\nbody"
)


class Tool:
    """A tool on a raw socket: answers each head that arrives, and keeps what it received."""

    def __init__(self) -> None:
        self.received = b""
        self.connections = 0
        self.server: asyncio.Server | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while chunk := await reader.read(65536):
                self.received += chunk
                writer.write(ANSWER)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


@pytest_asyncio.fixture
async def tool() -> AsyncIterator[Tool]:
    tool = Tool()
    tool.server = await asyncio.start_server(tool.serve, "127.0.0.1", 0)
    yield tool
    tool.server.close()
    await tool.server.wait_closed()


Linked = tuple[Relay, list[Sight]]


@pytest_asyncio.fixture
async def link(tool: Tool) -> AsyncIterator[Linked]:
    assert tool.server is not None
    sights: list[Sight] = []
    relay = Relay("payments", tool.server.sockets[0].getsockname()[1], sights.append)
    await relay.start()
    yield relay, sights
    await relay.close()


async def exchange(port: int, request: bytes = REQUEST) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await answer_from(reader)
    finally:
        writer.close()


async def answer_from(reader: asyncio.StreamReader) -> bytes:
    """A reset and a close without an answer are the same to a client; which one shows is the kernel's choice."""
    if not (answer := await reader.read(65536)):
        raise ConnectionResetError
    return answer


async def test_what_passes_arrives_unchanged_and_is_witnessed_with_its_key(link: Linked, tool: Tool) -> None:
    """The demo's proof of the injected key is what arrived at the tool, not what the gateway says it sent."""
    relay, sights = link
    assert await exchange(relay.port) == ANSWER
    assert tool.received == REQUEST
    assert [(s.what, s.method, s.path, s.status, s.key) for s in sights] == [
        ("request", "POST", "/v1/holds", 0, "key-1"),
        ("answer", "POST", "/v1/holds", 201, "key-1"),
    ]


async def test_a_sight_holds_no_credential_and_no_body(link: Linked) -> None:
    """The gateway's credentials pass here; none may reach a screen."""
    relay, sights = link
    await exchange(relay.port)
    assert "sk_live_secret" not in repr(sights)
    assert "body" not in repr(sights)


async def test_a_second_request_on_the_same_connection_is_seen_too(link: Linked) -> None:
    """The gateway keeps connections open between calls."""
    relay, sights = link
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    for path in (b"/one", b"/two"):
        writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: tool\r\n\r\n")
        assert await reader.readexactly(len(ANSWER)) == ANSWER
    writer.close()
    assert [(s.what, s.path) for s in sights] == [
        ("request", "/one"), ("answer", "/one"), ("request", "/two"), ("answer", "/two"),
    ]  # fmt: skip


async def test_a_head_that_comes_in_pieces_is_read_whole(link: Linked) -> None:
    """TCP promises no boundaries."""
    relay, sights = link
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    for piece in (REQUEST[:30], REQUEST[30:90], REQUEST[90:]):
        writer.write(piece)
        await writer.drain()
        await reader.read(65536)
    writer.close()
    assert sights[0] == Sight(tool="payments", what="request", method="POST", path="/v1/holds", key="key-1")
    assert sum(sight.what == "request" for sight in sights) == 1


async def test_down_refuses_new_connections_and_breaks_those_that_exist(link: Linked, tool: Tool) -> None:
    """An outage is an outage: the kernel refuses, the tool hears nothing."""
    relay, sights = link
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    writer.write(REQUEST)
    await reader.readexactly(len(ANSWER))
    await relay.down()
    with pytest.raises(ConnectionError):
        await answer_from(reader)
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await exchange(relay.port)
    assert tool.connections == 1
    assert sights[-1].what == "down"
    assert not relay.is_up


async def test_up_again_listens_on_the_same_port(link: Linked) -> None:
    """The gateway's manifest names the port once."""
    relay, sights = link
    port = relay.port
    await relay.down()
    await relay.up()
    assert relay.port == port
    assert await exchange(port) == ANSWER
    assert [sight.what for sight in sights] == ["down", "up", "request", "answer"]


async def test_a_cut_breaks_exactly_the_next_connection_and_the_tool_never_hears_of_it(
    link: Linked, tool: Tool
) -> None:
    """One retry must be enough to heal it, and the tool's ledger must not count the first attempt."""
    relay, sights = link
    relay.cut_next()
    with pytest.raises(ConnectionError):
        await exchange(relay.port)
    assert tool.connections == 0
    assert sights == [Sight(tool="payments", what="cut", method="POST", path="/v1/holds")]
    assert await exchange(relay.port) == ANSWER


async def test_a_tool_that_is_not_there_shows_as_a_closed_connection(unused_tcp_port: int) -> None:
    """No answer is made up for a dead tool."""
    relay = Relay("payments", unused_tcp_port, lambda sight: None)
    await relay.start()
    try:
        with pytest.raises(ConnectionError):
            await exchange(relay.port)
    finally:
        await relay.close()


@pytest.mark.parametrize("ending", [Relay.close, Relay.down])
async def test_close_and_down_may_be_called_again(link: Linked, ending: Callable[[Relay], Awaitable[None]]) -> None:
    """Everything is closed on every way out, some of it twice."""
    relay, _ = link
    await ending(relay)
    await ending(relay)
    assert not relay.is_up
