"""Look-ups never grow with history: SQLite's own plan for each must go through an index."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest

from gateway.journal import JournalCorrupt, alone, schema, statements
from gateway.journal.chain import open_chain
from gateway.journal.keyring import KeyRing
from tests.journal.backends import append


@pytest.fixture
def connection():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection, schema.load_migrations(), 0)
    alone.prepare(connection)
    yield connection
    connection.close()


@pytest.fixture
def sealer(connection, tmp_path):
    return open_chain(connection, KeyRing.make(tmp_path / "keys", 0), "boot", 0)


@pytest.mark.parametrize(
    ("sql", "values", "expected"),
    [
        (statements.STANDING, ("a",), {"SEARCH head USING INDEX sqlite_autoindex_head_1 (name=?)"}),
        (
            statements.READ,
            (0, "a"),
            {
                "SEARCH h USING INDEX sqlite_autoindex_head_1 (name=?)",
                "SEARCH r USING INDEX record_stream (stream=? AND n>?)",
            },
        ),
        (statements.OPEN_HEADS, ("", 9), {"SEARCH head USING INDEX head_open (name>?)"}),
        (statements.HEADS, (9, 9), {"SEARCH head USING INDEX head_changed (changed_at<?)"}),
        (statements.HEADS_AT, (9,), {"SEARCH head USING INDEX head_changed (changed_at=?)"}),
        (statements.HEADS_IN, ("s", 9, 9), {"SEARCH head USING INDEX head_state (state=? AND changed_at<?)"}),
        (statements.HEADS_IN_AT, ("s", 9), {"SEARCH head USING INDEX head_state (state=? AND changed_at=?)"}),
        (
            statements.FIND_KEY,
            (b"", 0),
            {"SEARCH k USING PRIMARY KEY (digest=?)", "SEARCH h USING INTEGER PRIMARY KEY (rowid=?)"},
        ),
        (statements.RECALL, ("a", 1, "a"), {"SEARCH note USING PRIMARY KEY (name>?)"}),
    ],
)
def test_a_look_up_goes_through_its_index_without_scanning_or_sorting(connection, sql, values, expected):
    """design.md: what a call costs must not depend on how much was journaled before it."""
    plan = {row[3].removesuffix(" LEFT-JOIN") for row in connection.execute("EXPLAIN QUERY PLAN " + sql, values)}
    assert plan == expected


def test_totals_scan_open_streams_only(connection):
    plan = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + statements.TOTALS)]
    scans = [step for step in plan if step.startswith("SCAN") and "CONSTANT ROW" not in step]
    assert len(scans) == 1
    assert scans[0].endswith("INDEX head_open")


def test_the_check_at_opening_looks_at_the_end_only(connection):
    plan = []
    connection.set_trace_callback(plan.append)
    schema.check_tail(connection)
    connection.set_trace_callback(None)
    steps = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + plan[0])]
    assert not [step for step in steps if step.startswith("SCAN") and "CONSTANT ROW" not in step]


def test_a_stream_in_use_costs_no_look_up(connection, sealer):
    plan = statements.write(connection, sealer, [append("a", 0)], {}, {})
    traced = []
    connection.set_trace_callback(traced.append)
    statements.write(connection, sealer, [append("a", 1)], {}, plan.created)
    assert not [sql for sql in traced if sql.startswith("SELECT id, name")]


def test_a_batch_whose_heads_only_move_on_updates_no_more_than_that(connection, sealer):
    """The short update of the heads leaves the index by name alone (docs/adr/0184): a page less in every commit."""
    known = statements.write(connection, sealer, [append("a", 0), append("b", 0)], {}, {}).created
    traced = []
    connection.set_trace_callback(traced.append)
    plan = statements.write(connection, sealer, [append("a", 1, at=7), append("b", 1, at=8)], {}, known)
    connection.set_trace_callback(None)
    assert [sql.split("(")[0] for sql in traced] == [
        "BEGIN IMMEDIATE",
        "UPDATE head SET version = 2, changed_at = 7 WHERE id = 1",
        "UPDATE head SET version = 2, changed_at = 8 WHERE id = 2",
        *["INSERT INTO record "] * 2,
        *["INSERT INTO envelope "] * 2,
        "COMMIT",
    ]
    assert [statements.find_head(connection, name) for name in "ab"] == [plan.advanced[name].head for name in "ab"]


def test_a_head_is_found_as_it_was_written_whichever_way_it_moved(connection, sealer):
    cached, others = (
        {},
        ({}, {}, {"state": "s2"}, {}, {"state": "s2", "agent": "b"}, {"state": "s2", "is_open": False}, {}),
    )
    for version, other in enumerate(others):
        plan = statements.write(connection, sealer, [replace(append("a", version), **other)], {}, cached)
        cached = {**plan.created, **plan.changed, **plan.advanced}
        assert statements.find_head(connection, "a") == cached["a"].head
        assert [head.stream for head in statements.open_heads(connection, "", 9)] == ["a"] * cached["a"].head.is_open


def test_a_missing_entry_is_named(connection, sealer):
    statements.write(connection, sealer, [append("run", 0, "1", "2", "3")], {}, {})
    connection.execute("DELETE FROM record WHERE n = 2")
    with pytest.raises(JournalCorrupt, match="entry 2 of run 'run' is missing"):
        statements.read(connection, "run", 0)
    assert len(statements.read(connection, "run", 2)) == 1
    connection.execute("DELETE FROM record WHERE n = 3")
    with pytest.raises(JournalCorrupt, match="entry 3 of run 'run' is missing"):
        statements.read(connection, "run", 2)


def test_a_record_is_never_changed(connection, sealer):
    statements.write(connection, sealer, [append("run", 0)], {}, {})
    with pytest.raises(sqlite3.IntegrityError, match="never changed"):
        connection.execute("UPDATE record SET data = x'00'")


def test_a_batch_that_fails_leaves_no_transaction_open(connection, sealer):
    statements.write(connection, sealer, [append("run", 0)], {}, {})
    with pytest.raises(OverflowError):
        statements.write(connection, sealer, [append("good", 0), append("bad", 0, at=2**63)], {}, {})
    assert not connection.in_transaction
    assert statements.find_head(connection, "good") is None


def test_the_look_up_by_prefix_takes_wildcards_literally(connection, sealer):
    statements.write(connection, sealer, [], {"a_b": b"1", "axb": b"2", "a%": b"3"}, {})
    assert statements.recall(connection, "a_") == {"a_b": b"1"}
    assert statements.recall(connection, "a") == {"a%": b"3", "a_b": b"1", "axb": b"2"}
