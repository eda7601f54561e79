"""Figures for an operator who is not the gateway."""

from __future__ import annotations

import asyncio
import io
import json
import shutil

import pytest

from gateway.core.message import BytesBody
from gateway.journal import JournalCorrupt, JournalUnavailable
from gateway.journal.offline import acknowledge_folder, back_up, export, offline_stats, verify_folder
from gateway.journal.sqlite import SqliteJournal
from gateway.journal.verification import Verdict
from tests.journal.backends import append


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


async def test_figures_can_be_had_beside_a_running_gateway_and_without_one(data):
    journal = await SqliteJournal.open(data)
    await asyncio.gather(*(journal.append(append(f"run-{n}", 0, "1", "2", is_open=n < 2)) for n in range(5)))
    for _ in range(2):
        stats = offline_stats(data)
        assert (stats.streams, stats.open_streams, stats.entries) == (5, 2, 10)
        await journal.close()
    with pytest.raises(JournalUnavailable, match="there is no journal at"):
        offline_stats(data / "elsewhere")
    again = await SqliteJournal.open(data)
    await again.append(append("run-0", 2))
    await again.close()


def test_a_file_of_another_kind_is_named(data):
    data.mkdir()
    (data / "journal.db").write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(JournalCorrupt, match="not a database"):
        offline_stats(data)


async def test_a_backup_beside_a_running_gateway_is_one_moment_and_can_be_restored(tmp_path):
    """benbjohnson/litestream issue 752: a restored copy was of no use. Here the copy verifies, opens, and goes on."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    journal = await SqliteJournal.open(data)
    name = await journal.keep(BytesBody(b"large"))
    for n in range(50):
        await journal.append(append("run", n))
    writing = asyncio.ensure_future(_write_on(journal))
    found = await asyncio.to_thread(back_up, data, copy)
    assert found.verdict is Verdict.OK
    assert found.rows >= 51
    writing.cancel()
    await journal.close()
    restored = await SqliteJournal.open(copy, keys=tmp_path / "data.keys", checkpoint=tmp_path / "copy.checkpoint")
    assert len(await restored.read("run")) == 50
    assert [piece async for piece in (await restored.kept(name)).chunks()] == [b"large"]
    await restored.append(append("run", 50))
    await restored.close()


async def test_a_restored_backup_that_is_behind_what_was_told_must_be_acknowledged(tmp_path):
    """What happened since the backup did happen, at the tools; a gateway that has forgotten it must not go on quietly."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    journal = await SqliteJournal.open(data)
    await journal.append(append("run", 0))
    await asyncio.to_thread(back_up, data, copy)
    await journal.append(append("run", 1))
    await journal.close()
    shutil.rmtree(data)
    copy.rename(data)
    with pytest.raises(JournalCorrupt, match="truncated"):
        await SqliteJournal.open(data)
    acknowledge_folder(data, reason="restored the backup of tonight", by="anna")
    journal = await SqliteJournal.open(data)
    await journal.append(append("run", 1))
    await journal.close()
    assert verify_folder(data).verdict is Verdict.ACKNOWLEDGED


async def _write_on(journal):
    for n in range(10_000):
        await journal.append(append(f"other-{n}", 0))


async def test_an_export_holds_every_record_with_its_envelope(tmp_path):
    journal = await SqliteJournal.open(tmp_path / "data")
    await journal.append(append("run", 0, "a", "b"))
    out = io.BytesIO()
    assert export(tmp_path / "data", out) == 3
    await journal.close()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["kind"] for line in lines] == ["ChainOpened", "step_intended", "step_intended"]
    assert lines[2]["log_id"].endswith("/3")
