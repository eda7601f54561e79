"""The journal of the simulation: the real group commit on a disk that outlives the process, is slow, and may fail.

A commit takes time, so that the process can end before it, and between it and whoever waits for it. While the schedule has
disk faults left, a method fails, takes effect and then fails, or stalls: for longer than the committer's patience, and then
works after all or does not. What was queued and not committed is gone with the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from gateway.core.message import Body
from gateway.journal import (
    Append,
    Entry,
    Head,
    JournalError,
    JournalStats,
    JournalUnavailable,
    KeyOwner,
)
from gateway.journal.committer import Committer, CommitterSettings, Told
from gateway.journal.fence import follow_up
from gateway.journal.memory import MemoryJournal

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["DiskFault", "SimJournal"]

PATIENCE_S = 10.0
STALL_S = 25.0

T = TypeVar("T")


class DiskFault(StrEnum):
    """What becomes of one access."""

    FINE = "fine"
    FAIL = "fail"
    EXECUTE_THEN_FAIL = "execute_then_fail"
    STALL = "stall"


class _Store:
    """What the committer writes to."""

    def __init__(self, world: World) -> None:
        self._world = world

    def write(self, appends: Sequence[Append], notes: Mapping[str, bytes], told: Told) -> None:
        """Commit a batch, and tell."""
        self._writing = asyncio.ensure_future(self._tell(appends, notes, told))

    async def _tell(self, appends: Sequence[Append], notes: Mapping[str, bytes], told: Told) -> None:
        try:
            errors = await self._write(appends, notes)
        except JournalUnavailable as error:
            told(error)
        else:
            told(errors)

    async def _write(self, appends: Sequence[Append], notes: Mapping[str, bytes]) -> list[JournalError | None]:
        """Commit a batch, or do not, or do and say otherwise."""
        world = self._world
        fault = world.disk_fault("write")
        await asyncio.sleep(world.rng.random() * (STALL_S if fault is DiskFault.STALL else 0.01))
        if fault is DiskFault.FAIL or (fault is DiskFault.STALL and world.rng.random() < 0.3):
            raise JournalUnavailable("simulated: the disk is away")
        disk, errors, failed = world.disk, list[JournalError | None](), dict[str, JournalError]()
        for append in appends:
            earlier = failed.get(append.stream)
            error = disk._refusal(append) if earlier is None else follow_up(append.stream, earlier)
            if error is None:
                disk._store(append)
                world.note(f"DISK {' '.join(entry.kind for entry in append.entries)}")
            else:
                failed.setdefault(append.stream, error)
            errors.append(error)
        disk._notes.update(notes)
        if fault is DiskFault.EXECUTE_THEN_FAIL:
            raise JournalUnavailable("simulated: it may have been written")
        return errors


class SimJournal:
    """Build it inside a running loop; it dies with its process."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._committer = Committer(_Store(world), CommitterSettings(patience_s=PATIENCE_S))
        self.is_dead = False

    def append(self, append: Append, *, lazy: bool = False) -> asyncio.Future[None]:
        if self.is_dead:
            raise RuntimeError("the process has ended")
        return self._committer.append(append, lazy=lazy)

    async def read(self, stream: str, after: int = 0) -> list[Entry]:
        fence = self._committer.fences.find(stream)
        await self._access("read")
        entries = await self._world.disk.read(stream, after)
        self._committer.fences.lift(stream, fence)
        return list(entries)

    async def read_many(self, streams: Sequence[str]) -> list[list[Entry]]:
        return [await self.read(stream) for stream in streams]

    async def head(self, stream: str) -> Head | None:
        fence = self._committer.fences.find(stream)
        await self._access("head")
        head = await self._world.disk.head(stream)
        self._committer.fences.lift(stream, fence)
        return head

    async def open_heads(self, after: str = "", limit: int = 500) -> list[Head]:
        await self._access("open_heads")
        return await self._world.disk.open_heads(after, limit)

    async def heads(self, *, limit: int = 50, before: int | None = None, state: str | None = None) -> list[Head]:
        await self._access("heads")
        return await self._world.disk.heads(limit=limit, before=before, state=state)

    async def find_key(self, digest: bytes, at: int) -> KeyOwner | None:
        await self._access("find_key")
        return await self._world.disk.find_key(digest, at)

    async def keep(self, body: Body) -> str:
        fault = await self._access("keep")
        name = await self._world.disk.keep(body)
        if fault is DiskFault.EXECUTE_THEN_FAIL:
            raise JournalUnavailable("simulated: it may have been kept")
        return name

    async def kept(self, name: str) -> Body:
        await self._access("kept")
        return await self._world.disk.kept(name)

    def remember(self, name: str, value: bytes) -> None:
        if not self.is_dead:
            self._committer.remember(name, value)

    async def recall(self, prefix: str) -> dict[str, bytes]:
        await self._access("recall")
        return await self._world.disk.recall(prefix)

    async def meta(self, name: str, default: bytes) -> bytes:
        await self._access("meta")
        return await self._world.disk.meta(name, default)

    async def stats(self) -> JournalStats:
        return await self._world.disk.stats()

    @property
    def is_healthy(self) -> bool:
        return self._committer.is_healthy

    @property
    def is_fatal(self) -> bool:
        return False

    async def wait_fatal(self) -> None:
        await asyncio.Event().wait()

    async def flush(self) -> None:
        await self._committer.flush()

    async def close(self) -> None:
        self.is_dead = True

    async def _access(self, method: str) -> DiskFault:
        """Look something up, or fail to. A look-up has no effect that could come before its failure."""
        fault = self._world.disk_fault(method)
        if fault is DiskFault.STALL:
            stall_s = self._world.rng.random() * STALL_S
            await asyncio.sleep(min(stall_s, PATIENCE_S))
            if stall_s >= PATIENCE_S:
                raise JournalUnavailable("simulated: the disk has not answered a look-up")
        elif fault is DiskFault.FAIL or (fault is DiskFault.EXECUTE_THEN_FAIL and method != "keep"):
            raise JournalUnavailable("simulated: the disk is away")
        return fault


def new_disk() -> MemoryJournal:
    """Return an empty disk."""
    return MemoryJournal()
