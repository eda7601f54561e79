"""A journal that fails on demand: any append from a given one on, before or after it took effect."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.journal import Append, JournalUnavailable
from gateway.journal.memory import MemoryJournal

__all__ = ["FaultyJournal"]


class FaultyJournal(MemoryJournal):
    """`break_down()` makes appends fail; with `takes_effect` they are written all the same. `mend()` ends it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_broken = False
        self.takes_effect = False
        self.hold: asyncio.Event | None = None
        self.appends: list[Append] = []

    def break_down(self, *, takes_effect: bool = False) -> None:
        self.is_broken, self.takes_effect = True, takes_effect

    def mend(self) -> None:
        self.is_broken = False

    def append(self, append: Append, *, lazy: bool = False) -> asyncio.Future[None]:
        if not self.is_broken:
            self.appends.append(append)
            future = super().append(append, lazy=lazy)
            return future if self.hold is None else asyncio.ensure_future(self._held(future))
        written = super().append(append, lazy=lazy) if self.takes_effect else None
        return asyncio.ensure_future(self._fail(written))

    async def _held(self, future: asyncio.Future[None]) -> None:
        await future
        assert self.hold is not None
        await self.hold.wait()

    async def _fail(self, written: asyncio.Future[Any] | None) -> None:
        if written is not None:
            await asyncio.wait((written,))
        raise JournalUnavailable("no space left on the device")

    @property
    def is_healthy(self) -> bool:
        return not self.is_broken
