"""The SQLite journal against real files, real processes, real kills and a disk that is really full."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest

from gateway.core.message import BytesBody
from gateway.journal import (
    Conflict,
    JournalCorrupt,
    JournalError,
    JournalLocked,
    JournalPoisoned,
    JournalUnavailable,
    schema,
    statements,
)
from gateway.journal.committer import CommitterSettings
from gateway.journal.offline import offline_stats
from gateway.journal.place import Place
from gateway.journal.sqlite import SqliteJournal
from tests.journal.backends import append, texts

KILL_ROUNDS = int(os.environ.get("SEAWALL_KILL_ROUNDS", "3"))


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


@pytest.fixture
async def journal(data):
    journal = await SqliteJournal.open(data, settings=CommitterSettings(retry_s=0.005))
    yield journal
    await journal.close()


def child(code: str, *arguments: object) -> subprocess.Popen:
    """Start a Python process that has the journal's words at hand."""
    prelude = "import asyncio, os, sys\nfrom tests.journal.backends import append\n"
    prelude += "from gateway.journal import *\nfrom gateway.journal.sqlite import SqliteJournal\n"
    command = [sys.executable, "-c", prelude + code, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.fixture
def processes():
    started = []
    yield started
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


HOLDER = """
async def main():
    journal = await SqliteJournal.open(sys.argv[1])
    for n in range(100):
        await journal.append(append("run", n, str(n)))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await journal.close()
asyncio.run(main())
"""

WRITERS = """
async def write(journal, number):
    boot = os.urandom(4).hex()
    for run in range(10**6):
        stream = f"{boot}-{number}-{run}"
        for n in range(5):
            await journal.append(append(stream, n, str(n), is_open=n < 4), lazy=n == 2)
            os.write(1, f"{stream} {n}\\n".encode())
async def main():
    journal = await SqliteJournal.open(sys.argv[1])
    await asyncio.gather(*(write(journal, number) for number in range(64)))
asyncio.run(main())
"""

FULL_DISK = """
import resource
async def main():
    journal = await SqliteJournal.open(sys.argv[1])
    await journal.append(append("before", 0))
    limit = os.path.getsize(sys.argv[1] + "/journal.db-wal") + 300_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    acked, failed = ["before"], 0
    while failed < 3:
        stream = f"during-{len(acked)}-{failed}"
        try:
            await journal.append(append(stream, 0, "x" * 2_000))
            acked.append(stream)
        except JournalUnavailable as error:
            assert type(error) is JournalUnavailable and "free some disk space" in str(error), repr(error)
            assert not journal.is_healthy and not journal.is_fatal
            failed += 1
    assert [entry.kind for entry in await journal.read("before")] == ["step_intended"]
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await journal.append(append("after", 0))
    assert journal.is_healthy
    await journal.close()
    print(" ".join([*acked, "after"]))
asyncio.run(main())
"""


async def test_every_setting_holds_on_the_writing_connection(journal):
    """`synchronous = NORMAL` alone lost acknowledged rows in 128 of 150 simulated power cuts."""

    def settings(connection):
        names = ("journal_mode", "auto_vacuum", "query_only", "application_id", *schema.SETTINGS)
        return {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names}

    assert await journal._writer.run(settings) == {
        "journal_mode": "wal",
        "auto_vacuum": 2,
        "query_only": 0,
        "application_id": schema.APPLICATION_ID,
        "synchronous": 2,
        "wal_autocheckpoint": 4_000,
        "journal_size_limit": 64 << 20,
        "busy_timeout": 5_000,
        "foreign_keys": 1,
        "trusted_schema": 0,
    }


async def test_the_reading_connection_cannot_write(journal):
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        await journal._reader.run(lambda connection: connection.execute("DELETE FROM record"))


async def test_a_path_with_odd_characters_works(tmp_path):
    """They mean something in the URI by which the reading connection is opened."""
    journal = await SqliteJournal.open(tmp_path / "odd ?#% näme" / "x.sqlite3")
    await journal.append(append("run", 0))
    assert len(await journal.read("run")) == 1
    await journal.close()


async def test_a_folder_made_for_the_journal_is_nobody_elses(data, journal):
    assert data.stat().st_mode & 0o077 == 0


async def test_a_file_in_the_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "data").write_text("")
    with pytest.raises(JournalUnavailable, match="cannot be used"):
        await SqliteJournal.open(tmp_path / "data")


async def test_a_second_gateway_on_the_folder_is_refused_until_the_first_is_dead(data, processes):
    """Two of them would each believe to be the only one; a kill -9 must not lock the data for ever."""
    holder = child(HOLDER, data)
    processes.append(holder)
    assert holder.stdout.readline() == b"ready\n"
    with pytest.raises(JournalLocked, match=f"in use by process {holder.pid} on"):
        await SqliteJournal.open(data)
    assert offline_stats(data).entries == 100
    holder.kill()
    holder.wait()
    assert (data / "journal.lock").exists()
    journal = await SqliteJournal.open(data)
    await journal.close()


async def test_a_gateway_waits_for_the_one_before_it_to_be_gone(data, processes):
    """One that was killed holds the lock for a moment yet: a restart at once must not fail on that."""
    holder = child(HOLDER, data)
    processes.append(holder)
    assert holder.stdout.readline() == b"ready\n"
    told = []

    def kill(held):
        told.append(str(held))
        holder.kill()

    journal = await SqliteJournal.open(data, wait_s=30.0, on_wait=kill)
    await journal.close()
    assert len(told) == 1
    assert f"in use by process {holder.pid} on" in told[0]


async def test_it_does_not_wait_for_ever(data, journal):
    with pytest.raises(JournalLocked, match=r"in use by process .*stop that gateway.*\(waited for it for 0.05 s\)"):
        await SqliteJournal.open(data, wait_s=0.05)


async def test_a_second_journal_in_the_same_process_is_refused_too(journal, data):
    with pytest.raises(JournalLocked):
        await SqliteJournal.open(data)
    await journal.append(append("run", 0))


async def test_a_log_left_by_a_kill_is_taken_over(data, processes):
    holder = child(HOLDER, data)
    processes.append(holder)
    assert holder.stdout.readline() == b"ready\n"
    holder.kill()
    holder.wait()
    assert (data / "journal.db-wal").stat().st_size > 100_000
    journal = await SqliteJournal.open(data)
    assert texts(await journal.read("run")) == [str(n) for n in range(100)]
    await journal.append(append("run", 100))
    await journal.close()
    assert not (data / "journal.db-wal").exists()


async def test_kill_9_never_loses_what_was_acknowledged(data, processes):
    """64 writers tell each durable append; the kill comes after a random number of them, wherever the disk is then."""
    chance = random.Random(1913)
    acked: set[tuple[str, int]] = set()
    for _ in range(KILL_ROUNDS):
        writers = child(WRITERS, data)
        processes.append(writers)
        lines = [writers.stdout.readline() for _ in range(chance.randrange(300, 3_000))]
        writers.kill()
        lines += writers.stdout.read().splitlines(keepends=True)
        for line in lines:
            stream, n = line.decode().split()
            acked.add((stream, int(n)))
        writers.wait()
        journal = await SqliteJournal.open(data)
        for stream in {stream for stream, _ in acked}:
            entries = texts(await journal.read(stream))
            assert entries == [str(n) for n in range(len(entries))]
            acked -= {(stream, n) for n in range(len(entries))}
        assert acked == set()
        await journal.close()
        with sqlite3.connect(data / "journal.db") as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()


async def test_a_disk_that_is_really_full_fails_appends_and_recovers(data, processes):
    """The file-size limit of the kernel stands in for the full disk; nothing in the journal is told of it."""
    writer = child(FULL_DISK, data)
    processes.append(writer)
    output, _ = await asyncio.to_thread(writer.communicate, None, 30)
    assert writer.returncode == 0
    journal = await SqliteJournal.open(data)
    heads = {head.stream for head in await journal.heads(limit=1_000)}
    assert set(output.decode().split()) <= heads
    assert len(heads) > 5
    await journal.close()


async def test_no_more_pages_is_a_full_disk_and_health_returns_by_itself(journal):
    await journal.append(append("a", 0))
    pages = "PRAGMA max_page_count"
    count = await journal._writer.run(lambda raw: raw.execute("PRAGMA page_count").fetchone()[0])
    await journal._writer.run(lambda raw: raw.execute(f"{pages} = {count}").fetchone())
    probed = asyncio.Event()
    write = journal.write

    def watched(appends, notes, told):
        def tell(answer):
            told(answer)
            if answer == []:
                probed.set()

        write(appends, notes, tell)

    journal.write = watched
    results = await asyncio.gather(
        *(journal.append(append(name, 0, "x" * 50_000)) for name in "bc"), return_exceptions=True
    )
    assert [type(result) for result in results] == [JournalUnavailable] * 2
    assert "SQLITE_FULL" in str(results[0])
    assert not journal.is_healthy
    stats = await journal.stats()
    assert (stats.streams, stats.entries, stats.open_streams) == (1, 1, 1)
    assert texts(await journal.read("a")) == ["x"]
    await journal._writer.run(lambda raw: raw.execute(f"{pages} = 1000000").fetchone())
    await asyncio.wait_for(probed.wait(), 5)
    assert journal.is_healthy
    assert await journal.head("b") is None
    await journal.append(append("b", 0, "x" * 50_000))


async def test_a_commit_that_failed_but_is_there_after_all_is_found_by_reading_again(journal, monkeypatch):
    """An error says that the caller cannot know, not that nothing happened."""
    await journal.append(append("run", 0))
    write = statements.write

    def done_and_failed(*arguments):
        write(*arguments)
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_IOERR_WRITE, "SQLITE_IOERR_WRITE"
        raise error

    monkeypatch.setattr(statements, "write", done_and_failed)
    with pytest.raises(JournalUnavailable):
        await journal.append(append("run", 1, "there", is_open=False))
    monkeypatch.undo()
    assert (await journal.head("run")).version == 2
    await journal.append(append("run", 2))
    stats = await journal.stats()
    assert (stats.streams, stats.open_streams, stats.entries) == (1, 1, 3)


async def test_a_failed_fsync_poisons_the_journal_for_good(journal, data, monkeypatch):
    """A second fsync may report success for pages the kernel has dropped. Only a restart tells what is on disk."""
    await journal.append(append("a", 0))
    waiting = asyncio.ensure_future(journal.wait_fatal())
    calls = []

    def failing(*arguments):
        calls.append(arguments)
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_IOERR_FSYNC, "SQLITE_IOERR_FSYNC"
        raise error

    monkeypatch.setattr(statements, "write", failing)
    for _ in range(2):
        with pytest.raises(JournalPoisoned, match="SQLITE_IOERR_FSYNC"):
            await journal.append(append("b", 0))
    assert len(calls) == 1
    await asyncio.wait_for(waiting, 1)
    assert journal.is_fatal
    assert not journal.is_healthy
    assert "SQLITE_IOERR_FSYNC" in (await journal.stats()).details["failure"]
    monkeypatch.undo()
    await journal.close()
    again = await SqliteJournal.open(data)
    assert [head.stream for head in await again.heads()] == ["a"]
    await again.close()


async def test_a_value_that_cannot_be_stored_fails_alone(journal):
    """A header with stray bytes becomes a name SQLite cannot encode; others in the batch are other agents' calls."""
    journal.remember("breaker/a", b"open")
    results = await asyncio.gather(
        journal.append(append("good", 0)),
        journal.append(append("\udcff", 0)),
        journal.append(append("late", 0, at=2**63)),
        journal.append(append("good", 1)),
        journal.append(append("conflict", 1)),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [
        type(None),
        JournalUnavailable,
        JournalUnavailable,
        type(None),
        Conflict,
    ]
    assert journal.is_healthy
    assert len(await journal.read("good")) == 2
    assert await journal.recall("breaker/") == {"breaker/a": b"open"}
    with pytest.raises(JournalUnavailable, match="cannot be looked up"):
        await journal.read("\udcff")


async def test_a_value_that_cannot_be_stored_fails_what_was_built_on_it(journal):
    """The second append finds the version it expects, since the first was left out."""
    results = await asyncio.gather(
        journal.append(append("run", 0, at=2**63)),
        journal.append(append("other", 0)),
        journal.append(append("run", 0)),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [JournalUnavailable, type(None), JournalUnavailable]
    assert await journal.head("run") is None
    await journal.append(append("run", 0))


async def test_one_bad_value_among_many_costs_few_commits(journal, monkeypatch):
    """Else an agent with a bad header could make every batch a commit a row."""
    calls, write = [], statements.write

    def counted(*arguments):
        calls.append(arguments)
        return write(*arguments)

    monkeypatch.setattr(statements, "write", counted)
    appends = [append(f"run-{n}", 0, at=2**63 if n == 77 else 1) for n in range(256)]
    results = await asyncio.gather(*map(journal.append, appends), return_exceptions=True)
    assert [n for n, result in enumerate(results) if result is not None] == [77]
    assert len(calls) == 1 + 2 * 8


async def test_a_cancelled_caller_inside_the_transaction_changes_nothing(journal):
    """langchain's and everybody's trap: cancelled between execute and commit."""
    busy = threading.Event()
    blocker = asyncio.ensure_future(journal._writer.run(lambda raw: busy.wait() and None))
    tasks = [asyncio.create_task(_await(journal.append(append(f"run-{n}", 0)))) for n in range(3)]
    while not journal._committer._in_flight:
        await asyncio.sleep(0)
    tasks[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]
    busy.set()
    await blocker
    await asyncio.gather(tasks[0], tasks[2])
    assert [len(await journal.read(f"run-{n}")) for n in range(3)] == [1, 1, 1]


async def _await(future):
    await future


async def test_a_reading_does_not_wait_behind_a_commit(journal):
    await journal.append(append("run", 0))
    busy = threading.Event()
    blocker = asyncio.ensure_future(journal._writer.run(lambda raw: busy.wait() and None))
    stuck = journal.append(append("run", 1))
    assert len(await asyncio.wait_for(journal.read("run"), 5)) == 1
    busy.set()
    await blocker
    await stuck


async def test_a_reader_held_open_does_not_stop_appends(journal, data):
    """benbjohnson/litestream issue 724: a long reader and a greedy checkpoint made every write fail."""
    reader = sqlite3.connect(Place.of(data).read_only_uri, uri=True, isolation_level=None)
    await journal.append(append("run", 0))
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM record").fetchone() == (1,)
    for n in range(1, 40):
        await journal.append(append("run", n, "x" * 100_000))
    assert reader.execute("SELECT count(*) FROM record").fetchone() == (1,)
    reader.close()
    assert (await journal.stats()).is_healthy


async def test_another_writer_on_the_file_is_found_out(journal, data):
    """Somebody with a database shell. The unique index is the last line; the journal stops rather than guess."""
    await journal.append(append("run", 0))
    other = sqlite3.connect(data / "journal.db", isolation_level=None)
    other.execute("INSERT INTO record (stream, n, kind, at, data) VALUES (1, 2, 'k', 1, x'')")
    other.close()
    with pytest.raises(JournalPoisoned, match="changed by somebody else"):
        await journal.append(append("run", 1))
    assert journal.is_fatal


async def test_a_cache_too_small_for_all_streams_changes_nothing(journal, monkeypatch):
    monkeypatch.setattr("gateway.journal.sqlite._CACHED_STANDINGS", 2)
    for n in range(3):
        await asyncio.gather(*(journal.append(append(f"run-{each}", n)) for each in range(6)))
    assert len(journal._standings) == 2
    stats = await journal.stats()
    assert (stats.streams, stats.open_streams, stats.entries) == (6, 6, 18)


def overwrite(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


async def filled(data, streams=200):
    journal = await SqliteJournal.open(data)
    await asyncio.gather(*(journal.append(append(f"run-{n}", 0, "x" * 300)) for n in range(streams)))
    await journal.close()


async def test_a_file_of_another_kind_is_refused(data):
    data.mkdir()
    (data / "journal.db").write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(JournalCorrupt, match="file is not a database"):
        await SqliteJournal.open(data)


async def test_somebody_elses_database_is_refused(data):
    data.mkdir()
    other = sqlite3.connect(data / "journal.db")
    other.execute("PRAGMA auto_vacuum = INCREMENTAL")
    other.execute("CREATE TABLE precious (x)")
    other.close()
    with pytest.raises(JournalError, match="belongs to another program"):
        await SqliteJournal.open(data)
    with pytest.raises(JournalError, match="belongs to another program"):
        offline_stats(data)


async def test_a_damaged_page_is_refused_with_the_first_finding(data):
    await filled(data)
    connection = sqlite3.connect(data / "journal.db")
    page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'record'").fetchone()[0]
    connection.close()
    overwrite(data / "journal.db", (page - 1) * 4_096, b"\xff" * 4_096)
    with pytest.raises(JournalCorrupt, match=rf"[Pp]age {page}\b.*Restore a backup"):
        await SqliteJournal.open(data)
    journal_is_unlocked = await asyncio.to_thread(lambda: (data / "journal.lock").exists())
    assert journal_is_unlocked


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        ("UPDATE head SET version = 0 WHERE id = 7", "record 8 is entry 1 of run 'run-6', whose head stands at 0"),
        ("UPDATE head SET version = 3 WHERE id = 7", "record 8 is the last of run 'run-6'"),
        ("DELETE FROM head WHERE id = 7", "record 8 belongs to no run"),
    ],
)
async def test_a_head_that_contradicts_its_record_is_refused_by_name(data, damage, finding):
    """One transaction wrote both, so they cannot differ unless somebody was there."""
    await filled(data)
    connection = sqlite3.connect(data / "journal.db")
    connection.execute(damage)
    connection.commit()
    connection.close()
    with pytest.raises(JournalCorrupt, match=finding):
        await SqliteJournal.open(data)


async def test_damage_met_while_running_poisons_the_journal(data):
    """Found at an append, on a page that opening had no reason to look at."""
    await filled(data, 2_000)
    connection = sqlite3.connect(data / "journal.db")
    page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'record_stream'").fetchone()[0]
    connection.close()
    overwrite(data / "journal.db", (page - 1) * 4_096, b"\xff" * 4_096)
    journal = await SqliteJournal.open(data)
    with pytest.raises(JournalPoisoned, match="damaged"):
        await journal.append(append("new", 0))
    with pytest.raises(JournalCorrupt, match="damaged"):
        await journal.read("run-0")
    assert journal.is_fatal
    await journal.close()


def threads_end(before):
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
        assert not thread.is_alive()


async def test_a_failed_opening_gives_everything_back(data, monkeypatch):
    """Else the second try meets its own lock, or the process never ends."""
    before = set(threading.enumerate())
    descriptors = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr("gateway.journal.sqlite.schema.check_tail", lambda connection: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await SqliteJournal.open(data)
    monkeypatch.undo()
    threads_end(before)
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    journal = await SqliteJournal.open(data)
    await journal.close()


async def test_closing_gives_everything_back(data):
    before = set(threading.enumerate())
    journal = await SqliteJournal.open(data)
    name = await journal.keep(BytesBody(b"x"))
    await journal.append(append("run", 0))
    await journal.close()
    threads_end(before)
    for call in (journal.read("run"), journal.heads(), journal.kept(name), journal.meta("salt", b"")):
        with pytest.raises(JournalUnavailable, match="closed"):
            await call
    again = await SqliteJournal.open(data)
    await again.close()


def test_a_loop_that_ends_without_closing_leaves_no_thread_and_no_lock(data):
    """An exception in the main task: asyncio.run cancels all others, and the threads would die noisily without a loop."""

    async def main():
        journal = await SqliteJournal.open(data)
        await journal.append(append("run", 0))
        journal.append(append("run", 1), lazy=True)
        journal.append(append("other", 0)).add_done_callback(asyncio.Future.exception)
        await asyncio.sleep(0)
        raise KeyError

    before = set(threading.enumerate())
    with pytest.raises(KeyError):
        asyncio.run(main())
    names = {thread.name for thread in set(threading.enumerate()) - before}
    assert not [name for name in names if "journal-blobs" not in name]

    async def again():
        journal = await SqliteJournal.open(data)
        assert len(await journal.read("run")) in (1, 2)
        await journal.close()

    asyncio.run(again())


async def test_a_close_that_is_cancelled_still_closes(data):
    journal = await SqliteJournal.open(data)
    future = journal.append(append("run", 0), lazy=True)
    closing = asyncio.create_task(journal.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await journal.close()
    assert future.exception() is None
    again = await SqliteJournal.open(data)
    assert len(await again.read("run")) == 1
    await again.close()


async def test_a_checkpoint_that_cannot_be_written_does_not_keep_the_journal_from_closing(data):
    """A ring and a checkpoint on a read-only mount: the journal itself is sound."""
    journal = await SqliteJournal.open(data, checkpoint=data / "none" / "told")
    await journal.append(append("run", 0))
    await journal.close()
    journal = await SqliteJournal.open(data)
    assert len(await journal.read("run")) == 1
    await journal.close()


async def test_each_group_commit_is_told(data):
    told = []
    journal = await SqliteJournal.open(data, on_commit=lambda entries, seconds: told.append(entries))
    await asyncio.gather(journal.append(append("a", 0, "1", "2")), journal.append(append("b", 0)))
    await journal.close()
    assert told == [3]


async def test_figures_tell_what_an_operator_needs(journal, data):
    await journal.append(append("run", 0))
    details = (await journal.stats()).details
    assert details["path"] == str(data / "journal.db")
    assert details["wal_bytes"] > 0
    assert details["sqlite_version"] == sqlite3.sqlite_version
    assert details["has_wal_reset_race"] is schema.has_wal_reset_race(sqlite3.sqlite_version_info)
    assert details["failure"] is None
    assert "journal.db" in repr(journal)


def test_a_signal_that_kills_nothing_else_is_used():
    """CPython ignores SIGXFSZ, on which the full-disk test rests."""
    assert signal.getsignal(signal.SIGXFSZ) is signal.SIG_IGN
