"""Figures for an operator who is not the gateway."""

from __future__ import annotations

import asyncio

import pytest

from gateway.journal import JournalCorrupt, JournalUnavailable
from gateway.journal.offline import offline_stats
from gateway.journal.sqlite import SqliteJournal
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
