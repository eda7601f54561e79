"""What SQLite's errors mean."""

from __future__ import annotations

import sqlite3

import pytest

from gateway.journal import JournalCorrupt, JournalPoisoned, JournalUnavailable
from gateway.journal.faults import is_unstorable, translate


def error(name: str) -> sqlite3.OperationalError:
    made = sqlite3.OperationalError("sqlite says so")
    made.sqlite_errorname = name
    made.sqlite_errorcode = getattr(sqlite3, name)
    return made


@pytest.mark.parametrize(
    ("name", "expected", "word"),
    [
        ("SQLITE_FULL", JournalUnavailable, "free some disk space"),
        ("SQLITE_IOERR_WRITE", JournalUnavailable, "free some disk space"),
        ("SQLITE_BUSY", JournalUnavailable, "just now"),
        ("SQLITE_BUSY_SNAPSHOT", JournalUnavailable, "just now"),
        ("SQLITE_IOERR_FSYNC", JournalPoisoned, "check the disk"),
        ("SQLITE_IOERR_DIR_FSYNC", JournalPoisoned, "check the disk"),
        ("SQLITE_IOERR_READ", JournalPoisoned, "check the disk"),
        ("SQLITE_IOERR", JournalPoisoned, "check the disk"),
        ("SQLITE_CONSTRAINT_UNIQUE", JournalPoisoned, "nobody but one gateway"),
        ("SQLITE_CORRUPT", JournalCorrupt, "restore a backup"),
        ("SQLITE_CORRUPT_INDEX", JournalCorrupt, "restore a backup"),
        ("SQLITE_NOTADB", JournalCorrupt, "restore a backup"),
    ],
)
def test_each_kind_of_failure_has_one_meaning_and_a_next_step(name, expected, word):
    meaning = translate(error(name), "/data/journal.db")
    assert type(meaning) is expected
    assert word in str(meaning)
    assert "/data/journal.db" in str(meaning)
    assert name in str(meaning)


@pytest.mark.parametrize("values", [("\udcff",), (2**63,), (object(),), (None,), ("text",)])
def test_a_value_that_cannot_be_stored_is_told_from_a_disk_that_cannot_store(values):
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (x BLOB NOT NULL) STRICT")
    with pytest.raises(Exception) as caught:
        connection.execute("INSERT INTO t VALUES (?)", values)
    assert is_unstorable(caught.value)
    connection.close()
    assert not is_unstorable(error("SQLITE_FULL"))
