"""What an SQLite error means for the journal: the one place where they are judged.

Three answers. *Unavailable*: nothing was written and a later try may succeed (no space, a lock, no memory). *Poisoned*: what
is on disk is unknown (a failed fsync, an I/O error while reading or truncating) or contradicts us; the process must end.
*Unstorable*: this very value can never be stored, its neighbours can.

A failed fsync is never tried again: the kernel may have dropped the pages and reports success the second time
(Rebello et al., "Can Applications Recover from fsync Failures?", USENIX ATC 2020). A failed write is another matter:
SQLite reports ENOSPC as SQLITE_FULL but a quota or a file-size limit as SQLITE_IOERR_WRITE, the transaction is rolled back,
and a later commit writes and syncs the same place anew.
"""

from __future__ import annotations

import sqlite3

from gateway.journal import JournalCorrupt, JournalError, JournalPoisoned, JournalUnavailable

__all__ = ["UNSTORABLE", "is_corruption", "is_unstorable", "translate"]

UNSTORABLE = (OverflowError, UnicodeEncodeError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError)

_NO_SPACE = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
_UNSTORABLE_CODES = frozenset({sqlite3.SQLITE_CONSTRAINT_NOTNULL, 3091})  # 3091: SQLITE_CONSTRAINT_DATATYPE
_PASSING = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
    }
)
_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def is_unstorable(error: BaseException) -> bool:
    """Whether a value, not the disk, is to blame."""
    return isinstance(error, UNSTORABLE) or getattr(error, "sqlite_errorcode", None) in _UNSTORABLE_CODES


def is_corruption(error: sqlite3.Error) -> bool:
    """Whether SQLite says that the file contradicts itself, or is not one of its files."""
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _CORRUPT


def translate(error: sqlite3.Error, where: str) -> JournalError:
    """Return the journal's word for an SQLite error met while working on the file `where`."""
    return _meant(error, where).hiding(where, "the journal")


def _meant(error: sqlite3.Error, where: str) -> JournalError:
    code = getattr(error, "sqlite_errorcode", 0)
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    if code in _NO_SPACE:
        return JournalUnavailable(f"{where} cannot grow ({name}): free some disk space or raise the quota")
    if code & 0xFF in _PASSING:
        return JournalUnavailable(f"{where} could not be used just now ({name}: {error})")
    if code & 0xFF in _CORRUPT:
        return JournalCorrupt(f"{where} is damaged ({name}: {error}): restore a backup")
    if code & 0xFF == sqlite3.SQLITE_CONSTRAINT:
        return JournalPoisoned(
            f"{where} was changed by somebody else ({name}: {error}): nobody but one gateway may write it"
        )
    return JournalPoisoned(
        f"the disk under {where} failed ({name}: {error}): check the disk, then start the gateway again"
    )
