"""A lone append in one statement: the file is the same, whichever road wrote it, and it is all there or nothing."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest

from gateway.journal import Append, Conflict, Entry, KeyClaim, alone, schema, statements
from gateway.journal.chain import open_chain
from gateway.journal.keyring import KeyRing
from gateway.journal.verification import Verdict, verify
from tests.journal.backends import append

EVERYTHING = (
    "SELECT * FROM record",
    "SELECT id, effect, destination, route, producer FROM envelope",
    "SELECT * FROM head",
)


def opened(path):
    connection = sqlite3.connect(path, isolation_level=None)
    schema.configure(connection)
    schema.migrate(connection, schema.load_migrations(), 0)
    alone.prepare(connection)
    return connection


@pytest.fixture
def ring(tmp_path):
    return KeyRing.make(tmp_path / "keys", 0)


@pytest.fixture
def connection(tmp_path):
    connection = opened(tmp_path / "journal.db")
    yield connection
    connection.close()


@pytest.fixture
def sealer(connection, ring):
    return open_chain(connection, ring, "boot", 0)


def statements_of(connection, write):
    """What SQLite executes meanwhile; what a trigger executes is told under the name of the statement that set it off."""
    traced = []
    connection.set_trace_callback(traced.append)
    try:
        write()
    finally:
        connection.set_trace_callback(None)
    return list(dict.fromkeys(sql.split("(")[0].strip() for sql in traced if not sql.startswith("--")))


def entry(text, at=1, **other):
    return Entry("kind", at, text.encode(), **other)


def run_of(*entries, **other):
    made = Append(stream="run", expected=1, entries=entries, state="preparing", is_open=True, agent="agent")
    return replace(made, **other)


def test_a_lone_append_to_a_run_in_use_is_one_statement(connection, sealer):
    known = statements.write(connection, sealer, [append("run", 0)], {}, {}).created
    plans = []
    assert statements_of(
        connection, lambda: plans.append(statements.write(connection, sealer, [append("run", 1, at=7)], {}, known))
    ) == ["INSERT INTO temp.alone VALUES"]
    assert statements.find_head(connection, "run") == plans[0].advanced["run"].head
    assert not connection.in_transaction


@pytest.mark.parametrize(
    ("appends", "notes"),
    [
        ([append("run", 1, state="committed")], {}),
        ([append("run", 1, is_open=False)], {}),
        ([append("run", 1, "a", "b")], {}),
        ([append("run", 1, claims=(KeyClaim(b"k", 1, 9),))], {}),
        ([append("run", 1), append("run", 2)], {}),
        ([append("other", 0)], {}),
        ([append("run", 1)], {"breaker": b"open"}),
        ([append("run", 5)], {}),
    ],
)
def test_everything_else_is_a_transaction_of_several(connection, sealer, appends, notes):
    known = statements.write(connection, sealer, [append("run", 0)], {}, {}).created
    executed = statements_of(connection, lambda: statements.write(connection, sealer, appends, notes, known))
    assert (executed[0], executed[-1]) == ("BEGIN IMMEDIATE", "COMMIT")


def test_the_file_is_the_same_as_from_the_other_road(tmp_path, ring):
    """Values of every kind, and those that look like another kind: a view must not turn "12" into a number."""
    odd = run_of(entry("12", at=2, effect="run/1", destination="3.5"), agent="7")
    found = []
    for name, notes in (("one", {}), ("other", {"n": b""})):
        connection = opened(tmp_path / f"{name}.db")
        sealer = open_chain(connection, ring, "boot", 0)
        known = statements.write(connection, sealer, [replace(odd, expected=0)], {}, {}).created
        executed = statements_of(connection, lambda: statements.write(connection, sealer, [odd], notes, known))  # noqa: B023
        assert (len(executed) == 1) is (name == "one")
        found.append([connection.execute(sql).fetchall() for sql in EVERYTHING])
        assert verify(connection, ring).verdict is Verdict.OK
        connection.close()
    assert found[0] == found[1]


def test_the_view_leaves_nothing_in_the_file(connection, tmp_path):
    other = sqlite3.connect(tmp_path / "journal.db")
    assert other.execute("SELECT count(*) FROM sqlite_master WHERE name LIKE 'alone%'").fetchone() == (0,)
    other.close()


def test_a_conflict_is_found_and_writes_nothing(connection, sealer):
    known = statements.write(connection, sealer, [append("run", 0)], {}, {}).created
    plan = statements.write(connection, sealer, [append("run", 5)], {}, known)
    assert [type(error) for error in plan.errors] == [Conflict]
    assert connection.execute("SELECT count(*) FROM record").fetchone() == (1,)


def test_what_fails_in_the_middle_is_undone_and_the_chain_goes_on_where_the_file_ends(connection, sealer, ring):
    """The record is in, its envelope is not: SQLite takes the whole statement back."""
    known = statements.write(connection, sealer, [append("run", 0)], {}, {}).created
    connection.execute("CREATE TEMP TRIGGER no BEFORE INSERT ON envelope BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(sqlite3.IntegrityError, match="no"):
        statements.write(connection, sealer, [append("run", 1)], {}, known)
    connection.execute("DROP TRIGGER temp.no")
    assert not connection.in_transaction
    assert connection.execute("SELECT count(*) FROM record").fetchone() == (1,)
    assert not sealer.goes_on
    known = statements.write(connection, sealer, [append("run", 1)], {}, known).advanced
    assert sealer.goes_on
    assert statements_of(connection, lambda: statements.write(connection, sealer, [append("run", 2)], {}, known)) != []
    assert verify(connection, ring).verdict is Verdict.OK
    assert verify(connection, ring).rows == 4


def test_a_full_disk_takes_all_of_it_back_too(connection, sealer, ring):
    known = statements.write(connection, sealer, [append("run", 0)], {}, {}).created
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        statements.write(connection, sealer, [append("run", 1, "x" * 100_000)], {}, known)
    assert not connection.in_transaction
    connection.execute("PRAGMA max_page_count = 1000000")
    assert connection.execute("SELECT count(*) FROM record").fetchone() == (1,)
    statements.write(connection, sealer, [append("run", 1)], {}, known)
    assert verify(connection, ring).verdict is Verdict.OK


def test_a_value_that_cannot_be_stored_leaves_the_chain_to_be_looked_up(connection, sealer, ring):
    known = statements.write(connection, sealer, [append("run", 0)], {}, {}).created
    with pytest.raises(OverflowError):
        statements.write(connection, sealer, [append("run", 1, at=2**63)], {}, known)
    statements.write(connection, sealer, [append("run", 1)], {}, known)
    assert verify(connection, ring).verdict is Verdict.OK


def test_the_next_append_after_a_change_of_keys_takes_the_other_road(connection, sealer, ring):
    known = statements.write(connection, sealer, [append("run", 0)], {}, {}).created
    sealer.ring = ring.rotate(0)
    executed = statements_of(connection, lambda: statements.write(connection, sealer, [append("run", 1)], {}, known))
    assert executed[0] == "BEGIN IMMEDIATE"
    assert verify(connection, sealer.ring).verdict is Verdict.OK
