"""Addresses are judged when they are connected to, and connections are kept no longer than they are good for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from gateway.core.codes import Dispatched
from gateway.core.fault import Broken, Fault
from gateway.core.reach import Reach
from gateway.egress.direct import DirectEgress
from gateway.egress.spool import Spool
from tests.origin import Answer, Hang, Origin
from tests.tools import LONG, SOON, answered, broken, get, make_tool, post, read


class Names:
    """A name server that leads every name to the given addresses."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)
        self.asked = 0

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked += 1
        await asyncio.sleep(0)
        if not self.addresses:
            raise socket.gaierror
        return self.addresses


@pytest.fixture
def names() -> Names:
    return Names("127.0.0.1")


@pytest.fixture
async def named(spool: Spool, names: Names) -> AsyncIterator[DirectEgress]:
    egress = DirectEgress(spool, keepalive_s=SOON, resolve=names)
    yield egress
    await egress.close()


async def test_a_public_name_that_leads_home_is_not_followed(origin: Origin, named: DirectEgress) -> None:
    """Whoever owns the name would be handed the tool's credential by our own machine."""
    outcome = await named.send(make_tool("api.example.com", origin.port), post(), LONG)
    assert broken(outcome) == (Fault.CONNECT, Dispatched.NO)
    assert isinstance(outcome, Broken)
    assert "setting reach" in outcome.detail
    assert origin.connections == 0


async def test_the_manifest_may_allow_it(origin: Origin, named: DirectEgress) -> None:
    tool = make_tool("api.example.com", origin.port, reach=Reach.PRIVATE)
    assert await read(answered(await named.send(tool, get(), LONG))) == await read(
        answered(await named.send(make_tool("payments", origin.port), get(), LONG))
    )


async def test_metadata_is_not_connected_to_even_at_an_internal_name(
    origin: Origin, named: DirectEgress, names: Names
) -> None:
    names.addresses = ["169.254.169.254", "::ffff:169.254.169.254"]
    outcome = await named.send(make_tool("metadata.google.internal", 80), get(), LONG)
    assert broken(outcome) == (Fault.CONNECT, Dispatched.NO)


async def test_the_next_address_is_tried_where_one_refuses(origin: Origin, named: DirectEgress, names: Names) -> None:
    names.addresses = ["127.0.0.2", "127.0.0.1"]
    answered(await named.send(make_tool("tool", origin.port), get(), LONG))
    assert origin.connections == 1


async def test_a_name_is_looked_up_once_for_all_who_wait(origin: Origin, named: DirectEgress, names: Names) -> None:
    tool = make_tool("tool", origin.port)
    replies = await asyncio.gather(*(named.send(tool, get(), LONG) for _ in range(20)))
    for reply in replies:
        await answered(reply).aclose()
    assert names.asked == 1


async def test_a_name_that_leads_nowhere_is_looked_up_again(origin: Origin, named: DirectEgress, names: Names) -> None:
    names.addresses = []
    tool = make_tool("tool", origin.port)
    assert broken(await named.send(tool, get(), LONG)) == (Fault.CONNECT, Dispatched.NO)
    names.addresses = ["127.0.0.1"]
    answered(await named.send(tool, get(), LONG))


async def test_an_idle_connection_is_closed_before_the_tool_would(origin: Origin, named: DirectEgress) -> None:
    await read(answered(await named.send(make_tool("tool", origin.port), get(), LONG)))
    await origin.requests[0].gone.wait()
    (pool,) = named._pools.values()
    while pool.idle:
        await asyncio.sleep(0)


async def test_closing_closes_what_is_idle_and_what_comes_back(origin: Origin, named: DirectEgress) -> None:
    origin.default = Answer(200, b"x" * 100_000)
    tool = make_tool("tool", origin.port)
    reply = answered(await named.send(tool, get(), LONG))
    await named.close()
    assert len(await read(reply)) == 100_000
    await origin.requests[0].gone.wait()


async def test_a_tool_that_hangs_up_at_once_is_no_bug_of_ours(named: DirectEgress) -> None:
    """It may do so between the connection's making and its first use."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    tool = make_tool("tool", server.sockets[0].getsockname()[1])
    for _ in range(20):
        fault, dispatched = broken(await named.send(tool, post(), LONG))
        assert (fault, dispatched) in ((Fault.CONNECT, Dispatched.NO), (Fault.RESET, Dispatched.MAYBE))
    server.close()


async def test_cancelling_while_a_connection_is_made_leaves_nothing_behind(
    origin: Origin, named: DirectEgress, names: Names
) -> None:
    origin.default = Hang()
    for steps in range(12):
        task = asyncio.create_task(named.send(make_tool("tool", origin.port), post(), LONG))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    for request in origin.requests:
        await request.gone.wait()
    (pool,) = named._pools.values()
    assert pool.idle == 0


async def test_a_tool_that_moves_leaves_no_pool_behind(origin: Origin, named: DirectEgress) -> None:
    """Hosts outside the manifest are one tool that moves with every call: they would add up for ever."""
    for number in range(5):
        moved = make_tool(f"h{number}.test", origin.port)
        reply = answered(await named.send(moved, get(), LONG))
        assert reply.status == 200
        await reply.aclose()
    assert len(named._pools) == 1
