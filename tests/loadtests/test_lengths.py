"""What a longer journal costs, small, and in counts."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from loadtests.bulk import prefill
from loadtests.lengths import appended, main, started, table, verified

ROWS = 3_000
_NAMES = [
    *(f"{how}{what}" for how in ("", "named_", "keyed_") for what in ("cpu_us_a_row", "wchar_a_row", "rss_mib")),
    *("append_p50_ms", "append_p99_ms", "sync_p50_ms", "sync_p99_ms", "scan_ms", "open_ms", "recover_ms", "ready_ms"),
]


async def written(folder: Path, records: int, **how: bool) -> float:
    """Return how many bytes it takes to write a row into a journal of this length."""
    await prefill(folder, records)
    return (await appended(folder, ROWS, **how))["wchar_a_row"]


async def test_a_row_is_written_with_the_same_bytes_however_long_the_journal(tmp_path: Path) -> None:
    """Random names cost a page for each run, once their index has more pages than a commit has runs (docs/adr/0186)."""
    short, long = [await written(tmp_path / str(records), records) for records in (8_000, 80_000)]
    assert long < short * 1.05


async def test_names_that_agents_draw_are_what_costs_more(tmp_path: Path) -> None:
    """So the count above would notice."""
    long = await written(tmp_path / "dated", 80_000)
    assert await written(tmp_path / "random", 80_000, is_random=True) > long * 1.10


async def test_a_start_reads_the_same_however_long_the_journal(tmp_path: Path) -> None:
    told = []
    for records in (8_000, 80_000):
        await prefill(tmp_path / str(records), records, unfinished=20)
        told.append(await started(tmp_path / str(records)))
    assert [one["open_runs"] for one in told] == [20, 20]
    assert told[1]["start_read_mib"] < told[0]["start_read_mib"] * 1.25


async def test_verifying_tells_its_rate_and_the_table_every_length(tmp_path: Path) -> None:
    await prefill(tmp_path / "data", 800)
    told = verified(tmp_path / "data")
    assert told["verified_a_s"] > 0
    figures = dict.fromkeys(_NAMES, 1.0)
    assert table({1_000: {**figures, **told}, 10_000: {**figures, **told}}).count("\n") == 3


def test_a_short_run_measures_every_kind_in_processes_of_their_own(tmp_path: Path) -> None:
    told = CliRunner().invoke(main, ["--dir", str(tmp_path), "--most", "1000", "--rounds", "1", "--rows", "100"])
    assert told.exit_code == 0, told.output
    assert "| 1,000 |" in told.output
