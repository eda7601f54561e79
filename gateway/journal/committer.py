"""Group commit: whatever queued up while the disk was busy becomes the next transaction.

One queue, one transaction at a time. Durable appends ask for one at once, and those made in the same pass of the event loop
go together. Lazy appends and remembered values ride along with the next durable one, or go by themselves after `lazy_s`:
waking the disk for what nobody waits for makes more and smaller commits and slows everybody (research: 1.1-1.4 against
1.5-1.9 times the bare proxy). There is no linger for durable ones; the disk's own latency is the batching.

From an append to the disk and back there are only callbacks: each step of a task is another pass of the event loop, and a
lone append waits for every one of them (docs/adr/0183-a-commit-without-a-task.md).

The queue is bounded in appends and bytes, and refuses at `append`, before anything was sent to a tool. What has become of
something that was sent is taken beyond these bounds: nobody could take it back. Callers hold futures, never the
transaction: cancelling one changes nothing on its way to the disk.

A disk that hangs reports no error. After `patience_s` whoever waits for it hears that the fate of the append is unknown,
what is queued behind it fails, and new appends are refused at once, until the disk answers.

When the store is unavailable the whole batch fails, and a small write of the store's own is tried every `retry_s`, so
health returns without traffic. When it is poisoned everything fails, now and later.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.journal import Append, JournalError, JournalPoisoned, JournalUnavailable
from gateway.journal.fence import Fences, follow_up

__all__ = ["Committer", "CommitterSettings", "Store", "Told"]

_log = logging.getLogger("gateway")

OnCommit = Callable[[int, float], object]
Told = Callable[[Sequence[JournalError | None] | BaseException], object]

_GATHERED_PASSES = 4
"""A commit costs as much time as fifteen records; a pass of the loop next to none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitterSettings:
    """Bounds of the queue and of one batch, and how long what nobody waits for may wait."""

    queue_appends: int = 4_096
    queue_bytes: int = 64 << 20
    batch_appends: int = 512
    batch_bytes: int = 4 << 20
    lazy_s: float = 0.010
    retry_s: float = 1.0
    stale_s: float = 2.0
    patience_s: float = 10.0


class Store(Protocol):
    """What a backend does for the committer."""

    def write(self, appends: Sequence[Append], notes: Mapping[str, bytes], told: Told) -> None:
        """Write all of it in one transaction; tell once, later and on the event loop, what has become of it.

        Told are, for each append, None or why it alone was left out; or an error: `JournalPoisoned` if the disk can no
        longer be believed, `JournalUnavailable` if nothing was written, or it is unknown, and a later write may succeed.

        With nothing to write it writes something small of its own, to find out whether it can.

        Raises:
            JournalUnavailable: nothing was begun, and nobody will be told.
        """


@dataclass(slots=True, eq=False)
class _Queued:
    """An append on its way, or (`append` None) the mark of a flush.

    `failed_batches` is the committer's count when a flush was asked for: it fails if the count has grown since.
    """

    append: Append | None
    future: asyncio.Future[None]
    is_lazy: bool
    queued_at: float
    size: int = 0
    failed_batches: int = 0


class Committer:
    """The queue and what empties it. Must be made, and used, on one running event loop."""

    def __init__(
        self,
        store: Store,
        settings: CommitterSettings | None = None,
        on_commit: OnCommit | None = None,
        on_abandoned: Callable[[], object] | None = None,
    ) -> None:
        """Start the task that waits for the end.

        Args:
            store: where batches go.
            settings: bounds.
            on_commit: called after each commit with its entries and seconds.
            on_abandoned: called if the event loop shuts down before `stop`.
        """
        self._store = store
        self._settings = settings or CommitterSettings()
        self._on_commit = on_commit
        self._on_abandoned = on_abandoned
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Queued] = deque()
        self._queued_bytes = 0
        self._urgent = 0
        self._notes: dict[str, bytes] = {}
        self._in_flight: list[_Queued] = []
        self._in_flight_notes: dict[str, bytes] = {}
        self._is_awake = False
        self._is_due = False
        self._started = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._hung_since: float | None = None
        self._is_closed = False
        self._failure: JournalUnavailable | None = None
        self._failed_batches = 0
        self.fences = Fences()
        self.poisoned = asyncio.Event()
        self.commits = 0
        self.committed_entries = 0
        self.last_commit_s = 0.0
        self._ended = asyncio.Event()
        self._task = self._loop.create_task(self._watch_end(), name="journal committer")

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "healthy" if self.is_healthy else "unhealthy"
        return f"<Committer {state}, {len(self._queue)} queued, {len(self._in_flight)} in flight>"

    def append(self, append: Append, *, lazy: bool = False) -> asyncio.Future[None]:
        """Queue an append; see `Journal.append`."""
        if not append.entries:
            raise ValueError("an append needs at least one entry")
        future: asyncio.Future[None] = self._loop.create_future()
        size = _size(append)
        item = _Queued(append, future, lazy, self._loop.time(), size)
        if (refusal := self._refusal(append, size)) is not None:
            _fail(item, refusal)
            return future
        self._queue.append(item)
        self._queued_bytes += size
        if not lazy:
            self._urgent += 1
            self._wake()
        elif len(self._queue) >= self._settings.batch_appends:
            self._wake()
        else:
            self._arm()
        return future

    def remember(self, name: str, value: bytes) -> None:
        """Have the latest value under a name written along."""
        if not self._is_closed:
            self._notes[name] = value
            self._arm()

    def pending_notes(self) -> dict[str, bytes]:
        """Return what was remembered and is not committed yet."""
        return {**self._in_flight_notes, **self._notes}

    async def flush(self) -> None:
        """Wait until all that was queued before is durable; see `Journal.flush`."""
        if isinstance(self._failure, JournalPoisoned):
            raise _copy(self._failure)
        if self._queue or self._in_flight or self._notes or self._in_flight_notes:
            if self._is_over:
                raise JournalUnavailable("the journal is closed, and not all of it could be made durable")
            if self._hung_since is not None:
                raise self._hung()
            await self._mark()

    async def stop(self) -> None:
        """Refuse appends from now on, commit what is queued as well as that goes, and end the task."""
        self._is_closed = True
        self._wake()
        await asyncio.wait({self._task})

    @property
    def queued(self) -> int:
        """Appends waiting, those in the running transaction included."""
        return len(self._queue) + len(self._in_flight)

    @property
    def oldest_queued_s(self) -> float:
        """Age of the append that has waited longest, in seconds."""
        oldest = self._in_flight[0] if self._in_flight else self._queue[0] if self._queue else None
        return self._loop.time() - oldest.queued_at if oldest is not None else 0.0

    @property
    def is_healthy(self) -> bool:
        """Whether the last commit succeeded, nothing waits for too long, and appends are taken."""
        is_answering = self._hung_since is None and self.oldest_queued_s < self._settings.stale_s
        return not self._is_closed and self._failure is None and is_answering

    @property
    def failure(self) -> JournalUnavailable | None:
        """Why the last commit failed, or None if it did not."""
        return self._failure

    @property
    def _is_over(self) -> bool:
        """Whether nothing will be written any more: what was queued is durable or has failed."""
        return self._ended.is_set() or self._task.done()

    def _refusal(self, append: Append, size: int) -> JournalError | None:
        stream = append.stream
        if self._is_closed:
            return JournalUnavailable("the journal is closed")
        if isinstance(self._failure, JournalPoisoned):
            return _copy(self._failure)
        if (fenced := self.fences.refusal(stream)) is not None:
            return fenced
        if self._hung_since is not None:
            hung = self._hung()
            self.fences.put(stream, hung)
            return hung
        settings = self._settings
        if append.is_owed or (
            len(self._queue) < settings.queue_appends and self._queued_bytes + size <= settings.queue_bytes
        ):
            return None
        full = JournalUnavailable(
            f"{len(self._queue)} appends ({self._queued_bytes} bytes) wait for the disk already: try again later"
        )
        self.fences.put(stream, full)
        return full

    async def _mark(self) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        mark = _Queued(None, future, False, self._loop.time(), failed_batches=self._failed_batches)
        self._queue.append(mark)
        self._urgent += 1
        self._wake()
        await future

    async def _watch_end(self) -> None:
        """Wait for `stop`, or for the end of the event loop, which tells nobody but tasks."""
        try:
            await self._ended.wait()
        except asyncio.CancelledError:
            self._is_closed = True
            self._give_up(JournalUnavailable("the event loop is shutting down: whether it was written is unknown"))
            if self._on_abandoned is not None:
                self._on_abandoned()
            raise
        finally:
            self._disarm()

    def _wake(self) -> None:
        """Have what is queued committed, after what is being committed now."""
        if not self._is_awake:
            self._is_awake = True
            self._loop.call_soon(self._gather, 0)

    def _schedule(self) -> None:
        if self._urgent or self._is_due or self._is_closed or len(self._queue) >= self._settings.batch_appends:
            self._wake()
        elif self._failure is not None:
            self._arm(self._settings.retry_s)
        elif self._queue or self._notes:
            self._arm()

    def _arm(self, delay_s: float | None = None) -> None:
        if self._timer is None:
            delay_s = self._settings.lazy_s if delay_s is None else delay_s
            self._timer = self._loop.call_later(delay_s, self._fall_due)

    def _fall_due(self) -> None:
        """The time of what nobody waits for is up, be it during a commit, which it comes right after then."""
        self._timer, self._is_due = None, True
        self._wake()

    def _disarm(self) -> None:
        self._is_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take(self) -> list[_Queued]:
        settings, size = self._settings, 0
        taken: list[_Queued] = []
        while self._queue and len(taken) < settings.batch_appends and size < settings.batch_bytes:
            item = self._queue.popleft()
            self._forget(item)
            size += item.size
            taken.append(item)
        return taken

    def _forget(self, item: _Queued) -> None:
        self._queued_bytes -= item.size
        self._urgent -= not item.is_lazy

    def _gather(self, passes: int) -> None:
        """Let those who are about to append come along; a lone append is not kept waiting.

        Source: group commit with a delay that depends on siblings (PostgreSQL, `commit_siblings`), in passes of the event
        loop instead of microseconds.
        """
        if passes < _GATHERED_PASSES and len(self._queue) > 1:
            self._loop.call_soon(self._gather, passes + 1)
        else:
            self._commit()

    def _commit(self) -> None:
        self._disarm()
        if self._is_over:
            return
        if self.poisoned.is_set():
            self._conclude()  # whoever was woken meanwhile has been told; nothing is ever tried again
            return
        items = self._in_flight = self._take()
        self._in_flight_notes, self._notes = self._notes, {}
        appends = [item.append for item in items if item.append is not None]
        if not appends and not self._in_flight_notes and self._failure is None:
            self._in_flight = []
            self._settle(items, ())
            self._conclude()
            return
        self._started = self._loop.time()
        self._patience = self._loop.call_later(self._settings.patience_s, self._lose_patience, self._started)
        try:
            self._store.write(appends, self._in_flight_notes, self._told)
        except Exception as error:
            self._told(error)

    def _told(self, answer: Sequence[JournalError | None] | BaseException) -> None:
        """The store has answered: tell whoever waits for it, and go on with what queued up meanwhile."""
        if self._patience is not None:
            self._patience.cancel()
        self._hung_since = None
        if self._task.done():
            return  # the event loop is shutting down, and they have been told
        if isinstance(answer, JournalUnavailable):
            self._fail_batch(answer)
        elif isinstance(answer, BaseException):
            self._loop.call_exception_handler({"message": "the journal's store has a bug", "exception": answer})
            bug = JournalUnavailable(f"the journal's store failed: {answer!r}")
            self._fail_batch(bug.hiding(repr(answer), type(answer).__name__))
        else:
            items, self._in_flight, self._in_flight_notes, self._failure = self._in_flight, [], {}, None
            entries = self._settle(items, answer)
            if entries or answer:
                self._count(entries, self._loop.time() - self._started)
        self._conclude()

    def _conclude(self) -> None:
        self._is_awake = False
        if self._is_closed and not self._queue and (self._failure is not None or not self._notes):
            self._ended.set()
        elif not self.poisoned.is_set():
            self._schedule()

    def _lose_patience(self, since: float) -> None:
        """The disk hangs: tell everybody who waits, and refuse newcomers. The batch itself goes on, and may yet succeed."""
        self._hung_since = since
        error = self._hung()
        for item in self._in_flight:
            _fail(item, _copy(error))
            if item.append is not None:
                self.fences.put(item.append.stream, error)
        waiting, self._queue = self._queue, deque()
        for item in waiting:
            self._forget(item)
            _fail(item, _copy(error))
            if item.append is not None:
                self.fences.put(item.append.stream, error)

    def _hung(self) -> JournalUnavailable:
        since = self._loop.time() - (self._hung_since or 0.0)
        return JournalUnavailable(f"the disk has not answered for {since:.1f} s: whether it was written is unknown")

    def _count(self, entries: int, seconds: float) -> None:
        self.commits += 1
        self.committed_entries += entries
        self.last_commit_s = seconds
        if self._on_commit is not None:
            self._loop.call_soon(self._on_commit, entries, seconds)

    def _settle(self, items: list[_Queued], errors: Sequence[JournalError | None]) -> int:
        """Resolve the futures of a committed batch and return how many entries it holds."""
        entries = 0
        failed: dict[str, JournalError] = {}
        verdicts = iter(errors)
        for item in items:
            if item.append is None:
                self._resolve_mark(item)
            elif (error := next(verdicts)) is None:
                entries += len(item.append.entries)
                if not item.future.done():
                    item.future.set_result(None)
            else:
                failed.setdefault(item.append.stream, error)
                _fail(item, error)
        if failed:
            self._fence(failed)
        return entries

    def _resolve_mark(self, mark: _Queued) -> None:
        if mark.failed_batches != self._failed_batches:
            _fail(mark, JournalUnavailable("something queued before could not be made durable"))
        elif not mark.future.done():
            mark.future.set_result(None)

    def _fail_batch(self, error: JournalUnavailable) -> None:
        items, self._in_flight = self._in_flight, []
        self._notes, self._in_flight_notes = {**self._in_flight_notes, **self._notes}, {}
        self._failure = error
        _log.error("the journal cannot write", extra={"event": "journal", "problem": str(error)})
        self._failed_batches += 1
        failed: dict[str, JournalError] = {}
        for item in items:
            _fail(item, _copy(error))
            if item.append is not None:
                failed[item.append.stream] = error
        self._fence(failed)
        if isinstance(error, JournalPoisoned):
            self.poisoned.set()
            self._give_up(error)

    def _fence(self, failed: Mapping[str, JournalError]) -> None:
        """Fence streams, and fail what is queued for them."""
        for stream, error in failed.items():
            self.fences.put(stream, error)
        kept: deque[_Queued] = deque()
        for item in self._queue:
            if item.append is not None and (error := failed.get(item.append.stream)) is not None:  # type: ignore[assignment]
                self._forget(item)
                _fail(item, follow_up(item.append.stream, error))
            else:
                kept.append(item)
        self._queue = kept

    def _give_up(self, error: JournalUnavailable) -> None:
        items = [*self._in_flight, *self._queue]
        for item in self._queue:
            self._forget(item)
        self._in_flight = []
        self._queue.clear()
        for item in items:
            _fail(item, _copy(error))


def _size(append: Append) -> int:
    size = 200
    for entry in append.entries:
        size += 200 + len(entry.data)
    return size


def _copy(error: JournalUnavailable) -> JournalUnavailable:
    """Return an equal error: one exception object raised in many tasks would collect all their tracebacks."""
    copy = type(error)(str(error)).as_discreet_as(error)
    copy.__cause__ = error.__cause__
    return copy


def _fail(item: _Queued, error: JournalError) -> None:
    if item.future.done():
        return
    item.future.set_exception(error)
    if item.is_lazy:
        item.future.exception()
