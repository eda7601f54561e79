"""Reads files and remembers what it saw, so that a later look can tell whether anything differs from what was loaded.

Taking the digest of the very bytes that were read leaves no moment in which a change could be missed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Final

__all__ = ["FileLog", "stamp_of"]

LIMIT_BYTES: Final = 4 << 20
"""Enough for a bundle of all the world's authorities; a manifest has a bound of its own (`nodes.py`)."""


class FileLog:
    """Every file and folder that was read or looked for, with a digest of its content then."""

    def __init__(self) -> None:
        self._seen: dict[Path, bytes] = {}

    @property
    def paths(self) -> frozenset[Path]:
        """Files and folders, those that were missing too."""
        return frozenset(self._seen)

    def read(self, path: Path, limit: int = LIMIT_BYTES) -> bytes:
        """Return at most one byte more than a file may hold. What is beyond `LIMIT_BYTES` counts as changed when its size
        or its time did.

        Raises:
            OSError: it cannot be read.
        """
        content, digest = _look(path, limit)
        self._seen[path] = digest
        if isinstance(content, OSError):
            raise content
        if isinstance(content, list):
            raise IsADirectoryError(21, "it is a folder", str(path))
        return content

    def list(self, path: Path) -> list[str] | None:
        """Return the sorted names in a folder, or None if it is none."""
        content, digest = _look(path)
        if not isinstance(content, list):
            return None
        self._seen[path] = digest
        return content

    def stamp(self) -> bytes:
        """Return one digest of everything as it was when it was read."""
        return _joined(self._seen.items())


def stamp_of(paths: Iterable[Path]) -> bytes:
    """Return the digest that `FileLog.stamp` would give if the files were read now."""
    return _joined((path, _look(path)[1]) for path in paths)


def _joined(seen: Iterable[tuple[Path, bytes]]) -> bytes:
    state = blake2b(digest_size=16)
    for path, digest in sorted(seen):
        state.update(os.fsencode(path) + b"\0" + digest)
    return state.digest()


def _look(path: Path, limit: int = LIMIT_BYTES) -> tuple[bytes | list[str] | OSError, bytes]:
    try:
        if path.is_dir():
            names = sorted(entry.name for entry in path.iterdir())
            return names, _digest(b"folder\0" + b"\0".join(map(os.fsencode, names)))
        with path.open("rb") as file:
            data = file.read(limit + 1)
            facts = os.fstat(file.fileno())
        if len(data) <= LIMIT_BYTES:
            return data, _digest(b"file\0" + data)
        return data, _digest(b"large %d %d\0" % (facts.st_size, facts.st_mtime_ns) + data[: LIMIT_BYTES + 1])
    except OSError as error:
        return error, _digest(f"error {error.errno}".encode())
    except ValueError:
        return OSError(22, "its name cannot be a path"), _digest(b"error 22")


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
