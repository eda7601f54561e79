"""An SQLite journal, made to fail on demand: each method may fail, take effect and then fail, or stall until it is let go.

A stall is a real one: the thread behind the method hangs, as it does when a disk does. The middle one is the interesting
one (Temporal's persistence fault injection has it): the caller hears of a failure, and the disk has it all the same.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable
from enum import StrEnum
from typing import Any

from gateway.journal import Append, JournalUnavailable

__all__ = ["METHODS", "Injector", "Mode"]

METHODS = (
    "append", "read", "head", "open_heads", "heads", "find_key", "keep", "kept", "recall", "meta", "stats", "flush",
)  # fmt: skip
"""Every method of the protocol that may wait. `remember` and the properties cannot fail."""


class Mode(StrEnum):
    FAIL = "fail"
    EXECUTE_THEN_FAIL = "execute-then-fail"
    STALL = "stall"


class Injector:
    """Stands in front of a journal. `inject` breaks a method, at once or from its call number `skip` on; `mend` ends it."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal
        self._method = ""
        self._mode = Mode.FAIL
        self._skip = 0
        self._count = 0
        self._gate = threading.Event()
        self._tasks: set[asyncio.Future[Any]] = set()
        self.calls: Counter[str] = Counter()
        self.hits = 0

    def inject(self, method: str, mode: Mode, *, skip: int = 0, count: int = 1 << 30) -> None:
        self._method, self._mode, self._skip, self._count, self.hits = method, mode, skip, count, 0
        self._gate = threading.Event()

    def mend(self) -> None:
        """Work again; what stalls is let go, and takes effect."""
        self._method = ""
        self._gate.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def append(self, append: Append, *, lazy: bool = False) -> asyncio.Future[None]:
        if not self._is_hit("append"):
            future: asyncio.Future[None] = self._journal.append(append, lazy=lazy)
            return future
        if self._mode is Mode.FAIL:
            outcome = asyncio.ensure_future(self._fail())
        elif self._mode is Mode.EXECUTE_THEN_FAIL:
            outcome = asyncio.ensure_future(self._fail_after(self._journal.append(append, lazy=lazy)))
        else:
            self._hang("append")
            late: asyncio.Future[None] = self._journal.append(append, lazy=lazy)
            return late
        if lazy:
            outcome.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._tasks.add(outcome)
        outcome.add_done_callback(self._tasks.discard)
        return outcome

    async def read(self, *args: Any) -> Any:
        return await self._call("read", *args)

    async def head(self, *args: Any) -> Any:
        return await self._call("head", *args)

    async def open_heads(self, *args: Any) -> Any:
        return await self._call("open_heads", *args)

    async def heads(self, **kwargs: Any) -> Any:
        return await self._call("heads", **kwargs)

    async def find_key(self, *args: Any) -> Any:
        return await self._call("find_key", *args)

    async def keep(self, *args: Any) -> Any:
        return await self._call("keep", *args)

    async def kept(self, *args: Any) -> Any:
        return await self._call("kept", *args)

    async def recall(self, *args: Any) -> Any:
        return await self._call("recall", *args)

    async def meta(self, *args: Any) -> Any:
        return await self._call("meta", *args)

    async def stats(self) -> Any:
        return await self._call("stats")

    async def flush(self) -> Any:
        return await self._call("flush")

    def _is_hit(self, method: str) -> bool:
        self.calls[method] += 1
        if method != self._method:
            return False
        if self._skip:
            self._skip -= 1
            return False
        if not self._count:
            return False
        self._count -= 1
        self.hits += 1
        return True

    async def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if not self._is_hit(method):
            return await getattr(self._journal, method)(*args, **kwargs)
        if self._mode is Mode.FAIL:
            return await self._fail()
        if self._mode is Mode.EXECUTE_THEN_FAIL:
            return await self._fail_after(getattr(self._journal, method)(*args, **kwargs))
        self._hang(method)
        return await getattr(self._journal, method)(*args, **kwargs)

    def _hang(self, method: str) -> None:
        if method in ("keep", "kept"):
            self._journal._blobs._disk.submit(self._gate.wait)
        elif method != "stats":
            connection = self._journal._writer if method in ("append", "meta", "flush") else self._journal._reader
            self._tasks.add(asyncio.ensure_future(connection.run(lambda raw: self._gate.wait() and None)))

    async def _fail(self) -> Any:
        raise JournalUnavailable("injected: the disk is away")

    async def _fail_after(self, work: Awaitable[Any]) -> Any:
        await asyncio.wait((asyncio.ensure_future(work),))
        raise JournalUnavailable("injected: it may have been written")
