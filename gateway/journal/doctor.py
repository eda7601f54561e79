"""Looking a journal and the ground it stands on over: what would break a promise, before it does.

Changes nothing, takes no lock, works beside a running gateway. Settings of a connection (`synchronous`) are checked by the
gateway itself at each start; here is what lies in the file, the file system, the library and the clock.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from gateway.journal import JournalError, schema
from gateway.journal.keyring import KeyRing, default_ring
from gateway.journal.offline import reading
from gateway.journal.place import Place, aside

__all__ = ["Finding", "Health", "examine"]

_SYNCS: Final = 20
_SLOW_SYNC_S: Final = 0.020
_LOW_SPACE_BYTES: Final = 1 << 30
_LARGE_WAL_BYTES: Final = 64 << 20
_STALE_CHECKPOINT_S: Final = 600

_VOLATILE: Final = frozenset({"tmpfs", "ramfs"})
_LAYERED: Final = frozenset({"overlay", "aufs", "unionfs"})
_REMOTE: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "ceph", "glusterfs", "fuse.glusterfs"}
)


class Health(StrEnum):
    """How grave a finding is."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    health: Health
    text: str


def examine(path: Path | str, *, keys: Path | str | None = None) -> list[Finding]:
    """Return what was found, gravest or not, in the order of looking.

    Raises:
        JournalError: there is no journal, or it cannot be read at all.
    """
    place = Place.of(path)
    with reading(place) as connection:
        findings = list(_file(connection, place))
    findings += [_library(), _file_system(place.folder), _space(place.folder), _syncs(place.folder)]
    findings += _keys(place, keys)
    return findings


def _file(connection: sqlite3.Connection, place: Place) -> Iterator[Finding]:
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    yield _of("journal mode", mode == "wal", mode, "a journal in use is in WAL mode; this is a copy, or was changed")
    vacuum = connection.execute("PRAGMA auto_vacuum").fetchone()[0]
    yield _of(
        "auto_vacuum", vacuum == 2, "incremental" if vacuum == 2 else str(vacuum), "pruning will not give space back"
    )
    version = connection.execute("SELECT max(version) FROM migration").fetchone()[0]
    known = len(schema.load_migrations())
    yield _of("schema", version == known, f"{version} of {known}", "start this release's gateway on it once")
    figures = place.figures()
    wal = figures["wal_bytes"]
    assert isinstance(wal, int)
    yield _of("write-ahead log", wal <= _LARGE_WAL_BYTES, f"{wal} bytes", "a reader is held open for too long")
    latest = connection.execute("SELECT at FROM record ORDER BY id DESC LIMIT 1").fetchone()
    ahead = latest[0] / 1000 - time.time() if latest is not None else 0.0
    text = (
        "the last record is not from the future" if ahead <= 1 else f"the last record is {ahead:.0f} s from the future"
    )
    yield _of("clock", ahead <= 1, text, "set the clock; retention and keys' windows depend on it")


def _library() -> Finding:
    text = f"SQLite {sqlite3.sqlite_version}"
    if not schema.has_wal_reset_race(sqlite3.sqlite_version_info):
        return Finding("library", Health.OK, text)
    return Finding(
        "library",
        Health.WARN,
        f"{text} has the WAL-reset race: harmless here, where one connection writes; let no other program checkpoint the "
        "file, or use 3.44.6, 3.50.7, or 3.51.3 and later",
    )


def _file_system(folder: Path) -> Finding:
    kind = _mounted(folder)
    if kind in _VOLATILE:
        return Finding("file system", Health.BAD, f"{kind}: everything is gone when the machine stops; use a disk")
    if kind in _REMOTE:
        return Finding(
            "file system", Health.BAD, f"{kind}: locks and shared memory cannot be relied on; use a local disk"
        )
    if kind in _LAYERED:
        return Finding(
            "file system", Health.WARN, f"{kind}: this is a container's own layer and goes with it; mount a volume"
        )
    return Finding("file system", Health.OK, kind or "unknown")


def _mounted(folder: Path) -> str | None:
    """Return the type of the file system that a folder is on, as the kernel names it; None where it cannot be told."""
    best, kind = -1, None
    path = str(folder.resolve())
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        left, _, right = line.partition(" - ")
        point = left.split(" ")[4].encode().decode("unicode_escape")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, kind = len(point), right.split(" ")[0]
    return kind


def _space(folder: Path) -> Finding:
    stat = os.statvfs(folder)
    free = stat.f_bavail * stat.f_frsize
    return _of(
        "free space", free >= _LOW_SPACE_BYTES, f"{free >> 20} MiB", "free some: without space writes are refused"
    )


def _syncs(folder: Path) -> Finding:
    """Measure what one durable write costs here: 4 KiB and fdatasync, in a file of its own that goes again."""
    took = []
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            for _ in range(_SYNCS):
                started = time.perf_counter()
                os.write(file.fileno(), bytes(4096))
                os.fdatasync(file.fileno())
                took.append(time.perf_counter() - started)
    except OSError as error:
        return Finding("sync", Health.WARN, f"could not be measured: {error.strerror}")
    took.sort()
    median, worst = took[len(took) // 2], took[-1]
    text = f"{median * 1e3:.2f} ms in the middle, {worst * 1e3:.2f} ms at worst"
    if median < 20e-6:
        return Finding("sync", Health.WARN, f"{text}: too fast for a disk; it may only pretend to sync")
    return _of("sync", median < _SLOW_SYNC_S, text, "every write waits for two of these; use a faster disk")


def _keys(place: Place, keys: Path | str | None) -> Iterator[Finding]:
    path = Path(keys) if keys is not None else default_ring(place.folder)
    try:
        ring = KeyRing.load(path)
    except JournalError as error:
        yield Finding("key ring", Health.BAD, str(error))
        return
    yield _of(
        "key ring", ring.is_apart(place.folder), str(path),
        "it lies in the data folder: the seal shows damage, not an attacker who may write there",
    )  # fmt: skip
    loose = path.stat().st_mode & 0o077
    yield _of("key ring's mode", not loose, f"{path.stat().st_mode & 0o777:o}", "others may read it: chmod 600")
    told = aside(place.folder, "checkpoint")
    if not told.exists():
        yield Finding("checkpoint", Health.WARN, f"none at {told}: a cut-off end would not show")
        return
    age = time.time() - told.stat().st_mtime
    fresh = age <= _STALE_CHECKPOINT_S or not _is_served(place)
    yield _of("checkpoint", fresh, f"{age:.0f} s old", "the gateway should write one each minute; see its log")


def _is_served(place: Place) -> bool:
    return place.file.with_name(place.file.name + "-wal").exists()


def _of(name: str, is_good: bool, text: str, otherwise: str) -> Finding:
    return Finding(name, Health.OK, text) if is_good else Finding(name, Health.WARN, f"{text}: {otherwise}")
