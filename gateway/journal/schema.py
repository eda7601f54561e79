"""Making an SQLite file a journal: settings that are checked after they are made, and numbered migrations.

A migration is a file `NNNN_what.sql`, applied whole or not at all, in a transaction that also notes its number and SHA-256.
A file that was applied and then edited is refused (`SchemaChanged`): nobody could say what the tables look like. A journal
made by a later gateway is refused with another word (`SchemaNewer`), since the way out is another one.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from gateway.journal import JournalCorrupt, JournalError, JournalUnavailable
from gateway.journal.faults import is_corruption

__all__ = [
    "Migration",
    "SchemaChanged",
    "SchemaNewer",
    "check_owner",
    "check_tail",
    "configure",
    "configure_reader",
    "find_first_damage",
    "has_wal_reset_race",
    "load_migrations",
    "migrate",
]

APPLICATION_ID = int.from_bytes(b"SWJL", "big")
SMALLEST_SQLITE = (3, 37, 0)  # STRICT tables
TAIL_RECORDS = 1_000

SETTINGS = {
    "synchronous": 2,
    "wal_autocheckpoint": 4_000,
    "journal_size_limit": 64 << 20,
    "busy_timeout": 5_000,
    "foreign_keys": 1,
    "trusted_schema": 0,
}

_MIGRATION_TABLE = """
CREATE TABLE IF NOT EXISTS migration (
  version INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL
) STRICT
"""

_FILE_NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


class SchemaNewer(JournalError):
    """The journal was made by a later gateway."""


class SchemaChanged(JournalError):
    """A migration that was applied to the journal differs from the one this gateway carries."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step from an empty file to today's tables."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the text, the same on every platform's line endings."""
        return hashlib.sha256(self.sql.replace("\r\n", "\n").encode()).hexdigest()


def has_wal_reset_race(version: tuple[int, ...]) -> bool:
    """Whether this SQLite may corrupt a file on which two connections write or checkpoint at once.

    Harmless here: one connection writes, and readers are opened read-only. It matters to outside checkpointers.

    Source: https://sqlite.org/wal.html, "the WAL-reset bug": fixed in 3.51.3, and in 3.50.7 and 3.44.6.
    """
    if version >= (3, 51, 3):
        return False
    return not ((3, 50, 7) <= version < (3, 51) or (3, 44, 6) <= version < (3, 45))


def load_migrations(folder: Traversable | None = None) -> list[Migration]:
    """Return the migrations in a folder (by default those shipped with the gateway) in order.

    Raises:
        ValueError: they are not numbered 1, 2, 3 and so on.
    """
    folder = folder or resources.files("gateway.journal") / "migrations" / "sqlite"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    migrations = []
    for expected, file in enumerate(files, 1):
        match = _FILE_NAME.fullmatch(file.name)
        if match is None or int(match[1]) != expected:
            raise ValueError(f"migration {file.name} should be called {expected:04d}_what.sql")
        migrations.append(Migration(expected, file.name, file.read_text(encoding="utf-8")))
    return migrations


def configure(connection: sqlite3.Connection) -> None:
    """Set what durability rests on, and check each setting afterwards. SQLite ignores what it cannot do.

    Raises:
        JournalError: SQLite is too old, or a setting did not take.
    """
    if sqlite3.sqlite_version_info < SMALLEST_SQLITE:
        raise JournalError(f"SQLite {sqlite3.sqlite_version} is too old: 3.37 or later is needed")
    if not _value(connection, "page_count"):
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise JournalUnavailable(
            f"SQLite stays in journal mode {mode!r}: the journal needs a local file system with shared memory"
        )
    for name, value in SETTINGS.items():
        connection.execute(f"PRAGMA {name} = {value}")
    for name, value in {**SETTINGS, "auto_vacuum": 2}.items():
        if (found := _value(connection, name)) != value:
            raise JournalError(f"PRAGMA {name} is {found} and not {value}: this SQLite file cannot be a journal")


def configure_reader(connection: sqlite3.Connection) -> None:
    """Make a connection that cannot write, also if it was opened so that it could.

    Raises:
        JournalError: a setting did not take.
    """
    for name, value in (("query_only", 1), ("busy_timeout", SETTINGS["busy_timeout"])):
        connection.execute(f"PRAGMA {name} = {value}")
        if _value(connection, name) != value:
            raise JournalError(f"PRAGMA {name} did not take: this SQLite cannot be trusted to only read")


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration], at: int) -> int:
    """Bring a file up to date and return its version.

    Args:
        connection: in autocommit mode, the only one that writes.
        migrations: all there are, in order.
        at: UTC milliseconds, noted beside each.

    Raises:
        SchemaNewer, SchemaChanged: see there.
        JournalError: it is somebody else's database.
    """
    applied = _applied(connection)
    if len(applied) > len(migrations):
        raise SchemaNewer(
            f"the journal has schema {len(applied)} and this gateway knows {len(migrations)}: run the later gateway, "
            "or restore a backup made before the upgrade"
        )
    for migration, checksum in zip(migrations, applied, strict=False):
        if checksum != migration.checksum:
            raise SchemaChanged(
                f"{migration.name} differs from what was applied to this journal: install an unmodified gateway"
            )
    for migration in migrations[len(applied) :]:
        _apply(connection, migration, at)
    return len(migrations)


def check_owner(connection: sqlite3.Connection) -> bool:
    """Return whether the file holds a journal; False if it is empty.

    Raises:
        JournalError: it is somebody else's database.
    """
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
        return False
    if _value(connection, "application_id") != APPLICATION_ID:
        raise JournalError("this SQLite file belongs to another program: name another file or folder")
    return True


def _applied(connection: sqlite3.Connection) -> list[str]:
    if not check_owner(connection):
        return []
    rows = connection.execute("SELECT version, checksum FROM migration ORDER BY version").fetchall()
    if [version for version, _ in rows] != list(range(1, len(rows) + 1)):
        raise JournalCorrupt("the table of migrations has a gap: restore a backup")
    return [checksum for _, checksum in rows]


def _apply(connection: sqlite3.Connection, migration: Migration, at: int) -> None:
    values = f"({migration.version}, '{migration.name}', '{migration.checksum}', {at})"
    note = "INSERT INTO migration VALUES " + values  # noqa: S608 - our own file name and digits
    script = ("BEGIN IMMEDIATE", _MIGRATION_TABLE, migration.sql, note, "COMMIT", "")
    try:
        connection.executescript("\n;\n".join(script))
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def check_tail(connection: sqlite3.Connection) -> None:
    """Compare the latest records with their heads, which one transaction wrote. Cost does not grow with history.

    The seal is another matter: `chain.open_chain` looks at that, with the key ring in hand.

    Raises:
        JournalCorrupt: they disagree; names the first record that does.
    """
    rows = connection.execute(
        "SELECT r.id, r.n, h.name, h.version FROM record r LEFT JOIN head h ON h.id = r.stream "
        "WHERE r.id > (SELECT max(id) FROM record) - ? ORDER BY r.id",
        (TAIL_RECORDS,),
    ).fetchall()
    _check_versions(rows)


def _check_versions(rows: Iterable[tuple[int, int, str | None, int]]) -> None:
    latest: dict[str, tuple[int, int, int]] = {}
    for record, n, name, version in rows:
        if name is None:
            raise JournalCorrupt(f"record {record} belongs to no run: restore a backup")
        if n > version:
            raise JournalCorrupt(
                f"record {record} is entry {n} of run {name!r}, whose head stands at {version}: restore a backup"
            )
        latest[name] = (record, n, version)
    for name, (record, n, version) in latest.items():
        if n != version:
            raise JournalCorrupt(
                f"record {record} is the last of run {name!r} and its entry {n}, but the head stands at {version}: "
                "restore a backup"
            )


def find_first_damage(connection: sqlite3.Connection) -> str:
    """Return SQLite's own first finding about a damaged file. Reads all of it: for files that are refused anyway."""
    try:
        rows = connection.execute("PRAGMA integrity_check(1)").fetchall()
    except sqlite3.Error as error:
        return str(error) if is_corruption(error) else f"{error} (while looking for the damage)"
    return " ".join(str(finding).replace("\n", " ") for (finding,) in rows)


def _value(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value
