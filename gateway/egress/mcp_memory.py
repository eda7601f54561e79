"""What is remembered of sessions with servers, with the way to keep it durably.

The rules are in `core/mcp_memory.py`. What a client is told must be durable before: a session before the answer to its
greeting, a subscription before the answer to it. Where the disk refuses, the session works all the same, and is opened anew
after a restart.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from gateway.core.mcp_memory import SETTING, Entry, SessionTable
from gateway.core.mcp_session import Client

__all__ = ["SessionMemory"]

Keep = Callable[[int, bytes, bool], Awaitable[None]]
"""Takes a slot, what is to be kept there (nothing: no longer anything), and whether that has to be durable at once."""


async def _nowhere(slot: int, data: bytes, is_urgent: bool) -> None:
    """For those who live as long as their sessions."""


class SessionMemory:
    """The entries of all clients at all servers.

    Args:
        keep: has one kept; must not fail.
    """

    def __init__(self, keep: Keep = _nowhere) -> None:
        self.table = SessionTable()
        self._keep = keep

    async def opened(self, server: str, client: Client, place: str, id: str | None, greeting: str) -> None:
        """Remember a new session."""
        entry = self.table.opened(server, client)
        entry.opened(place, id, greeting)
        await self._kept(entry)

    async def closed(self, server: str, client: Client) -> None:
        """A session is over, and what was set in it is not."""
        entry = self.table.of(server, client.nonce)
        if entry is not None and entry.is_open:
            entry.closed()
            await self._kept(entry)

    async def set(
        self, server: str, client: Client, method: str, params: str | None, value: Mapping[str, object]
    ) -> None:
        """Remember what a client has set, if a request of that method sets anything."""
        if method in SETTING and self.table.opened(server, client).set(method, params, value):
            await self._kept(self.table.opened(server, client))

    async def run(self, server: str, client: Client, trajectory: str, *, is_urgent: bool) -> None:
        """Remember in whose session a run has steps."""
        entry = self.table.of(server, client.nonce)
        if entry is not None and entry.run(trajectory):
            await self._keep(entry.slot, entry.dumped(), is_urgent)

    async def forget(self, server: str, client: Client) -> None:
        """Forget a client at a server."""
        if (entry := self.table.drop(server, client.nonce)) is not None:
            await self._keep(entry.slot, b"", False)

    def load(self, kept: Mapping[int, bytes]) -> list[int]:
        """Take what was kept. Returns the slots whose content is none."""
        found: dict[int, Entry] = {}
        broken: list[int] = []
        for slot, data in kept.items():
            if not data:
                continue
            try:
                found[slot] = Entry.loaded(slot, data)
            except (ValueError, KeyError, TypeError):
                broken.append(slot)
        self.table.load(found)
        return broken

    async def _kept(self, entry: Entry) -> None:
        await self._keep(entry.slot, entry.dumped(), True)
