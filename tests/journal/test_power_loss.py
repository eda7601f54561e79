"""Power is cut at a random write, and nothing that was acknowledged is lost: the journal's own statements, on a disk that
forgets what was not synced.

nats-io/nats-server issue 7564 (Jepsen, 2.12.1): acknowledged, but synced every two minutes. A longer run:
`python -m tests.journal.test_power_loss --cuts 2000 --first 1000`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sqlite3
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.journal import Append, Entry, alone, retention, schema, statements
from gateway.journal.chain import open_chain
from gateway.journal.keyring import KeyRing
from gateway.journal.offline import verify_folder
from gateway.journal.plan import Standing
from gateway.journal.sqlite import SqliteJournal
from gateway.journal.verification import Verdict
from tests.journal.power import Connection, Disk, PowerCut

CUTS = 160


@dataclass
class Written:
    """What was acknowledged before the lights went out: for each run its version, and whether it may have been pruned."""

    versions: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    pruned: set[str] = field(default_factory=set)


def write_until_the_cut(folder: Path, seed: int, synchronous: str = "FULL") -> tuple[Disk, Written]:
    """Run a journal's writing side, with rotations and pruning in between, until its disk loses power."""
    chance, written = random.Random(seed), Written()
    disk = Disk(f"power-{seed}-{synchronous}", chance.randrange(60, 900))
    folder.mkdir()
    connection = Connection(folder / "journal.db", disk)
    ring = KeyRing.make(folder.with_name("data.keys"), 0)
    try:
        schema.configure(connection)
        connection.execute("PRAGMA wal_autocheckpoint = 40")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        schema.migrate(connection, schema.load_migrations(), 0)
        alone.prepare(connection)
        sealer = open_chain(connection, ring, "boot", 0)
        cached: dict[str, Standing] = {}
        while True:
            _batch(connection, sealer, cached, chance, written)
            if chance.random() < 0.02:
                sealer.ring = ring = ring.rotate(0)
            if chance.random() < 0.05:
                before = set(written.versions)
                written.pruned |= {name for name in before if name.startswith("done")}
                retention.prune(connection, sealer, 1 << 60, 0, folder / "archive")
                cached.clear()
    except PowerCut:
        pass
    with contextlib.suppress(Exception):
        connection.close()
    disk.unregister()
    return disk, written


def _batch(connection, sealer, cached, chance, written):
    appends = []
    for _ in range(chance.randrange(1, 5)):
        is_open = chance.random() < 0.7
        name = f"run-{chance.randrange(6)}" if is_open else f"done-{len(written.sent)}"
        version = written.sent.get(name, 0)
        entries = [Entry("k", 1, chance.randbytes(chance.randrange(20, 900))) for _ in range(chance.randrange(1, 4))]
        appends.append(
            Append(stream=name, expected=version, entries=entries, state="s", is_open=is_open, agent="agent")
        )
        written.sent[name] = version + len(entries)
    plan = statements.write(connection, sealer, appends, {}, cached)
    assert not any(plan.errors)
    cached.update({**plan.created, **plan.changed, **plan.advanced})
    written.versions = dict(written.sent)


async def lost_after(folder: Path, seed: int, synchronous: str = "FULL") -> list[str]:
    """Return what the journal lost of what it had acknowledged: nothing, if it keeps its promise."""
    with tempfile.TemporaryDirectory(dir=folder) as base:
        disk, written = write_until_the_cut(Path(base) / "live", seed, synchronous)
        data = Path(base) / "data"
        data.mkdir()
        disk.rebuild(data, random.Random(seed))
        raw = sqlite3.connect(data / "journal.db")
        integrity = raw.execute("PRAGMA integrity_check").fetchone()[0]
        raw.close()
        if integrity != "ok":
            return [f"integrity: {integrity}"]
        journal = await SqliteJournal.open(data)
        lost = []
        for name, version in written.versions.items():
            head = await journal.head(name)
            found = head.version if head is not None else 0
            if found < version and not (found == 0 and name in written.pruned):
                lost.append(f"{name}: {found} of {version}")
            if found > written.sent[name]:
                lost.append(f"{name}: {found}, never sent more than {written.sent[name]}")
        await journal.close()
        verdict = verify_folder(data)
        if verdict.verdict is not Verdict.OK:
            lost.append(f"seal: {verdict.finding}")
        return lost


@pytest.mark.parametrize("seed", range(CUTS))
async def test_nothing_acknowledged_is_lost_when_the_power_goes(tmp_path, seed):
    """The promise is FULL's: every group commit has synced the log before its futures are done."""
    assert await lost_after(tmp_path, seed) == []


async def test_the_disk_does_lose_what_was_not_synced(tmp_path):
    """Else the test above would pass on anything: with `synchronous = NORMAL`, the same cuts lose acknowledged records."""
    lost = [await lost_after(tmp_path, seed, "NORMAL") for seed in range(12)]
    assert sum(bool(each) for each in lost) >= 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    failed = 0
    for seed in range(options.first, options.first + options.cuts):
        with tempfile.TemporaryDirectory() as folder:
            if lost := asyncio.run(lost_after(Path(folder), seed)):
                failed += 1
                print(f"seed {seed}: {'; '.join(lost)}", flush=True)
    print(f"{options.cuts} power cuts, {failed} with a loss")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
