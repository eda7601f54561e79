"""Looking at an SQLite journal without being its gateway: read-only, no lock, beside a running one or without."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from gateway.journal import JournalStats, JournalUnavailable, schema, statements
from gateway.journal.faults import translate
from gateway.journal.place import Place

__all__ = ["offline_stats"]


def offline_stats(path: Path | str) -> JournalStats:
    """Return figures of the journal in a folder, beside a running gateway or without one. Changes nothing, takes no lock.

    Raises:
        JournalUnavailable: there is no journal, or it cannot be read.
        JournalCorrupt: it is damaged.
    """
    place = Place.of(path)
    if not place.file.exists():
        raise JournalUnavailable(f"there is no journal at {place.file}: name the folder given to `serve --data`")
    try:
        with contextlib.closing(sqlite3.connect(place.read_only_uri, uri=True, isolation_level=None)) as connection:
            schema.configure_reader(connection)
            schema.check_owner(connection)
            streams, open_streams, entries = statements.totals(connection)
    except sqlite3.Error as error:
        raise translate(error, str(place.file)) from error
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
