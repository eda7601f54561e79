"""What aiohttp does on its own is switched off, and stays so when aiohttp changes."""

import asyncio
import os

import aiohttp
import pytest
from yarl import URL

from gateway.core.codes import Dispatched
from gateway.core.fault import Broken, Fault
from gateway.core.message import Request
from gateway.egress import Egress
from gateway.egress.client import ClientEgress
from gateway.egress.wire import Attempt, WireRequest
from tests.origin import Answer, Drop, Exchange, Origin
from tests.tools import LONG, answered, broken, get, make_tool, post, read


async def test_the_private_switch_against_second_sendings_still_exists(client: ClientEgress) -> None:
    """If aiohttp renames it, this fails before money is sent twice."""
    assert client._session._retry_connection is False
    async with aiohttp.ClientSession() as plain:
        assert plain._retry_connection is True


async def test_no_timer_of_aiohttp_rounds(client: ClientEgress) -> None:
    """By default each timer above five seconds is rounded up to a whole second."""
    timeout = client._timeout(LONG)
    assert (timeout.total, timeout.sock_read, timeout.connect) == (None, None, LONG.connect_s)
    assert timeout.ceil_threshold == 1e9
    assert client._session.connector is not None
    assert client._session.connector._timeout_ceil_threshold == 1e9


@pytest.mark.parametrize(
    "stray", [b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nPOISON", b"HTTP/1.1 200 OK\r\nX: ", b"?"]
)
@pytest.mark.parametrize("is_late", [True, False])
async def test_an_answer_nobody_asked_for_answers_no_other_call(
    origin: Origin, egress: Egress, stray: bytes, is_late: bool
) -> None:
    """aio-libs/aiohttp#13656: bytes waiting on an idle connection became the next caller's answer."""
    hold = asyncio.Event()
    origin.on("/x", Answer(200, b"first", after=stray, after_hold=hold if is_late else None), Answer(200, b"second"))
    tool = make_tool("127.0.0.1", origin.port)
    first = await egress.send(tool, post(), LONG)
    assert isinstance(first, Broken) or await read(first) == b"first"
    hold.set()
    await origin.wait(lambda: origin.requests[0].is_answered)
    assert await read(answered(await egress.send(tool, post(), LONG))) == b"second"
    assert origin.connections == 2


async def test_stray_bytes_that_the_loop_has_not_seen_yet_are_seen_too(origin: Origin, egress: Egress) -> None:
    """Between the bytes' arrival and the loop's next turn only the kernel knows of them."""
    tool = make_tool("127.0.0.1", origin.port)
    connections: list[asyncio.StreamWriter] = []

    async def remember(exchange: Exchange) -> None:
        connections.append(exchange.writer)
        await exchange.answer(200, b"first")

    origin.default = remember
    await read(answered(await egress.send(tool, post(), LONG)))
    origin.default = Answer(200, b"second")
    stray = connections[0].get_extra_info("socket")
    os.write(stray.fileno(), b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nPOISON")
    assert await read(answered(await egress.send(tool, post(), LONG))) == b"second"
    assert origin.connections == 2


async def test_a_kept_connection_that_the_tool_closed_is_not_used(origin: Origin, egress: Egress) -> None:
    """Otherwise each such write would be in doubt."""
    origin.on("/x", Answer(200, b"first", ending="close"), Answer(200, b"second"))
    tool = make_tool("127.0.0.1", origin.port)
    await read(answered(await egress.send(tool, post(), LONG)))
    await origin.requests[0].gone.wait()
    assert await read(answered(await egress.send(tool, post(), LONG))) == b"second"


async def test_a_fresh_connection_can_be_demanded(origin: Origin, egress: Egress) -> None:
    tool = make_tool("127.0.0.1", origin.port)
    await read(answered(await egress.send(tool, post(), LONG)))
    pivot = post()
    pivot.fresh_connection = True
    await read(answered(await egress.send(tool, pivot, LONG)))
    assert [one.connection for one in origin.requests] == [1, 2]
    for _ in range(3):
        await read(answered(await egress.send(tool, post(), LONG)))
    assert origin.connections == 2


@pytest.fixture
def traced(client: ClientEgress) -> ClientEgress:
    """An egress under aiohttp's instrumentation, which goes through the session's own request method."""
    config = aiohttp.TraceConfig()
    config.freeze()
    client._session.trace_configs.append(config)
    return client


async def test_traces_change_nothing_on_the_wire(origin: Origin, traced: ClientEgress) -> None:
    tool = make_tool("127.0.0.1", origin.port)
    headers = ((b"x-a", b"1"), (b"X-A", b"caf\xe9"))
    await read(answered(await traced.send(tool, post(b"{}", headers, b"/a%2Fb?x=%zz"), LONG)))
    expected = b"POST /a%%2Fb?x=%%zz HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nx-a: 1\r\nX-A: caf\xe9\r\n" % origin.port
    assert origin.requests[0].head == expected + b"Content-Length: 2\r\n\r\n"


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST"])
async def test_traces_do_not_bring_second_sendings_back(origin: Origin, traced: ClientEgress, method: str) -> None:
    tool = make_tool("127.0.0.1", origin.port)
    await read(answered(await traced.send(tool, get(), LONG)))
    origin.default = Drop(applies=True)
    outcome = await traced.send(tool, Request(method, b"/x", ()), LONG)
    assert broken(outcome) == (Fault.RESET, Dispatched.MAYBE)
    assert origin.ledger.total == 1


async def test_an_attempt_is_sent_once_whatever_the_session_does(origin: Origin, traced: ClientEgress) -> None:
    """The second line of defence, should the private switch ever lose its effect."""
    tool = make_tool("127.0.0.1", origin.port)
    traced._session._retry_connection = True
    await read(answered(await traced.send(tool, get(), LONG)))
    origin.on("PUT /x", Drop(applies=True))
    with pytest.raises(RuntimeError, match="sent once"):
        await traced.send(tool, Request("PUT", b"/x", ()), LONG)
    assert len(origin.requests) == 2


async def test_a_spent_attempt_makes_no_request() -> None:
    attempt = Attempt(b"GET / HTTP/1.1\r\n\r\n", None, first_byte_s=1, total_s=1)
    attempt.is_sent = True
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession() as session:
        with pytest.raises(RuntimeError, match="sent once"):
            WireRequest("GET", URL("http://127.0.0.1"), data=attempt, loop=loop, session=session)
