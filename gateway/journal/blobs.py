"""Large bodies as files, named by what they hold: `DIR/blobs/ab/<sha256>`.

A body is written to a temporary file, synced, renamed and its folder synced, so that a name either holds everything or does
not exist, whatever crashes. All of it happens on one thread, in order: cancelling a caller queues the clean-up behind the
write that may still be running, and two callers who store the same bytes cannot see each other half-way.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from gateway.core.message import Body
from gateway.journal import JournalCorrupt, JournalUnavailable

__all__ = ["BlobFolder", "KeptBody"]

_log = logging.getLogger("gateway")

P = ParamSpec("P")
T = TypeVar("T")

_NAME = re.compile(r"sha256:[0-9a-f]{64}")
_GATHER_BYTES = 1 << 20
_GATHER_PIECES = 64
_READ_BYTES = 256 << 10
_FRESH_S = 3600.0


class BlobFolder:
    """The folder `blobs` of a journal. The caller holds the journal's lock."""

    def __init__(self, folder: Path, *, patience_s: float = 10.0) -> None:
        """`patience_s`: a single reading or writing that takes longer fails."""
        self._folder = folder
        self._patience_s = patience_s
        self._drafts = folder / "tmp"
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="journal-blobs")
        self._synced: set[str] = set()
        self._is_closed = False

    def prepare(self) -> None:
        """Make the folders and remove what a crash left half-written. Looks at drafts only, never at stored bodies.

        Raises:
            OSError: the folder cannot be used.
        """
        self._drafts.mkdir(mode=0o700, parents=True, exist_ok=True)
        for leftover in self._drafts.iterdir():
            leftover.unlink()

    async def keep(self, body: Body) -> str:
        """Store a body durably; see `Journal.keep`.

        Raises:
            JournalUnavailable: the disk would not take it.
        """
        draft = _Draft(self._drafts / secrets.token_hex(16))
        pieces: list[bytes] = []
        gathered = 0
        try:
            await self.run(draft.open)
            async for piece in body.chunks():
                pieces.append(piece)
                gathered += len(piece)
                if gathered >= _GATHER_BYTES or len(pieces) >= _GATHER_PIECES:
                    await self.run(draft.write, b"".join(pieces))
                    pieces.clear()
                    gathered = 0
            await self.run(draft.write, b"".join(pieces))
            return await self.run(draft.publish, self._folder, self._synced)
        finally:
            self.run_later(draft.discard)

    async def kept(self, name: str) -> KeptBody:
        """Return a stored body; see `Journal.kept`.

        Raises:
            JournalCorrupt: there is none.
            JournalUnavailable: the disk failed.
        """
        if not _NAME.fullmatch(name):
            raise JournalCorrupt(f"{name!r} is not the name of a stored body")
        digest = name.removeprefix("sha256:")
        path = _place(self._folder, digest)
        try:
            size = (await self.run(path.stat)).st_size
        except JournalUnavailable as error:
            if isinstance(error.__cause__, FileNotFoundError):
                said = JournalCorrupt(f"body {name} is missing: {path} does not exist")
                raise said.hiding(path, "its file") from None
            raise
        return KeptBody(self, path, digest, size)

    async def discard(self, digests: Collection[str]) -> int:
        """Delete bodies that no record names, except those stored lately; return how many went. Repeatable.

        Raises:
            JournalUnavailable: the disk refused.
        """
        return await self.run(_discard, self._folder, digests, time.time() - _FRESH_S)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return `function(…)`, computed on the folder's thread.

        Raises:
            JournalUnavailable: the disk refused, or the folder is closed.
        """
        if self._is_closed:
            raise JournalUnavailable("the journal is closed")
        future = asyncio.wrap_future(self._disk.submit(function, *args, **kwargs))
        try:
            done, _ = await asyncio.wait((future,), timeout=self._patience_s)
        except asyncio.CancelledError:
            future.cancel()
            raise
        if not done:
            future.cancel()
            late = JournalUnavailable(f"the disk under {self._folder} has not answered for {self._patience_s:g} s")
            raise late.hiding(self._folder, "the journal")
        try:
            return future.result()
        except OSError as error:
            said = f"bodies in {self._folder} cannot be used ({error.strerror}): check its disk and its permissions"
            _log.error("the journal's bodies cannot be used", extra={"event": "journal", "problem": said})
            raise JournalUnavailable(said).hiding(self._folder, "the journal's folder") from error

    def run_later(self, function: Callable[[], object]) -> None:
        """Run `function` on the folder's thread after everything that was given to it before."""
        if not self._is_closed:
            self._disk.submit(function)

    def close(self) -> None:
        """Take no more work; what is queued still runs. May be repeated."""
        self._is_closed = True
        self._disk.shutdown(wait=False)


class KeptBody:
    """A stored body. Replayable; checked against its name as it is read."""

    is_replayable = True

    def __init__(self, folder: BlobFolder, path: Path, digest: str, size: int) -> None:
        self._folder = folder
        self._path = path
        self._digest = digest
        self.size = size

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes, the last of them only when all are known to be what was stored.

        Raises:
            JournalCorrupt: they are not.
            JournalUnavailable: the disk failed.
        """
        reader = _Reader(self._path)
        digest = hashlib.sha256()
        try:
            held = await self._folder.run(reader.read)
            while held:
                following = await self._folder.run(reader.read)
                digest.update(held)
                if not following:
                    break
                yield held
                held = following
        finally:
            self._folder.run_later(reader.close)
        if digest.hexdigest() != self._digest:
            said = JournalCorrupt(f"{self._path} does not hold what its name says: restore it from a backup")
            raise said.hiding(self._path, f"body sha256:{self._digest}")
        if held:
            yield held

    async def aclose(self) -> None:
        """Nothing to give back: files are open only while they are read."""


class _Draft:
    """A file being written. Methods run on the folder's thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._digest = hashlib.sha256()
        self._size = 0

    def open(self) -> None:
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, data: bytes) -> None:
        self._digest.update(data)
        self._size += len(data)
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def publish(self, folder: Path, synced: set[str]) -> str:
        digest = self._digest.hexdigest()
        target = _place(folder, digest)
        if target.exists() and target.stat().st_size == self._size:
            os.utime(target)  # so that nobody takes it for forgotten before its record is there
        else:
            os.fsync(self._descriptor)
            target.parent.mkdir(mode=0o700, exist_ok=True)
            if target.parent.name not in synced:
                sync_folder(folder)
                synced.add(target.parent.name)
            self._path.replace(target)
            sync_folder(target.parent)
        return f"sha256:{digest}"

    def discard(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._path.unlink(missing_ok=True)


class _Reader:
    """A file being read. Methods run on the folder's thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def read(self) -> bytes:
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return os.read(self._descriptor, _READ_BYTES)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _discard(folder: Path, digests: Collection[str], before: float) -> int:
    gone = 0
    for digest in digests:
        path = _place(folder, digest)
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < before:
                path.unlink()
                gone += 1
    return gone


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _place(folder: Path, digest: str) -> Path:
    return folder / digest[:2] / digest
