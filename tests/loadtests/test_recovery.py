"""The recovery measurement measures what it says, small."""

from __future__ import annotations

from pathlib import Path

from loadtests.recovery import fill, measure, recover


async def test_every_open_run_is_found_and_finished_ones_are_not_folded(tmp_path: Path) -> None:
    assert await fill(tmp_path / "data", 20, 5) == 20 * 8 + 5 * 6
    _, _, found = await recover(tmp_path / "data")
    assert found == 5


async def test_a_row_tells_sizes_and_times(tmp_path: Path) -> None:
    row = await measure(tmp_path, 3, 2, 1)
    assert (row["finished_runs"], row["open_runs"], row["records"]) == (3, 2, 36)
    assert row["open_ms"]
