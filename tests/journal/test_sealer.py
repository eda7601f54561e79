"""The chain's writing side: advanced with the commit, never without it."""

from __future__ import annotations

import sqlite3

import pytest

from gateway.journal import schema, statements
from gateway.journal.chain import open_chain
from gateway.journal.keyring import KeyRing
from gateway.journal.sealer import last_own_count
from gateway.journal.verification import Verdict, verify
from tests.journal.backends import append


@pytest.fixture
def connection():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection, schema.load_migrations(), 0)
    yield connection
    connection.close()


@pytest.fixture
def ring(tmp_path):
    return KeyRing.make(tmp_path / "keys", 0)


def test_a_transaction_that_is_rolled_back_leaves_no_gap(connection, ring):
    sealer = open_chain(connection, ring, "boot", 0)
    with pytest.raises(OverflowError):
        statements.write(connection, sealer, [append("a", 0, at=2**63)], {}, {})
    assert sealer.is_stale
    statements.write(connection, sealer, [append("a", 0)], {}, {})
    assert sealer.position == 2
    assert verify(connection, ring).verdict is Verdict.OK


def test_an_envelope_says_what_the_append_said(connection, ring):
    sealer = open_chain(connection, ring, "boot", 0)
    statements.write(connection, sealer, [append("a", 0, state="aborted_clean", is_open=False)], {}, {})
    row = connection.execute(
        "SELECT id, epoch, route, producer, effect, destination FROM envelope WHERE id = 2"
    ).fetchone()
    assert row == (2, 1, "aborted_clean/closed", "agent", "", "")


def test_each_opening_is_an_epoch_of_its_own(connection, ring):
    epochs = [open_chain(connection, ring, f"boot-{n}", 0).epoch for n in range(3)]
    assert epochs == [1, 2, 3]
    assert last_own_count(connection) == 3


def test_ids_of_pruned_records_are_not_given_out_again(connection, ring):
    sealer = open_chain(connection, ring, "boot", 0)
    statements.write(connection, sealer, [append("a", 0)], {}, {})
    connection.execute("DELETE FROM record")
    statements.write(connection, sealer, [append("a", 1)], {}, {})
    assert connection.execute("SELECT id FROM record").fetchall() == [(3,)]
