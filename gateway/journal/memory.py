"""A journal in memory: for tests, and for runs whose record may die with the process.

It keeps the promises of the protocol except durability: an append takes effect at the end of the event loop's pass, in the
order of calls, whole or not at all, whatever becomes of its caller.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.core.message import Body, BytesBody
from gateway.journal import (
    Append,
    Conflict,
    Entry,
    Head,
    JournalCorrupt,
    JournalError,
    JournalStats,
    JournalUnavailable,
    KeyClaim,
    KeyOwner,
)
from gateway.journal.fence import Fences, follow_up

__all__ = ["MemoryJournal"]


@dataclass(slots=True)
class _Stream:
    """What is kept of one stream."""

    head: Head
    entries: list[Entry] = field(default_factory=list)


class MemoryJournal:
    """The protocol's plainest backend. Nothing in it waits for anything outside the event loop."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}
        self._keys: dict[bytes, tuple[str, KeyClaim]] = {}
        self._notes: dict[str, bytes] = {}
        self._meta: dict[str, bytes] = {}
        self._bodies: dict[str, bytes] = {}
        self._queue: deque[tuple[Append, asyncio.Future[None], bool]] = deque()
        self._fences = Fences()
        self._is_closed = False
        self._commits = 0
        self._entries = 0
        self._fatal = asyncio.Event()

    def append(self, append: Append, *, lazy: bool = False) -> asyncio.Future[None]:
        """Queue an append for the end of this pass of the event loop."""
        if not append.entries:
            raise ValueError("an append needs at least one entry")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if self._is_closed:
            _fail(future, JournalUnavailable("the journal is closed"), lazy)
        elif (refusal := self._fences.refusal(append.stream)) is not None:
            _fail(future, refusal, lazy)
        else:
            if not self._queue:
                loop.call_soon(self._commit)
            self._queue.append((append, future, lazy))
        return future

    def _commit(self) -> None:
        self._commits += bool(self._queue)
        while self._queue:
            append, future, lazy = self._queue.popleft()
            error = self._refusal(append)
            if error is not None:
                self._fences.put(append.stream, error)
                _fail(future, error, lazy)
            else:
                self._store(append)
                if not future.done():
                    future.set_result(None)

    def _refusal(self, append: Append) -> JournalError | None:
        if (earlier := self._fences.find(append.stream)) is not None:
            return follow_up(append.stream, earlier)
        stream = self._streams.get(append.stream)
        version = stream.head.version if stream is not None else 0
        if version == append.expected:
            return None
        return Conflict(f"run {append.stream!r} is at version {version}, not {append.expected}: read it again")

    def _store(self, append: Append) -> None:
        known = self._streams.get(append.stream)
        head = Head(
            stream=append.stream,
            version=append.expected + len(append.entries),
            state=append.state,
            is_open=append.is_open,
            agent=append.agent,
            opened_at=known.head.opened_at if known is not None else append.entries[0].at,
            changed_at=append.entries[-1].at,
        )
        if known is None:
            known = self._streams[append.stream] = _Stream(head)
        known.head = head
        known.entries.extend(append.entries)
        self._entries += len(append.entries)
        for claim in append.claims:
            self._keys[claim.digest] = (append.stream, claim)

    async def read(self, stream: str, after: int = 0) -> list[Entry]:
        """Return a copy of a stream's entries beyond version `after`."""
        self._fences.lift(stream, self._fences.find(stream))
        known = self._streams.get(stream)
        return known.entries[after:] if known is not None else []

    async def read_many(self, streams: Sequence[str]) -> list[list[Entry]]:
        """Return a copy of each stream's entries."""
        return [await self.read(stream) for stream in streams]

    async def head(self, stream: str) -> Head | None:
        """Return where a stream stands, or None."""
        self._fences.lift(stream, self._fences.find(stream))
        known = self._streams.get(stream)
        return known.head if known is not None else None

    async def open_heads(self, after: str = "", limit: int = 500) -> list[Head]:
        """Return open streams in order of name, beyond `after`."""
        names = sorted(name for name, known in self._streams.items() if known.head.is_open and name > after)
        return [self._streams[name].head for name in names[:limit]]

    async def heads(self, *, limit: int = 50, before: int | None = None, state: str | None = None) -> list[Head]:
        """Return streams, last changed first."""
        found = [known.head for known in self._streams.values() if state is None or known.head.state == state]
        found = [head for head in found if before is None or head.changed_at < before]
        found.sort(key=lambda head: (-head.changed_at, head.stream))
        if len(found) <= limit:
            return found
        last = found[limit - 1].changed_at
        return [head for head in found if head.changed_at >= last]

    async def find_key(self, digest: bytes, at: int) -> KeyOwner | None:
        """Return the step that a caller's key names, if the claim has not expired at `at`."""
        stream, claim = self._keys.get(digest, ("", None))
        if claim is None or claim.expires_at <= at:
            return None
        return KeyOwner(stream, claim.step)

    async def keep(self, body: Body) -> str:
        """Hold a body's bytes under their digest."""
        data = b"".join([chunk async for chunk in body.chunks()])
        if self._is_closed:
            raise JournalUnavailable("the journal is closed")
        name = "sha256:" + hashlib.sha256(data).hexdigest()
        self._bodies[name] = data
        return name

    async def kept(self, name: str) -> Body:
        """Return a body held by `keep`."""
        if name not in self._bodies:
            raise JournalCorrupt(f"body {name} is missing")
        return BytesBody(self._bodies[name])

    def remember(self, name: str, value: bytes) -> None:
        """Keep the latest value under a name."""
        self._notes[name] = value

    async def recall(self, prefix: str) -> dict[str, bytes]:
        """Return what was remembered under names that start with `prefix`."""
        return {name: self._notes[name] for name in sorted(self._notes) if name.startswith(prefix)}

    async def meta(self, name: str, default: bytes) -> bytes:
        """Return the journal's own constant, set to `default` the first time."""
        return self._meta.setdefault(name, default)

    async def stats(self) -> JournalStats:
        """Return figures."""
        return JournalStats(
            backend="memory",
            streams=len(self._streams),
            open_streams=sum(known.head.is_open for known in self._streams.values()),
            entries=self._entries,
            queued=len(self._queue),
            commits=self._commits,
            committed_entries=self._entries,
            last_commit_s=0.0,
            oldest_queued_s=0.0,
            is_healthy=self.is_healthy,
        )

    @property
    def is_healthy(self) -> bool:
        """Whether it is open."""
        return not self._is_closed

    @property
    def is_fatal(self) -> bool:
        """Never: memory does not fail half-way."""
        return self._fatal.is_set()

    async def wait_fatal(self) -> None:
        """Wait for what never comes."""
        await self._fatal.wait()

    async def flush(self) -> None:
        """Let everything queued so far take effect."""
        self._commit()

    async def close(self) -> None:
        """Let everything queued take effect, then refuse appends."""
        self._commit()
        self._is_closed = True


def _fail(future: asyncio.Future[None], error: JournalError, lazy: bool) -> None:
    if future.done():
        return
    future.set_exception(error)
    if lazy:
        future.exception()
