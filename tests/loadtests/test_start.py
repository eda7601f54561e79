"""The measurement of a whole start measures what it says, small."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from loadtests.recovery import IN_FLIGHT, fill
from loadtests.start import manifest, measure, start_once


@pytest.mark.parametrize("has_drifted", [False, True])
def test_every_open_run_is_classified_when_the_gateway_says_that_it_is_ready(
    tmp_path: Path, *, has_drifted: bool
) -> None:
    """Before any work goes on: what is to be finished is not in flight again, and nothing that drifted is touched."""
    row = measure(tmp_path, 40, 10, 2, has_drifted=has_drifted)
    assert row["is_classified"], row
    assert (row["finished_runs"], row["open_runs"]) == (40, 10)
    assert row["alive_ms"]
    assert row["ready_ms"]


def test_a_gateway_that_cannot_start_is_named_not_waited_for(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "data", 0, 1, [IN_FLIGHT]))
    path = manifest(tmp_path, 9, tool="pay")
    path.write_text("version: 2\n")
    with pytest.raises(RuntimeError, match="version"):
        start_once(tmp_path / "data", path)
