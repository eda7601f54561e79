"""Whatever is done to a journal behind its back is found, called by its name, and told from what is allowed.

codenotary/immudb issue 2063: a value edited on disk, and the audit still said consistent.
msaad00/agent-bom issues 4185, 4753: concurrent appenders forked the chain, and the verifier cried tamper on healthy data.
FootprintAI/Containarium issue 1326: the digest was over another precision than the column kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3

import pytest

from gateway.journal import JournalCorrupt, JournalError, statements
from gateway.journal.chain import read_checkpoint
from gateway.journal.keyring import KeyRing, KeyRingError
from gateway.journal.offline import acknowledge_folder, verify_folder
from gateway.journal.sqlite import SqliteJournal
from gateway.journal.verification import Range, Verdict, _Excuses
from tests.journal.backends import append


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


async def fill(data, runs=10, start=0):
    """Two appends of two entries for each run; the second closes it. Rows: 1 opens the chain, then four a run."""
    journal = await SqliteJournal.open(data)
    for n in range(start, start + runs):
        await journal.append(append(f"run-{n}", 0, "a", "b"))
        await journal.append(append(f"run-{n}", 2, "c", "d", state="succeeded", is_open=False))
    await journal.close()


@contextlib.contextmanager
def tampering(data):
    """A database shell with every guard off."""
    connection = sqlite3.connect(data / "journal.db", isolation_level=None)
    connection.execute("DROP TRIGGER IF EXISTS record_is_final")
    connection.execute("PRAGMA foreign_keys = OFF")
    yield connection
    connection.close()


async def test_a_healthy_journal_verifies(data):
    await fill(data)
    found = verify_folder(data)
    assert (found.verdict, found.rows, found.own, found.size) == (Verdict.OK, 41, 1, 41)
    await fill(data, 1, 10)
    found = verify_folder(data)
    assert (found.verdict, found.rows, found.own) == (Verdict.OK, 46, 2)


async def test_many_writers_make_one_chain(data):
    journal = await SqliteJournal.open(data)

    async def write(name):
        for n in range(10):
            await journal.append(append(name, n), lazy=n % 3 == 0)

    await asyncio.gather(*(write(f"run-{n}") for n in range(64)))
    assert verify_folder(data).verdict is Verdict.OK
    await journal.close()
    found = verify_folder(data)
    assert (found.verdict, found.rows) == (Verdict.OK, 641)


async def test_a_batch_of_unknown_fate_leaves_no_fork(data, monkeypatch):
    """The commit took effect and its answer was lost: the next one must follow what is on disk."""
    journal = await SqliteJournal.open(data)
    real = statements.write
    failures = [sqlite3.OperationalError("disk I/O error")]
    failures[0].sqlite_errorcode, failures[0].sqlite_errorname = sqlite3.SQLITE_FULL, "SQLITE_FULL"

    def write(*args):
        result = real(*args)
        if failures:
            journal._sealer.position -= 1  # as if memory had not followed
            journal._sealer.is_stale = True
            raise failures.pop()
        return result

    monkeypatch.setattr(statements, "write", write)
    with pytest.raises(JournalError):
        await journal.append(append("a", 0))
    await journal.append(append("b", 0))
    await journal.close()
    found = verify_folder(data)
    assert (found.verdict, found.rows) == (Verdict.OK, 3)


TAMPERINGS = {
    "a payload": ("UPDATE record SET data = x'00' WHERE id = 20", 20, "another content"),
    "a kind": ("UPDATE record SET kind = 'x' WHERE id = 20", 20, "another content"),
    "a time": ("UPDATE record SET at = at + 1 WHERE id = 20", 20, "envelope was changed"),
    "a place": ("UPDATE record SET n = 9 WHERE id = 21", 21, "envelope was changed"),
    "an effect": ("UPDATE envelope SET effect = 'x' WHERE id = 20", 20, "envelope was changed"),
    "a destination": ("UPDATE envelope SET destination = 'x' WHERE id = 20", 20, "envelope was changed"),
    "a producer": ("UPDATE envelope SET producer = 'x' WHERE id = 20", 20, "envelope was changed"),
    "a route": ("UPDATE envelope SET route = 'x' WHERE id = 20", 20, "envelope was changed"),
    "an epoch": ("UPDATE envelope SET epoch = 2 WHERE id = 20", 20, "envelope was changed"),
    "a boot": ("UPDATE chain SET boot = 'x'", 1, "envelope was changed"),
    "a salt": ("UPDATE envelope SET salt = x'00112233445566778899aabbccddeeff' WHERE id = 20", 20, "another content"),
    "a digest": ("UPDATE envelope SET digest = zeroblob(32) WHERE id = 20", 20, "another content"),
    "a seal": ("UPDATE envelope SET mac = zeroblob(32) WHERE id = 20", 20, "envelope was changed"),
    "a run's name": ("UPDATE head SET name = 'x' WHERE name = 'run-4'", 18, "envelope was changed"),
    "a head's state": ("UPDATE head SET state = 'aborted_clean' WHERE name = 'run-4'", 21, "head tells another state"),
    "a head that hides": ("UPDATE head SET is_open = 1 WHERE name = 'run-4'", 21, "head tells another state"),
    "an agent": ("UPDATE head SET agent = 'x' WHERE name = 'run-4'", 21, "head tells another state"),
    "a record taken": ("DELETE FROM record WHERE id = 20", 20, "lost its content"),
    "a row taken": ("DELETE FROM record WHERE id = 20; DELETE FROM envelope WHERE id = 20", 20, "record 20 is missing"),
    "an envelope taken": ("DELETE FROM envelope WHERE id = 20", 20, "record 20 is missing"),
    "the first row taken": ("DELETE FROM envelope WHERE id = 1", 1, "record 1 is missing"),
    "a record put in": ("INSERT INTO record VALUES (99, 1, 9, 'k', 1, x'00')", 99, "put in from outside"),
    "two records swapped": (
        "UPDATE record SET id = 100 WHERE id = 20; UPDATE record SET id = 20 WHERE id = 24; "
        "UPDATE record SET id = 24 WHERE id = 100",
        20,
        "envelope was changed",
    ),
    "a salt taken": ("UPDATE envelope SET salt = NULL WHERE id = 20", 20, "no erasure was written"),
    "a hole excused": (
        "DELETE FROM envelope WHERE id = 20; INSERT INTO archived SELECT 20, 20, mac FROM envelope WHERE id = 19",
        21,
        "does not follow",
    ),
    "a hole excused with its seal": (
        "INSERT INTO archived SELECT 20, 20, mac FROM envelope WHERE id = 20; DELETE FROM record WHERE id = 20; "
        "DELETE FROM envelope WHERE id = 20",
        None,
        "not the one that was sealed",
    ),
    "a note forged": (
        "INSERT INTO envelope SELECT 42, epoch, key, '', 'journal', 'BreakAcknowledged', 'journal', salt, digest, mac, "
        """'{"kind":"BreakAcknowledged","at":1,"own":2,"ranges":[[20,20,"00"]],"roots":[]}' FROM envelope WHERE id = 41; """
        "UPDATE record SET data = x'00' WHERE id = 20",
        42,
        "another content",
    ),
    "an unsealed past invented": (
        "INSERT INTO envelope SELECT 42, epoch, key, '', 'journal', 'ChainOpened', 'journal', salt, digest, mac, "
        """'{"kind":"ChainOpened","at":1,"own":2,"boot":"x","unsealed":41}' FROM envelope WHERE id = 41; """
        "UPDATE record SET data = x'00' WHERE id = 20",
        20,
        "another content",
    ),
}


@pytest.mark.parametrize("what", TAMPERINGS)
async def test_tampering_is_found_and_the_first_bad_record_named(data, what):
    await fill(data)
    sql, position, finding = TAMPERINGS[what]
    with tampering(data) as connection:
        connection.executescript(sql.replace("'{", "CAST('{").replace("}'", "}' AS BLOB)"))
    found = verify_folder(data)
    assert found.verdict is Verdict.TAMPERED
    assert found.first_bad == position
    assert finding in found.finding
    if position != 1:
        with pytest.raises(JournalCorrupt):
            await SqliteJournal.open(data)


async def test_tampering_far_back_does_not_cost_the_start(data, monkeypatch):
    """Opening looks at the tail; all of it is `journal verify`'s business."""
    await fill(data)
    monkeypatch.setattr("gateway.journal.chain.TAIL_ROWS", 5)
    with tampering(data) as connection:
        connection.execute("UPDATE record SET data = x'00' WHERE id = 20")
    (data.with_name("data.checkpoint")).unlink()
    journal = await SqliteJournal.open(data)
    await journal.close()
    assert verify_folder(data).first_bad == 20


async def test_what_is_cut_off_at_the_end_shows_against_a_checkpoint(data, tmp_path):
    """A chain alone cannot show it: every prefix of it is a chain."""
    await fill(data)
    kept = tmp_path / "told"
    shutil.copy(data.with_name("data.checkpoint"), kept)
    with tampering(data) as connection:
        connection.executescript(
            "DELETE FROM record WHERE id > 37; DELETE FROM envelope WHERE id > 37; DELETE FROM head WHERE name = 'run-9'"
        )
    assert verify_folder(data, against=False).verdict is Verdict.OK
    found = verify_folder(data, against=kept)
    assert (found.verdict, found.first_bad) == (Verdict.TRUNCATED, 38)
    assert "records 38 to 41 are gone" in found.finding
    assert verify_folder(data).verdict is Verdict.TRUNCATED
    with pytest.raises(JournalCorrupt, match=r"truncated.*acknowledge"):
        await SqliteJournal.open(data)


async def test_a_whole_journal_that_was_thrown_away_shows_too(data):
    await fill(data)
    shutil.rmtree(data)
    with pytest.raises(JournalCorrupt, match=r"gone.*remove .*data\.checkpoint too"):
        await SqliteJournal.open(data)


async def test_a_journal_without_a_record_may_be_thrown_away(data):
    """A first try of the gateway leaves nothing behind that has to be explained."""
    journal = await SqliteJournal.open(data)
    await journal.close()
    assert not data.with_name("data.checkpoint").exists()
    shutil.rmtree(data)
    await fill(data)
    assert verify_folder(data).verdict is Verdict.OK


async def test_history_written_anew_shows_against_a_checkpoint(data, tmp_path):
    """Somebody with the key can make a chain that verifies, but not one that ends as the one before did."""
    await fill(data)
    kept = tmp_path / "told"
    shutil.move(data.with_name("data.checkpoint"), kept)
    shutil.rmtree(data)
    await fill(data, 12)
    found = verify_folder(data, against=kept)
    assert (found.verdict, found.first_bad) == (Verdict.TAMPERED, 41)
    assert "rewritten" in found.finding


async def test_a_changed_checkpoint_is_refused(data):
    await fill(data)
    told = data.with_name("data.checkpoint")
    told.write_text(told.read_text().replace("\n41\n", "\n40\n"))
    with pytest.raises(JournalCorrupt, match="signature"):
        verify_folder(data)
    told.write_text("hello")
    with pytest.raises(JournalCorrupt, match="no checkpoint"):
        read_checkpoint(told, KeyRing.load(data.with_name("data.keys")))


async def test_a_missing_key_is_another_verdict_than_tampering(data, tmp_path):
    await fill(data)
    other = KeyRing.make(tmp_path / "other", 1)
    found = verify_folder(data, keys=other.path, against=False)
    assert (found.verdict, found.first_bad, len(found.missing_keys)) == (Verdict.MISSING_KEY, 1, 1)
    assert "which the ring" in found.finding
    with pytest.raises(JournalError, match=r"missing_key|does not hold"):
        await SqliteJournal.open(data, keys=other.path)


async def test_a_lost_ring_is_never_replaced_silently(data):
    await fill(data)
    data.with_name("data.keys").unlink()
    with pytest.raises(KeyRingError, match="restore it"):
        await SqliteJournal.open(data)
    assert not data.with_name("data.keys").exists()


async def test_a_rotation_goes_on_under_the_new_key(data):
    await fill(data, 2)
    ring = KeyRing.load(data.with_name("data.keys")).rotate(1)
    await fill(data, 2, 2)
    journal = await SqliteJournal.open(data)
    ring = ring.rotate(2)
    assert journal.reload_keys()
    assert not journal.reload_keys()
    await journal.append(append("after", 0))
    await journal.close()
    found = verify_folder(data)
    assert (found.verdict, found.own) == (Verdict.OK, 5)
    with contextlib.closing(sqlite3.connect(data / "journal.db")) as file:
        keys = file.execute("SELECT key, count(*) FROM envelope GROUP BY key").fetchall()
    assert {key for key, _ in keys} == {key.id for key in ring.keys}


async def test_a_retired_key_cannot_be_used_again(data, monkeypatch):
    """Whoever gets hold of an old key must not be able to write with it."""
    await fill(data, 2)
    old = KeyRing.load(data.with_name("data.keys"))
    old.rotate(1)
    await fill(data, 1, 2)
    journal = await SqliteJournal.open(data)
    journal._sealer.key = old.active
    monkeypatch.setattr("gateway.journal.sealer.Sealer.turn", lambda *args: None)
    await journal.append(append("forged", 0))
    await journal.close()
    found = verify_folder(data)
    assert found.verdict is Verdict.TAMPERED
    assert "without a rotation" in found.finding


async def test_a_rotation_without_the_new_key_does_not_count(data, monkeypatch):
    await fill(data, 2)
    KeyRing.load(data.with_name("data.keys")).rotate(1)
    monkeypatch.setattr("gateway.journal.sealer.rotation_proof", lambda *args: "00")
    await fill(data, 1, 2)
    assert "without a rotation" in verify_folder(data).finding


async def test_an_old_key_that_is_gone_leaves_the_rest_verified(data):
    await fill(data, 2)
    ring = KeyRing.load(data.with_name("data.keys")).rotate(1)
    await fill(data, 2, 2)
    text = data.with_name("data.keys").read_text()
    only = KeyRing.of(ring.path, ring.keys[1:])
    data.with_name("data.keys").unlink()
    from gateway.journal.keyring import _write

    _write(only.path, only.keys)
    assert verify_folder(data).verdict is Verdict.MISSING_KEY
    with tampering(data) as connection:
        connection.execute("UPDATE record SET data = x'00' WHERE id = 14")
    found = verify_folder(data)
    assert (found.verdict, found.first_bad) == (Verdict.TAMPERED, 14)
    assert text


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE record SET data = x'00' WHERE id = 20",
        "DELETE FROM envelope WHERE id BETWEEN 18 AND 21; DELETE FROM record WHERE stream = 5; "
        "DELETE FROM head WHERE id = 5",
        "UPDATE head SET state = 'x' WHERE name = 'run-9'",
    ],
)
async def test_a_break_that_was_acknowledged_is_never_clean_again(data, sql):
    await fill(data)
    with tampering(data) as connection:
        connection.executescript(sql)
    with pytest.raises(JournalCorrupt):
        await SqliteJournal.open(data)
    before = acknowledge_folder(data, reason="disk swap", by="anna")
    assert before.verdict is Verdict.TAMPERED
    found = verify_folder(data)
    assert found.verdict is Verdict.ACKNOWLEDGED
    await fill(data, 2, 10)
    assert verify_folder(data).verdict is Verdict.ACKNOWLEDGED
    assert acknowledge_folder(data, reason="again", by="anna").verdict is Verdict.ACKNOWLEDGED
    with tampering(data) as connection:
        connection.execute("UPDATE record SET data = x'01' WHERE id = 30")
    assert verify_folder(data).verdict is Verdict.TAMPERED


async def test_a_lost_tail_and_a_lost_ring_can_be_acknowledged(data):
    await fill(data)
    with tampering(data) as connection:
        connection.executescript(
            "DELETE FROM record WHERE id > 37; DELETE FROM envelope WHERE id > 37; DELETE FROM head WHERE name = 'run-9'"
        )
    acknowledge_folder(data, reason="restored a backup", by="anna")
    await fill(data, 5, 9)
    assert verify_folder(data).verdict is Verdict.ACKNOWLEDGED
    data.with_name("data.keys").unlink()
    with pytest.raises(KeyRingError):
        acknowledge_folder(data, reason="x", by="anna")
    KeyRing.make(data.with_name("data.keys"), 1)
    data.with_name("data.checkpoint").unlink()
    acknowledge_folder(data, reason="the ring is lost", by="anna")
    await fill(data, 2, 20)
    assert verify_folder(data).verdict is Verdict.ACKNOWLEDGED


async def test_records_from_before_the_seal_are_counted_and_not_vouched_for(data, monkeypatch):
    """A journal of the first release goes on; its old records are neither sealed nor called tampered."""
    from gateway.journal import schema

    data.mkdir()
    connection = sqlite3.connect(data / "journal.db", isolation_level=None)
    schema.configure(connection)
    schema.migrate(connection, schema.load_migrations()[:1], 1)
    connection.execute("INSERT INTO head VALUES (1, 'old', 2, 'preparing', 1, 'agent', 1, 1)")
    connection.execute("INSERT INTO record VALUES (1, 1, 1, 'k', 1, x'00'), (2, 1, 2, 'k', 1, x'00')")
    connection.close()
    journal = await SqliteJournal.open(data)
    await journal.append(append("old", 2))
    await journal.close()
    found = verify_folder(data)
    assert (found.verdict, found.unsealed, found.rows) == (Verdict.OK, 2, 2)
    with tampering(data) as connection:
        connection.execute("DELETE FROM chain")
        connection.execute("DELETE FROM envelope")
    with pytest.raises(JournalCorrupt):
        await SqliteJournal.open(data)


class Seldom(list):
    """A list that counts how often it is looked into, and is never gone through."""

    looks = 0

    def __getitem__(self, index):
        self.looks += 1
        return super().__getitem__(index)

    def __iter__(self):
        raise AssertionError("gone through from the beginning")


def test_a_hole_is_found_with_few_looks_however_many_there_are():
    """Retention leaves one between any two of the journal's own entries: verifying took the square of them."""
    holes = Seldom(Range(first, first + 4, b"%d" % first) for first in range(1, 50_000, 10))
    excuses = _Excuses(holes=holes)
    assert excuses.hole(25_001, 25_005) == (b"25001", False)
    assert excuses.hole(25_003, 25_005) == (b"25001", False)
    assert excuses.hole(25_001, 25_004) is None  # ends beyond what is missing
    assert excuses.hole(25_006, 25_007) is None
    assert excuses.hole(0, 0) is None
    assert holes.looks < 100
