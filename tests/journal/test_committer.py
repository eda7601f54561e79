"""Group commit with a scripted store: what is taken together, what waits, what fails with whom."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.journal import Conflict, JournalPoisoned, JournalUnavailable
from gateway.journal.committer import Committer, CommitterSettings
from tests.journal.backends import append


class ScriptedStore:
    """Notes each batch; waits at its gate; fails with what `script` holds, one item a batch (None succeeds)."""

    def __init__(self):
        self.batches = []
        self.notes = []
        self.script = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.called = asyncio.Event()

    def write(self, appends, notes, told):
        self.batches.append([each.stream for each in appends])
        self.notes.append(dict(notes))
        verdict = self.script.pop(0) if self.script else None
        self.called.set()
        self.answering = asyncio.ensure_future(self._answer(told, verdict or [None] * len(appends)))

    async def _answer(self, told, verdict):
        await self.gate.wait()
        told(verdict)


@pytest.fixture
async def store():
    return ScriptedStore()


@pytest.fixture
async def make(store):
    made = []

    def make(on_commit=None, **settings):
        settings = {"lazy_s": 3_600.0, "retry_s": 3_600.0, **settings}
        made.append(Committer(store, CommitterSettings(**settings), on_commit))
        return made[-1]

    yield make
    store.gate.set()
    for committer in made:
        await committer.stop()


async def passes(count=10):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_appends_of_one_pass_of_the_loop_are_one_transaction(store, make):
    committer = make()
    await asyncio.gather(*(committer.append(append(f"{n}", 0)) for n in range(5)))
    assert store.batches == [["0", "1", "2", "3", "4"]]


async def test_an_append_by_itself_is_written_and_its_waiter_woken_without_a_task(make, store):
    """Each step of a task is another pass of the event loop, which a lone caller waits for."""
    committer = make()
    store.write = lambda appends, notes, told: asyncio.get_running_loop().call_soon(told, [None])
    await committer.append(append("warm", 0))
    await passes()
    tasks, steps = asyncio.all_tasks(), 0
    future = committer.append(append("a", 0))
    while not future.done():
        await passes(1)
        steps += 1
        assert asyncio.all_tasks() == tasks
    assert steps == 2  # to the store, and its answer


async def test_what_queues_up_during_a_commit_is_the_next_batch(store, make):
    committer = make()
    store.gate.clear()
    first = committer.append(append("a", 0))
    await store.called.wait()
    rest = [committer.append(append(f"{n}", 0)) for n in range(3)]
    await passes()
    assert len(store.batches) == 1
    assert committer.queued == 4
    store.gate.set()
    await asyncio.gather(first, *rest)
    assert store.batches == [["a"], ["0", "1", "2"]]


async def test_lazy_appends_do_not_wake_the_disk_but_ride_along(store, make):
    """A writer that wakes for what nobody awaits makes more and smaller commits."""
    committer = make()
    lazy = committer.append(append("a", 0), lazy=True)
    committer.remember("breaker/a", b"open")
    await passes()
    assert store.batches == []
    assert committer.pending_notes() == {"breaker/a": b"open"}
    await committer.append(append("b", 0))
    assert lazy.done()
    assert store.batches == [["a", "b"]]
    assert store.notes == [{"breaker/a": b"open"}]
    assert committer.pending_notes() == {}


async def test_lazy_appends_during_a_commit_do_not_start_another_at_once(store, make):
    committer = make()
    store.gate.clear()
    durable = committer.append(append("a", 0))
    await store.called.wait()
    committer.append(append("b", 0), lazy=True)
    store.gate.set()
    await durable
    await passes()
    assert store.batches == [["a"]]


async def test_lazy_appends_whose_time_is_up_during_a_commit_go_right_after_it(store, make):
    committer = make(lazy_s=0.0)
    store.gate.clear()
    durable = committer.append(append("a", 0))
    await store.called.wait()
    lazy = committer.append(append("b", 0), lazy=True)
    while committer._timer is not None:
        await asyncio.sleep(0)
    store.gate.set()
    await durable
    await asyncio.wait_for(lazy, 5)
    assert store.batches == [["a"], ["b"]]


async def test_lazy_appends_go_by_themselves_after_a_while(store, make):
    committer = make(lazy_s=0.001)
    await asyncio.wait_for(committer.append(append("a", 0), lazy=True), 5)
    committer.remember("x", b"1")
    store.called.clear()
    await asyncio.wait_for(store.called.wait(), 5)
    assert store.notes[-1] == {"x": b"1"}


async def test_the_disk_is_tried_again_though_the_timer_rang_while_it_was_asked(store, make):
    committer = make(lazy_s=0.001, retry_s=0.001)
    store.gate.clear()
    store.script = [JournalUnavailable("disk full")]
    failing = committer.append(append("a", 0))
    await store.called.wait()
    committer.remember("x", b"1")
    while committer._timer is not None:
        await passes(1)
    store.gate.set()
    with pytest.raises(JournalUnavailable):
        await failing
    while not committer.is_healthy:
        await passes(1)
    assert store.notes[-1] == {"x": b"1"}


async def test_a_batch_full_of_lazy_appends_does_not_wait(store, make):
    committer = make(batch_appends=3)
    await asyncio.gather(*(committer.append(append(f"{n}", 0), lazy=True) for n in range(3)))
    assert store.batches == [["0", "1", "2"]]


async def test_batches_are_bounded_in_appends_and_bytes(store, make):
    committer = make(batch_appends=2, batch_bytes=1_000)
    await asyncio.gather(*(committer.append(append(f"{n}", 0)) for n in range(5)))
    assert [len(batch) for batch in store.batches] == [2, 2, 1]
    store.batches.clear()
    await asyncio.gather(*(committer.append(append(f"big-{n}", 0, "x" * 2_000)) for n in range(2)))
    assert [len(batch) for batch in store.batches] == [1, 1]


async def test_a_full_queue_refuses_at_once_and_recovers(store, make):
    """Before anything is dispatched, not after."""
    committer = make(queue_appends=2)
    store.gate.clear()
    taken = committer.append(append("a", 0))
    await store.called.wait()
    queued = [committer.append(append(f"{n}", 0)) for n in range(2)]
    refused = committer.append(append("c", 0))
    assert refused.done()
    with pytest.raises(JournalUnavailable, match=r"2 appends .* wait for the disk"):
        await refused
    store.gate.set()
    await asyncio.gather(taken, *queued)
    await committer.append(append("d", 0))
    assert store.batches == [["a"], ["0", "1"], ["d"]]


async def test_what_has_become_of_something_sent_is_taken_by_a_full_queue(store, make):
    """To refuse it would not undo it, and would leave its run to be read again."""
    committer = make(queue_appends=1, queue_bytes=5_000)
    store.gate.clear()
    taken = committer.append(append("a", 0))
    await store.called.wait()
    queued = committer.append(append("b", 0, "x" * 4_000))
    owed = committer.append(replace(append("c", 0, "x" * 4_000), is_owed=True))
    assert committer.append(append("d", 0)).exception() is not None
    store.gate.set()
    await asyncio.gather(taken, queued, owed)
    assert store.batches == [["a"], ["b", "c"]]


async def test_the_queue_is_bounded_in_bytes_too(store, make):
    committer = make(queue_bytes=5_000)
    store.gate.clear()
    committer.append(append("a", 0, "x" * 4_000))
    with pytest.raises(JournalUnavailable, match="bytes"):
        await committer.append(append("b", 0, "x" * 4_000))
    await store.called.wait()
    later = committer.append(append("c", 0, "x" * 4_000))
    store.gate.set()
    await later


async def test_a_failed_append_fails_what_was_queued_behind_it_on_the_same_stream(store, make):
    """The writer decided those on top of what is not there."""
    committer = make()
    store.script = [[Conflict("run is at version 1"), None]]
    store.gate.clear()
    failing, neighbour = committer.append(append("run", 0)), committer.append(append("other", 0))
    await store.called.wait()
    behind = committer.append(append("run", 1))
    store.gate.set()
    with pytest.raises(Conflict):
        await failing
    await neighbour
    with pytest.raises(Conflict, match="read the run again"):
        await behind
    await committer.append(append("other", 1))
    assert store.batches == [["run", "other"], ["other"]]


async def test_an_unavailable_store_fails_the_batch_and_is_tried_again(store, make):
    committer = make()
    store.script = [JournalUnavailable("disk full"), None]
    committer.remember("breaker/a", b"open")
    results = await asyncio.gather(*(committer.append(append(n, 0)) for n in "ab"), return_exceptions=True)
    assert [str(result) for result in results] == ["disk full", "disk full"]
    assert results[0] is not results[1]
    assert not committer.is_healthy
    assert committer.commits == 0
    await committer.append(append("c", 0))
    assert committer.is_healthy
    assert store.notes == [{"breaker/a": b"open"}] * 2


async def test_a_value_remembered_later_is_not_overwritten_by_a_retry(store, make):
    committer = make()
    store.script = [JournalUnavailable("disk full"), None]
    store.gate.clear()
    committer.remember("x", b"old")
    failing = committer.append(append("a", 0))
    await store.called.wait()
    committer.remember("x", b"new")
    store.gate.set()
    with pytest.raises(JournalUnavailable):
        await failing
    await committer.flush()
    assert store.notes[-1] == {"x": b"new"}


async def test_health_returns_without_traffic(store, make):
    """An unhealthy gateway admits no writes, so no append would ever find out that the disk is back."""
    committer = make(retry_s=0.001)
    store.script = [JournalUnavailable("disk full"), JournalUnavailable("disk full"), None]
    with pytest.raises(JournalUnavailable):
        await committer.append(append("a", 0))
    while not committer.is_healthy:
        store.called.clear()
        await asyncio.wait_for(store.called.wait(), 5)
        await passes(2)
    assert store.batches == [["a"], [], []]


async def test_a_poisoned_store_fails_everything_now_and_later(store, make):
    """After a failed fsync nothing that the disk says can be believed, so nothing is tried again."""
    committer = make(batch_appends=1)
    store.script = [JournalPoisoned("fsync failed")]
    futures = [committer.append(append(n, 0), lazy=n == "c") for n in "abc"]
    flushing = asyncio.ensure_future(committer.flush())
    for future in (*futures, flushing):
        with pytest.raises(JournalUnavailable, match="fsync failed"):
            await future
    await asyncio.wait_for(committer.poisoned.wait(), 1)
    with pytest.raises(JournalPoisoned):
        await committer.append(append("d", 0))
    with pytest.raises(JournalPoisoned):
        await committer.flush()
    assert store.batches == [["a"]]
    assert not committer.is_healthy


async def test_who_comes_while_the_store_is_being_poisoned_does_not_have_it_tried_again(store, make):
    committer = make()
    store.gate.clear()
    store.script = [JournalPoisoned("fsync failed")]
    first = committer.append(append("a", 0))
    await store.called.wait()
    second = committer.append(append("b", 0))
    store.gate.set()
    for future in (first, second):
        with pytest.raises(JournalPoisoned):
            await future
    await passes(20)
    assert store.batches == [["a"]]
    with pytest.raises(JournalPoisoned):
        await committer.flush()


async def test_a_bug_in_the_store_fails_its_batch_and_is_reported(store, make):
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["exception"]))
    committer = make()
    bug = ZeroDivisionError("oops")
    store.script = [bug]
    with pytest.raises(JournalUnavailable, match="oops"):
        await committer.append(append("a", 0))
    assert reported == [bug]
    await committer.append(append("b", 0))


async def test_flush_fails_if_anything_queued_before_it_failed(store, make):
    committer = make(batch_appends=1)
    store.script = [JournalUnavailable("disk full"), None, None]
    lazy = committer.append(append("a", 0), lazy=True)
    committer.append(append("b", 0), lazy=True)
    with pytest.raises(JournalUnavailable):
        await committer.flush()
    assert isinstance(lazy.exception(), JournalUnavailable)
    await committer.flush()


async def test_a_conflict_is_no_reason_for_flush_to_fail(store, make):
    committer = make()
    store.script = [[Conflict("no")]]
    committer.append(append("a", 0), lazy=True)
    await committer.flush()


async def test_a_cancelled_flush_leaves_the_queue_alone(store, make):
    committer = make()
    store.gate.clear()
    future = committer.append(append("a", 0))
    flushing = asyncio.ensure_future(committer.flush())
    await store.called.wait()
    flushing.cancel()
    store.gate.set()
    await future
    await committer.append(append("b", 0))


async def test_the_oldest_waiting_append_decides_about_health(store, make):
    """A disk that hangs reports no error."""
    committer = make(stale_s=1e-9)
    assert committer.is_healthy
    store.gate.clear()
    future = committer.append(append("a", 0))
    await store.called.wait()
    assert committer.oldest_queued_s > 0
    assert not committer.is_healthy
    store.gate.set()
    await future
    assert committer.is_healthy


async def test_a_disk_that_hangs_fails_who_waits_and_refuses_newcomers_until_it_answers(store, make):
    """A hanging disk reports no error, and every wait must end. What became of the batch is unknown until it is read."""
    committer = make(patience_s=0.001)
    store.gate.clear()
    running, lazy = committer.append(append("a", 0)), committer.append(append("b", 0), lazy=True)
    await store.called.wait()
    queued = committer.append(append("c", 0))
    for future in (running, lazy, queued):
        with pytest.raises(JournalUnavailable, match="has not answered"):
            await future
    with pytest.raises(JournalUnavailable, match="has not answered"):
        await committer.append(append("d", 0))
    with pytest.raises(JournalUnavailable, match="has not answered"):
        await asyncio.wait_for(committer.flush(), 5.0)
    assert not committer.is_healthy
    store.gate.set()
    while not committer.is_healthy:
        await passes(1)
    assert store.batches == [["a", "b"]]
    with pytest.raises(JournalUnavailable, match="read the run again"):
        await committer.append(append("a", 1))
    committer.fences.lift("d", committer.fences.find("d"))
    await committer.append(append("d", 0))


async def test_each_commit_is_told_with_its_entries_and_seconds(store, make):
    told = []
    committer = make(on_commit=lambda entries, seconds: told.append((entries, seconds)))
    await asyncio.gather(committer.append(append("a", 0, "1", "2")), committer.append(append("b", 0)))
    await passes(2)
    assert [entries for entries, _ in told] == [3]
    assert told[0][1] >= 0
    assert (committer.commits, committer.committed_entries) == (1, 3)


async def test_a_hook_that_raises_does_not_stop_the_committer(store, make):
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["exception"]))
    committer = make(on_commit=lambda entries, seconds: 1 / 0)
    await committer.append(append("a", 0))
    await committer.append(append("b", 0))
    await passes(2)
    assert len(reported) == 2


async def test_stopping_commits_what_is_queued(store, make):
    committer = make(batch_appends=2)
    futures = [committer.append(append(f"{n}", 0), lazy=True) for n in range(5)]
    committer.remember("x", b"1")
    await asyncio.gather(committer.stop(), committer.stop())
    assert all(future.done() and future.exception() is None for future in futures)
    assert {"x": b"1"} in store.notes


async def test_stopping_ends_though_the_store_stays_unavailable(store, make):
    committer = make(batch_appends=1)
    store.script = [JournalUnavailable("disk full")] * 9
    futures = [committer.append(append(f"{n}", 0), lazy=True) for n in range(3)]
    committer.remember("x", b"1")
    await asyncio.wait_for(committer.stop(), 5)
    assert all(isinstance(future.exception(), JournalUnavailable) for future in futures)
    with pytest.raises(JournalUnavailable, match="not all of it"):
        await committer.flush()


async def test_a_loop_that_shuts_down_leaves_nobody_waiting(store, make):
    """asyncio.run cancels every task, this one too, wherever it stands."""
    committer = make()
    store.gate.clear()
    running = committer.append(append("a", 0))
    await store.called.wait()
    queued = committer.append(append("b", 0))
    committer._task.cancel()
    for future in (running, queued):
        with pytest.raises(JournalUnavailable, match="unknown"):
            await future
    with pytest.raises(JournalUnavailable, match="closed"):
        await committer.append(append("c", 0))


async def test_a_loop_that_shuts_down_is_not_kept_busy_by_what_is_left(store, make):
    """A remembered value is nobody's to give up, and nothing will write it any more."""
    committer = make()
    await passes(1)
    committer.remember("x", b"1")
    left = committer.append(append("a", 0), lazy=True)
    committer._task.cancel()
    await passes()
    assert isinstance(left.exception(), JournalUnavailable)
    assert store.batches == []
    with pytest.raises(JournalUnavailable, match="not all of it"):
        await committer.flush()


async def test_a_flush_right_behind_the_end_does_not_wait_for_ever(store, make):
    committer = make()
    store.script = [JournalUnavailable("disk full")] * 2
    committer.remember("x", b"1")
    stopping = asyncio.ensure_future(committer.stop())
    while not committer._ended.is_set():
        await passes(1)
    with pytest.raises(JournalUnavailable, match="not all of it"):
        await asyncio.wait_for(committer.flush(), 5)
    await stopping


async def test_an_answer_that_comes_after_the_loop_began_to_shut_down_tells_nobody_twice(store, make):
    committer = make()
    store.gate.clear()
    running = committer.append(append("a", 0))
    await store.called.wait()
    committer._task.cancel()
    with pytest.raises(JournalUnavailable, match="unknown"):
        await running
    store.gate.set()
    await passes()
    assert committer.commits == 0
    assert store.batches == [["a"]]
