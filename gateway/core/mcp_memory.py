"""What outlives the gateway of its sessions with servers: enough to go on with them as if nothing had happened.

For each client at each server (the *entry*) it is the server's own session id with what the server said when it was
greeted, and what the client has *set* there: its log level and the resources it subscribed to. A server that still knows
the session is gone on with under its id, without a second greeting. One that does not, and a child process that died with
us, is greeted again in the client's words and told once more what was set.

Entries lie in numbered slots that are used again, so what is kept is bounded, and the one not used for longest gives way.

Source: MCP 2025-11-25 "Session management"; "Resources", subscriptions; "Logging".
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway.core.mcp_session import Client, bounded, client_from, client_parts

__all__ = ["SETTING", "Entry", "SessionTable", "settings_of"]

SLOTS: Final = 4_096
RUNS_MAX: Final = 64
SUBSCRIPTIONS_MAX: Final = 1_000
SETTINGS_MAX: Final = 64 << 10
"""What a client has set beyond so many characters in all is not kept: it lasts as long as the session."""

GREETING_MAX: Final = 32 << 10
"""A longer greeting is not kept, in characters: such a session is opened anew."""

SETTING: Final = frozenset({"logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
"""The requests by which a client sets something at a server that lasts."""


@dataclass(slots=True, kw_only=True, eq=False)
class Entry:
    """One client at one server.

    Attributes:
        slot: where it is kept.
        server: the tool's name; empty for what a client set at the gateway itself, and so at all servers of its endpoint.
        client: who it is, in the words of its own greeting.
        place: where the server was when it was greeted; its session is worth nothing elsewhere.
        is_open: whether there is a session to go on with.
        id: of that session, as the server gave it; None if it gave none.
        greeting: the raw result of `initialize`.
        level: raw params of the last `logging/setLevel`.
        subscriptions: raw params of `resources/subscribe` by URI.
        runs: the latest runs with steps in this session, so that they are undone in it; the last is the newest.
    """

    slot: int
    server: str
    client: Client
    place: str = ""
    is_open: bool = False
    id: str | None = None
    greeting: str = "{}"
    level: str | None = None
    subscriptions: dict[str, str] = field(default_factory=dict)
    runs: dict[str, None] = field(default_factory=dict)

    def opened(self, place: str, id: str | None, greeting: str) -> None:
        """Take a new session in place of the one before."""
        self.is_open = len(greeting) <= GREETING_MAX
        self.place, self.id = place, id
        self.greeting = greeting if self.is_open else "{}"

    def closed(self) -> None:
        """There is no session any more; what was set is set again in the next one."""
        self.is_open, self.id, self.greeting = False, None, "{}"

    def set(self, method: str, params: str | None, value: Mapping[str, object]) -> bool:
        """Take one of `SETTING` that the server agreed to. Returns whether that changed anything."""
        before = (self.level, len(self.subscriptions))
        if method != "resources/unsubscribe" and not self._has_room(params or "{}"):
            return False
        if method == "logging/setLevel":
            self.level = params
        uri = value.get("uri")
        if isinstance(uri, str) and method == "resources/unsubscribe":
            self.subscriptions.pop(uri, None)
        if isinstance(uri, str) and method == "resources/subscribe" and len(self.subscriptions) < SUBSCRIPTIONS_MAX:
            self.subscriptions.setdefault(uri, params or "{}")
        return before != (self.level, len(self.subscriptions))

    def _has_room(self, params: str) -> bool:
        return len(params) + sum(map(len, self.subscriptions.values())) <= SETTINGS_MAX

    def run(self, trajectory: str) -> bool:
        """Note a run. Returns whether it is new."""
        if trajectory in self.runs:
            return False
        self.runs[trajectory] = None
        if len(self.runs) > RUNS_MAX:
            del self.runs[next(iter(self.runs))]
        return True

    def settings(self) -> Iterator[tuple[str, str | None]]:
        """Yield the requests that set again what was set: method and raw params."""
        if self.level is not None:
            yield "logging/setLevel", self.level
        for params in self.subscriptions.values():
            yield "resources/subscribe", params

    def dumped(self) -> bytes:
        """Return it as it is kept."""
        value = {
            "server": self.server, "client": client_parts(self.client), "place": self.place, "open": self.is_open,
            "id": self.id, "greeting": self.greeting, "level": self.level, "subscriptions": self.subscriptions,
            "runs": [*self.runs],
        }  # fmt: skip
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def loaded(cls, slot: int, data: bytes) -> Entry:
        """Return what was kept.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        value = json.loads(data)
        return cls(
            slot=slot,
            server=value["server"],
            client=client_from(value["client"]),
            place=value["place"],
            is_open=value["open"],
            id=value["id"],
            greeting=value["greeting"],
            level=value["level"],
            subscriptions=dict(value["subscriptions"]),
            runs=dict.fromkeys(value["runs"]),
        )


def settings_of(entries: Iterable[Entry]) -> list[tuple[str, str | None]]:
    """Return the requests that set again what is set in several entries: the last of their log levels, and each resource
    once."""
    wanted = [setting for entry in entries for setting in entry.settings()]
    levels = [setting for setting in wanted if setting[0] == "logging/setLevel"]
    return [*levels[-1:], *dict.fromkeys(setting for setting in wanted if setting[0] != "logging/setLevel")]


class SessionTable:
    """All entries, the one used last at the end."""

    def __init__(self, slots: int = SLOTS) -> None:
        self._slots = slots
        self._entries: OrderedDict[tuple[str, str], Entry] = OrderedDict()
        self._free: list[int] = []
        self._next = 0

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def of(self, server: str, nonce: str) -> Entry | None:
        """Return a client's entry at a server, which counts as used."""
        key = (server, nonce)
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def of_server(self, server: str) -> list[Entry]:
        """Return the entries of all clients at a server."""
        return [entry for entry in self._entries.values() if entry.server == server]

    def opened(self, server: str, client: Client) -> Entry:
        """Return a client's entry at a server, made if need be in the place of the one not used for longest."""
        entry = self.of(server, client.nonce)
        if entry is None:
            entry = Entry(slot=self._slot(), server=server, client=bounded(client))
            self._entries[(server, client.nonce)] = entry
        return entry

    def settings_of(self, server: str, nonce: str) -> list[tuple[str, str | None]]:
        """Return the requests that set again at a server what a client has set there, or at all servers at once."""
        return settings_of(entry for entry in (self.of(server, nonce), self._entries.get(("", nonce))) if entry)

    def _slot(self) -> int:
        if self._free:
            return self._free.pop()
        if self._next < self._slots:
            self._next += 1
            return self._next - 1
        return self._entries.popitem(last=False)[1].slot

    def load(self, entries: Mapping[int, Entry]) -> None:
        """Take what was kept, in place of everything."""
        self._entries = OrderedDict(((one.server, one.client.nonce), one) for one in entries.values())
        taken = {one.slot for one in self._entries.values()}
        self._next = min(self._slots, max(taken, default=-1) + 1)
        self._free = [slot for slot in range(self._next) if slot not in taken]

    def drop(self, server: str, nonce: str) -> Entry | None:
        """Forget an entry, and return it."""
        entry = self._entries.pop((server, nonce), None)
        if entry is not None:
            self._free.append(entry.slot)
        return entry
