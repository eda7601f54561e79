"""Where an SQLite journal lives on disk, and what can be told of it without opening it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from gateway.journal import JournalUnavailable
from gateway.journal.schema import has_wal_reset_race

__all__ = ["Place", "aside"]

_FILE_SUFFIXES = frozenset({".db", ".sqlite", ".sqlite3"})


@dataclass(frozen=True, slots=True)
class Place:
    """Where a journal lives: the data folder, and its SQLite file."""

    folder: Path
    file: Path

    @classmethod
    def of(cls, path: Path | str) -> Place:
        """Return the place for a folder, or for a file ending in .db, .sqlite or .sqlite3."""
        path = Path(path).absolute()
        if path.suffix in _FILE_SUFFIXES and not path.is_dir():
            return cls(path.parent, path)
        return cls(path, path / "journal.db")

    @property
    def lock(self) -> Path:
        """The lock file: one for the folder, whatever the SQLite file is called."""
        return self.folder / "journal.lock"

    @property
    def blobs(self) -> Path:
        """The folder of large bodies."""
        return self.folder / "blobs"

    @property
    def read_only_uri(self) -> str:
        """The file as SQLite opens it for reading only."""
        return self.file.as_uri() + "?mode=ro"

    def is_sealed(self) -> bool:
        """Whether the file holds a journal with sealed records, so that its key ring must be somewhere."""
        if not self.file.exists():
            return False
        try:
            with contextlib.closing(sqlite3.connect(self.read_only_uri, uri=True, isolation_level=None)) as connection:
                return bool(connection.execute("SELECT EXISTS (SELECT 1 FROM chain)").fetchone()[0])
        except sqlite3.Error:
            return False  # not a journal, from before the seal, or damaged: whoever opens it for use says so

    def figures(self) -> dict[str, object]:
        """Return path, sizes in bytes, and what to know about the SQLite library in use."""
        return {
            "path": str(self.file),
            "file_bytes": _size(self.file),
            "wal_bytes": _size(self.file.with_name(self.file.name + "-wal")),
            "sqlite_version": sqlite3.sqlite_version,
            "has_wal_reset_race": has_wal_reset_race(sqlite3.sqlite_version_info),
        }


def aside(folder: Path, name: str) -> Path:
    """Return where something lies that is not to go with a data folder: beside it (`var.keys`), or, where the folder is a
    mount of its own and a file beside it might not outlive the container, in it (`var/journal.keys`). What is there, stays.

    Raises:
        JournalUnavailable: the folder cannot be looked at.
    """
    beside, within = folder.with_name(f"{folder.name}.{name}"), folder / f"journal.{name}"
    if beside.exists():
        return beside
    if within.exists():
        return within
    try:
        is_one_volume = folder.stat().st_dev == folder.parent.stat().st_dev
    except OSError as error:
        raise JournalUnavailable(f"the folder {folder} cannot be used: {error.strerror}") from error
    return beside if is_one_volume and os.access(folder.parent, os.W_OK) else within


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
