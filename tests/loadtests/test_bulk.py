"""Journals made in bulk are journals: the gateway opens them, and every seal is right."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from gateway.journal.offline import verify_folder
from gateway.journal.sqlite import SqliteJournal
from loadtests.bulk import prefill
from loadtests.recovery import recover


async def test_a_journal_made_in_bulk_verifies_and_its_open_runs_are_found(tmp_path: Path) -> None:
    rows = await prefill(tmp_path / "data", 8 * 700, unfinished=7)
    found = verify_folder(tmp_path / "data")
    assert (found.verdict, found.rows - found.own, found.size) == ("ok", 8 * 700 + 7 * 6, rows)
    _, _, unfinished = await recover(tmp_path / "data")
    assert unfinished == 7


async def test_it_goes_on_where_the_bulk_ended(tmp_path: Path) -> None:
    """Settings that made it fast are those of the connection that is gone."""
    rows = await prefill(tmp_path / "data", 80)
    journal = await SqliteJournal.open(tmp_path / "data")
    assert (await journal.stats()).entries == 80
    await journal.close()
    assert verify_folder(tmp_path / "data").size > rows


async def test_records_that_are_not_a_whole_run_are_left_away(tmp_path: Path) -> None:
    await prefill(tmp_path / "data", 23, unfinished=3)
    with closing(sqlite3.connect(tmp_path / "data" / "journal.db")) as connection:
        assert connection.execute("SELECT is_open, count(*) FROM head GROUP BY is_open").fetchall() == [(0, 2), (1, 3)]
