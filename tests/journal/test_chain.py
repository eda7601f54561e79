"""Beginning a chain costs the same however long the journal is, and stops at a bad end (see test_verification)."""

from __future__ import annotations

import sqlite3

import pytest

from gateway.core.seal import Checkpoint
from gateway.journal import JournalCorrupt, JournalError, schema, statements
from gateway.journal.chain import TAIL_ROWS, open_chain, read_checkpoint, transaction
from gateway.journal.keyring import KeyRing
from tests.journal.backends import append


@pytest.fixture
def connection():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection, schema.load_migrations(), 0)
    yield connection
    connection.close()


def test_opening_reads_the_tail_only(connection, tmp_path):
    ring = KeyRing.make(tmp_path / "keys", 0)
    sealer = open_chain(connection, ring, "boot", 0)
    for n in range(4):
        statements.write(connection, sealer, [append(f"{n}-{each}", 0) for each in range(TAIL_ROWS)], {}, {})
    steps = 0

    def count():
        nonlocal steps
        steps += 1

    connection.set_progress_handler(count, 1_000)
    open_chain(connection, ring, "again", 0, [Checkpoint(origin="x", size=sealer.position, root=sealer.mac, at=0)])
    near = steps
    for n in range(4, 12):
        statements.write(connection, sealer := open_chain(connection, ring, f"b{n}", 0), [
            append(f"{n}-{each}", 0) for each in range(TAIL_ROWS)], {}, {})  # fmt: skip
    steps = 0
    open_chain(connection, ring, "later", 0)
    assert steps <= near * 1.5


def test_an_error_rolls_the_transaction_back(connection):
    with pytest.raises(sqlite3.IntegrityError), transaction(connection):
        connection.executemany("INSERT INTO meta VALUES (?, x'00')", [("a",), ("a",)])
    assert not connection.in_transaction
    assert connection.execute("SELECT count(*) FROM meta").fetchone() == (0,)


def test_a_checkpoint_under_an_unknown_key_or_that_cannot_be_read_is_refused(tmp_path):
    ring, other = KeyRing.make(tmp_path / "keys", 0), KeyRing.make(tmp_path / "other", 0)
    path = tmp_path / "told"
    path.write_text(Checkpoint(origin="x", size=1, root=b"r" * 32, at=0).note(other.active))
    with pytest.raises(JournalError, match="does not hold"):
        read_checkpoint(path, ring)
    path.write_bytes(b"\xff")
    with pytest.raises(JournalCorrupt):
        read_checkpoint(path, ring)
    with pytest.raises(JournalError, match="cannot be read"):
        read_checkpoint(tmp_path / "none", ring)
