"""Counts what a gateway journaled, from the file itself and without the gateway's help.

The gateway's own figures could be wrong in the same way as its journal, so the benchmark opens the SQLite file beside
the running gateway, read-only, and looks for the table of records by its columns. SQLite shows only what was committed.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

__all__ = ["journal_problems", "records_by_kind"]

_RECORDS_PER_WRITE = 2  # the intent and the outcome


def records_by_kind(folder: Path) -> Counter[str]:
    """Return how many committed records of each kind the journal in this folder holds.

    Raises:
        LookupError: no SQLite file below `folder` has a table of records.
    """
    for file in sorted(folder.rglob("*")):
        if not file.is_file() or not _is_sqlite(file):
            continue
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=10)) as database:
            table = database.execute(
                "SELECT m.name FROM sqlite_master AS m, pragma_table_info(m.name) AS c"
                " WHERE m.type = 'table' AND c.name IN ('kind', 'data') GROUP BY m.name HAVING count(*) = 2"
            ).fetchone()
            if table is not None:
                return Counter(dict(database.execute(f'SELECT kind, count(*) FROM "{table[0]}" GROUP BY kind')))
    raise LookupError(f"no journal with a table of records (columns kind, data) below {folder.name}/")


def _is_sqlite(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(16) == b"SQLite format 3\0"


def journal_problems(before: Mapping[str, int], after: Mapping[str, int], writes: int) -> list[str]:
    """Return what is wrong with a journal that should have grown by an intent and an outcome for each write."""
    grown = Counter(after)
    grown.subtract(before)
    exact = [kind for kind, count in grown.items() if count == writes]
    if len(exact) >= _RECORDS_PER_WRITE:
        return []
    return [f"{writes} writes should have left {writes} intents and outcomes each, the journal grew by {dict(+grown)}"]
