"""Bodies that must be held whole: in memory while small, in a file without a name once they are not.

The file has no name from the start (O_TMPFILE, or unlinked at once), so it is gone when it is closed, when the process
dies, and when the machine does; nothing is ever left behind to be cleaned up or read by others. Disk work is done by
two threads of its own, so that a slow disk stalls neither the event loop nor name resolution.

Memory is bounded by callers times `memory_limit` (plus one block each while writing or reading).
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar, cast

from gateway.core.message import Body, BytesBody

__all__ = ["BLOCK_BYTES", "Spool", "SpoolFailed", "SpooledBody", "TooLarge"]

T = TypeVar("T")

_log = logging.getLogger("gateway")

BLOCK_BYTES = 1 << 18
_THREADS = 2


class TooLarge(Exception):
    """A body grew beyond its limit; what was kept of it is gone again."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than the limit of {limit} bytes")
        self.limit = limit


class SpoolFailed(Exception):
    """The disk refused (full, read-only, broken); what was kept is gone again. The message names the cause, for agents; the
    log names the folder, too."""


class Spool:
    """Collects bodies below a folder of the data directory.

    Args:
        directory: where the nameless files live; made if missing. Needs room for the large bodies in flight.
        memory_limit: a body up to this many bytes stays in memory.
    """

    def __init__(self, directory: Path, *, memory_limit: int = 1 << 20) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory
        self._memory_limit = memory_limit
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="spool")

    async def collect(
        self, chunks: AsyncIterator[bytes], *, max_bytes: int | None = None, memory_limit: int | None = None
    ) -> Body:
        """Read `chunks` to its end and return them as a replayable body. The caller closes it.

        Raises:
            TooLarge: there were more than `max_bytes`.
            SpoolFailed: the disk refused.
            Exception: whatever `chunks` raises, passed on. Nothing is kept in any of these cases, nor on cancellation.
        """
        held, held_limit = bytearray(), self._memory_limit if memory_limit is None else memory_limit
        total = 0
        file: _File | None = None
        try:
            async with aclosing(cast(Any, chunks)):
                async for data in chunks:
                    total += len(data)
                    if max_bytes is not None and total > max_bytes:
                        raise TooLarge(max_bytes)
                    held += data
                    if len(held) > held_limit:
                        file = file or self._open()
                        block, held, held_limit = bytes(held), bytearray(), BLOCK_BYTES
                        await self._write(file, block)
                if file is None:
                    return BytesBody(bytes(held))
                if held:
                    await self._write(file, bytes(held))
            body, file = SpooledBody(file, total), None
            return body
        finally:
            if file is not None:
                file.close()

    def close(self) -> None:
        """Stop the threads once what they do is done. Bodies cannot be read afterwards."""
        self._threads.shutdown(wait=True)

    def _open(self) -> _File:
        try:
            return _File(tempfile.TemporaryFile(dir=self._directory, buffering=0), self._threads)
        except OSError as error:
            raise self._failed(error) from error

    async def _write(self, file: _File, block: bytes) -> None:
        try:
            await file.run(_write_all, block)
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> SpoolFailed:
        why = error.strerror or type(error).__name__
        _log.error(
            "a large body cannot be kept: free space there, or lower the size limit of bodies",
            extra={"event": "spool", "folder": str(self._directory), "problem": why},
        )
        return SpoolFailed(f"a large body cannot be kept on disk: {why}")


class SpooledBody:
    """A body on disk; any number of readers at a time."""

    def __init__(self, file: _File, size: int) -> None:
        self._file = file
        self._size = size

    def __repr__(self) -> str:
        return f"SpooledBody({self._size} bytes)"

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self._size

    @property
    def is_replayable(self) -> bool:
        """Always."""
        return True

    async def chunks(self) -> AsyncIterator[bytes]:
        """Read the file from its start, block by block.

        Raises:
            SpoolFailed: the disk failed, or the body was closed in the middle.
        """
        offset = 0
        while offset < self._size:
            try:
                data = await self._file.run(os.pread, BLOCK_BYTES, offset)
            except OSError as error:
                raise SpoolFailed(
                    f"a body kept on disk cannot be read back: {error.strerror or type(error).__name__}"
                ) from error
            if not data:
                raise SpoolFailed("a body kept on disk is shorter than it was")
            offset += len(data)
            yield data

    async def aclose(self) -> None:
        """Give the space back, once reads in flight are done. May be repeated."""
        self._file.close()


class _File:
    """A file used by threads and closed from the loop: the descriptor outlives every operation on it."""

    def __init__(self, raw: Any, threads: ThreadPoolExecutor) -> None:
        self._raw = raw
        self._threads = threads
        self._running = 0
        self._is_closed = False

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Run `function(descriptor, *args)` in a thread. Cancellation stops the waiting, not the thread."""
        if self._is_closed:
            raise SpoolFailed("a body kept on disk was closed while it was in use")
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, function, self._raw.fileno(), *args)
        self._running += 1
        future.add_done_callback(self._done)
        return await asyncio.shield(future)

    def _done(self, future: asyncio.Future[T]) -> None:
        self._running -= 1
        if not future.cancelled():
            future.exception()
        if self._is_closed and not self._running:
            self._raw.close()

    def close(self) -> None:
        self._is_closed = True
        if not self._running:
            self._raw.close()


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
