"""Millions of calls in seconds: what a simulated call costs is counted, since a time would be the machine's."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from loadtests import limits
from loadtests.storm_pace import KIND, SCENARIO, count, main, timed

pytestmark = pytest.mark.timeout(180)


def test_a_simulated_call_costs_no_more_than_is_recorded() -> None:
    counted = {SCENARIO: count(SCENARIO)}
    assert not limits.judge(counted, limits.load(KIND), limits.version(), kind=KIND)


def test_as_many_calls_as_asked_for_are_simulated_and_their_time_is_told() -> None:
    pace = timed("trip", 10_000, 2)
    assert pace.calls == 10_000
    assert pace.jobs == 2
    assert pace.seconds > 0


def test_the_command_says_calls_and_seconds_and_fails_where_they_are_too_many() -> None:
    slow = CliRunner().invoke(main, ["trip", "--calls", "5000", "--jobs", "1", "--within", "0"])
    assert "5,000 calls and 2," in slow.output
    assert slow.exit_code == 1
    fast = CliRunner().invoke(main, ["trip", "--calls", "5000", "--jobs", "1", "--within", "60"])
    assert fast.exit_code == 0
