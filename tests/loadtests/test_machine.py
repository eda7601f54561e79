from pathlib import Path

from loadtests.machine import facts, fdatasync_us


def test_the_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    p50_us, p99_us = fdatasync_us(tmp_path)
    assert 0 < p50_us <= p99_us
    assert list(tmp_path.iterdir()) == []


def test_syncs_at_random_times_are_measured_alone(tmp_path: Path) -> None:
    """What passes between two is no part of them: 500 of a tenth of a millisecond take no second."""
    p50_us, _ = fdatasync_us(tmp_path, per_s=10_000)
    assert 0 < p50_us < 1e5


def test_the_facts_hold_no_paths_of_the_machine(tmp_path: Path) -> None:
    """They are published with the figures."""
    told = facts(tmp_path)
    assert told["packages"]
    assert not [word for value in told.values() for word in str(value).split() if word.startswith("/") or "=/" in word]
