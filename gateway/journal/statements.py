"""Every SQL statement of the SQLite journal, and the plain functions that run them on a connection's own thread.

Each function is one transaction or one statement, so nobody sees half of anything. `tests/journal/test_sqlite.py` holds the
look-ups to their indexes: none of them grows with history.
"""

# ruff: noqa: S608 - every f-string here is filled from constants of this file
from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from gateway.journal import Append, Entry, Head, JournalCorrupt, KeyOwner
from gateway.journal.alone import plan_alone, write_alone
from gateway.journal.plan import Plan, Standing, plan_batch
from gateway.journal.sealer import ADD_ENVELOPE, Sealer, last_own_count

__all__ = [
    "find_head",
    "find_key",
    "get_meta",
    "list_heads",
    "open_heads",
    "read",
    "read_many",
    "recall",
    "totals",
    "write",
]

_HEAD = "name, version, state, is_open, agent, opened_at, changed_at"

STANDING = f"SELECT id, {_HEAD} FROM head WHERE name = ?"
READ = (
    "SELECT h.version, r.n, r.kind, r.at, r.data FROM head h "
    "LEFT JOIN record r ON r.stream = h.id AND r.n > ? WHERE h.name = ? ORDER BY r.n"
)
OPEN_HEADS = f"SELECT {_HEAD} FROM head WHERE is_open = 1 AND name > ? ORDER BY name LIMIT ?"
HEADS = f"SELECT {_HEAD} FROM head WHERE changed_at < ? ORDER BY changed_at DESC LIMIT ?"
HEADS_AT = f"SELECT {_HEAD} FROM head WHERE changed_at = ?"
HEADS_IN = f"SELECT {_HEAD} FROM head WHERE state = ? AND changed_at < ? ORDER BY changed_at DESC LIMIT ?"
HEADS_IN_AT = f"SELECT {_HEAD} FROM head WHERE state = ? AND changed_at = ?"
FIND_KEY = (
    "SELECT h.name, k.step FROM caller_key k JOIN head h ON h.id = k.stream WHERE k.digest = ? AND k.expires_at > ?"
)
RECALL = "SELECT name, value FROM note WHERE name >= ? AND substr(name, 1, ?) = ? ORDER BY name"
TOTALS = (
    "SELECT coalesce((SELECT max(id) FROM head), 0), (SELECT count(*) FROM head WHERE is_open = 1), "
    "coalesce((SELECT max(id) FROM envelope), (SELECT max(id) FROM record), 0)"
)

_ADD_RECORD = "INSERT INTO record (id, stream, n, kind, at, data) VALUES (?, ?, ?, ?, ?, ?)"
_ADD_HEAD = f"INSERT INTO head (id, {_HEAD}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_MOVE_HEAD = "UPDATE head SET version = ?, state = ?, is_open = ?, agent = ?, changed_at = ? WHERE id = ?"
_ADVANCE_HEAD = "UPDATE head SET version = ?, changed_at = ? WHERE id = ?"
_CLAIM = (
    "INSERT INTO caller_key (digest, stream, step, expires_at) VALUES (?, ?, ?, ?) ON CONFLICT (digest) "
    "DO UPDATE SET stream = excluded.stream, step = excluded.step, expires_at = excluded.expires_at"
)
_NOTE = "INSERT INTO note (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
_PROBE = (
    "INSERT INTO meta (name, value) VALUES ('probe', randomblob(8)) "
    "ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)

_NEXT_ID = "SELECT coalesce(max(id), 0) + 1 FROM head"

_LATEST = (1 << 63) - 1


def write(
    connection: sqlite3.Connection,
    sealer: Sealer,
    appends: Sequence[Append],
    notes: Mapping[str, bytes],
    cached: Mapping[str, Standing],
) -> Plan:
    """Commit a batch in one transaction and return what was written.

    Args:
        connection: the one that writes, made ready by `alone.prepare`.
        sealer: the journal's chain.
        appends: in order; those that conflict are left out.
        notes: values to remember.
        cached: standings already known, so that a stream in use costs no look-up.

    Raises:
        sqlite3.Error: nothing was written, or it is unknown whether; no transaction is left open.
    """
    cursor = connection.cursor()
    try:
        if len(appends) == 1 and not notes and (plan := plan_alone(sealer, appends[0], cached)) is not None:
            write_alone(cursor, sealer, plan)
        else:
            plan = _write_all(connection, cursor, sealer, appends, notes, cached)
    except BaseException:
        sealer.is_stale = True
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise
    return plan


def _write_all(
    connection: sqlite3.Connection,
    cursor: sqlite3.Cursor,
    sealer: Sealer,
    appends: Sequence[Append],
    notes: Mapping[str, bytes],
    cached: Mapping[str, Standing],
) -> Plan:
    cursor.execute("BEGIN IMMEDIATE")
    plan = plan_batch(appends, *_known(cursor, appends, cached))
    _write_heads(cursor, plan)
    if plan.records:
        sealer.begin(connection)
        sealer.turn(connection, plan.records[-1][3])
        first = sealer.position + 1
        cursor.executemany(_ADD_RECORD, [(id, *record) for id, record in enumerate(plan.records, first)])
        cursor.executemany(ADD_ENVELOPE, sealer.seal(plan))
    if plan.claims:
        cursor.executemany(_CLAIM, plan.claims)
    if notes:
        cursor.executemany(_NOTE, notes.items())
    if not appends and not notes:
        cursor.execute(_PROBE)
    cursor.execute("COMMIT")
    return plan


def read(connection: sqlite3.Connection, stream: str, after: int) -> list[Entry]:
    """Return the entries of a stream beyond version `after`.

    Raises:
        JournalCorrupt: one is missing.
    """
    entries: list[Entry] = []
    rows = connection.execute(READ, (after, stream)).fetchall()
    for expected, (_, n, kind, at, data) in enumerate(rows, after + 1):
        if n is None:
            break
        if n != expected:
            raise JournalCorrupt(f"entry {expected} of run {stream!r} is missing: restore a backup")
        entries.append(Entry(kind, at, data))
    if rows and after + len(entries) < rows[0][0]:
        raise JournalCorrupt(f"entry {after + len(entries) + 1} of run {stream!r} is missing: restore a backup")
    return entries


def read_many(connection: sqlite3.Connection, streams: Iterable[str]) -> list[list[Entry]]:
    """Return the entries of each of some streams.

    Raises:
        JournalCorrupt: one is missing.
    """
    return [read(connection, stream, 0) for stream in streams]


def find_head(connection: sqlite3.Connection, stream: str) -> Head | None:
    """Return the head of a stream, or None."""
    row = connection.execute(STANDING, (stream,)).fetchone()
    return _head(row[1:]) if row is not None else None


def open_heads(connection: sqlite3.Connection, after: str, limit: int) -> list[Head]:
    """Return open heads in order of name."""
    return [_head(row) for row in connection.execute(OPEN_HEADS, (after, limit))]


def list_heads(connection: sqlite3.Connection, limit: int, before: int | None, state: str | None) -> list[Head]:
    """Return heads, last changed first, down to the whole of the last millisecond."""
    upper = _LATEST if before is None else before
    rows = connection.execute(*((HEADS, (upper, limit)) if state is None else (HEADS_IN, (state, upper, limit))))
    found = [_head(row) for row in rows]
    if found and len(found) == limit:
        last = found[-1].changed_at
        rows = connection.execute(*((HEADS_AT, (last,)) if state is None else (HEADS_IN_AT, (state, last))))
        found = [head for head in found if head.changed_at > last] + [_head(row) for row in rows]
    return sorted(found, key=lambda head: (-head.changed_at, head.stream))


def find_key(connection: sqlite3.Connection, digest: bytes, at: int) -> KeyOwner | None:
    """Return the step that an unexpired claim names."""
    row = connection.execute(FIND_KEY, (digest, at)).fetchone()
    return KeyOwner(*row) if row is not None else None


def recall(connection: sqlite3.Connection, prefix: str) -> dict[str, bytes]:
    """Return the notes whose names start with `prefix`."""
    return dict(connection.execute(RECALL, (prefix, len(prefix), prefix)).fetchall())


def get_meta(connection: sqlite3.Connection, name: str, default: bytes) -> bytes:
    """Return a constant, set durably to `default` if there is none yet."""
    connection.execute("INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING", (name, default))
    value: bytes = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()[0]
    return value


def totals(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Return how many streams and entries were ever written, and how many streams are open: (streams, open, entries)."""
    streams, is_open, rows = connection.execute(TOTALS).fetchone()
    return streams, is_open, rows - last_own_count(connection)


def _known(
    cursor: sqlite3.Cursor, appends: Iterable[Append], cached: Mapping[str, Standing]
) -> tuple[dict[str, Standing], int]:
    """Return the standings of the streams that exist, and the first free stream id if one does not."""
    known: dict[str, Standing] = {}
    missing: dict[str, None] = {}
    for append in appends:
        name = append.stream
        if (standing := cached.get(name)) is not None:
            known[name] = standing
        else:
            missing[name] = None
    for name in missing:
        row = cursor.execute(STANDING, (name,)).fetchone()
        if row is not None:
            known[name] = Standing(row[0], _head(row[1:]))
    return known, cursor.execute(_NEXT_ID).fetchone()[0] if missing else 0


def _write_heads(cursor: sqlite3.Cursor, plan: Plan) -> None:
    if plan.created:
        cursor.executemany(_ADD_HEAD, [_head_row(standing) for standing in plan.created.values()])
    if plan.changed:
        cursor.executemany(_MOVE_HEAD, [_move_row(standing) for standing in plan.changed.values()])
    if plan.advanced:
        heads = [(head.version, head.changed_at, id) for id, head in plan.advanced.values()]
        cursor.executemany(_ADVANCE_HEAD, heads)


def _head(row: Sequence[object]) -> Head:
    name, version, state, is_open, agent, opened_at, changed_at = row
    return Head(name, version, state, bool(is_open), agent, opened_at, changed_at)  # type: ignore[arg-type]


def _head_row(standing: Standing) -> tuple[object, ...]:
    head = standing.head
    return (
        standing.id,
        head.stream,
        head.version,
        head.state,
        int(head.is_open),
        head.agent,
        head.opened_at,
        head.changed_at,
    )


def _move_row(standing: Standing) -> tuple[object, ...]:
    head = standing.head
    return head.version, head.state, int(head.is_open), head.agent, head.changed_at, standing.id
