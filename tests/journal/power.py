"""A disk whose power can be cut: an SQLite file system that remembers what was written and not yet synced.

Every write goes to the real file at once, and into a list for its file until that file is synced. `cut` raises out of the
running transaction; `rebuild` then makes the disk as it may look afterwards: everything synced, and of the rest an arbitrary
choice of 512-byte sectors, so that writes are lost, kept, torn, and out of order. What was promised must be in it.

Method: ALICE (OSDI 2014) and LazyFS in small. Needs apsw, which is for tests only.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import apsw

__all__ = ["Connection", "Disk", "PowerCut"]

SECTOR = 512


class PowerCut(Exception):
    """The machine is off."""


class Disk(apsw.VFS):
    """One power-cut file system, over the default one. `writes_left` counts down to the cut."""

    def __init__(self, name: str, writes_left: int) -> None:
        self.name = name
        self.writes_left = writes_left
        self.is_off = False
        self._synced: dict[str, bytearray] = {}
        self._unsynced: dict[str, list[tuple[int, bytes | None]]] = {}
        super().__init__(name, "unix")

    def xOpen(self, name: Any, flags: list[int]) -> _File:
        return _File(self, name, flags)

    def xDelete(self, name: str, sync_folder: bool) -> None:
        self._synced.pop(name, None)
        self._unsynced.pop(name, None)
        super().xDelete(name, sync_folder)

    def note(self, name: str, offset: int, data: bytes | None) -> None:
        if self.is_off:
            raise PowerCut
        self._unsynced.setdefault(name, []).append((offset, data))
        self.writes_left -= 1
        if self.writes_left <= 0:
            self.is_off = True
            raise PowerCut

    def sync(self, name: str) -> None:
        if self.is_off:
            raise PowerCut
        image = self._synced.setdefault(name, bytearray())
        for offset, data in self._unsynced.pop(name, []):
            _apply(image, offset, data)

    def rebuild(self, folder: Path, chance: random.Random) -> None:
        """Write what is left of each file into another folder. The shared memory file never survives."""
        for name in self._synced.keys() | self._unsynced.keys():
            if name.endswith("-shm"):
                continue
            image = bytearray(self._synced.get(name, b""))
            for offset, data in self._unsynced.get(name, []):
                for start in range(0, len(data), SECTOR) if data is not None else (0,):
                    if chance.random() < 0.5:
                        part = data[start : start + SECTOR] if data is not None else None
                        _apply(image, offset + start, part)
            (folder / Path(name).name).write_bytes(image)


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else name
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self._disk.note(self._name, offset, bytes(data))

    def xTruncate(self, size: int) -> None:
        super().xTruncate(size)
        self._disk.note(self._name, size, None)

    def xSync(self, flags: int) -> None:
        self._disk.sync(self._name)
        super().xSync(flags)


def _apply(image: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del image[offset:]
        return
    if len(image) < offset + len(data):
        image.extend(bytes(offset + len(data) - len(image)))
    image[offset : offset + len(data)] = data


class Connection:
    """An apsw connection with the few methods of `sqlite3.Connection` that the journal uses, in autocommit mode."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._raw = apsw.Connection(str(path), vfs=disk.name)
        self.execute = self._raw.execute
        self.executemany = self._raw.executemany
        self.cursor = self._raw.cursor

    @property
    def in_transaction(self) -> bool:
        return self._raw.in_transaction

    def executescript(self, script: str) -> None:
        for _ in self._raw.execute(script):
            pass

    def close(self) -> None:
        self._raw.close(True)
