"""What a journal is: append-only streams of typed records, and almost nothing else.

One stream is one run. A stream is appended with the version that the writer expects; another version is a `Conflict`, and
the writer reads again and decides again. That one rule serialises writers. An append is durable when its future is done;
lazy appends become durable with the next commit and are waited for by nobody. Appends to one stream are committed in the
order in which `append` was called, and an append after one that failed fails too.

The journal does not know what entries mean. Heads are a small table beside the log, written in the same transaction, so
that finding the open runs costs nothing that grows with history.

Backends: `memory` (tests, and runs without a disk), `sqlite` (the embedded default). One conformance suite,
`tests/journal/test_conformance.py`, holds for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from gateway.core.message import Body
from gateway.core.value import frozen

__all__ = [
    "Append",
    "Conflict",
    "Entry",
    "Head",
    "Journal",
    "JournalCorrupt",
    "JournalError",
    "JournalLocked",
    "JournalPoisoned",
    "JournalStats",
    "JournalUnavailable",
    "Keepable",
    "KeyClaim",
    "KeyOwner",
    "Pruned",
    "tellable",
]


class JournalError(Exception):
    """Anything that keeps a journal from doing its work. The message says what to do next.

    It is for operators and may say where on this machine something lies; `told` is for agents, who may not know that.
    """

    _places: tuple[tuple[str, str], ...] = ()

    def hiding(self, place: object, name: str) -> Self:
        """Have agents be told `name` instead of a place that the message names. Returns the error itself."""
        self._places = (*self._places, (str(place), name))
        return self

    def as_discreet_as(self, other: JournalError) -> Self:
        """Hide what another error hides, whose words are in this one's message. Returns the error itself."""
        self._places = (*self._places, *other._places)
        return self

    @property
    def told(self) -> str:
        """The message without places."""
        text = str(self)
        for place, name in self._places:
            text = text.replace(place, name)
        return text


def tellable(error: BaseException) -> str:
    """Return what agents may read of whatever went wrong in here: no place on this machine."""
    if isinstance(error, JournalError):
        return error.told
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)


class JournalUnavailable(JournalError):
    """The append was not made durable, or the read failed. Whether an append that failed is there after all is unknown:
    read the stream again before deciding anew."""


class JournalPoisoned(JournalUnavailable):
    """The disk failed in a way after which nothing it says can be believed, such as a failed fsync. Nothing is tried
    again; the process must exit and start anew, so that what is really on disk is read."""


class Conflict(JournalError):
    """The stream is at another version than the writer expected; nothing was written."""


class JournalCorrupt(JournalError):
    """What is on disk contradicts itself. Names the first bad record."""


class JournalLocked(JournalError):
    """Another gateway has this journal open."""


@frozen(kw_only=False)
class Entry:
    """One record as the journal keeps it: kind, UTC milliseconds, and the encoded body verbatim.

    `effect` and `destination` go into its envelope where there is one: which change in the world it is about, and where
    that goes. They are not read back.
    """

    kind: str
    at: int
    data: bytes
    effect: str = field(default="", compare=False)
    destination: str = field(default="", compare=False)


@frozen(kw_only=False)
class Head:
    """Where a stream stands: its version (number of entries), state, and whether it is open."""

    stream: str
    version: int
    state: str
    is_open: bool
    agent: str
    opened_at: int
    changed_at: int


@frozen(kw_only=False)
class KeyClaim:
    """An agent's own idempotency key (as a digest, scoped by agent and tool) and the step it names, until `expires_at`."""

    digest: bytes
    step: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """The step that a caller's key names."""

    stream: str
    step: int


@frozen(kw_only=False)
class Append:
    """One append: all of it becomes durable, or none.

    Attributes:
        stream: the run.
        expected: its version before; 0 makes the stream.
        entries: at least one.
        state, is_open, agent: the head afterwards.
        claims: caller's keys to remember with it; an existing claim is overwritten.
        is_owed: it tells what has become of something that was sent. A full queue takes it all the same: refusing it would
            undo nothing, and there are no more of these than calls in flight.
    """

    stream: str
    expected: int
    entries: Sequence[Entry]
    state: str
    is_open: bool
    agent: str
    claims: Sequence[KeyClaim] = ()
    is_owed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStats:
    """Figures for `/metrics` and `seawall journal stats`. Sizes in bytes, times in seconds."""

    backend: str
    streams: int
    open_streams: int
    entries: int
    queued: int
    commits: int
    committed_entries: int
    last_commit_s: float
    oldest_queued_s: float
    is_healthy: bool
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pruned:
    """What one batch of retention took: runs, their records, the large bodies they named, and whether more is due."""

    runs: int = 0
    records: int = 0
    bodies: frozenset[str] = frozenset()
    is_more: bool = False


class Keepable(Protocol):
    """What a sealed journal offers to whoever looks after it."""

    @property
    def untold(self) -> int:
        """Rows since the last checkpoint."""

    async def checkpoint(self) -> str | None:
        """Tell the outside how far the log reaches; return the text, or None if nothing is new."""

    def reload_keys(self) -> bool:
        """Read the key ring again if its file changed; return whether another key is active."""

    async def prune(self, before: int, archive: str | None = None) -> Pruned:
        """Archive and delete one batch of closed runs that changed last before `before`, UTC milliseconds."""

    async def sweep(self, bodies: Iterable[str]) -> int:
        """Delete those of some large bodies that no record names any more; return how many."""


class Journal(Protocol):
    """A place where runs are recorded. Used from one event loop only."""

    def append(self, append: Append, *, lazy: bool = False) -> asyncio.Future[None]:
        """Queue an append now; the future is done when it is durable.

        Cancelling the future does not take the append back. A lazy one does not wake the disk by itself; its future may
        be dropped, an error of it is not reported as "never retrieved".

        Raises (in the future):
            Conflict: the stream is not at `expected`; nothing was written.
            JournalUnavailable: the commit failed, the journal is closed, or the queue is full and the append not owed.
        """

    async def read(self, stream: str, after: int = 0) -> list[Entry]:
        """Return the entries of a stream beyond version `after`, oldest first; empty if there is no such stream.

        Sees every append whose future is done.
        """

    async def read_many(self, streams: Sequence[str]) -> list[list[Entry]]:
        """Return the entries of each of some streams, as `read` does, with one trip to where they are kept."""

    async def head(self, stream: str) -> Head | None:
        """Return where a stream stands, or None."""

    async def open_heads(self, after: str = "", limit: int = 500) -> list[Head]:
        """Return open streams in order of name, beyond `after`. Cost does not depend on closed ones."""

    async def heads(self, *, limit: int = 50, before: int | None = None, state: str | None = None) -> list[Head]:
        """Return streams, last changed first; `before` pages by `changed_at`.

        A page holds the whole of its last millisecond, so it may be longer than `limit` and paging misses nothing.
        """

    async def find_key(self, digest: bytes, at: int) -> KeyOwner | None:
        """Return the step that a caller's key names, if the claim has not expired at `at`."""

    async def keep(self, body: Body) -> str:
        """Store a large body durably and return its name, `sha256:<hex>`. Storing the same bytes again is free."""

    async def kept(self, name: str) -> Body:
        """Return a replayable body stored by `keep`.

        Raises:
            JournalCorrupt: it is missing or has another length.
        """

    def remember(self, name: str, value: bytes) -> None:
        """Keep the latest value under a name, lazily: small state such as breakers, not part of any run."""

    async def recall(self, prefix: str) -> dict[str, bytes]:
        """Return what was remembered under names that start with `prefix`."""

    async def meta(self, name: str, default: bytes) -> bytes:
        """Return the journal's own constant, durably set to `default` the first time (the salt of keys)."""

    async def stats(self) -> JournalStats:
        """Return figures; cheap enough for each scrape."""

    @property
    def is_healthy(self) -> bool:
        """Whether appends can be expected to succeed: the last commit did, and nothing waits for too long."""

    async def wait_fatal(self) -> None:
        """Return when the disk failed in a way that only a new start can clear up; else never."""

    async def flush(self) -> None:
        """Return when everything queued so far, lazy appends included, is durable.

        Raises:
            JournalUnavailable: it could not be made durable.
        """

    async def close(self) -> None:
        """Flush, close the file and give back the lock. May be repeated."""
