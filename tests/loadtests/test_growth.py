"""Nothing that there may be more of makes a call dearer: counted in instructions, so that a busy machine changes nothing."""

from __future__ import annotations

import pytest

from loadtests.growth import AXES, Count, counts_at, grown, table


@pytest.mark.parametrize(("axis", "few", "many"), [("journal", 1000, 5000), ("tools", 10, 200), ("runs", 1, 3000)])
async def test_a_call_costs_the_same_however_much_there_is(axis: str, few: int, many: int) -> None:
    """What would grow with the logarithm is found here, too: each of these is some times more."""
    counts = [one for size in (few, many) for one in await counts_at(axis, size, 80)]
    assert not grown(counts), table(counts)


def test_growth_is_told_in_words_and_in_the_table() -> None:
    counts = [Count("tools", 10, "read", 1000.0), Count("tools", 5000, "read", 1051.0)]
    assert grown(counts) == ["read at 5,000 tools in the manifest: +5.1%"]
    assert "| tools in the manifest | 5,000 | read | 1,051 | +5.1% |" in table(counts)
    assert not grown(counts, limit=0.06)


def test_the_sizes_are_those_that_are_promised() -> None:
    assert {name: (axis.sizes[0], axis.sizes[-1]) for name, axis in AXES.items()} == {
        "journal": (1000, 10_000_000),
        "tools": (10, 5000),
        "runs": (1, 100_000),
    }
