"""The doctor names what would break a promise, and says nothing where all is well."""

from __future__ import annotations

import sqlite3
import time

import pytest

from gateway.journal import JournalUnavailable, doctor
from gateway.journal.doctor import Health, examine
from gateway.journal.sqlite import SqliteJournal
from tests.journal.backends import append


@pytest.fixture
async def data(tmp_path):
    journal = await SqliteJournal.open(tmp_path / "data")
    await journal.append(append("run", 0))
    await journal.close()
    return tmp_path / "data"


def found(data, name):
    (finding,) = [each for each in examine(data) if each.name == name]
    return finding


async def test_a_sound_journal_has_nothing_bad(data):
    assert not [finding for finding in examine(data) if finding.health is Health.BAD]
    assert found(data, "journal mode").health is Health.OK


@pytest.mark.parametrize(
    ("kind", "health"), [("tmpfs", Health.BAD), ("nfs4", Health.BAD), ("overlay", Health.WARN), ("ext4", Health.OK)]
)
async def test_the_file_system_is_called_by_name(data, kind, health, monkeypatch):
    monkeypatch.setattr(doctor, "_mounted", lambda folder: kind)
    assert found(data, "file system").health is health


async def test_a_record_from_the_future_is_a_clock_that_was_wrong(data):
    raw = sqlite3.connect(data / "journal.db", isolation_level=None)
    raw.execute("DROP TRIGGER record_is_final")
    raw.execute("UPDATE record SET at = ?", (round(time.time() * 1000) + 3_600_000,))
    raw.close()
    assert "s from the future" in found(data, "clock").text


async def test_a_ring_that_others_can_read_or_that_is_gone_is_told(data):
    ring = data.with_name("data.keys")
    ring.chmod(0o644)
    assert "chmod 600" in found(data, "key ring's mode").text
    ring.unlink()
    assert found(data, "key ring").health is Health.BAD


async def test_a_missing_checkpoint_is_told(data):
    data.with_name("data.checkpoint").unlink()
    assert "would not show" in found(data, "checkpoint").text


async def test_an_sqlite_with_the_race_is_told(data, monkeypatch):
    monkeypatch.setattr(doctor.schema, "has_wal_reset_race", lambda version: True)
    assert found(data, "library").health is Health.WARN


async def test_no_journal_is_an_error(tmp_path):
    with pytest.raises(JournalUnavailable):
        examine(tmp_path / "none")
