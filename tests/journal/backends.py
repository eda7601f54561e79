"""The journals that the conformance suite holds to the protocol. A new backend is one more class and one more entry."""

from __future__ import annotations

from pathlib import Path

from gateway.journal import Append, Entry, Journal, KeyClaim
from gateway.journal.memory import MemoryJournal
from gateway.journal.sqlite import SqliteJournal


class Memory:
    """Lives as long as the object: opening again hands out the same one."""

    survives_reopening = False

    def __init__(self, folder: Path) -> None:
        self.journal: Journal | None = None

    async def open(self) -> Journal:
        if self.journal is None:
            self.journal = MemoryJournal()
        return self.journal


class Sqlite:
    survives_reopening = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def open(self) -> Journal:
        return await SqliteJournal.open(self.folder)


BACKENDS = {"memory": Memory, "sqlite": Sqlite}


def entry(data: bytes | str = b"x", at: int = 1_000, kind: str = "step_intended") -> Entry:
    return Entry(kind, at, data.encode() if isinstance(data, str) else data)


def append(
    stream: str,
    expected: int,
    *data: str,
    at: int = 1_000,
    state: str = "preparing",
    is_open: bool = True,
    agent: str = "agent",
    claims: tuple[KeyClaim, ...] = (),
) -> Append:
    """An append of one entry for each of `data` (one called "x" if none)."""
    entries = tuple(entry(each, at) for each in data or ("x",))
    return Append(
        stream=stream, expected=expected, entries=entries, state=state, is_open=is_open, agent=agent, claims=claims
    )


def texts(entries: list[Entry]) -> list[str]:
    return [each.data.decode() for each in entries]
