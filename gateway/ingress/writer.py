"""Writing an answer to an agent's connection, with backpressure, and breaking it off so that it shows.

Backpressure is the transport's: `drain` waits while its buffer is full, `flush` until the kernel has taken every byte.
A reader that takes nothing for too long loses its connection.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from gateway.core.framing import Framing
from gateway.core.message import Body
from gateway.egress import StreamBroken
from gateway.egress.spool import SpoolFailed

if TYPE_CHECKING:
    from gateway.ingress.connection import AgentConnection

__all__ = ["ResponseWriter", "write_body"]


class ResponseWriter:
    """The connection of one request, as its answer sees it. `has_begun`: a byte of the answer was written."""

    __slots__ = ("_connection", "has_begun")

    def __init__(self, connection: AgentConnection) -> None:
        self._connection = connection
        self.has_begun = False

    def write(self, data: bytes) -> None:
        """Hand bytes to the transport.

        Raises:
            ConnectionError: the agent has left.
        """
        transport = self._connection.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the agent has left")
        self.has_begun = True
        transport.write(data)

    async def drain(self) -> None:
        """Wait while the transport's buffer is full."""
        connection = self._connection
        if not connection.writing_paused:
            return
        transport = connection.transport
        handle = (
            asyncio.get_running_loop().call_later(connection.stalled_s, transport.abort)
            if transport is not None
            else None
        )
        try:
            await connection._drain_helper()
        finally:
            if handle is not None:
                handle.cancel()

    async def flush(self) -> None:
        """Wait until the kernel has taken every byte.

        Raises:
            ConnectionError: the agent left before.
        """
        transport = self._connection.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the agent has left")
        if transport.get_write_buffer_size():
            transport.set_write_buffer_limits(high=0)
            try:
                await self.drain()
            finally:
                transport.set_write_buffer_limits()
            if self._connection.transport is None:
                raise ConnectionResetError("the agent has left")

    def break_off(self, *, with_reset: bool) -> None:
        """End the connection in the middle of the answer; with a reset where a plain close would look like its end."""
        transport = self._connection.transport
        if transport is None:
            return
        if with_reset:
            linger_not = struct.pack("ii", 1, 0)
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_not)
            transport.abort()
        else:
            transport.close()


async def write_body(writer: ResponseWriter, body: Body, framing: Framing) -> None:
    """Write a body as it comes.

    Raises:
        ConnectionError: the agent left, or the body broke and the connection was closed in the middle.
    """
    left = body.size
    try:
        async with aclosing(cast(Any, body.chunks())) as chunks:
            async for data in chunks:
                if not data:
                    continue
                if left is not None:
                    left -= len(data)
                    if left < 0:
                        raise StreamBroken("the body is longer than it said")
                writer.write(b"%x\r\n%b\r\n" % (len(data), data) if framing.is_chunked else data)
                await writer.drain()
        if left:
            raise StreamBroken("the body is shorter than it said")
    except (StreamBroken, SpoolFailed) as error:
        writer.break_off(with_reset=framing.ends_by_closing)
        raise ConnectionResetError(str(error)) from error
    if framing.is_chunked:
        writer.write(b"0\r\n\r\n")
