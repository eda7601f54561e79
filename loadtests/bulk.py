"""Journals of millions of finished records, made in minutes: every statement and every seal is the gateway's own.

Opened once as a gateway opens it, which makes tables, key ring and chain; then the committer's own transactions
(`statements.write`) run on a connection that syncs nothing until the end, thousands of records in each. Runs have in turn a
name as the gateway gives it and a random one as agents may, end a tenth of a second after each other, and hold eight
records. `seawall journal verify` passes.

    python -m loadtests.bulk FOLDER 10_000_000
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import click

from gateway.journal import Append, statements
from gateway.journal.chain import open_chain
from gateway.journal.place import Place, aside
from gateway.journal.sealer import Sealer
from gateway.journal.sqlite import SqliteJournal, ring_of, write_checkpoint
from loadtests.recovery import FINISHED, IN_FLIGHT, Shape, entries_of

__all__ = ["RECORDS_A_RUN", "prefill"]

RECORDS_A_RUN = len(FINISHED.records)
_RUNS_TOGETHER = 500
_APART_MS = 100
_CACHE_KIB = 256 << 10


async def prefill(folder: Path, records: int, *, unfinished: int = 0, open_shape: Shape = IN_FLIGHT) -> int:
    """Make a journal with so many records of finished runs, and open runs spread among them; return how many rows it has."""
    await (await SqliteJournal.open(folder)).close()
    place = Place.of(folder)
    ring = ring_of(place, None)
    with contextlib.closing(sqlite3.connect(place.file, isolation_level=None)) as connection:
        for setting in ("synchronous = OFF", f"cache_size = -{_CACHE_KIB}", "wal_autocheckpoint = 50000"):
            connection.execute(f"PRAGMA {setting}")
        sealer = open_chain(connection, ring, secrets.token_hex(8), _now())
        _write(connection, sealer, _appends(records // RECORDS_A_RUN, unfinished, open_shape))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        write_checkpoint(aside(place.folder, "checkpoint"), sealer, _now())
    _sync(place.file)
    return sealer.position


def _write(connection: sqlite3.Connection, sealer: Sealer, appends: Iterator[Append]) -> None:
    together: list[Append] = []
    for append in appends:
        together.append(append)
        if len(together) == _RUNS_TOGETHER:
            statements.write(connection, sealer, together, {}, {})
            together = []
    if together:
        statements.write(connection, sealer, together, {}, {})


def _appends(finished: int, unfinished: int, open_shape: Shape) -> Iterator[Append]:
    """Give the runs in the order of their ends, the open ones evenly among the others."""
    source = random.Random(finished)

    def one(shape: Shape, number: int) -> Append:
        at = began + number * _APART_MS
        is_named = number % 2 == 1
        name = f"{source.getrandbits(128):032x}" if is_named else f"auto-{at:012x}{source.getrandbits(80):020x}"
        return _append(shape, name, at)

    every = max(1, finished // unfinished) if unfinished else 0
    opened, began = 0, _now() - (finished + unfinished) * _APART_MS
    for number in range(finished):
        yield one(FINISHED, number)
        if every and number % every == every - 1 and opened < unfinished:
            opened += 1
            yield one(open_shape, number)
    for _ in range(opened, unfinished):
        yield one(open_shape, finished)


def _append(shape: Shape, name: str, at: int) -> Append:
    return Append(
        stream=name, expected=0, entries=entries_of(shape, at), state=shape.state, is_open=shape.is_open, agent="agent"
    )


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _now() -> int:
    return time.time_ns() // 1_000_000


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("records", type=int)
@click.option("--open", "unfinished", type=int, default=0, help="Open runs spread among the finished ones.")
def main(folder: Path, records: int, unfinished: int) -> None:
    """Make a journal with so many finished RECORDS in FOLDER."""
    click.echo(f"{asyncio.run(prefill(folder, records, unfinished=unfinished)):,} rows")


if __name__ == "__main__":
    main()
