"""The virtual engine: the same seed gives the same storm in any process, and nothing is lost or made up."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.storm.compare import read_run
from gateway.storm.recording import Recording
from gateway.storm.runner import run_storm
from gateway.storm.scenario import PolicySettings, load
from gateway.storm.summary import summary
from gateway.storm.virtual import simulate

pytestmark = pytest.mark.timeout(180)
ROOT = Path(__file__).parents[2]
OURS = PolicySettings()
DIGEST = """
import dataclasses
from tests.storm.test_virtual import digest, short
print(digest(short("flapping", 14.0)))
"""


def short(name: str, seconds: float, seed: int = 7) -> Recording:
    return simulate(dataclasses.replace(load(name), seconds=seconds), OURS, seed)


def digest(recording: Recording) -> str:
    return hashlib.sha256(repr(recording).encode()).hexdigest()


def test_the_same_seed_gives_the_same_storm_in_another_process() -> None:
    """Else a figure that got worse could be chance, and a report could not be made again."""
    environment = {**os.environ, "PYTHONHASHSEED": "123", "PYTHONPATH": str(ROOT)}
    told = subprocess.run(
        [sys.executable, "-c", DIGEST], capture_output=True, text=True, check=True, env=environment, cwd=ROOT
    )
    assert told.stdout.strip() == digest(short("flapping", 14.0))


def test_another_seed_gives_another_storm() -> None:
    assert digest(short("flapping", 3.0, seed=1)) != digest(short("flapping", 3.0, seed=2))


def test_every_call_ends_exactly_once_and_after_it_was_due() -> None:
    recording = short("trip", 12.0)
    assert len(recording.calls) == pytest.approx(1200, abs=1)
    assert all(due <= end for due, end, *_ in recording.calls.rows())
    answered = sum(outcome == "success" for outcome in recording.calls.outcome)
    assert answered <= len(recording.attempts)


def test_a_recording_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    recording = short("trip", 7.0)
    path = tmp_path / "events.gz"
    recording.save(path)
    again = Recording.read(path)
    assert again.calls.outcome == recording.calls.outcome
    assert again.moves.state == recording.moves.state
    assert again.attempts.at == pytest.approx(recording.attempts.at, abs=1e-6)
    again.save(tmp_path / "again.gz")
    assert (tmp_path / "again.gz").read_bytes() == path.read_bytes()


def test_an_agent_that_insists_waits_as_long_as_it_is_told() -> None:
    """Its second call is due when it makes it, so that the pause counts as nobody's latency."""
    scenario = load("outage")
    (load_of,) = scenario.load
    patient = dataclasses.replace(load_of, insists=1, pause=0.5, agents=1, rate=0.25, start=5.0, end=14.0)
    recording = simulate(dataclasses.replace(scenario, seconds=20.0, load=(patient,)), OURS, 1)
    rows = sorted(recording.calls.rows())
    assert len(rows) == 4
    assert [rows[1][0] - rows[0][1], rows[3][0] - rows[2][1]] == pytest.approx([0.5, 0.5])


def test_storms_side_by_side_are_the_storms_one_after_the_other(tmp_path: Path) -> None:
    """Processes only save time."""
    scenario = dataclasses.replace(load("trip"), seconds=12.0)
    alone = run_storm(scenario, seeds=(1, 2), out=tmp_path / "alone")
    together = run_storm(scenario, seeds=(1, 2), out=tmp_path / "together", jobs=2)
    assert together.by_seed == alone.by_seed
    assert together.verdicts == alone.verdicts
    for path in (tmp_path / "alone" / "events").iterdir():
        assert (tmp_path / "together" / "events" / path.name).read_bytes() == path.read_bytes()


def test_progress_is_told() -> None:
    shares: list[float] = []
    simulate(dataclasses.replace(load("trip"), seconds=2.0), OURS, 1, shares.append)
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert len(shares) > 90


def test_a_report_says_how_fast_its_storms_were_simulated(tmp_path: Path) -> None:
    """Calls, requests and processor time of every policy and seed; machine-dependent, so no figure and no claim."""
    run = run_storm(dataclasses.replace(load("trip"), seconds=6.0), seeds=(1, 2), out=tmp_path)
    figures = [one for found in run.by_seed.values() for one in found]
    assert run.pace.calls == sum(one["calls"] for one in figures)
    assert run.pace.requests == sum(one["attempts"] for one in figures)
    assert run.pace.cpu_s > 0
    assert run.pace.seconds > 0
    assert f"{run.pace.calls:,} calls and {run.pace.requests:,} requests" in summary(read_run(tmp_path))
