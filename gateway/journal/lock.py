"""One gateway per data folder, held by an advisory lock that the kernel takes back when its holder dies.

A pid file would have to be judged after a crash (is that process still ours?); `flock` needs no judging, so a lock file
left behind by a dead process is no obstacle. The holder's name inside is for the message only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from pathlib import Path

from gateway.journal import JournalLocked, JournalUnavailable

__all__ = ["FolderLock"]


class FolderLock:
    """An exclusive lock on a folder, held until `release` or the end of the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @classmethod
    def take(cls, path: Path) -> FolderLock:
        """Take the lock kept in the file `path`, at once or not at all.

        Raises:
            JournalLocked: another process, or another journal in this one, holds it.
            JournalUnavailable: the file cannot be made or the file system has no locks.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalUnavailable(f"cannot make the lock file {path}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 200).decode(errors="replace").strip() or "an unknown process"
            os.close(descriptor)
            raise JournalLocked(
                f"{path.parent} is in use by {holder}: stop that gateway, or give this one a folder of its own"
            ) from None
        except OSError as error:
            os.close(descriptor)
            raise JournalUnavailable(
                f"{path} cannot be locked ({error.strerror}): the journal needs a local file system"
            ) from error
        _write_holder(descriptor)
        return cls(descriptor)

    def release(self) -> None:
        """Give the lock back. May be repeated. The file stays: removing it would let two holders in."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _write_holder(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
