"""An SQLite connection on a thread of its own: aiosqlite with its traps closed.

* aiosqlite runs statement by statement, so a task cancelled between two of them leaves a transaction open and the next
  caller commits it. Here one call is one whole function on the thread: `run`. Nothing can come between BEGIN and COMMIT,
  and cancelling the caller cancels only its waiting.
* Its thread is not a daemon since 0.22, so an unclosed connection keeps the process from ever exiting (omnilib/aiosqlite
  issue 371). A crash-safe journal needs no farewell: the thread is made a daemon.
* Its thread dies noisily if the event loop is gone before it. `abandon` waits for its end without the loop.
* Its answers are futures of the event loop, so whoever waits for one goes on two passes of the loop after the answer came.
  `send` hands it a thing that only looks like a future and calls back in the very pass.

`_execute`, `_tx`, `_conn` and `_thread` are private names of aiosqlite; `tests/journal/test_connection.py` watches over
them, and the version is pinned below the next minor.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

import aiosqlite

from gateway.journal import JournalUnavailable

__all__ = ["Connection"]

P = ParamSpec("P")
T = TypeVar("T")

_ABANDON_S = 5.0


class Connection:
    """One SQLite connection in autocommit mode. Functions given to `run` run one after the other, in order."""

    def __init__(self, raw: aiosqlite.Connection) -> None:
        self._raw = raw
        self._execute: Callable[..., Any] = getattr(raw, "_execute")  # noqa: B009
        self._put: Callable[..., Any] = raw._tx.put_nowait
        self._loop = asyncio.get_running_loop()
        self._is_closed = False

    @classmethod
    async def open(cls, database: str, *, is_uri: bool = False) -> Connection:
        """Open a file. Cancellation leaves nothing behind.

        Raises:
            sqlite3.Error: it cannot be opened.
        """
        raw = aiosqlite.connect(database, isolation_level=None, uri=is_uri)
        raw._thread.daemon = True
        return cls(await raw)

    async def run(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return `function(connection, …)`, computed on the thread.

        The function runs to its end even if the caller is cancelled, and must leave no transaction open.

        Raises:
            JournalUnavailable: the connection is closed.
        """
        if self._is_closed:
            raise JournalUnavailable("the journal is closed")
        result: T = await self._execute(function, self._raw._conn, *args, **kwargs)
        return result

    def send(
        self,
        told: Callable[[T | BaseException], object],
        function: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Do what `run` does, and call `told` on the event loop with the result or the error instead of waiting.

        Raises:
            JournalUnavailable: the connection is closed, and nobody will be told.
        """
        if self._is_closed:
            raise JournalUnavailable("the journal is closed")
        self._put((_Answer(self._loop, told), partial(function, self._raw._conn, *args, **kwargs)))

    async def close(self) -> None:
        """Close after what is already queued. May be repeated."""
        if not self._is_closed:
            self._is_closed = True
            await self._raw.close()

    def abandon(self) -> None:
        """Close without the event loop's help: blocks until what is already queued has run, at most a few seconds."""
        if self._raw._thread.is_alive():
            self._is_closed = True
            self._raw.stop()
            self._raw._thread.join(_ABANDON_S)


class _Answer:
    """What aiosqlite's thread takes for a future: its result is a call, not a state."""

    __slots__ = ("_loop", "set_exception", "set_result")

    def __init__(self, loop: asyncio.AbstractEventLoop, told: Callable[[Any], object]) -> None:
        self._loop = loop
        self.set_result = told
        self.set_exception = told

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop on which it is told."""
        return self._loop

    def done(self) -> bool:
        """Never: it is told once."""
        return False
