"""Raw agents, and a front for them to talk to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gateway.ingress.http import Handler, HttpFront, IncomingRequest, OutgoingResponse

GET = b"GET /tool/x HTTP/1.1\r\nHost: g\r\n\r\n"


@asynccontextmanager
async def serving(handler: Handler, **settings: float) -> AsyncIterator[tuple[HttpFront, int]]:
    front = HttpFront(handler, **settings)  # type: ignore[arg-type]
    port = await front.listen("127.0.0.1", 0)
    try:
        yield front, port
    finally:
        await front.close()


class Agent:
    """A raw connection to the front."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def rest(self) -> bytes:
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b"<reset>"


@asynccontextmanager
async def agent(port: int) -> AsyncIterator[Agent]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Agent(reader, writer)
    finally:
        writer.close()


def always(response: Callable[[], OutgoingResponse]) -> Handler:
    async def handler(request: IncomingRequest) -> OutgoingResponse:
        return response()

    return handler


async def exchange(port: int, request: bytes) -> bytes:
    """Send, ask for the connection to be closed, and return all that comes."""
    async with agent(port) as one:
        one.send(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
        return await one.rest()
