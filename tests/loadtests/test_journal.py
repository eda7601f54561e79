import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from loadtests.journal import journal_problems, records_by_kind


def test_committed_records_are_counted_beside_the_writer(tmp_path: Path) -> None:
    """The file is open in the gateway meanwhile; what is not committed must not count as durable."""
    (tmp_path / "lock").write_text("not a database")
    with closing(sqlite3.connect(tmp_path / "j.db", isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("CREATE TABLE heads (stream TEXT, data BLOB)")
        writer.execute("CREATE TABLE records (id INTEGER PRIMARY KEY, kind TEXT, data BLOB)")
        writer.execute("INSERT INTO records (kind) VALUES ('intended'), ('committed'), ('intended')")
        writer.execute("BEGIN")
        writer.execute("INSERT INTO records (kind) VALUES ('committed')")
        assert records_by_kind(tmp_path) == {"intended": 2, "committed": 1}


def test_a_folder_without_a_journal_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="no journal"):
        records_by_kind(tmp_path)


def test_two_records_a_write_are_as_it_should_be() -> None:
    before = Counter(intended=5, committed=5, opened=1)
    assert journal_problems(before, Counter(intended=105, committed=105, opened=6), 100) == []


@pytest.mark.parametrize("after", [{"intended": 105, "committed": 104}, {"intended": 105}, {}])
def test_a_missing_outcome_is_found(after: dict[str, int]) -> None:
    (problem,) = journal_problems(Counter(intended=5, committed=5), Counter(after), 100)
    assert "100 intents and outcomes" in problem
