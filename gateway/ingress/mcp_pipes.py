"""MCP over stdin and stdout, towards one client: what desktop clients start.

One line is one message. Both eras are taken: a request that carries the envelope of the stateless era is one of that era.
Everything goes out through one queue, so that an answer never overtakes the progress before it.

Source: MCP "Transports", stdio.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gateway.core.mcp import INTERNAL_ERROR, Kind, Malformed, Message, error_message, parse
from gateway.core.mcp_era import CAPABILITIES, CLIENT_INFO, LOG_LEVEL, VERSION, negotiated
from gateway.core.mcp_session import Client
from gateway.core.tool import ToolSpec
from gateway.ingress.mcp import McpFront
from gateway.ingress.mcp_conversations import Conversation
from gateway.ingress.mcp_party import Party

__all__ = ["StdioFront"]

Write = Callable[[bytes], Awaitable[None]]


class StdioFront:
    """Serves one server to one client."""

    def __init__(self, front: McpFront, tool: ToolSpec, nonce: str) -> None:
        self._front = front
        self._tool = tool
        self._client = Client(nonce=nonce, scope=tool.name, agent="desktop", version=negotiated(None))
        self._conversation = front.adopt(self._client)
        self._conversation.listeners += 1
        self._out = self._conversation.stream
        self._delivered: dict[bytes, Callable[[], None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, write: Write) -> None:
        """Answer until the client closes its end; then finish what is in flight."""
        writer = asyncio.get_running_loop().create_task(self._write(write))
        try:
            while line := await reader.readline():
                if line.strip():
                    self._take(line)
            if self._tasks:
                await asyncio.wait(set(self._tasks))
            await self._flush(write)
        finally:
            for task in (writer, *self._tasks):
                task.cancel()
            await asyncio.wait((writer, *self._tasks))

    def _take(self, line: bytes) -> None:
        try:
            message = parse(line)
        except Malformed as error:
            self._out.put(error_message(error.id, error.code, str(error)))
            return
        if message.kind is Kind.RESPONSE:
            self._conversation.answered(message)
            return
        task = asyncio.get_running_loop().create_task(self._handle(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, message: Message) -> None:
        party = Party(conversation=self._speaker(message), tool=self._tool, outbox=self._out, can_ask=True)
        if message.kind is Kind.NOTIFICATION:
            await self._front.service.notified(message, party)
            return
        answering = asyncio.get_running_loop().create_task(self._front.service.answer(message, party))
        self._conversation.running[message.id] = answering
        try:
            answer = await answering
        except asyncio.CancelledError:
            if not answering.cancelled():
                answering.cancel()
                raise
            return
        finally:
            self._conversation.running.pop(message.id, None)
        data = answer if isinstance(answer, bytes) else _refused(message)
        if party.delivered is not None:
            self._delivered[data] = party.delivered
        self._out.put(data)

    def _speaker(self, message: Message) -> Conversation:
        meta = message.meta
        capabilities, info = meta.get(CAPABILITIES), meta.get(CLIENT_INFO)
        if VERSION in meta:
            level = meta.get(LOG_LEVEL)
            return Conversation(
                Client(
                    agent="desktop",
                    version=str(meta[VERSION]),
                    capabilities=capabilities if isinstance(capabilities, dict) else {},
                    info=info if isinstance(info, dict) else {},
                    log_level=level if isinstance(level, str) else None,
                    is_modern=True,
                )
            )
        if message.method == "initialize":
            capabilities, info = message.value.get("capabilities"), message.value.get("clientInfo")
            self._client = self._conversation.client = Client(
                nonce=self._client.nonce,
                scope=self._tool.name,
                agent="desktop",
                version=negotiated(message.value.get("protocolVersion")),
                capabilities=capabilities if isinstance(capabilities, dict) else {},
                info=info if isinstance(info, dict) else {},
            )
            # The child is this client's alone, so it is told exactly what this client can do.
            self._front.service.egress.child_capabilities = self._client.capabilities
        return self._conversation

    async def _write(self, write: Write) -> None:
        while True:
            await self._out.wait()
            await self._flush(write)

    async def _flush(self, write: Write) -> None:
        for data in self._out.take():
            await write(data.replace(b"\n", b" ") + b"\n")
            told = self._delivered.pop(data, None)
            if told is not None:
                told()


def _refused(message: Message) -> bytes:
    return error_message(message.id, INTERNAL_ERROR, "the server wants a credential, which pipes cannot carry")
