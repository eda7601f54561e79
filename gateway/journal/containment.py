"""What is contained, in memory and in the journal: one stream, folded at start, appended to by this process alone.

What is recorded holds in memory at once, before it is on disk: a quarantine that the disk cannot take yet holds all the
same, and is written as soon as it can. So memory never runs behind, and a failed append is repeated, not taken back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from gateway.clock import Clock
from gateway.core.containment import (
    STREAM,
    BadRecord,
    Containment,
    ContainmentRecord,
    apply,
    decode,
    encode,
)
from gateway.journal import Append, Entry, Journal, JournalCorrupt, JournalError
from gateway.telemetry import Telemetry

__all__ = ["ContainmentLog"]

AGAIN_S = 1.0


class ContainmentLog:
    """The state of what is contained, and the one way to change it.

    Attributes:
        state: read it freely; change it by `record` only.
        epoch: how often the stream was opened by a gateway that touched artifacts; grows with each start.
    """

    def __init__(self, journal: Journal, clock: Clock, telemetry: Telemetry, name: str = "seawall") -> None:
        """`name` is what this gateway is called in claims."""
        self.name = name
        self.state = Containment()
        self.epoch = 1
        self._journal = journal
        self._clock = clock
        self._telemetry = telemetry
        self._durable = 0
        self._queue: deque[tuple[int, Entry]] = deque()
        self._is_broken = False
        self._mending: asyncio.Task[None] | None = None
        self._written: asyncio.Future[None] | None = None

    async def load(self) -> None:
        """Fold the stream. Once, before anything is recorded.

        Raises:
            JournalCorrupt: a record cannot be read; names it.
            JournalUnavailable: the journal cannot be read.
        """
        last_epoch = 0
        for number, entry in enumerate(await self._journal.read(STREAM), start=1):
            try:
                record = decode(entry.kind, entry.data)
            except BadRecord as error:
                raise JournalCorrupt(f"record {number} of {STREAM} cannot be used: {error}") from error
            apply(self.state, record, entry.at)
            last_epoch = max(last_epoch, getattr(record, "epoch", 0))
        self._durable = self.state.version
        self.epoch = last_epoch + 1

    def record(self, records: Sequence[ContainmentRecord]) -> asyncio.Future[None]:
        """Fold records now; the future is done once they are durable, however long that takes."""
        at = self._clock.at()
        entries = []
        for record in records:
            apply(self.state, record, at)
            kind, data = encode(record)
            effect = getattr(record, "run", "")
            entry = Entry(kind, at, data, effect, getattr(record, "operation", ""))
            entries.append(entry)
            self._queue.append((self.state.version, entry))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not entries:
            done.set_result(None)
            return done
        if self._is_broken:
            assert self._written is not None
            self._written.add_done_callback(lambda _: _set(done))
            return done
        self._append(self.state.version - len(entries), entries, done)
        return done

    def _append(self, expected: int, entries: Sequence[Entry], done: asyncio.Future[None]) -> None:
        last = expected + len(entries)
        future = self._journal.append(
            Append(stream=STREAM, expected=expected, entries=entries, state="containment", is_open=True, agent="")
        )

        def appended(_: asyncio.Future[None]) -> None:
            if future.cancelled():
                done.cancel()
                return
            error = future.exception()
            if error is None:
                self._confirm(last)
                _set(done)
                return
            self._mend(error)
            assert self._written is not None
            self._written.add_done_callback(lambda _: _set(done))

        future.add_done_callback(appended)

    def _confirm(self, version: int) -> None:
        self._durable = max(self._durable, version)
        while self._queue and self._queue[0][0] <= self._durable:
            self._queue.popleft()

    def _mend(self, error: BaseException) -> None:
        """An append failed, and so will all that were queued behind it: start over from what is on disk."""
        if self._is_broken:
            return
        self._is_broken = True
        self._written = asyncio.get_running_loop().create_future()
        self._telemetry.background_failed("writing down what is contained", error)
        self._mending = asyncio.get_running_loop().create_task(self._catch_up())

    async def _catch_up(self) -> None:
        while True:
            await self._clock.sleep(AGAIN_S)
            try:
                on_disk = await self._journal.read(STREAM, self._durable)
                self._confirm(self._durable + len(on_disk))
                while self._queue:
                    entries = [entry for _, entry in self._queue]
                    first, last = self._queue[0][0], self._queue[-1][0]
                    await self._journal.append(
                        Append(
                            stream=STREAM,
                            expected=first - 1,
                            entries=entries,
                            state="containment",
                            is_open=True,
                            agent="",
                        )
                    )
                    self._confirm(last)
                break
            except JournalError as error:
                self._telemetry.background_failed("writing down what is contained", error)
        self._is_broken = False
        assert self._written is not None
        self._written.set_result(None)

    async def close(self) -> None:
        """Stop trying to write. May be repeated."""
        if self._mending is not None:
            self._mending.cancel()
            await asyncio.gather(self._mending, return_exceptions=True)


def _set(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
