"""Looking at an SQLite journal without being its gateway: read-only, no lock, beside a running one or without.

Only `acknowledge_folder` writes, and takes the lock for it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gateway.core.seal import Checkpoint
from gateway.journal import JournalCorrupt, JournalError, JournalStats, JournalUnavailable, schema, statements
from gateway.journal.blobs import sync_folder
from gateway.journal.chain import acknowledge, read_checkpoint
from gateway.journal.faults import translate
from gateway.journal.keyring import KeyRing, default_ring
from gateway.journal.lock import FolderLock
from gateway.journal.place import Place, aside
from gateway.journal.retention import export_line
from gateway.journal.verification import Verdict, Verification, rows_after, verify

__all__ = ["acknowledge_folder", "back_up", "export", "offline_stats", "reading", "verify_folder"]

_EXPORT_ROWS = 5_000


@contextlib.contextmanager
def reading(place: Place) -> Iterator[sqlite3.Connection]:
    """Open a journal's file for reading.

    Raises:
        JournalUnavailable: there is no journal, or it cannot be read.
        JournalCorrupt: it is damaged.
    """
    if not place.file.exists():
        raise JournalUnavailable(f"there is no journal at {place.file}: name the folder given to `serve --data`")
    try:
        with contextlib.closing(sqlite3.connect(place.read_only_uri, uri=True, isolation_level=None)) as connection:
            schema.configure_reader(connection)
            schema.check_owner(connection)
            yield connection
    except sqlite3.Error as error:
        raise translate(error, str(place.file)) from error


def offline_stats(path: Path | str) -> JournalStats:
    """Return figures of the journal in a folder, beside a running gateway or without one. Changes nothing, takes no lock.

    Raises:
        JournalUnavailable: there is no journal, or it cannot be read.
        JournalCorrupt: it is damaged.
    """
    place = Place.of(path)
    with reading(place) as connection:
        if not place.is_sealed():
            _unsealed(place)
        streams, open_streams, entries = statements.totals(connection)
    return JournalStats(
        backend="sqlite",
        streams=streams,
        open_streams=open_streams,
        entries=entries,
        queued=0,
        commits=0,
        committed_entries=0,
        last_commit_s=0.0,
        oldest_queued_s=0.0,
        is_healthy=True,
        details=place.figures(),
    )


def verify_folder(
    path: Path | str,
    *,
    keys: Path | str | None = None,
    against: Path | str | bool = True,
) -> Verification:
    """Verify all of a journal, beside a running gateway or without one. Changes nothing, takes no lock.

    Args:
        path: the data folder.
        keys: the key ring, if it is not where `serve` puts it.
        against: a checkpoint; True: the one that the gateway writes, if there is one; False: none.

    Raises:
        JournalError: the journal, the ring or the checkpoint cannot be read.
    """
    place = Place.of(path)
    with reading(place) as connection:
        if not place.is_sealed():
            _unsealed(place)
        ring = KeyRing.load(_ring(place, keys))
        return verify(connection, ring, checkpoints=_checkpoints(place, ring, against))


def acknowledge_folder(
    path: Path | str,
    *,
    reason: str,
    by: str,
    keys: Path | str | None = None,
    against: Path | str | bool = True,
) -> Verification:
    """Write down what does not verify, and why, in a journal that no gateway has open; return what it was. Repeatable.

    Raises:
        JournalLocked: a gateway has it open.
        JournalError: it cannot be read, or something is wrong that cannot be acknowledged.
    """
    place = Place.of(path)
    with reading(place):
        pass
    lock = FolderLock.take(place.lock)
    try:
        ring = KeyRing.load(_ring(place, keys))
        told = _checkpoints(place, ring, against)
        with contextlib.closing(sqlite3.connect(place.file, isolation_level=None)) as connection:
            schema.configure(connection)
            schema.migrate(connection, schema.load_migrations(), _now())
            return acknowledge(connection, ring, secrets.token_hex(8), _now(), reason=reason, by=by, checkpoints=told)
    except sqlite3.Error as error:
        raise translate(error, str(place.file)) from error
    finally:
        lock.release()


def export(path: Path | str, to: BinaryIO) -> int:
    """Write every sealed row as a line of JSON and return how many. One moment of the log, however long it takes."""
    place, count = Place.of(path), 0
    with reading(place) as connection:
        if not place.is_sealed():
            _unsealed(place)
        connection.execute("BEGIN")
        for row in rows_after(connection, 0):
            to.write(export_line(row))
            count += 1
    return count


def back_up(path: Path | str, to: Path | str, *, keys: Path | str | None = None) -> Verification:
    """Copy a journal, beside a running gateway, to a folder that does not exist yet, and verify the copy.

    The copy is one moment of the log with every large body that it names. The key ring is not copied.

    Raises:
        JournalError: it cannot be read, the copy cannot be written, or the copy does not verify (it is left for a look).
    """
    source, target = Place.of(path), Place.of(to)
    with reading(source) as connection:
        ring = _ring(source, keys)
        _make_folder(target.folder)
        with contextlib.closing(sqlite3.connect(target.file)) as copy:
            connection.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE").fetchall()
    try:
        # After the log, so that every body that the copied log names is there; bodies are never changed.
        if source.blobs.exists():
            shutil.copytree(source.blobs, target.blobs, ignore=shutil.ignore_patterns("tmp"))
        _sync_tree(target.folder)
    except (OSError, shutil.Error) as error:
        raise JournalUnavailable(f"large bodies could not be copied to {target.blobs}: {error}") from error
    found = verify_folder(target.folder, keys=ring, against=False)
    if found.verdict not in (Verdict.OK, Verdict.ACKNOWLEDGED):
        raise JournalCorrupt(f"the copy in {target.folder} does not verify ({found.verdict.value}): {found.finding}")
    return found


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise JournalUnavailable(f"{folder} exists already: name a folder that does not") from None
    except OSError as error:
        raise JournalUnavailable(f"the folder {folder} cannot be made: {error.strerror}") from error


def _sync_tree(folder: Path) -> None:
    for root, _, files in os.walk(folder):
        for name in files:
            descriptor = os.open(Path(root) / name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(Path(root))


def _ring(place: Place, keys: Path | str | None) -> Path:
    return Path(keys) if keys is not None else default_ring(place.folder)


def _checkpoints(place: Place, ring: KeyRing, against: Path | str | bool) -> list[Checkpoint]:
    if against is False:
        return []
    if against is True:
        beside = aside(place.folder, "checkpoint")
        return [read_checkpoint(beside, ring)] if beside.exists() else []
    return [read_checkpoint(Path(against), ring)]


def _unsealed(place: Place) -> None:
    raise JournalError(
        f"the journal {place.file} is from before records were sealed: start this release's gateway on it once"
    )


def _now() -> int:
    return time.time_ns() // 1_000_000
