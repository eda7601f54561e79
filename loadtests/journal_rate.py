"""How fast the SQLite journal appends, beside aiosqlite used the usual way: one autocommit insert a row.

Each caller appends one entry of 400 bytes, waits until it is durable, and appends the next, without think time; a run gets
eight entries and then closes. A fresh file each time, on the disk that holds `--dir` (never a memory file system). Absolute
figures belong to the machine they were taken on; only ratios of one run say anything elsewhere.

    python -m loadtests.journal_rate --seconds 1 --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiosqlite

from gateway.journal import Append, Entry
from gateway.journal.sqlite import SqliteJournal

BODY = os.urandom(400)
RUN_ENTRIES = 8
CALLERS = (1, 8, 32, 128)


async def measure(
    name: str, callers: int, seconds: float, make: Callable[[int], Callable[[], Awaitable[None]]]
) -> dict[str, object]:
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    async def caller(number: int) -> None:
        append = make(number)
        while (started := time.perf_counter()) < end:
            await append()
            latencies.append(time.perf_counter() - started)

    cpu, started = time.process_time(), time.perf_counter()
    await asyncio.gather(*(caller(number) for number in range(callers)))
    took, cpu = time.perf_counter() - started, time.process_time() - cpu
    latencies.sort()
    rows = len(latencies)
    return {
        "writer": name,
        "callers": callers,
        "rows_per_s": round(rows / took),
        "p50_ms": round(latencies[rows // 2] * 1e3, 2),
        "p99_ms": round(latencies[int(rows * 0.99)] * 1e3, 2),
        "cpu_us_per_row": round(cpu / rows * 1e6, 1),
    }


async def seawall(folder: Path, callers: int, seconds: float) -> dict[str, object]:
    journal = await SqliteJournal.open(folder)

    def make(number: int) -> Callable[[], Awaitable[None]]:
        name, version = "", 0

        async def append() -> None:
            nonlocal name, version
            if version == 0:
                name = os.urandom(16).hex()
            entry = Entry("step_intended", time.time_ns() // 1_000_000, BODY)
            is_open = version + 1 < RUN_ENTRIES
            state = "preparing" if is_open else "succeeded"
            await journal.append(
                Append(stream=name, expected=version, entries=(entry,), state=state, is_open=is_open, agent="agent")
            )
            version = (version + 1) % RUN_ENTRIES

        return append

    try:
        figures = await measure("seawall", callers, seconds, make)
        stats = await journal.stats()
        figures["rows_per_commit"] = round(stats.committed_entries / stats.commits, 1)
        return figures
    finally:
        await journal.close()


async def naive(folder: Path, callers: int, seconds: float) -> dict[str, object]:
    async with aiosqlite.connect(folder / "naive.db", isolation_level=None) as connection:
        await connection.execute("PRAGMA journal_mode = WAL")
        await connection.execute("PRAGMA synchronous = FULL")
        await connection.execute("PRAGMA wal_autocheckpoint = 4000")
        await connection.execute("CREATE TABLE record (stream TEXT, n INTEGER, kind TEXT, at INTEGER, data BLOB)")
        await connection.execute("CREATE UNIQUE INDEX record_stream ON record (stream, n)")

        def make(number: int) -> Callable[[], Awaitable[None]]:
            n = 0

            async def append() -> None:
                nonlocal n
                n += 1
                row = (f"run-{number}", n, "step_intended", time.time_ns() // 1_000_000, BODY)
                await connection.execute("INSERT INTO record VALUES (?, ?, ?, ?, ?)", row)

            return append

        return await measure("aiosqlite, a commit a row", callers, seconds, make)


def disk_sync(folder: Path, seconds: float) -> dict[str, object]:
    """The floor: append 4 KiB and fdatasync, one after the other."""
    latencies = []
    descriptor = os.open(folder / "sync.bin", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    end = time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        os.write(descriptor, bytes(4096))
        os.fdatasync(descriptor)
        latencies.append(time.perf_counter() - started)
    os.close(descriptor)
    latencies.sort()
    count = len(latencies)
    return {
        "writer": "4 KiB + fdatasync",
        "callers": 1,
        "rows_per_s": round(count / seconds),
        "p50_ms": round(latencies[count // 2] * 1e3, 2),
        "p99_ms": round(latencies[int(count * 0.99)] * 1e3, 2),
    }


def show(rows: list[dict[str, object]]) -> None:
    print(f"{'writer':28}{'callers':>8}{'rows/s':>9}{'p50 ms':>9}{'p99 ms':>9}{'cpu us/row':>12}{'rows/commit':>13}")
    for row in rows:
        print(
            f"{row['writer']:28}{row['callers']:8}{row['rows_per_s']:9}{row['p50_ms']:9}{row['p99_ms']:9}"
            f"{row.get('cpu_us_per_row', ''):>12}{row.get('rows_per_commit', ''):>13}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.6, help="for each line of the table")
    parser.add_argument("--out", type=Path, help="file for the lines as JSON")
    parser.add_argument("--dir", type=Path, default=Path(), help="a folder on the disk to measure")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=options.dir) as base:
        rows.append(disk_sync(Path(base), options.seconds))
        for callers in CALLERS:
            for writer in (seawall, naive):
                with tempfile.TemporaryDirectory(dir=base) as folder:
                    rows.append(asyncio.run(writer(Path(folder), callers, options.seconds)))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(rows, indent=2) + "\n")
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        show(rows)


if __name__ == "__main__":
    main()
