"""Taking records out of the journal without breaking its chain: whole runs after their time, payloads when asked to.

A run is archived first, to a file of lines that is durable before a row goes. What is taken leaves a range in the table
`archived` with the seal that the next row follows, and the entry `RunsArchived` seals that table. Neighbouring ranges become
one, so a journal that has run for years keeps a short table.

Erasing a run's payloads leaves every record with its place, time and kind, what the fold needs of it, and its digest; the
salt goes, so that not even the holder of the key can test a guess. `PayloadsErased` says who asked and why.

Both take bounded batches, each one transaction on the thread that writes.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import orjson

from gateway.core.records import redacted
from gateway.journal import JournalCorrupt, JournalError, JournalUnavailable, Pruned
from gateway.journal.blobs import sync_folder
from gateway.journal.chain import transaction
from gateway.journal.sealer import Sealer
from gateway.journal.verification import Range, SealedRow, archived_digest

__all__ = ["body_names", "erase", "export_line", "prune"]

BATCH_RUNS: Final = 100
BATCH_RECORDS: Final = 500
_VACUUM_PAGES: Final = 64
_BODY = re.compile(rb"sha256:([0-9a-f]{64})")

_DUE = (
    "SELECT id, name, version FROM head WHERE changed_at < ? AND is_open = 0 "
    "AND NOT EXISTS (SELECT 1 FROM caller_key k WHERE k.stream = head.id AND k.expires_at > ?) "
    "AND version = (SELECT count(*) FROM record r WHERE r.stream = head.id) ORDER BY changed_at LIMIT ?"
)
_RUN = (
    "SELECT r.id, e.epoch, e.key, e.effect, e.destination, e.route, e.producer, e.salt, e.digest, e.mac, e.note, c.boot, "
    "r.n, r.kind, r.at, r.data, h.name, h.version, h.state, h.is_open, h.agent "
    "FROM record r JOIN head h ON h.id = r.stream LEFT JOIN envelope e ON e.id = r.id "
    "LEFT JOIN chain c ON c.epoch = e.epoch WHERE r.stream = ? ORDER BY r.n"
)
"""Records from before the seal have no envelope."""


def prune(connection: sqlite3.Connection, sealer: Sealer, before: int, at: int, archive: Path) -> Pruned:
    """Archive and delete one batch of closed runs that changed last before `before`, whose callers' keys have expired.

    Args:
        connection: the one that writes.
        sealer: the journal's chain.
        before: UTC milliseconds.
        at: now, UTC milliseconds.
        archive: folder for the archived lines.

    Raises:
        JournalUnavailable: the archive could not be written; nothing was deleted.
        sqlite3.Error: nothing was deleted, or it is unknown.
    """
    due = connection.execute(_DUE, (before, at, BATCH_RUNS)).fetchall()
    rows: list[SealedRow] = []
    streams: list[int] = []
    for stream, _name, _version in due:
        run = [SealedRow._make(row) for row in connection.execute(_RUN, (stream,))]
        if streams and len(rows) + len(run) > BATCH_RECORDS:
            break
        rows += run
        streams.append(stream)
    if not rows:
        return Pruned()
    rows.sort(key=lambda row: row.id)
    name, digest = _archive(archive, rows)
    try:
        with transaction(connection):
            sealer.begin(connection)
            sealer.turn(connection, at)
            _delete(connection, sealer, streams, rows, at, name, digest)
    except BaseException:
        sealer.is_stale = True
        raise
    connection.execute(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})").fetchall()
    names = frozenset(found.decode() for row in rows for found in _BODY.findall(row.data or b""))
    return Pruned(len(streams), len(rows), names, len(streams) < len(due) or len(due) == BATCH_RUNS)


def _delete(
    connection: sqlite3.Connection,
    sealer: Sealer,
    streams: Sequence[int],
    rows: Sequence[SealedRow],
    at: int,
    name: str,
    digest: str,
) -> None:
    ids, keys = [(row.id,) for row in rows], [(stream,) for stream in streams]
    connection.executemany("DELETE FROM caller_key WHERE stream = ?", keys)
    connection.executemany("DELETE FROM record WHERE stream = ?", keys)
    connection.executemany("DELETE FROM envelope WHERE id = ?", ids)
    connection.executemany("DELETE FROM head WHERE id = ?", keys)
    for taken in _ranges([row for row in rows if row.is_sealed]):
        _extend(connection, taken)
    table = [Range(*row) for row in connection.execute("SELECT first, last, mac FROM archived ORDER BY first")]
    told = {
        "runs": len(streams),
        "records": len(rows),
        "file": name,
        "sha256": digest,
        "ranges": archived_digest(table),
    }
    sealer.add(connection, "RunsArchived", at, told)


def _ranges(rows: Sequence[SealedRow]) -> Iterator[Range]:
    if not rows:
        return
    first = rows[0]
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        if following is None or following.id != row.id + 1:
            yield Range(first.id, row.id, row.mac)
            if following is not None:
                first = following


def _extend(connection: sqlite3.Connection, taken: Range) -> None:
    """Put a range into the table, made one with its neighbours."""
    first, last, mac = taken
    left = connection.execute(
        "SELECT first, last FROM archived WHERE first < ? ORDER BY first DESC LIMIT 1", (first,)
    ).fetchone()
    if left is not None and left[1] == first - 1:
        first = left[0]
    right = connection.execute("SELECT last, mac FROM archived WHERE first = ?", (last + 1,)).fetchone()
    if right is not None:
        connection.execute("DELETE FROM archived WHERE first = ?", (last + 1,))
        last, mac = right
    connection.execute("INSERT OR REPLACE INTO archived (first, last, mac) VALUES (?, ?, ?)", (first, last, mac))


def _archive(folder: Path, rows: Sequence[SealedRow]) -> tuple[str, str]:
    data = b"".join(export_line(row) for row in rows)
    digest = hashlib.sha256(data).hexdigest()
    name = f"{rows[0].id:012d}-{rows[-1].id:012d}-{digest[:8]}.ndjson"
    draft = folder / f"{name}.part"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        draft.replace(folder / name)
        sync_folder(folder)
    except OSError as error:
        raise JournalUnavailable(
            f"the archive {folder} cannot be written ({error.strerror}): nothing was pruned"
        ) from error
    return name, digest


def export_line(row: SealedRow) -> bytes:
    """Return a row as a line of JSON: the envelope, the record's kind and payload, and what it takes to verify them.

    Raises:
        JournalCorrupt: the row has no record.
    """
    data = row.note if row.note is not None else row.data
    if data is None:
        raise JournalCorrupt(f"record {row.id} has lost its content: `seawall journal verify` says more")
    told: dict[str, object] = {"position": row.id, "kind": row.kind or row.route}
    if row.is_sealed:
        envelope = row.envelope()
        told |= {name: getattr(envelope, name) for name in envelope.__slots__}
        told |= {"key": row.key, "salt": row.salt.hex() if row.salt is not None else None, "seal": row.mac.hex()}
    else:
        told |= {"event_id": f"{row.stream}#{row.n}", "issued_at": row.at}
    told |= _payload(data)
    return orjson.dumps(told, option=orjson.OPT_APPEND_NEWLINE)


def _payload(data: bytes) -> dict[str, str]:
    try:
        return {"payload": data.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(data).decode()}


def erase(connection: sqlite3.Connection, sealer: Sealer, run: str, at: int, *, reason: str, by: str) -> frozenset[str]:
    """Erase the payloads of a closed run and return the large bodies they named. Repeatable.

    Raises:
        JournalError: there is no such run, it is open, or its records are from before the seal.
    """
    connection.execute("PRAGMA secure_delete = ON").fetchall()
    try:
        with transaction(connection):
            return _erase(connection, sealer, run, at, reason, by)
    except BaseException:
        sealer.is_stale = True
        raise


def _erase(connection: sqlite3.Connection, sealer: Sealer, run: str, at: int, reason: str, by: str) -> frozenset[str]:
    head = connection.execute("SELECT id, version, is_open FROM head WHERE name = ?", (run,)).fetchone()
    if head is None:
        raise JournalError(f"there is no run {run!r}")
    stream, version, is_open = head
    if is_open:
        raise JournalError(f"run {run!r} is still open, and its records are needed: end it first")
    rows = connection.execute("SELECT id, kind, data FROM record WHERE stream = ?", (stream,)).fetchall()
    names = frozenset(found.decode() for _, _, data in rows for found in _BODY.findall(data))
    sealed = connection.execute(
        "SELECT count(*) FROM record r JOIN envelope e ON e.id = r.id WHERE r.stream = ?", (stream,)
    ).fetchone()[0]
    if sealed != len(rows):
        raise JournalError(f"run {run!r} is from before records were sealed: it can only be pruned")
    sealer.begin(connection)
    sealer.turn(connection, at)
    connection.executemany("UPDATE envelope SET salt = NULL WHERE id = ?", ((id,) for id, _, _ in rows))
    connection.executemany(
        "UPDATE record SET data = ? WHERE id = ?", ((redacted(kind, data), id) for id, kind, data in rows)
    )
    told = {"run": run, "version": version, "reason": reason, "by": by}
    sealer.add(connection, "PayloadsErased", at, told)
    return names


def body_names(connection: sqlite3.Connection, after: int, limit: int) -> tuple[set[str], int | None]:
    """Return the large bodies that a page of records beyond position `after` names, and where the next page begins."""
    rows = connection.execute("SELECT id, data FROM record WHERE id > ? ORDER BY id LIMIT ?", (after, limit)).fetchall()
    names = {found.decode() for _, data in rows for found in _BODY.findall(data)}
    return names, rows[-1][0] if len(rows) == limit else None
