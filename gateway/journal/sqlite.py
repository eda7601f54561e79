"""A journal in one SQLite file: the embedded default. One gateway per folder, enforced by a lock.

Two connections, each on its own thread: one writes, fed whole transactions by the group-commit task (`committer`); one
reads, opened read-only, so that a look-up never waits behind an fsync. WAL with `synchronous=FULL`: an append whose future
is done is on the disk. Why so, and what was weighed: docs/adr/0010-sqlite-journal.md.

`DIR/journal.db` (with `-wal` and `-shm` beside it while open), `DIR/journal.lock`, `DIR/blobs/` for large bodies. Beside the
folder: `DIR.keys`, the key ring, and `DIR.checkpoint`, how far the log had reached (docs/adr/0040-sealed-journal.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from gateway.core.message import Body
from gateway.core.seal import Checkpoint
from gateway.journal import (
    Append,
    Entry,
    Head,
    JournalCorrupt,
    JournalError,
    JournalLocked,
    JournalPoisoned,
    JournalStats,
    JournalUnavailable,
    KeyOwner,
    Pruned,
    alone,
    retention,
    schema,
    statements,
)
from gateway.journal.blobs import BlobFolder, sync_folder
from gateway.journal.chain import open_chain, read_checkpoint
from gateway.journal.committer import Committer, CommitterSettings, Told
from gateway.journal.connection import Connection
from gateway.journal.faults import is_corruption, is_unstorable, translate
from gateway.journal.fence import follow_up
from gateway.journal.keyring import KeyRing, KeyRingError, default_ring
from gateway.journal.lock import FolderLock
from gateway.journal.place import Place, aside
from gateway.journal.plan import Plan, Standing
from gateway.journal.sealer import Sealer

__all__ = ["SqliteJournal", "ring_of", "write_checkpoint"]

_log = logging.getLogger("gateway")

P = ParamSpec("P")
T = TypeVar("T")

_CACHED_STANDINGS = 16_384
_SWEEP_RECORDS = 5_000
_LOCK_POLL_S = 0.02


class SqliteJournal:
    """See `Journal` for what each method promises. Make one with `SqliteJournal.open`."""

    def __init__(
        self,
        place: Place,
        lock: FolderLock,
        blobs: BlobFolder,
        writer: Connection,
        reader: Connection,
        totals: tuple[int, int, int],
        sealer: Sealer,
        checkpoint: Path,
        settings: CommitterSettings | None,
        on_commit: Callable[[int, float], object] | None,
    ) -> None:
        self._place = place
        self._sealer = sealer
        self._checkpoint = checkpoint
        self._told = 0
        self._lock = lock
        self._blobs = blobs
        self._writer = writer
        self._reader = reader
        self._streams, self._open_streams, self._entries = totals
        self._standings: dict[str, Standing] = {}
        self._is_certain = True
        self._closing: asyncio.Task[None] | None = None
        self._judging: set[asyncio.Task[None]] = set()
        self._patience_s = (settings or CommitterSettings()).patience_s
        self._committer = Committer(self, settings, on_commit, on_abandoned=self.abandon)

    @classmethod
    async def open(
        cls,
        path: Path | str,
        *,
        on_commit: Callable[[int, float], object] | None = None,
        settings: CommitterSettings | None = None,
        keys: Path | str | None = None,
        checkpoint: Path | str | None = None,
        wait_s: float = 0.0,
        on_wait: Callable[[JournalLocked], object] = lambda held: None,
    ) -> SqliteJournal:
        """Open the journal in a folder (or in a named SQLite file), made if there is none.

        Takes time in proportion to open runs, not to history. A journal left by a crash is simply opened.

        Args:
            path: the data folder, or a file ending in .db, .sqlite or .sqlite3.
            on_commit: called after each group commit with its entries and seconds.
            settings: bounds of the queue.
            keys: the key ring; by default beside the folder, made if the journal is new.
            checkpoint: the file that tells how far the log had reached; by default beside the folder.
            wait_s: for how long to wait for another gateway to let the folder go: one that was killed holds it until the
                system has taken it down.
            on_wait: called once if that is so, with who holds it.

        Raises:
            JournalLocked: another gateway has the folder open, still.
            KeyRingError: the ring is missing, though records were sealed with it.
            JournalCorrupt: the file is damaged; names the first thing found.
            JournalError: the folder cannot be used, or the journal is of another version.
        """
        place = Place.of(path)
        lock = await _enter(place, wait_s, on_wait)
        blobs = BlobFolder(place.blobs, patience_s=(settings or CommitterSettings()).patience_s)
        connections: list[Connection] = []
        try:
            _prepare_blobs(place, blobs)
            writer = await Connection.open(str(place.file))
            connections.append(writer)
            ring, told = ring_of(place, keys), Path(checkpoint or aside(place.folder, "checkpoint"))
            sealer, totals = await writer.run(_prepare, place.file, ring, told)
            reader = await Connection.open(place.read_only_uri, is_uri=True)
            connections.append(reader)
            await reader.run(schema.configure_reader)
        except BaseException as error:
            for connection in connections:
                connection.abandon()
            blobs.close()
            lock.release()
            if isinstance(error, sqlite3.Error):
                raise translate(error, str(place.file)) from error
            raise
        return cls(place, lock, blobs, writer, reader, totals, sealer, told, settings, on_commit)

    def __repr__(self) -> str:
        return f"<SqliteJournal {str(self._place.file)!r} {self._committer!r}>"

    def append(self, append: Append, *, lazy: bool = False) -> asyncio.Future[None]:
        """Queue an append for the next group commit, or refuse it at once if the queue is full."""
        return self._committer.append(append, lazy=lazy)

    def write(self, appends: Sequence[Append], notes: Mapping[str, bytes], told: Told) -> None:
        """Commit a batch: the committer's side of the journal, for nobody else."""
        written = partial(self._written, appends, notes, told)
        self._writer.send(written, statements.write, self._sealer, appends, notes, self._standings)

    def _written(
        self, appends: Sequence[Append], notes: Mapping[str, bytes], told: Told, answer: Plan | BaseException
    ) -> None:
        if self._is_certain and isinstance(answer, Plan):
            self._apply(answer)
            told(answer.errors)
        else:
            judging = asyncio.get_running_loop().create_task(self._tell(appends, notes, told, answer))
            self._judging.add(judging)
            judging.add_done_callback(self._judging.discard)

    async def _tell(
        self, appends: Sequence[Append], notes: Mapping[str, bytes], told: Told, answer: Plan | BaseException
    ) -> None:
        try:
            errors = await self._judge(appends, notes, answer)
        except Exception as error:
            told(error)
        else:
            told(errors)

    async def _write(self, appends: Sequence[Append], notes: Mapping[str, bytes]) -> list[JournalError | None]:
        answer: Plan | BaseException
        try:
            answer = await self._writer.run(statements.write, self._sealer, appends, notes, self._standings)
        except Exception as error:
            answer = error
        return await self._judge(appends, notes, answer)

    async def _judge(
        self, appends: Sequence[Append], notes: Mapping[str, bytes], answer: Plan | BaseException
    ) -> list[JournalError | None]:
        """Return for each append its error or None, given what the thread answered; raise what befell all of them."""
        if isinstance(answer, BaseException):
            if is_unstorable(answer):
                return await self._write_in_parts(appends, notes, answer)
            self._standings.clear()
            self._is_certain = False
            if not isinstance(answer, sqlite3.Error):
                raise answer
            meaning = translate(answer, str(self._place.file))
            if not isinstance(meaning, JournalUnavailable):
                meaning = JournalPoisoned(str(meaning)).as_discreet_as(meaning)
            raise meaning from answer
        self._apply(answer)
        if not self._is_certain:
            self._streams, self._open_streams, self._entries = await self._writer.run(statements.totals)
            self._is_certain = True
        return answer.errors

    async def _write_in_parts(
        self, appends: Sequence[Append], notes: Mapping[str, bytes], error: BaseException
    ) -> list[JournalError | None]:
        """Commit a batch in which some value cannot be stored, in ever smaller parts, so that only its own append fails."""
        if len(appends) + len(notes) <= 1:
            return [JournalUnavailable(f"this entry cannot be stored: {error}") for _ in appends]
        if notes:
            for name, value in notes.items():
                await self._write([], {name: value})
            return await self._write(appends, {}) if appends else []
        half = len(appends) // 2
        errors = await self._write(appends[:half], {})
        failed = {each.stream: found for each, found in zip(appends, errors, strict=False) if found is not None}
        rest = [each for each in appends[half:] if each.stream not in failed]
        verdicts = iter(await self._write(rest, {}) if rest else [])
        for each in appends[half:]:
            earlier = failed.get(each.stream)
            errors.append(next(verdicts) if earlier is None else follow_up(each.stream, earlier))
        return errors

    def _apply(self, plan: Plan) -> None:
        """Bring cache and counters to where a committed batch left the file."""
        self._streams += len(plan.created)
        self._entries += len(plan.records)
        for name, standing in (*plan.created.items(), *plan.changed.items(), *plan.advanced.items()):
            self._standings.pop(name, None)
            if standing.head.is_open:
                self._standings[name] = standing
        while len(self._standings) > _CACHED_STANDINGS:
            del self._standings[next(iter(self._standings))]
        self._open_streams += plan.opened

    async def read(self, stream: str, after: int = 0) -> list[Entry]:
        """Return the entries of a stream beyond version `after`; reading lifts the fence a failed append left."""
        fence = self._committer.fences.find(stream)
        entries = await self._read(statements.read, stream, after)
        self._committer.fences.lift(stream, fence)
        return entries

    async def read_many(self, streams: Sequence[str]) -> list[list[Entry]]:
        """Return the entries of each of some streams, with one trip to the reading thread."""
        fences = [self._committer.fences.find(stream) for stream in streams]
        entries = await self._read(statements.read_many, streams)
        for stream, fence in zip(streams, fences, strict=True):
            self._committer.fences.lift(stream, fence)
        return entries

    async def head(self, stream: str) -> Head | None:
        """Return where a stream stands, from memory if it is in use."""
        fence = self._committer.fences.find(stream)
        cached = self._standings.get(stream)
        head = cached.head if cached is not None else await self._read(statements.find_head, stream)
        self._committer.fences.lift(stream, fence)
        return head

    async def open_heads(self, after: str = "", limit: int = 500) -> list[Head]:
        """Return open streams in order of name, beyond `after`."""
        return await self._read(statements.open_heads, after, limit)

    async def heads(self, *, limit: int = 50, before: int | None = None, state: str | None = None) -> list[Head]:
        """Return streams, last changed first."""
        return await self._read(statements.list_heads, limit, before, state)

    async def find_key(self, digest: bytes, at: int) -> KeyOwner | None:
        """Return the step that a caller's key names, if the claim has not expired at `at`."""
        return await self._read(statements.find_key, digest, at)

    async def keep(self, body: Body) -> str:
        """Store a large body durably in `blobs/`."""
        return await self._blobs.keep(body)

    async def kept(self, name: str) -> Body:
        """Return a body stored by `keep`; it is checked against its name while it is read."""
        return await self._blobs.kept(name)

    def remember(self, name: str, value: bytes) -> None:
        """Keep the latest value under a name, with the next commit."""
        self._committer.remember(name, value)

    async def recall(self, prefix: str) -> dict[str, bytes]:
        """Return what was remembered under names that start with `prefix`, committed or not."""
        before = self._committer.pending_notes()  # what is on its way now may be committed after the reading
        stored = await self._read(statements.recall, prefix)
        pending = {**before, **self._committer.pending_notes()}
        fresh = {name: value for name, value in pending.items() if name.startswith(prefix)}
        return dict(sorted({**stored, **fresh}.items()))

    async def meta(self, name: str, default: bytes) -> bytes:
        """Return the journal's own constant, durably set to `default` the first time."""
        return await self._guarded(self._writer, statements.get_meta, name, default)

    async def stats(self) -> JournalStats:
        """Return figures from counters and file sizes; touches no table."""
        committer = self._committer
        return JournalStats(
            backend="sqlite",
            streams=self._streams,
            open_streams=self._open_streams,
            entries=self._entries,
            queued=committer.queued,
            commits=committer.commits,
            committed_entries=committer.committed_entries,
            last_commit_s=committer.last_commit_s,
            oldest_queued_s=committer.oldest_queued_s,
            is_healthy=committer.is_healthy,
            details={
                **self._place.figures(),
                "is_fatal": self.is_fatal,
                "failure": str(committer.failure) if committer.failure is not None else None,
            },
        )

    @property
    def is_healthy(self) -> bool:
        """Whether the last commit succeeded and nothing waits for too long. Returns by itself when the disk does."""
        return self._committer.is_healthy

    @property
    def is_fatal(self) -> bool:
        """Whether the disk can no longer be believed, and the process must exit."""
        return self._committer.poisoned.is_set()

    async def wait_fatal(self) -> None:
        """Wait until `is_fatal`."""
        await self._committer.poisoned.wait()

    async def flush(self) -> None:
        """Return when everything queued so far is durable."""
        await self._committer.flush()

    async def checkpoint(self) -> str | None:
        """Tell the checkpoint file how far the log reaches, durably; return the text, or None if nothing is new.

        Raises:
            JournalUnavailable: the file cannot be written.
        """
        return await self._guarded(self._writer, self._write_checkpoint)

    def _write_checkpoint(self, connection: sqlite3.Connection) -> str | None:
        sealer = self._sealer
        sealer.begin(connection)
        if sealer.position in (self._told, sealer.own):
            return None  # nothing new, or nothing at all: a journal without records may be thrown away
        note = write_checkpoint(self._checkpoint, sealer, _now())
        self._told = sealer.position
        return note

    @property
    def is_key_apart(self) -> bool:
        """Whether the key ring lies outside the data folder."""
        return self._sealer.ring.is_apart(self._place.folder)

    @property
    def untold(self) -> int:
        """Rows since the last checkpoint."""
        return self._sealer.position - self._told

    def reload_keys(self) -> bool:
        """Read the key ring again if its file changed; the next commit goes over to its active key. Returns whether that is
        another.

        Raises:
            KeyRingError: it cannot be used; the old one stays in use.
        """
        ring = KeyRing.load(self._sealer.ring.path)
        if ring == self._sealer.ring:
            return False
        if ring.find(self._sealer.key.id) is None:
            raise KeyRingError(f"the key ring {ring.path} lacks the key in use, {self._sealer.key.id}: restore it")
        is_new = ring.active.id != self._sealer.ring.active.id
        self._sealer.ring = ring
        return is_new

    async def prune(self, before: int, archive: str | None = None) -> Pruned:
        """Archive and delete one batch of closed runs that changed last before `before`, UTC milliseconds.

        Raises:
            JournalUnavailable: the archive or the journal cannot be written.
        """
        folder = Path(archive) if archive is not None else self._place.folder / "archive"
        done = await self._guarded(self._writer, retention.prune, self._sealer, before, _now(), folder)
        if done.runs:
            recounted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._writer.send(partial(self._recounted, recounted), statements.totals)
            await recounted
        return done

    def _recounted(self, recounted: asyncio.Future[None], answer: tuple[int, int, int] | BaseException) -> None:
        """Take over totals before the next commit is told of: it is not in them, and counts itself."""
        if isinstance(answer, BaseException):
            self._is_certain = False  # counted anew with the next commit
        else:
            self._streams, self._open_streams, self._entries = answer
        if not recounted.done():
            recounted.set_result(None)

    async def erase(self, run: str, *, reason: str, by: str) -> int:
        """Erase the payloads of a closed run, large bodies included; return how many bodies went.

        Raises:
            JournalError: there is no such run, it is open, or it is from before the seal.
        """
        bodies = await self._guarded(self._writer, retention.erase, self._sealer, run, _now(), reason=reason, by=by)
        return await self.sweep(bodies)

    async def sweep(self, bodies: Iterable[str]) -> int:
        """Delete those of some large bodies (digests) that no record names any more; return how many.

        A body that was stored within the last hour stays: its record may be on the way.
        """
        left, after = set(bodies), 0
        while left:
            named, following = await self._read(retention.body_names, after, _SWEEP_RECORDS)
            left -= named
            if following is None:
                break
            after = following
        return await self._blobs.discard(left)

    async def close(self) -> None:
        """Commit what is queued, close the file, give back the lock. May be repeated.

        Does not raise if the last commit fails: its futures say so. Whoever must know calls `flush` first.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="journal close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await self._committer.stop()
            with contextlib.suppress(sqlite3.Error):
                await self._reader.close()
            with contextlib.suppress(JournalError):
                await self.checkpoint()
            with contextlib.suppress(sqlite3.Error):
                await self._writer.close()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close at once, without the event loop's help. What is queued is not written. May be repeated."""
        self._reader.abandon()
        self._writer.abandon()
        self._blobs.close()
        self._lock.release()

    async def _read(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        try:
            async with asyncio.timeout(self._patience_s):
                return await self._guarded(self._reader, function, *args, **kwargs)
        except TimeoutError:
            raise JournalUnavailable(f"the disk has not answered a look-up for {self._patience_s:g} s") from None

    async def _guarded(
        self,
        connection: Connection,
        function: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        try:
            return await connection.run(function, *args, **kwargs)
        except Exception as error:
            if is_unstorable(error):
                raise JournalUnavailable(f"this cannot be looked up: {error}") from error
            if isinstance(error, sqlite3.Error):
                meaning = translate(error, str(self._place.file))
                _log.error("the journal cannot be read", extra={"event": "journal", "problem": str(meaning)})
                raise meaning from error
            raise


async def _enter(place: Place, wait_s: float, on_wait: Callable[[JournalLocked], object]) -> FolderLock:
    """Make the folder durable and take its lock, waiting for it if it is held."""
    try:
        is_new = not place.folder.exists()
        place.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_new:
            sync_folder(place.folder.parent)
    except OSError as error:
        raise JournalUnavailable(f"the folder {place.folder} cannot be used: {error.strerror}") from error
    loop, is_told = asyncio.get_running_loop(), False
    until = loop.time() + wait_s
    while True:
        try:
            return FolderLock.take(place.lock)
        except JournalLocked as held:
            if loop.time() >= until:
                raise JournalLocked(f"{held} (waited for it for {wait_s:g} s)" if wait_s else str(held)) from None
            if not is_told:
                is_told = True
                on_wait(held)
        await asyncio.sleep(_LOCK_POLL_S)


def _prepare_blobs(place: Place, blobs: BlobFolder) -> None:
    try:
        blobs.prepare()
        sync_folder(place.folder)
    except OSError as error:
        raise JournalUnavailable(f"the folder {place.blobs} cannot be used: {error.strerror}") from error


def _prepare(
    connection: sqlite3.Connection, file: Path, ring: KeyRing, checkpoint: Path
) -> tuple[Sealer, tuple[int, int, int]]:
    """Make the file a journal of this version, look at its end, begin a chain, and return that with the totals."""
    try:
        schema.configure(connection)
        schema.migrate(connection, schema.load_migrations(), _now())
        schema.check_tail(connection)
        alone.prepare(connection)
        told = [read_checkpoint(checkpoint, ring)] if checkpoint.exists() else []
        if told and connection.execute("SELECT NOT EXISTS (SELECT 1 FROM envelope)").fetchone()[0]:
            raise JournalCorrupt(
                f"{file} is empty, but {checkpoint} tells of a journal that had {told[0].size} records, which are gone. "
                f"Bring it back; or, if it was removed on purpose, remove {checkpoint} too"
            )
        sealer = open_chain(connection, ring, secrets.token_hex(8), _now(), told)
        sync_folder(file.parent)
        return sealer, statements.totals(connection)
    except sqlite3.Error as error:
        if is_corruption(error):
            finding = schema.find_first_damage(connection)
            raise JournalCorrupt(f"{file} is damaged: {finding}. Restore a backup") from error
        raise


def ring_of(place: Place, keys: Path | str | None) -> KeyRing:
    """Return the key ring of a journal; of a new journal that names none, make one.

    Raises:
        KeyRingError: it is missing or cannot be used.
    """
    path = Path(keys) if keys is not None else default_ring(place.folder)
    if path.exists() or place.is_sealed():
        return KeyRing.load(path)
    return KeyRing.make(path, _now())


def write_checkpoint(path: Path, sealer: Sealer, at: int) -> str:
    """Write a checkpoint to a file, durably, and return its text.

    Raises:
        JournalUnavailable: it cannot be written.
    """
    made = Checkpoint(origin=f"seawall/{sealer.boot}", size=sealer.position, root=sealer.mac, at=at)
    note, draft = made.note(sealer.key), path.with_name(f"{path.name}.part")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(note)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise JournalUnavailable(f"the checkpoint {path} cannot be written: {error.strerror}") from error
    return note


def _now() -> int:
    return time.time_ns() // 1_000_000
