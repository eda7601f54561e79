"""What retention takes and erasure blanks is archived, accounted for, and no reason to cry tamper.

dbos-inc/dbos-transact-py issue 769: garbage collection left rows behind that belonged together.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
import time
from contextlib import closing

import pytest

from gateway.core.codes import Code
from gateway.core.message import BytesBody
from gateway.core.records import decode, redacted
from gateway.core.saga import Commit, Open
from gateway.journal import Conflict, JournalError, JournalUnavailable, KeyClaim, statements
from gateway.journal.offline import verify_folder
from gateway.journal.sqlite import SqliteJournal
from gateway.journal.trajectories import Trajectories
from gateway.journal.verification import Verdict
from gateway.telemetry import Telemetry
from tests.fakes import FakeClock
from tests.journal.backends import append, texts


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


@pytest.fixture
async def journal(data):
    opened = await SqliteJournal.open(data)
    yield opened
    await opened.close()


async def close_runs(journal, names, at=1_000, **fields):
    for name in names:
        await journal.append(append(name, 0, "a", "b", at=at, state="succeeded", is_open=False, **fields))


async def test_closed_runs_past_retention_go_and_the_chain_holds(journal, data):
    await close_runs(journal, ["old-1"])
    await journal.append(append("open", 0, "x", "y"))
    await close_runs(journal, ["old-2", "old-3"])
    await close_runs(journal, ["new"], at=5_000)
    done = await journal.prune(2_000)
    assert (done.runs, done.records, done.is_more) == (3, 6, False)
    assert await journal.head("old-1") is None
    assert texts(await journal.read("open")) == ["x", "y"]
    assert texts(await journal.read("new")) == ["a", "b"]
    await journal.append(append("open", 2, "z"))
    found = verify_folder(data)
    assert (found.verdict, found.archived) == (Verdict.OK, 6)
    assert (await journal.prune(2_000)).runs == 0


async def test_what_is_pruned_is_archived_first_with_its_seal(journal, data):
    await close_runs(journal, ["old"])
    await journal.prune(2_000)
    (file,) = (data / "archive").iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["event_id"], line["payload"]) for line in lines] == [("old#1", "a"), ("old#2", "b")]
    assert {"effect_id", "log_id", "producer_id", "session_epoch", "seal", "key", "salt"} <= lines[0].keys()
    assert file.stat().st_mode & 0o777 == 0o600


async def test_a_payload_that_is_no_text_is_archived_all_the_same(journal, data):
    from gateway.journal import Append, Entry

    entries = [Entry("k", 1, b"\xff")]
    await journal.append(Append(stream="x", expected=0, entries=entries, state="s", is_open=False, agent="a"))
    assert (await journal.prune(2_000)).runs == 1
    (file,) = (data / "archive").iterdir()
    assert json.loads(file.read_text())["payload_base64"] == "/w=="


async def test_an_archive_that_cannot_be_written_prunes_nothing(journal, data):
    await close_runs(journal, ["old"])
    (data / "archive").write_text("in the way")
    with pytest.raises(JournalUnavailable, match="nothing was pruned"):
        await journal.prune(2_000)
    assert texts(await journal.read("old")) == ["a", "b"]


async def test_a_run_whose_callers_key_is_still_good_stays(journal):
    """A repeat of that call must still find its step."""
    claim = (KeyClaim(b"k", 1, time.time_ns() // 1_000_000 + 60_000),)
    await close_runs(journal, ["keyed"], claims=claim)
    await close_runs(journal, ["expired"], claims=(KeyClaim(b"e", 1, 5),))
    assert (await journal.prune(2_000)).runs == 1
    assert await journal.find_key(b"k", 10) is not None
    assert await journal.find_key(b"e", 1) is None


async def test_pruning_is_in_bounded_batches_and_neighbours_become_one_range(journal, data):
    await close_runs(journal, [f"run-{n}" for n in range(250)])
    batches = 0
    while (await journal.prune(2_000)).is_more:
        batches += 1
    assert batches == 2
    with closing(sqlite3.connect(data / "journal.db")) as file:
        ranges = file.execute("SELECT first, last FROM archived").fetchall()
    assert ranges[0] == (2, 501)
    found = verify_folder(data)
    assert (found.verdict, found.archived, found.rows) == (Verdict.OK, 500, found.own)


async def test_a_long_run_that_had_no_place_in_a_batch_is_due_at_once(journal):
    """It waited for the next look, ten minutes later, and the one after it for another: pruning fell behind for good."""
    for name, at in [("short", 1_000), ("long", 1_001)]:
        entries = ["x"] * (2 if name == "short" else 499)
        await journal.append(append(name, 0, *entries, at=at, state="succeeded", is_open=False))
    first, second = await journal.prune(2_000), await journal.prune(2_000)
    assert (first.runs, first.records, first.is_more) == (1, 2, True)
    assert (second.runs, second.records, second.is_more) == (1, 499, False)


async def test_a_journal_that_was_pruned_opens_and_goes_on(journal, data):
    await close_runs(journal, ["old", "older"])
    await journal.prune(2_000)
    await journal.close()
    again = await SqliteJournal.open(data)
    await again.append(append("old", 0, "anew"))
    with pytest.raises(Conflict):
        await again.append(append("other", 2))
    await again.close()
    found = verify_folder(data)
    assert (found.verdict, found.archived) == (Verdict.OK, 4)


async def test_runs_from_before_the_seal_go_too(tmp_path):
    """They would otherwise stand at the head of the queue for ever."""
    from gateway.journal import schema

    data = tmp_path / "old"
    data.mkdir()
    connection = sqlite3.connect(data / "journal.db", isolation_level=None)
    schema.configure(connection)
    schema.migrate(connection, schema.load_migrations()[:1], 1)
    for n in range(1, 4):
        connection.execute("INSERT INTO head VALUES (?, ?, 1, 'succeeded', 0, 'agent', 1, 1)", (n, f"old-{n}"))
        connection.execute("INSERT INTO record VALUES (?, ?, 1, 'k', 1, CAST('{}' AS BLOB))", (n, n))
    connection.close()
    journal = await SqliteJournal.open(data)
    await close_runs(journal, ["sealed"])
    assert (await journal.prune(2_000)).records == 5
    await journal.close()
    (file,) = (data / "archive").iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["event_id"] for line in lines] == ["old-1#1", "old-2#1", "old-3#1", "sealed#1", "sealed#2"]
    found = verify_folder(data)
    assert (found.verdict, found.archived) == (Verdict.OK, 2)


async def test_counters_follow_what_is_pruned(journal):
    await close_runs(journal, ["a", "b"])
    await journal.append(append("open", 0))
    await journal.prune(2_000)
    assert (await journal.stats()).open_streams == 1


PAYLOADS = {
    "TrajectoryOpened": {"agent": "a", "labels": {"who": "Ada"}},
    "StepIntended": {
        "step": 1, "tool": "pay", "operation": "hold", "tier": "compensable", "action": "aa", "fingerprint": "bb",
        "occurrence": 1, "key": "k", "method": "POST", "target": "/holds?name=Ada", "caller": "cc",
    },
    "StepCommitted": {
        "step": 1, "reply": {"status": 201, "text": "Ada"},
        "compensator": {"tool": "pay", "method": "POST", "target": "/Ada", "headers": [["a", "b"]], "body": "Ada"},
    },
    "TrajectoryCommitted": {"by": "agent"},
}  # fmt: skip


async def erasable(journal, name="ada"):
    from gateway.journal import Append, Entry

    entries = [Entry(kind, 1_000, json.dumps(body).encode()) for kind, body in PAYLOADS.items()]
    await journal.append(
        Append(stream=name, expected=0, entries=entries, state="succeeded", is_open=False, agent="agent")
    )


async def test_erased_payloads_are_gone_and_everything_else_still_verifies(journal, data):
    await erasable(journal)
    await erasable(journal, "other")
    await journal.erase("ada", reason="asked to", by="anna")
    await journal.erase("ada", reason="asked to", by="anna")
    entries = await journal.read("ada")
    assert not [entry for entry in entries if b"Ada" in entry.data]
    assert [entry.kind for entry in entries] == list(PAYLOADS)
    assert b"Ada" in (await journal.read("other"))[1].data
    found = verify_folder(data)
    assert (found.verdict, found.erased) == (Verdict.OK, 4)


async def test_an_erased_run_still_folds(journal):
    from gateway.core.trajectory import Phase, fold

    await erasable(journal)
    await journal.erase("ada", reason="asked to", by="anna")
    entries = await journal.read("ada")
    state = fold("ada", [(decode(entry.kind, entry.data), entry.at) for entry in entries])
    assert state.phase is Phase.SUCCEEDED
    assert state.steps[1].tool == "pay"
    assert state.labels == {}


async def test_only_what_was_erased_may_have_no_salt(journal, data):
    await erasable(journal)
    await erasable(journal, "other")
    await journal.erase("ada", reason="asked to", by="anna")
    raw = sqlite3.connect(data / "journal.db", isolation_level=None)
    raw.execute("UPDATE envelope SET salt = NULL WHERE id = 7")
    raw.close()
    found = verify_folder(data)
    assert (found.verdict, found.first_bad) == (Verdict.TAMPERED, 7)


@pytest.mark.parametrize("name", ["none", "open"])
async def test_a_run_that_is_open_or_unknown_is_not_erased(journal, name):
    await journal.append(append("open", 0))
    with pytest.raises(JournalError, match=r"no run|still open"):
        await journal.erase(name, reason="x", by="anna")
    await journal.append(append("open", 1))


async def test_large_bodies_go_with_the_payloads_unless_another_run_names_them(journal, data):
    from gateway.journal import Append, Entry

    async def kept(run, body):
        name = await journal.keep(BytesBody(body))
        digest = name.removeprefix("sha256:")
        os.utime(data / "blobs" / digest[:2] / digest, (1, 1))
        entry = Entry("StepCommitted", 1, json.dumps({"step": 1, "reply": {"status": 200, "blob": name}}).encode())
        await journal.append(
            Append(stream=run, expected=0, entries=[entry], state="succeeded", is_open=False, agent="a")
        )
        return data / "blobs" / digest[:2] / digest

    shared, _ = await kept("one", b"shared"), await kept("two", b"shared")
    os.utime(shared, (1, 1))
    own = await kept("three", b"own")
    assert await journal.erase("one", reason="x", by="a") == 0
    assert await journal.erase("three", reason="x", by="a") == 1
    assert shared.exists()
    assert not own.exists()
    assert await journal.erase("two", reason="x", by="a") == 1
    assert not shared.exists()


async def test_a_body_stored_just_now_stays_since_its_record_may_be_on_the_way(journal, data):
    name = await journal.keep(BytesBody(b"fresh"))
    assert await journal.sweep([name.removeprefix("sha256:")]) == 0
    assert await journal.kept(name)


def test_redaction_keeps_structure_only_and_may_be_repeated():
    for kind, body in PAYLOADS.items():
        once = redacted(kind, json.dumps(body).encode())
        assert redacted(kind, once) == once
        decode(kind, once)
    assert redacted("x", b"not json") == b"{}"


async def test_what_is_counted_of_a_run_after_it_was_pruned_is_not_kept_aside_for_ever(journal):
    """Memory knows the last closed runs, however old. The janitor tried to write it every second from then on."""
    clock = FakeClock()
    runs = Trajectories(journal, clock, Telemetry(), salt=b"s" * 32)
    run = await runs.named("r1", Open(agent="ann"))
    for command in (Open(agent="ann"), Commit()):
        assert await runs.decided(run, command) is None
    assert (await journal.prune(clock.at() + 1)).runs == 1
    runs.note_refusal("r1", Code.RESOURCE_EXHAUSTED, "pay", "hold")
    runs.flush_refusals()
    await run.written()
    assert run.is_lost
    await runs.write_aside()
    assert not runs.has_aside
    assert await runs.find("r1") is None


async def test_a_commit_right_after_a_pruning_is_counted(journal, monkeypatch):
    """Both answers of the writing thread may be there before anybody goes on; the totals are the older one."""
    await close_runs(journal, ["old"])
    await journal.append(append("r1", 0, "a"))
    loop, totals, is_written = asyncio.get_running_loop(), statements.totals, threading.Event()

    def write_and_wait():
        journal.write([append("r1", 1, "b")], {}, lambda errors: None)
        journal._writer.send(lambda done: None, lambda connection: is_written.set())
        assert is_written.wait(5.0)

    def slowly(connection):
        monkeypatch.undo()
        loop.call_soon_threadsafe(write_and_wait)
        return totals(connection)

    monkeypatch.setattr(statements, "totals", slowly)
    await journal.prune(2_000)
    stats = await journal.stats()
    assert (stats.streams, stats.open_streams, stats.entries) == await journal._writer.run(totals)


async def test_totals_that_could_not_be_counted_after_a_pruning_are_with_the_next_commit(journal, monkeypatch):
    await close_runs(journal, ["old"])
    totals = statements.totals

    def failing(connection):
        monkeypatch.undo()
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(statements, "totals", failing)
    assert (await journal.prune(2_000)).runs == 1
    await journal.append(append("r1", 0, "a"))
    stats = await journal.stats()
    assert (stats.streams, stats.open_streams, stats.entries) == await journal._writer.run(totals)
    assert stats.streams == 1
