"""What every journal promises, whatever it is made of."""

from __future__ import annotations

import asyncio
import gc
import hashlib

import pytest

from gateway.core.message import BytesBody
from gateway.journal import Conflict, Entry, Head, JournalCorrupt, JournalError, JournalUnavailable, KeyClaim, KeyOwner
from tests.journal.backends import BACKENDS, append, entry, texts


@pytest.fixture(params=BACKENDS)
def backend(request, tmp_path):
    return BACKENDS[request.param](tmp_path / "data")


@pytest.fixture
async def journal(backend):
    journal = await backend.open()
    yield journal
    await journal.close()


async def test_entries_come_back_verbatim_and_in_order(journal):
    """The bytes of a record are sealed later; a journal that touches them breaks every seal."""
    entries = [Entry("step_intended", 1, b"\x00\xff{}"), Entry("step_committed", 2**53, b""), entry("ü")]
    first = append("run", 0)
    first = type(first)(stream="run", expected=0, entries=entries, state="preparing", is_open=True, agent="a")
    await journal.append(first)
    assert await journal.read("run") == entries
    assert await journal.read("run", 2) == entries[2:]
    assert await journal.read("run", 3) == []
    assert await journal.read("run", 99) == []
    assert await journal.read("another") == []


async def test_a_caller_who_changes_his_list_or_what_he_read_changes_nothing(journal):
    """Both lists are handed over as copies; the log is not shared memory."""
    entries = [entry("one")]
    made = append("run", 0)
    made = type(made)(stream="run", expected=0, entries=entries, state="preparing", is_open=True, agent="a")
    await journal.append(made)
    entries.append(entry("smuggled"))
    (await journal.read("run")).clear()
    assert texts(await journal.read("run")) == ["one"]


async def test_the_head_tells_where_a_stream_stands(journal):
    await journal.append(append("run", 0, "a", "b", at=5, state="preparing", agent="first"))
    await journal.append(append("run", 2, "c", at=9, state="succeeded", is_open=False, agent="second"))
    assert await journal.head("run") == Head("run", 3, "succeeded", False, "second", 5, 9)
    assert await journal.head("another") is None


async def test_another_version_is_a_conflict_and_writes_nothing(journal):
    """The one rule that serialises writers."""
    await journal.append(append("run", 0, "a"))
    for expected in (0, 2):
        with pytest.raises(Conflict, match="'run' is at version 1"):
            await journal.append(append("run", expected, "b", claims=(KeyClaim(b"k", 1, 9_999),)))
        assert texts(await journal.read("run")) == ["a"]
    assert await journal.find_key(b"k", 0) is None
    with pytest.raises(Conflict, match="'new' is at version 0"):
        await journal.append(append("new", 1, "b"))
    assert await journal.head("new") is None


async def test_an_append_without_entries_is_a_bug_of_the_caller(journal):
    made = append("run", 0)
    with pytest.raises(ValueError, match="at least one entry"):
        journal.append(type(made)(stream="run", expected=0, entries=(), state="s", is_open=True, agent="a"))


async def test_a_conflict_does_not_fail_its_neighbours(journal):
    """They are in the same transaction by accident."""
    await journal.append(append("b", 0, "kept"))
    results = await asyncio.gather(
        journal.append(append("a", 0, "a")),
        journal.append(append("b", 0, "late")),
        journal.append(append("c", 0, "c")),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [type(None), Conflict, type(None)]
    assert [texts(await journal.read(name)) for name in "abc"] == [["a"], ["kept"], ["c"]]


async def test_appends_to_one_stream_are_committed_in_the_order_of_the_calls(journal):
    """Pipelined by one writer, lazy ones included, without waiting in between."""
    futures = [journal.append(append("run", n, str(n)), lazy=bool(n % 3)) for n in range(50)]
    await asyncio.gather(*futures)
    assert texts(await journal.read("run")) == [str(n) for n in range(50)]


async def test_an_append_after_one_that_failed_fails_too(journal):
    """Even if it finds the version it expects: its writer has not seen the entry that stands there."""
    await journal.append(append("run", 0, "a", "b"))
    failing = journal.append(append("run", 1, "mine"))
    following = journal.append(append("run", 2, "built on mine"))
    with pytest.raises(Conflict):
        await failing
    with pytest.raises(Conflict, match="read the run again"):
        await following
    with pytest.raises(Conflict, match="read the run again"):
        await journal.append(append("run", 2, "still blind"))
    assert texts(await journal.read("run")) == ["a", "b"]
    await journal.append(append("run", 2, "seen"))
    assert texts(await journal.read("run")) == ["a", "b", "seen"]


async def test_several_streams_are_read_together_as_each_is_read_alone(journal):
    for name, entries in (("a", "12"), ("b", "3"), ("c", "456")):
        await journal.append(append(name, 0, *entries))
    read = await journal.read_many(["c", "nobody", "a"])
    assert [texts(entries) for entries in read] == [["4", "5", "6"], [], ["1", "2"]]
    assert await journal.read_many([]) == []


async def test_reading_several_counts_as_reading_each_of_them_again(journal):
    await journal.append(append("run", 0, "a"))
    for expected in (5, 1):
        with pytest.raises(JournalError):
            await journal.append(append("run", expected, "b"))
    await journal.read_many(["run"])
    await journal.append(append("run", 1, "b"))


async def test_asking_for_the_head_counts_as_reading_again(journal):
    with pytest.raises(Conflict):
        await journal.append(append("run", 1, "a"))
    assert await journal.head("run") is None
    await journal.append(append("run", 0, "a"))


async def test_a_lazy_append_becomes_durable_without_anybody_waiting(journal):
    """It may not wake the disk, but it may not wait for ever either."""
    await asyncio.wait_for(journal.append(append("run", 0, "a"), lazy=True), 5)
    assert texts(await journal.read("run")) == ["a"]


async def test_a_durable_append_takes_the_lazy_ones_before_it_along(journal):
    lazy = journal.append(append("run", 0, "a"), lazy=True)
    await journal.append(append("other", 0))
    assert lazy.done()


async def test_the_error_of_a_dropped_lazy_append_is_not_reported(journal):
    """Nobody waits for it, so nobody retrieves its error; the fence tells the writer."""
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    journal.append(append("run", 7), lazy=True)
    await journal.flush()
    gc.collect()
    assert reported == []
    with pytest.raises(Conflict):
        await journal.append(append("run", 0))


async def test_flush_waits_for_everything_queued_so_far(journal):
    futures = [journal.append(append(f"run-{n}", 0), lazy=True) for n in range(20)]
    journal.remember("breaker/payments", b"open")
    await journal.flush()
    assert all(future.done() for future in futures)
    await journal.flush()


@pytest.mark.parametrize("passes", range(12))
async def test_cancelling_a_caller_never_touches_the_batch(journal, passes):
    """At whatever point it happens: his append is made, and so are his neighbours'."""

    async def call(stream):
        await journal.append(append(stream, 0, stream))

    tasks = [asyncio.create_task(call(f"run-{n}")) for n in range(4)]
    for _ in range(passes):
        await asyncio.sleep(0)
    tasks[1].cancel()
    tasks[2].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[0] is None
    assert results[3] is None
    if passes:
        await journal.flush()
        for n in range(4):
            assert texts(await journal.read(f"run-{n}")) == [f"run-{n}"]
    await journal.append(append("later", 0))


async def test_a_cancelled_future_does_not_take_the_append_back(journal):
    future = journal.append(append("run", 0, "a"))
    future.cancel()
    await journal.append(append("run", 1, "b"))
    assert texts(await journal.read("run")) == ["a", "b"]


async def test_open_streams_come_by_name_and_in_pages(journal):
    for n in range(7):
        await journal.append(append(f"run-{n}", 0, is_open=n != 3))
    await journal.append(append("run-5", 1, is_open=False, state="succeeded"))
    first = await journal.open_heads(limit=2)
    assert [head.stream for head in first] == ["run-0", "run-1"]
    rest = await journal.open_heads(after="run-1")
    assert [head.stream for head in rest] == ["run-2", "run-4", "run-6"]
    assert await journal.open_heads(after="run-6") == []


async def test_a_closed_stream_may_open_again(journal):
    """A frozen run is taken up by an operator."""
    await journal.append(append("run", 0, is_open=False, state="frozen"))
    await journal.append(append("run", 1, is_open=True))
    assert [head.stream for head in await journal.open_heads()] == ["run"]
    assert (await journal.stats()).open_streams == 1


async def test_streams_are_listed_last_changed_first_without_missing_any_between_pages(journal):
    """Several runs change in one millisecond; a page that cut through it would hide some for ever."""
    for n in range(12):
        await journal.append(append(f"run-{n:02}", 0, at=1_000 + n // 4, state="frozen" if n % 2 else "preparing"))
    seen, before = [], None
    while page := await journal.heads(limit=3, before=before):
        seen += [head.stream for head in page]
        before = page[-1].changed_at
    assert sorted(seen) == [f"run-{n:02}" for n in range(12)]
    assert seen[0] == "run-08"
    frozen = await journal.heads(state="frozen")
    assert [head.stream for head in frozen] == ["run-09", "run-11", "run-05", "run-07", "run-01", "run-03"]
    assert [head.stream for head in await journal.heads(state="frozen", limit=1)] == ["run-09", "run-11"]
    assert await journal.heads(state="nothing") == []


async def test_a_callers_key_names_its_step_until_it_expires(journal):
    await journal.append(append("run", 0, claims=(KeyClaim(b"\x00digest", 3, 2_000),)))
    assert await journal.find_key(b"\x00digest", 1_999) == KeyOwner("run", 3)
    assert await journal.find_key(b"\x00digest", 2_000) is None
    assert await journal.find_key(b"other", 0) is None


async def test_a_key_claimed_again_names_the_later_step(journal):
    await journal.append(append("run", 0, claims=(KeyClaim(b"k", 1, 2_000),)))
    await asyncio.gather(
        journal.append(append("run", 1, claims=(KeyClaim(b"k", 2, 3_000),))),
        journal.append(append("new", 0, claims=(KeyClaim(b"k", 1, 4_000),))),
    )
    assert await journal.find_key(b"k", 3_500) == KeyOwner("new", 1)


async def test_the_latest_remembered_value_is_recalled_at_once(journal):
    journal.remember("breaker/a", b"1")
    journal.remember("breaker/a", b"2")
    journal.remember("breaker/b", b"3")
    journal.remember("budget/a", b"4")
    assert await journal.recall("breaker/") == {"breaker/a": b"2", "breaker/b": b"3"}
    await journal.flush()
    journal.remember("breaker/b", b"5")
    assert await journal.recall("breaker/") == {"breaker/a": b"2", "breaker/b": b"5"}
    assert await journal.recall("") == {"breaker/a": b"2", "breaker/b": b"5", "budget/a": b"4"}
    assert await journal.recall("breaker/%") == {}


async def test_a_constant_is_set_once(journal):
    assert await journal.meta("salt", b"first") == b"first"
    assert await journal.meta("salt", b"second") == b"first"
    assert await journal.meta("other", b"") == b""


@pytest.mark.parametrize("size", [0, 1, 300_000, 3_000_000])
async def test_a_large_body_is_kept_under_its_digest_and_may_be_read_again(journal, size):
    data = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
    name = await journal.keep(BytesBody(data))
    assert name == "sha256:" + hashlib.sha256(data).hexdigest()
    assert await journal.keep(BytesBody(data)) == name
    body = await journal.kept(name)
    assert body.size == size
    assert body.is_replayable
    for _ in range(2):
        assert b"".join([chunk async for chunk in body.chunks()]) == data
    await body.aclose()


async def test_the_same_body_kept_by_many_at_once_is_one(journal):
    names = await asyncio.gather(*(journal.keep(BytesBody(b"same" * 1_000)) for _ in range(8)))
    assert len(set(names)) == 1
    assert b"".join([chunk async for chunk in (await journal.kept(names[0])).chunks()]) == b"same" * 1_000


@pytest.mark.parametrize("name", ["sha256:" + "0" * 64, "sha256:../../../etc/passwd", "md5:00", ""])
async def test_a_body_that_was_never_kept_is_named_as_missing(journal, name):
    with pytest.raises(JournalCorrupt):
        await journal.kept(name)


async def test_stats_count_what_was_written(journal):
    await journal.append(append("a", 0, "1", "2"))
    await journal.append(append("a", 2, "3", is_open=False))
    await journal.append(append("b", 0))
    with pytest.raises(Conflict):
        await journal.append(append("b", 0))
    stats = await journal.stats()
    assert (stats.streams, stats.open_streams, stats.entries, stats.committed_entries) == (2, 1, 4, 4)
    assert stats.commits >= 3
    assert stats.queued == 0
    assert stats.is_healthy


async def test_closing_commits_what_is_queued_and_refuses_what_comes_later(journal, backend):
    futures = [journal.append(append(f"run-{n}", 0), lazy=n > 3) for n in range(8)]
    await asyncio.gather(journal.close(), journal.close())
    await journal.close()
    assert [future.exception() for future in futures] == [None] * 8
    assert not journal.is_healthy
    with pytest.raises(JournalUnavailable, match="closed"):
        await journal.append(append("late", 0))
    dropped = journal.append(append("late", 0), lazy=True)
    assert dropped.done()
    del dropped
    await journal.flush()


async def test_everything_is_there_after_opening_again(backend):
    journal = await backend.open()
    await journal.append(append("run", 0, "a", at=3, claims=(KeyClaim(b"k", 1, 9_999),)))
    journal.append(append("run", 1, "b", at=4), lazy=True)
    journal.remember("breaker/a", b"open")
    await journal.meta("salt", b"first")
    name = await journal.keep(BytesBody(b"large"))
    await journal.flush()
    if backend.survives_reopening:
        await journal.close()
        journal = await backend.open()
    assert texts(await journal.read("run")) == ["a", "b"]
    assert await journal.head("run") == Head("run", 2, "preparing", True, "agent", 3, 4)
    assert [head.stream for head in await journal.open_heads()] == ["run"]
    assert await journal.find_key(b"k", 0) == KeyOwner("run", 1)
    assert await journal.recall("breaker/") == {"breaker/a": b"open"}
    assert await journal.meta("salt", b"second") == b"first"
    assert (await journal.kept(name)).size == 5
    stats = await journal.stats()
    assert (stats.streams, stats.open_streams, stats.entries) == (1, 1, 2)
    await journal.append(append("run", 2, "c"))
    await journal.close()
