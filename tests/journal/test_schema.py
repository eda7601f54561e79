"""Settings that are checked, and migrations that are applied whole or refused by name."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys

import pytest

from gateway.journal import JournalError
from gateway.journal.schema import (
    Migration,
    SchemaChanged,
    SchemaNewer,
    configure,
    has_wal_reset_race,
    load_migrations,
    migrate,
)

FIRST = Migration(1, "0001_a.sql", "PRAGMA application_id = 1398229580; CREATE TABLE a (x); -- the end")
SECOND = Migration(2, "0002_b.sql", "CREATE TABLE b (x)")


@pytest.fixture
def connection(tmp_path):
    connection = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    yield connection
    connection.close()


def tables(connection):
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def test_the_shipped_migrations_make_a_journal(connection):
    """They lie beside the code as files and must travel with the wheel."""
    configure(connection)
    assert migrate(connection, load_migrations(), 7) == len(load_migrations())
    assert {"head", "record", "caller_key", "note", "meta", "migration"} <= tables(connection)
    assert connection.execute("SELECT version, applied_at FROM migration").fetchall() == [(1, 7), (2, 7)]
    assert migrate(connection, load_migrations(), 8) == len(load_migrations())


def test_a_shipped_migration_is_never_edited():
    """Journals in the field have applied it; add the next file instead."""
    assert {migration.name: migration.checksum for migration in load_migrations()} == {
        "0001_journal.sql": "cc5c627b9b8174f49f55b9b10dbea96278eae41382635039f7db7d8ece08629d",
        "0002_seal.sql": "310eec4aa7ae2a571966d1c3388b823abb3fc153a75ed324f6e48718a62113b0",
    }


def test_only_what_is_missing_is_applied(connection):
    assert migrate(connection, [FIRST], 1) == 1
    assert migrate(connection, [FIRST, SECOND], 2) == 2
    assert connection.execute("SELECT version, name, applied_at FROM migration").fetchall() == [
        (1, "0001_a.sql", 1),
        (2, "0002_b.sql", 2),
    ]


def test_a_journal_of_a_later_gateway_is_refused_as_such(connection):
    migrate(connection, [FIRST, SECOND], 1)
    with pytest.raises(SchemaNewer, match="schema 2 and this gateway knows 1: run the later gateway"):
        migrate(connection, [FIRST], 1)


def test_an_applied_migration_that_was_edited_is_refused_by_name(connection):
    migrate(connection, [FIRST, SECOND], 1)
    with pytest.raises(SchemaChanged, match=r"0001_a\.sql differs"):
        migrate(connection, [Migration(1, "0001_a.sql", "CREATE TABLE a (y)"), SECOND], 1)


def test_line_endings_are_no_edit():
    assert Migration(1, "n", "a\r\nb").checksum == Migration(1, "n", "a\nb").checksum


def test_a_migration_that_fails_in_the_middle_leaves_nothing(connection):
    migrate(connection, [FIRST], 1)
    broken = Migration(2, "0002_b.sql", "CREATE TABLE b (x); CREATE TABLE b (x);")
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        migrate(connection, [FIRST, broken], 1)
    assert not connection.in_transaction
    assert "b" not in tables(connection)
    assert migrate(connection, [FIRST, SECOND], 1) == 2


def test_a_process_killed_in_the_middle_of_a_migration_leaves_nothing(tmp_path):
    code = f"""
import os, signal, sqlite3
from gateway.journal.schema import Migration, configure, migrate
connection = sqlite3.connect({str(tmp_path / "x.db")!r}, isolation_level=None)
configure(connection)
connection.create_function("die", 0, lambda: os.kill(os.getpid(), signal.SIGKILL))
migrate(connection, [Migration(1, "0001_a.sql", "CREATE TABLE a (x); SELECT die(); CREATE TABLE b (x)")], 1)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == -signal.SIGKILL
    connection = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    configure(connection)
    assert tables(connection) == set()
    assert migrate(connection, [FIRST], 1) == 1
    connection.close()


def test_somebody_elses_database_is_left_alone(connection):
    connection.execute("CREATE TABLE precious (x)")
    with pytest.raises(JournalError, match="belongs to another program"):
        migrate(connection, [FIRST], 1)
    assert tables(connection) == {"precious"}


@pytest.mark.parametrize("names", [["0002_a.sql"], ["0001_a.sql", "0003_b.sql"], ["first.sql"]])
def test_files_out_of_order_are_a_bug_found_at_once(tmp_path, names):
    for name in names:
        (tmp_path / name).write_text("SELECT 1;")
    with pytest.raises(ValueError, match="should be called"):
        load_migrations(tmp_path)


def test_a_setting_that_does_not_take_is_found(tmp_path):
    """A file made without incremental vacuum can never shrink; SQLite does not say so."""
    connection = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    connection.execute("CREATE TABLE a (x)")
    with pytest.raises(JournalError, match="auto_vacuum is 0 and not 2"):
        configure(connection)
    connection.close()
    memory = sqlite3.connect(":memory:", isolation_level=None)
    with pytest.raises(JournalError, match="stays in journal mode 'memory'"):
        configure(memory)
    memory.close()


@pytest.mark.parametrize(
    ("version", "has_race"),
    [
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 0), True),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 53, 0), False),
    ],
)
def test_the_wal_reset_race_is_known_by_version(version, has_race):
    """benbjohnson/litestream issue 1432: corrupts files that an outside checkpointer works on."""
    assert has_wal_reset_race(version) is has_race
