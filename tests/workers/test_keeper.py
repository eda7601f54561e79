"""The keeper on a real journal, with a clock turned by hand."""

from __future__ import annotations

import pytest

from gateway.journal.keyring import KeyRing
from gateway.journal.offline import verify_folder
from gateway.journal.sqlite import SqliteJournal
from gateway.journal.verification import Verdict
from gateway.telemetry import Telemetry
from gateway.workers.keeper import Keeper
from tests.fakes import FakeClock
from tests.journal.backends import append


@pytest.fixture
async def journal(tmp_path):
    opened = await SqliteJournal.open(tmp_path / "data")
    yield opened
    await opened.close()


@pytest.fixture
def clock():
    return FakeClock()


def keeper_of(journal, clock, **settings):
    return Keeper(journal, clock, Telemetry(clock), **settings)


async def test_a_checkpoint_is_told_once_a_minute_if_there_is_something_new(journal, clock, tmp_path, caplog):
    told, keeper = tmp_path / "data.checkpoint", keeper_of(journal, clock)
    await journal.append(append("run", 0))
    await keeper.run_once(clock.now() + 59)
    assert not told.exists()
    with caplog.at_level("INFO", "gateway"):
        await keeper.run_once(clock.now() + 60)
    assert told.read_text().split("\n")[1] == "2"
    assert [record.note for record in caplog.records if record.message == "checkpoint"] == [told.read_text()]
    before = told.stat().st_mtime_ns
    await keeper.run_once(clock.now() + 500)
    assert told.stat().st_mtime_ns == before


async def test_a_checkpoint_is_told_early_after_many_rows(journal, clock, tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.workers.keeper._ROWS", 3)
    await journal.append(append("run", 0, "a", "b", "c"))
    await keeper_of(journal, clock).run_once(clock.now())
    assert (tmp_path / "data.checkpoint").exists()


async def test_a_rotated_ring_is_taken_up_while_running(journal, clock, tmp_path):
    await journal.append(append("run", 0))
    KeyRing.load(tmp_path / "data.keys").rotate(1)
    await keeper_of(journal, clock).run_once(clock.now())
    await journal.append(append("run", 1))
    found = verify_folder(tmp_path / "data")
    assert (found.verdict, found.own) == (Verdict.OK, 2)


async def test_a_broken_ring_is_reported_and_the_old_key_goes_on(journal, clock, tmp_path):
    (tmp_path / "data.keys").write_text("{}")
    keeper = keeper_of(journal, clock, checkpoint_s=0)
    failures = []
    keeper._telemetry.background_failed = lambda where, error: failures.append(str(error))
    await journal.append(append("run", 0))
    for turn in range(3):
        await keeper.run_once(clock.now() + turn)
    assert len(failures) == 1
    assert "is no key ring" in failures[0]
    assert (tmp_path / "data.checkpoint").exists()


async def test_runs_past_retention_go_batch_by_batch(journal, clock, monkeypatch):
    monkeypatch.setattr("gateway.journal.retention.BATCH_RUNS", 2)
    for n in range(5):
        await journal.append(append(f"run-{n}", 0, at=clock.at() - 100_000, state="succeeded", is_open=False))
    await journal.append(append("young", 0, at=clock.at() - 1_000, state="succeeded", is_open=False))
    keeper = keeper_of(journal, clock, retention_s=60)
    left = []
    for _ in range(3):
        await keeper.run_once(clock.now())
        left.append(len(await journal.heads()))
    assert left == [4, 2, 1]
    await keeper.run_once(clock.now())
    assert [head.stream for head in await journal.heads()] == ["young"]


async def test_without_retention_nothing_goes(journal, clock):
    await journal.append(append("run", 0, at=1, state="succeeded", is_open=False))
    await keeper_of(journal, clock).run_once(clock.now())
    assert await journal.head("run") is not None
