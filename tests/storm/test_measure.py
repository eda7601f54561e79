"""Figures by hand: what the words of a report mean."""

from __future__ import annotations

import math

import pytest

from gateway.storm.measure import measure, percentile, recovery_s, spread_of
from gateway.storm.recording import Recording
from gateway.storm.scenario import FaultSettings, Scenario

SCENARIO = Scenario(
    name="s", title="t", seconds=20.0, faults=(FaultSettings(tool="a", kind="down", start=5.0, end=10.0),)
)


def recording(good: list[float], bad: list[float]) -> Recording:
    made = Recording()
    for due in sorted(good + bad):
        made.calls.add(due, due + 0.01, "a", "agent-0", "success" if due in good else "failed:connect")
        made.attempts.add(due, "a", 1, 0, 0)
    return made


def seconds(start: int, end: int) -> list[float]:
    return [start + tenth / 10 for tenth in range((end - start) * 10)]


def test_recovery_is_the_first_call_from_which_on_three_seconds_succeed() -> None:
    made = recording(seconds(0, 5) + seconds(12, 20), seconds(5, 12))
    assert recovery_s(made, 10.0, 20.0) == pytest.approx(2.0)
    assert measure(made, SCENARIO)["retained"] == pytest.approx(1.0)


def test_what_succeeds_only_now_and_then_has_not_recovered() -> None:
    made = recording(seconds(10, 20)[::2], seconds(10, 20)[1::2])
    assert recovery_s(made, 10.0, 20.0) == math.inf


def test_amplification_counts_requests_for_each_call_in_each_phase() -> None:
    made = recording(seconds(0, 5), seconds(5, 10))
    for at in seconds(5, 10):
        made.attempts.add(at + 0.02, "a", 2, 3, 0)
    figures = measure(made, SCENARIO)
    assert figures["amplification"] == pytest.approx(1.5)
    assert figures["before"]["amplification"] == pytest.approx(1.0)
    assert figures["during"]["amplification"] == pytest.approx(2.0)
    assert figures["during"]["max_queue"] == 3
    assert figures["repeats"]["count"] == 50


def test_a_peak_is_the_busiest_bin_as_a_rate() -> None:
    made = Recording()
    for at in (1.0, 1.0004, 1.0008, 1.0015, 3.0):
        made.attempts.add(at, "a", 2, 0, 0)
    peaks = measure(made, SCENARIO)["repeats"]
    assert peaks["peak_per_s"] == {"ms1": 3000.0, "ms2": 2000.0, "ms10": 400.0, "ms100": 40.0, "ms1000": 4.0}
    assert peaks["mean_per_s"] == pytest.approx(2.5)


def test_kills_and_ledgers_are_figures_too() -> None:
    made = recording(seconds(0, 20), [])
    made.toll = {"effects": 201, "doubled": 1, "lost": 0, "unclaimed": 2}
    for at, back_s in ((5.0, 0.4), (8.0, 0.6), (9.0, 2.0)):
        made.kills.add(at, 0, back_s)
    figures = measure(made, SCENARIO)
    assert figures["toll"] == made.toll
    assert figures["kills"] == 3
    assert (figures["back_p50_ms"], figures["back_max_ms"]) == (600.0, 2000.0)
    assert figures["goodput_peak_per_s"] == 10


def test_percentiles_and_spreads() -> None:
    assert percentile([1, 2, 3, 4], 0.5) == 2
    assert percentile([1, 2, 3, 4], 0.99) == 4
    assert percentile([], 0.5) == 0
    assert spread_of([3, 1, 2]) == (2, 1, 3)
