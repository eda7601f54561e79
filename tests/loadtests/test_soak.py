"""The soak offers every kind of call, ends every run, and tells growth from what comes and goes."""

import json
from collections import Counter
from pathlib import Path

from click.testing import CliRunner

from loadtests.soak import BEGIN, END, Sight, Soak, main, table


def seen(rss: list[int], files: list[int] | None = None) -> Soak:
    files = files or [40] * len(rss)
    return Soak(seen=[Sight(10.0 * n, one, files[n], 100 * n) for n, one in enumerate(rss)])


def test_memory_that_fills_up_at_first_has_not_grown() -> None:
    found = seen([80, 95, 99, 100, 100, 101, 100, 101])
    assert found.growth < 0.05
    assert found.is_good


def test_memory_that_goes_on_growing_has() -> None:
    found = seen([100, 110, 120, 130, 140, 150, 160, 170])
    assert found.growth > 0.2
    assert not found.is_good


def test_open_files_that_add_up_are_found() -> None:
    assert not seen([100] * 8, files=[40, 50, 60, 70, 80, 90, 100, 110]).is_good
    assert seen([100] * 8, files=[40, 44, 39, 50, 41, 48, 44, 40]).is_good


def test_a_wrong_answer_is_not_good() -> None:
    found = seen([100] * 8)
    found.wrong.append("write: 500")
    assert not found.is_good


def test_the_table_shows_a_dozen_moments_and_the_verdict() -> None:
    found = seen([100 << 20] * 120)
    found.calls = Counter(read=3, abort=1)
    lines = table(found).splitlines()
    assert lines[2] == "| 1.5 | 900 | 100.0 | 40 |"
    assert len(lines) == 2 + 12 + 2
    assert lines[-1].endswith("No wrong answers. Calls: 1 abort, 3 read.")


def test_a_short_one_has_every_kind_of_call_and_no_wrong_answer(tmp_path: Path) -> None:
    """Whether memory is flat takes an hour to tell; what is tested is that the load is what it says."""
    page = tmp_path / "page.md"
    figures = tmp_path / "figures.json"
    page.write_text(f"before\n{BEGIN}{END}\nafter\n")
    ran = CliRunner().invoke(
        main,
        [
            "--minutes",
            "0.05",
            "--every",
            "0.5",
            "--data",
            str(tmp_path),
            "--markdown",
            str(page),
            "--json",
            str(figures),
        ],
    )
    assert json.loads(figures.read_text())["calls"]["read"] > 0
    assert "No wrong answers" in ran.output
    for kind in ("read", "write", "large", "stream", "refused", "commit"):
        assert f" {kind}" in ran.output.partition("Calls:")[2], ran.output
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("\nafter\n")
