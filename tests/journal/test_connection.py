"""aiosqlite's traps, closed. Also the watch over the private names of aiosqlite that this rests on."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading

import pytest

from gateway.journal import JournalUnavailable
from gateway.journal.connection import Connection


@pytest.fixture
async def connection(tmp_path):
    connection = await Connection.open(str(tmp_path / "x.db"))
    yield connection
    await connection.close()


async def test_a_function_runs_whole_though_its_caller_is_cancelled(connection):
    """With aiosqlite's own calls the next caller would commit the rest of this transaction."""
    entered, go_on = threading.Event(), threading.Event()

    def transaction(raw):
        raw.execute("CREATE TABLE t (x)")
        raw.execute("BEGIN IMMEDIATE")
        raw.execute("INSERT INTO t VALUES (1)")
        entered.set()
        go_on.wait()
        raw.execute("COMMIT")

    task = asyncio.create_task(connection.run(transaction))
    await asyncio.to_thread(entered.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    assert await connection.run(lambda raw: (raw.in_transaction, raw.execute("SELECT x FROM t").fetchall())) == (
        False,
        [(1,)],
    )


async def test_errors_of_the_function_reach_the_caller(connection):
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        await connection.run(lambda raw: raw.execute("SELECT * FROM absent"))


async def test_what_is_sent_is_told_of_on_the_event_loop_in_the_order_of_sending(connection):
    """The road of the journal's commits: no future, no task, and errors are told like results."""
    told, done = [], asyncio.Event()

    def tell(answer):
        told.append((answer, threading.current_thread() is threading.main_thread()))
        if len(told) == 3:
            done.set()

    connection.send(tell, lambda raw, x: raw.execute("SELECT ?", (x,)).fetchone(), 5)
    connection.send(tell, lambda raw: raw.execute("SELECT * FROM absent"))
    connection.send(tell, lambda raw: threading.current_thread() is threading.main_thread())
    await asyncio.wait_for(done.wait(), 5)
    assert [is_main for _, is_main in told] == [True] * 3
    assert [type(answer) for answer, _ in told] == [tuple, sqlite3.OperationalError, bool]
    assert told[0][0] == (5,)
    assert told[2][0] is False


async def test_what_is_told_may_send_the_next_and_may_fail(connection):
    """A hook that raises is the event loop's to report; the thread goes on."""
    reported, done = [], asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["exception"]))
    connection.send(lambda answer: 1 / 0, lambda raw: None)
    connection.send(lambda answer: connection.send(lambda answer: done.set(), lambda raw: None), lambda raw: None)
    await asyncio.wait_for(done.wait(), 5)
    assert [type(error) for error in reported] == [ZeroDivisionError]


async def test_a_closed_connection_says_so(connection):
    await connection.close()
    await connection.close()
    connection.abandon()
    with pytest.raises(JournalUnavailable, match="closed"):
        await connection.run(lambda raw: None)
    with pytest.raises(JournalUnavailable, match="closed"):
        connection.send(lambda answer: None, lambda raw: None)


async def test_abandoning_lets_what_runs_finish_and_ends_the_thread(tmp_path):
    connection = await Connection.open(str(tmp_path / "x.db"))
    thread = connection._raw._thread
    pending = asyncio.ensure_future(connection.run(lambda raw: raw.execute("CREATE TABLE t (x)") and None))
    await asyncio.sleep(0)
    connection.abandon()
    assert not thread.is_alive()
    await pending
    connection.abandon()


async def test_a_file_that_cannot_be_opened_leaves_no_thread(tmp_path):
    before = set(threading.enumerate())
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        await Connection.open(str(tmp_path / "missing" / "x.db"))
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
        assert not thread.is_alive()


def test_a_process_that_drops_its_loop_exits_all_the_same(tmp_path):
    """Nobody cancels the tasks here, so nothing but the daemon flag lets the process go."""
    code = f"""
import asyncio
from gateway.journal.sqlite import SqliteJournal
loop = asyncio.new_event_loop()
journal = loop.run_until_complete(SqliteJournal.open({str(tmp_path / "data")!r}))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30).returncode == 0


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "asyncio.get_running_loop().stop()"])
def test_a_process_that_never_closes_exits_all_the_same(tmp_path, ending):
    """omnilib/aiosqlite issue 371: the thread is no daemon, and the process hangs for ever."""
    code = f"""
import asyncio
from gateway.journal import Append, Entry
from gateway.journal.sqlite import SqliteJournal
async def main():
    global journal
    journal = await SqliteJournal.open({str(tmp_path / "data")!r})
    append = Append(stream="a", expected=0, entries=(Entry("k", 1, b""),), state="s", is_open=True, agent="a")
    await journal.append(append)
    journal.append(Append(stream="b", expected=0, entries=(Entry("k", 1, b""),), state="s", is_open=True, agent="a"))
    {ending}
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == (0 if not ending else 3 if "Exit" in ending else 1), done.stderr
    assert "Exception in thread" not in done.stderr
