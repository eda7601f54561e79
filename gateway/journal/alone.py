"""A lone append to a run in use, in one statement: what most commits of a gateway with few callers are.

Such an append is a record, its envelope, and a head that moves on: three statements between BEGIN and COMMIT. Each of the
five gives the interpreter's lock away and takes it again, and each finds the caches cold, since milliseconds lie between two
commits. Here a temporary view stands for the three: an insert into it is a statement by itself, so SQLite makes it a
transaction by itself, all of it or nothing. View and trigger belong to the connection; the file knows nothing of them
(docs/adr/0184-a-lone-commit-in-one-statement.md).

Everything else (several appends, a run that begins or changes its state, claims, remembered values, another key) takes the
road of `statements.write`, which is the same to the reader of the file.
"""

# ruff: noqa: S608 - every f-string here is filled from constants of this file
from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Final

from gateway.journal import Append
from gateway.journal.plan import Plan, Standing, plan_batch
from gateway.journal.sealer import Sealer

__all__ = ["plan_alone", "prepare", "write_alone"]

_COLUMNS: Final = (
    "stream", "n", "kind", "at", "data",
    "id", "epoch", "key", "effect", "destination", "route", "producer", "salt", "digest", "mac",
)  # fmt: skip
"""Of a record, and of its envelope in the order of `sealer.Row`."""

_PREPARE: Final = f"""
CREATE TEMP VIEW alone AS SELECT {", ".join(f"NULL AS {name}" for name in _COLUMNS)};
CREATE TEMP TRIGGER alone_is_written INSTEAD OF INSERT ON alone
BEGIN
  INSERT INTO record (id, stream, n, kind, at, data) VALUES (NEW.id, NEW.stream, NEW.n, NEW.kind, NEW.at, NEW.data);
  INSERT INTO envelope (id, epoch, key, effect, destination, route, producer, salt, digest, mac) VALUES (
    NEW.id, NEW.epoch, NEW.key, NEW.effect, NEW.destination, NEW.route, NEW.producer, NEW.salt, NEW.digest, NEW.mac
  );
  UPDATE head SET version = NEW.n, changed_at = NEW.at WHERE id = NEW.stream;
END;
"""

_WRITE: Final = f"INSERT INTO temp.alone VALUES ({', '.join('?' * len(_COLUMNS))})"


def prepare(connection: sqlite3.Connection) -> None:
    """Make a connection that writes able to `write_alone`."""
    connection.executescript(_PREPARE)


def plan_alone(sealer: Sealer, append: Append, cached: Mapping[str, Standing]) -> Plan | None:
    """Return the plan of an append that one statement can write, or None."""
    standing = cached.get(append.stream)
    if standing is None or append.claims or len(append.entries) != 1 or not sealer.goes_on:
        return None
    plan = plan_batch((append,), {append.stream: standing}, 0)
    return plan if plan.advanced else None


def write_alone(cursor: sqlite3.Cursor, sealer: Sealer, plan: Plan) -> None:
    """Commit such a plan.

    Raises:
        sqlite3.Error: nothing was written, or it is unknown whether; the seal has gone ahead of the file.
    """
    (record,), (row,) = plan.records, sealer.seal(plan)
    cursor.execute(_WRITE, (*record, *row[:-1]))
