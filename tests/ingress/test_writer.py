"""However an answer ends, the agent can see it, and so can we."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from gateway.core.message import BytesBody
from gateway.egress import StreamBroken
from gateway.ingress.http import OutgoingResponse
from tests.agent import GET, agent, always, serving
from tests.origin import pattern
from tests.tools import MIB, SOON, Stream


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize("size", [None, 10])
async def test_a_body_that_breaks_looks_broken_to_the_agent(version: bytes, size: int | None) -> None:
    """A clean end would turn half an answer into a whole one."""

    async def breaks() -> AsyncIterator[bytes]:
        yield b"half"
        raise StreamBroken("the tool reset the connection")

    delivered: list[bool] = []
    answer = OutgoingResponse(status=200, body=Stream(breaks(), size), on_delivered=lambda: delivered.append(True))
    async with serving(always(lambda: answer)) as (_, port), agent(port) as one:
        one.send(b"GET / HTTP/%b\r\nHost: g\r\n\r\n" % version)
        rest = await one.rest()
    assert not rest.endswith(b"0\r\n\r\n")
    if version == b"1.0" and size is None:
        assert rest == b"<reset>"
    assert delivered == []


@pytest.mark.parametrize("size", [3, 5])
async def test_a_body_of_another_length_than_it_said_looks_broken(size: int) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"four"

    answer = OutgoingResponse(status=200, body=Stream(body(), size))
    async with serving(always(lambda: answer)) as (_, port), agent(port) as one:
        one.send(GET)
        rest = await one.rest()
    assert len(rest.partition(b"\r\n\r\n")[2]) != size


async def test_a_bug_in_the_middle_of_an_answer_breaks_it_off() -> None:
    """A second head inside the first body would be read as its content."""

    async def buggy() -> AsyncIterator[bytes]:
        yield b"half"
        raise LookupError("a bug")

    answer = OutgoingResponse(status=200, body=Stream(buggy(), 1000))
    async with serving(always(lambda: answer)) as (_, port), agent(port) as one:
        one.send(GET)
        assert b"500" not in await one.rest()


async def test_delivered_is_said_once_the_last_byte_is_out() -> None:
    delivered = asyncio.Event()
    size = 8 * MIB
    answer = OutgoingResponse(status=200, body=Stream(pattern(size), size), on_delivered=delivered.set)
    async with serving(always(lambda: answer)) as (_, port), agent(port) as one:
        one.send(GET)
        await one.head()
        await asyncio.sleep(SOON)
        assert not delivered.is_set()
        left = size
        while left:
            left -= len(await one.reader.read(MIB))
        await delivered.wait()


async def test_an_answer_the_agent_did_not_take_was_not_delivered() -> None:
    delivered: list[bool] = []
    released = asyncio.Event()

    async def release() -> None:
        released.set()

    answer = OutgoingResponse(
        status=200,
        body=BytesBody(bytes(32 * MIB)),
        on_delivered=lambda: delivered.append(True),
        release=release,
    )
    async with serving(always(lambda: answer)) as (_, port), agent(port) as one:
        one.send(GET)
        await one.head()
        one.writer.transport.abort()
        await released.wait()
    assert delivered == []


async def test_a_stalled_reader_costs_bounded_memory_and_time() -> None:
    released = asyncio.Event()
    sent = 0

    async def counted() -> AsyncIterator[bytes]:
        nonlocal sent
        async for data in pattern(64 * MIB):
            sent += len(data)
            yield data

    async def release() -> None:
        released.set()

    answer = OutgoingResponse(status=200, body=Stream(counted()), release=release)
    async with serving(always(lambda: answer), stalled_s=4 * SOON) as (_, port):
        with socket.create_connection(("127.0.0.1", port)) as stalled:
            stalled.sendall(GET)
            await released.wait()
            assert sent < 16 * MIB
