"""What a longer journal costs: appends, starts, verification, with 10^3 to 10^7 finished records.

    python -m loadtests.lengths --dir FOLDER --markdown docs/performance.md     # half an hour, 8 GB of disk
    python -m loadtests.lengths --most 100_000                                  # two minutes

The journals are made first (`loadtests.bulk`), each with 500 open runs among the finished ones, and then measured in
turn, one round after another, each sample in a process of its own; quoted are medians. Journals up to 10^5 are copied
for each sample, since the records that it appends would make them longer. Counts (bytes that the process reads and
writes, from `/proc/self/io`) hold on a busy machine; times do not, so the disk's own sync is timed beside each sample.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median

import click

from gateway.clock import SystemClock, dated_token
from gateway.journal import Append, Entry, KeyClaim
from gateway.journal.offline import verify_folder
from gateway.journal.place import Place, aside
from gateway.journal.sqlite import SqliteJournal
from loadtests.bulk import prefill
from loadtests.journal_rate import disk_sync
from loadtests.process import ROOT, free_port
from loadtests.recovery import recover
from loadtests.report import replace_section
from loadtests.start import manifest, start_once

__all__ = ["SIZES", "appended", "scanned", "started", "table", "verified"]

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
OPEN_RUNS = 500
_CALLERS = 32
_RUN_ENTRIES = 8
_BODY = bytes(400)
_COPIED = 100_000
_WINDOW_MS = 86_400_000

Figures = Mapping[str, float]


async def appended(folder: Path, rows: int, *, is_random: bool = False, has_keys: bool = False) -> dict[str, float]:
    """Append strictly, 32 callers each as soon as its last append is durable; return what a row cost, the closing included.

    Runs of eight entries under names that the gateway gives. `is_random`: under random ones, as agents may bring.
    `has_keys`: every other entry claims a caller's key.
    """
    clock = SystemClock()
    journal = await SqliteJournal.open(folder)
    latencies: list[float] = []
    left = rows

    async def caller() -> None:
        nonlocal left
        name, version = "", 0
        while left > 0 or version:  # a run that was begun is ended
            left -= 1
            at = time.time_ns() // 1_000_000
            if version == 0:
                name = clock.token() if is_random else f"auto-{dated_token(clock)}"
            keys = (KeyClaim(os.urandom(32), version + 1, at + _WINDOW_MS),) if has_keys and version % 2 == 0 else ()
            is_open = version + 1 < _RUN_ENTRIES
            began = time.perf_counter()
            await journal.append(
                Append(
                    stream=name,
                    expected=version,
                    entries=(Entry("step_intended", at, _BODY),),
                    state="preparing" if is_open else "succeeded",
                    is_open=is_open,
                    agent="agent",
                    claims=keys,
                )
            )
            latencies.append(time.perf_counter() - began)
            version = (version + 1) % _RUN_ENTRIES

    before, cpu_s = _io(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(_CALLERS)))
    await journal.close()
    cpu_s, after = time.process_time() - cpu_s, _io()
    latencies.sort()
    return {
        "cpu_us_a_row": cpu_s / len(latencies) * 1e6,
        "append_p50_ms": latencies[len(latencies) // 2] * 1e3,
        "append_p99_ms": latencies[int(len(latencies) * 0.99)] * 1e3,
        **{
            f"{name}_a_row": (after[name] - before[name]) / len(latencies)
            for name in ("rchar", "wchar", "syscr", "syscw")
        },
        "rss_mib": _peak_mib(),
    }


def _io() -> dict[str, int]:
    lines = Path("/proc/self/io").read_text().splitlines()
    return {name: int(count) for name, _, count in (line.partition(": ") for line in lines)}


def _peak_mib() -> float:
    """Return the most memory that this process has had; `getrusage` would tell that of its parent, too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def scanned(folder: Path) -> float:
    """Return the seconds of one scan of the table of records in SQL."""
    with closing(sqlite3.connect(Place.of(folder).read_only_uri, uri=True)) as connection:
        began = time.perf_counter()
        connection.execute("SELECT count(*), sum(length(data)), max(at) FROM record NOT INDEXED").fetchone()
        return time.perf_counter() - began


async def started(folder: Path) -> dict[str, float]:
    """Return how long opening the journal and knowing every open run takes, in CPU time, too, beside a scan of the table."""
    scan_s = min(scanned(folder) for _ in range(3))
    before, cpu_s = _io(), time.process_time()
    open_s, fold_s, found = await recover(folder)
    cpu_s, after = time.process_time() - cpu_s, _io()
    return {
        "scan_ms": scan_s * 1e3,
        "open_ms": open_s * 1e3,
        "recover_ms": fold_s * 1e3,
        "start_cpu_ms": cpu_s * 1e3,
        "open_runs": found,
        "start_read_mib": (after["rchar"] - before["rchar"]) / (1 << 20),
    }


def verified(folder: Path) -> dict[str, float]:
    """Return how fast the whole journal is verified, and how much memory that takes.

    Raises:
        RuntimeError: it does not verify.
    """
    cpu_s, began = time.process_time(), time.perf_counter()
    found = verify_folder(folder)
    took, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
    if found.verdict != "ok":
        raise RuntimeError(f"{found.verdict}: {found.finding}")
    return {
        "verified_a_s": found.rows / took,
        "verify_cpu_us_a_row": cpu_s / found.rows * 1e6,
        "verify_rss_mib": _peak_mib(),
        "file_mib": Place.of(folder).file.stat().st_size / (1 << 20),
    }


def ready(folder: Path) -> dict[str, float]:
    """Return how long the whole process needs until it is ready; it is killed then."""
    with tempfile.TemporaryDirectory() as made:
        start = start_once(folder, manifest(Path(made), free_port(), tool="pay"))
    return {"ready_ms": start.ready_s * 1e3}


def synced(folder: Path) -> dict[str, float]:
    """Return how long the disk needs for one sync."""
    told = disk_sync(folder, 1.0)
    return {"sync_p50_ms": float(str(told["p50_ms"])), "sync_p99_ms": float(str(told["p99_ms"]))}


def _called(what: str, figures: Mapping[str, float]) -> dict[str, float]:
    return {f"{what}_{name}": value for name, value in figures.items()}


_SAMPLES: Mapping[str, Callable[[Path, int], dict[str, float]]] = {
    "append": lambda folder, rows: {**synced(folder), **asyncio.run(appended(folder, rows))},
    "named": lambda folder, rows: _called("named", asyncio.run(appended(folder, rows, is_random=True))),
    "keyed": lambda folder, rows: _called("keyed", asyncio.run(appended(folder, rows, has_keys=True))),
    "start": lambda folder, _: asyncio.run(started(folder)),
    "ready": lambda folder, _: ready(folder),
    "verify": lambda folder, _: verified(folder),
}


def _copied(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    for name in ("keys", "checkpoint"):
        shutil.copy(aside(folder, name), to.with_name(f"{to.name}.{name}"))
    return to


def _sampled(folder: Path, kind: str, rows: int, *, is_copied: bool) -> dict[str, float]:
    """Take a sample in a process of its own, on a copy where it would change the journal too much."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        used = _copied(folder, Path(made) / "data") if is_copied else folder
        command = [sys.executable, "-m", "loadtests.lengths", "--sample", kind, "--rows", str(rows), "--dir", str(used)]
        told = subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    result: dict[str, float] = json.loads(told.stdout)
    return result


def measured(base: Path, sizes: Sequence[int], rounds: int, rows: int) -> dict[int, dict[str, float]]:
    """Return the median of each figure for each length."""
    samples: dict[int, dict[str, list[float]]] = {size: {} for size in sizes}
    for round_number in range(rounds):
        for kind in _SAMPLES:
            if kind == "verify" and round_number:
                continue
            for size in sizes if round_number % 2 == 0 else sizes[::-1]:
                told = _sampled(base / f"journal-{size}", kind, rows, is_copied=size <= _COPIED)
                click.echo(f"{size} {kind} {json.dumps(told)}", err=True)
                for name, value in told.items():
                    samples[size].setdefault(name, []).append(value)
    return {size: {name: median(values) for name, values in told.items()} for size, told in samples.items()}


_COLUMNS = (
    ("file, MiB", "{file_mib:,.0f}"),
    ("CPU a row, µs", "{cpu_us_a_row:.1f}"),
    ("written a row, bytes", "{wchar_a_row:,.0f}"),
    ("append p50, p99, ms", "{append_p50_ms:.2f}, {append_p99_ms:.2f}"),
    ("sync p50, p99, ms", "{sync_p50_ms:.2f}, {sync_p99_ms:.2f}"),
    ("random names: CPU, µs; bytes", "{named_cpu_us_a_row:.1f}; {named_wchar_a_row:,.0f}"),
    ("agents' keys: CPU, µs; bytes", "{keyed_cpu_us_a_row:.1f}; {keyed_wchar_a_row:,.0f}"),
    ("RSS, MiB", "{rss_mib:.0f}"),
    ("scan, ms", "{scan_ms:,.1f}"),
    ("opening + recovery, ms", "{open_ms:.0f} + {recover_ms:.0f}"),
    ("process ready, s", "{ready_s:.2f}"),
    ("verified a second", "{verified_a_s:,.0f}"),
)


def table(told: Mapping[int, Figures]) -> str:
    """Return the figures as a table in Markdown."""
    rows = [
        "| "
        + " | ".join([f"{size:,}", *(form.format(**one, ready_s=one["ready_ms"] / 1e3) for _, form in _COLUMNS)])
        + " |"
        for size, one in told.items()
    ]
    head = ["finished records", *(name for name, _ in _COLUMNS)]
    return "\n".join([f"| {' | '.join(head)} |", "|" + "--:|" * len(head), *rows])


@click.command()
@click.option("--dir", "base", type=click.Path(path_type=Path), default=Path("lengths"), help="Folder of the journals.")
@click.option("--most", type=int, default=SIZES[-1], help="No longer journals than this.")
@click.option("--rounds", type=click.IntRange(min=1), default=3)
@click.option("--rows", type=int, default=40_000, help="Appended in each sample.")
@click.option(
    "--markdown", "page", type=click.Path(path_type=Path, exists=True), help="Page whose section is replaced."
)
@click.option("--sample", type=click.Choice(list(_SAMPLES)), hidden=True)
def main(base: Path, most: int, rounds: int, rows: int, page: Path | None, sample: str | None) -> None:
    """Measure appends, starts and verification of ever longer journals."""
    if sample is not None:
        click.echo(json.dumps(_SAMPLES[sample](base, rows)))
        return
    sizes = [size for size in SIZES if size <= most]
    base.mkdir(parents=True, exist_ok=True)
    for size in sizes:
        if not (base / f"journal-{size}").exists():
            asyncio.run(prefill(base / f"journal-{size}", size, unfinished=OPEN_RUNS))
    told = measured(base.resolve(), sizes, rounds, rows)
    click.echo(table(told))
    if page is not None:
        page.write_text(replace_section(page.read_text(), table(told) + "\n", "lengths"))


if __name__ == "__main__":
    main()
