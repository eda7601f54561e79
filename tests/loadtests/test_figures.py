import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.figures import Histogram, Point, Sample, Spread, summarise

POINT = Point("read", 64)


def sample(system: str, round: int, calls_per_s: float, p50_us: float = 100.0, *problems: str) -> Sample:
    return Sample(
        system=system,
        point=POINT,
        round=round,
        calls=10,
        calls_per_s=calls_per_s,
        p50_us=p50_us,
        p99_us=2 * p50_us,
        cpu_us=50.0,
        rss_mib=40.0,
        foreign_cores=0.0,
        problems=problems,
    )


def test_percentiles_of_small_numbers_are_exact() -> None:
    histogram = Histogram()
    for value in range(1, 101):
        histogram.record(value)
    assert [histogram.percentile(share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]


def test_an_empty_histogram_has_no_percentiles() -> None:
    assert math.isnan(Histogram().percentile(0.5))


@given(st.lists(st.integers(0, 10**12), min_size=1), st.floats(0, 1))
def test_any_percentile_is_within_a_hundredth(values: list[int], share: float) -> None:
    """The error bound that the documentation states, for every number and share."""
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    exact = sorted(values)[max(1, math.ceil(share * len(values))) - 1]
    assert histogram.percentile(share) == pytest.approx(exact, rel=0.008)


def test_ratios_are_taken_within_each_round() -> None:
    """The machine slowed down to a half in round 2: paired ratios do not notice, a ratio of medians would."""
    rows = summarise(
        [
            sample("bare", 1, 1000), sample("seawall", 1, 900),
            sample("seawall", 2, 450), sample("bare", 2, 500),
            sample("bare", 3, 1000), sample("seawall", 3, 1100),
        ],
        base="bare",
        direct="direct",
    )  # fmt: skip
    assert [row.system for row in rows] == ["bare", "seawall"]
    assert rows[0].ratio == Spread(1, 1, 1)
    assert rows[1].ratio == Spread(0.9, 0.9, 1.1)
    assert rows[1].calls_per_s == Spread(900, 450, 1100)
    assert rows[1].calls == 30


def test_added_latency_is_over_the_direct_call_of_the_same_round() -> None:
    (_, row) = summarise(
        [sample("direct", 1, 1, 20.0), sample("seawall", 1, 1, 120.0), sample("seawall", 2, 1, 999.0)],
        base="bare",
        direct="direct",
    )
    assert row.added_p50_us == Spread(100, 100, 100)
    assert row.added_p99_us == Spread(200, 200, 200)


def test_nothing_compares_without_the_other_system() -> None:
    (row,) = summarise([sample("seawall", 1, 900)], base="bare", direct="direct")
    assert row.ratio is None
    assert row.added_p50_us is None


def test_problems_of_all_rounds_are_kept_once() -> None:
    (row,) = summarise(
        [sample("seawall", 1, 1, 1.0, "lost"), sample("seawall", 2, 1, 1.0, "lost", "twice")], base="", direct=""
    )
    assert row.problems == ("lost", "twice")


def test_a_system_that_answered_nothing_is_no_measure_for_others() -> None:
    (_, row) = summarise([replace(sample("bare", 1, 0.0), calls=0), sample("seawall", 1, 900)], base="bare", direct="")
    assert row.ratio is None
