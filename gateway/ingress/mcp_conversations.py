"""The clients that are talking to us: what has to be in memory while they do, and what can be thrown away.

A conversation can always be opened again from its sealed id, so memory is only a cache of them: bounded, and the one that
has been idle for longest gives way. One that is busy (a call, an open stream) stays; if all are, a new one has to wait.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from gateway.core.mcp import Message, request
from gateway.core.mcp_session import Client

__all__ = ["Conversation", "Conversations", "Outbox"]

OUTBOX_MAX = 4_096


class Outbox:
    """Messages on their way to a client. Bounded: a client that takes nothing loses the oldest notifications."""

    __slots__ = ("_is_there", "_messages")

    def __init__(self) -> None:
        self._messages: deque[tuple[bytes, str | None]] = deque(maxlen=OUTBOX_MAX)
        self._is_there = asyncio.Event()

    def put(self, data: bytes, id: str | None = None) -> None:
        """Add a message; `id` is what the client can come back with to have what follows it."""
        self._messages.append((data, id))
        self._is_there.set()

    def take(self) -> list[bytes]:
        """Return what is there."""
        return [data for data, _ in self.take_numbered()]

    def take_numbered(self) -> list[tuple[bytes, str | None]]:
        """Return what is there, with the ids."""
        found = list(self._messages)
        self._messages.clear()
        self._is_there.clear()
        return found

    async def wait(self) -> None:
        """Return once there is something."""
        await self._is_there.wait()


@dataclass(slots=True, eq=False)
class Conversation:
    """One client.

    Attributes:
        client: who it is.
        stream: where it listens for what belongs to no request of its own.
        running: its requests in flight, by raw id.
        listeners: how many streams it has open.
        log_level: what it asked for with `logging/setLevel`.
        places: how far the stream of each server has come that it listens to.
        attending: what has those streams open for it.
    """

    client: Client
    stream: Outbox = field(default_factory=Outbox)
    running: dict[str, asyncio.Task[object]] = field(default_factory=dict)
    listeners: int = 0
    log_level: str | None = None
    places: dict[str, str] = field(default_factory=dict)
    attending: list[asyncio.Task[None]] = field(default_factory=list)
    _asked: dict[str, asyncio.Future[Message]] = field(default_factory=dict)
    _questions: int = 0

    @property
    def is_busy(self) -> bool:
        """Whether it cannot be thrown away just now."""
        return bool(self.running or self.listeners or self._asked)

    async def ask(self, outbox: Outbox, method: str, params: str | None) -> Message:
        """Put a request to the client and return its response. Bounded by who waits for it."""
        self._questions += 1
        id = f'"seawall-{self._questions}"'
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._asked[id] = future
        try:
            outbox.put(request(id, method, params))
            return await future
        finally:
            del self._asked[id]

    def answered(self, message: Message) -> bool:
        """Take a response of the client. Returns whether anybody had asked."""
        future = self._asked.get(message.id)
        if future is None or future.done():
            return False
        future.set_result(message)
        return True


class Conversations:
    """All of them, by the nonce of their session."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: OrderedDict[str, Conversation] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def all(self) -> list[Conversation]:
        """Return those in memory."""
        return list(self._known.values())

    def of(self, client: Client) -> tuple[Conversation, list[Conversation]] | None:
        """Return a client's conversation and those that gave way to it; None if there is no room."""
        known = self._known.get(client.nonce)
        if known is not None:
            self._known.move_to_end(client.nonce)
            return known, []
        gone: list[Conversation] = []
        if len(self._known) >= self._limit:
            idle = next((one for one in self._known.values() if not one.is_busy), None)
            if idle is None:
                return None
            del self._known[idle.client.nonce]
            gone.append(idle)
        known = self._known[client.nonce] = Conversation(client)
        return known, gone

    def end(self, nonce: str) -> Conversation | None:
        """Throw away a conversation whose client has said goodbye."""
        return self._known.pop(nonce, None)
