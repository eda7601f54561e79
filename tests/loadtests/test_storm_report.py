"""`make storm`: what it runs, how long it says it takes, and that a part that fails does not keep others from running."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.storm.scenario import load, shipped
from loadtests.storm_report import Part, left_s, parts, run_all
from loadtests.storms import live_policies


def test_the_whole_report_takes_half_an_hour_on_two_quiet_cores(tmp_path: Path) -> None:
    """By the plan that the estimate is made of; the parts say what they really took."""
    planned = parts(runs=1000, kills=82, seeds=5, jobs=2, out=tmp_path)
    assert [part.name for part in planned] == ["scoreboard", "crashes", "baselines", "journal", "storms"]
    assert 15 * 60 < sum(part.quiet_s for part in planned) < 35 * 60


def test_only_the_storms_of_one_scenario(tmp_path: Path) -> None:
    (part,) = parts(runs=1000, kills=82, seeds=5, jobs=2, out=tmp_path, only=["trip"])
    assert part.arguments[-1] == "--only=trip"


def test_a_part_that_fails_does_not_keep_the_others_from_running(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An hour of work must not be lost to its first claim that does not hold."""
    mark = tmp_path / "ran"
    planned = [
        Part("first", ("-c", "raise SystemExit(1)"), 60.0),
        Part("second", ("-c", f"open({str(mark)!r}, 'w')"), 30.0),
    ]
    assert asyncio.run(run_all(planned)) == ["first"]
    assert mark.exists()
    said = capsys.readouterr().err
    assert "[1/2] first: about 1 min 30 s left" in said
    assert "FAILED" in said


def test_what_is_left_is_estimated_by_what_the_parts_so_far_have_taken() -> None:
    planned = [600.0, 300.0, 900.0]
    assert left_s(planned, [], 0.0) == 1800.0
    assert left_s(planned, [], 60.0) == 1740.0
    slow = left_s(planned, [1200.0], 0.0)
    assert 1.8 * 1200 < slow < 2 * 1200
    assert left_s(planned, [1200.0], 10_000.0) == pytest.approx(900.0 * slow / 1200)
    assert left_s(planned, planned, 0.0) == 0.0


def test_live_storms_play_the_policies_that_a_claim_speaks_of() -> None:
    """The defaults of peers are for virtual time: a minute each on real sockets proves nothing that is claimed."""
    assert live_policies(load("outage")) == ("naive",)
    assert live_policies(load("bulkhead")) == ("shared", "bulkhead_alone")
    for name in shipped():
        scenario = load(name)
        if "live" in scenario.engines:
            assert scenario.holds_live, name
            spoken = {
                policy for policy in scenario.policies if any(f"{policy}." in claim for claim in scenario.holds_live)
            }
            assert spoken == set(live_policies(scenario)), (
                f"{name} claims something of a policy that it cannot play live"
            )
