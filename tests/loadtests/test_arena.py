from pathlib import Path

import pytest

from loadtests.arena import Arena, Plan
from loadtests.figures import Point
from loadtests.peers import PEERS
from loadtests.process import Cores
from loadtests.syncs import syncs_can_be_counted
from loadtests.systems import SYSTEMS


def test_every_other_round_goes_backwards_through_the_systems() -> None:
    """Whoever comes first may find a colder or quieter machine; in turn, everyone does."""
    systems = [SYSTEMS["direct"], SYSTEMS["bare-uvloop"]]
    plan = Plan(systems=systems, connections=[1], rate=0.0, rounds=2, seconds=1.0)
    reads = [(number, system.name) for number, point, system in plan.turns() if point == Point("read", 1)]
    assert reads == [
        (0, "bare-uvloop"), (0, "direct"), (1, "direct"), (1, "bare-uvloop"), (2, "bare-uvloop"), (2, "direct"),
    ]  # fmt: skip


def test_only_systems_that_refuse_are_asked_for_refusals() -> None:
    plan = Plan(systems=list(SYSTEMS.values()), connections=[1], rate=300.0, rounds=1, seconds=1.0)
    assert {system.name for _, point, system in plan.turns() if point.workload == "refused"} == {
        "seawall",
        "seawall-memory",
    }
    assert Point("refused", 32, 300.0) in plan.points()


def test_a_sample_is_measured_and_proved_on_sockets(tmp_path: Path) -> None:
    """Generator, tool and proxy together, by a few calls: the whole path that a benchmark takes."""
    systems = [SYSTEMS["direct"], SYSTEMS["bare-uvloop"]]
    with Arena(systems, tmp_path, Cores()) as arena:
        for system in systems:
            for point in (Point("read", 2), Point("write", 3), Point("write", 2, 1000.0)):
                sample = arena.sample(system, point, seconds=10.0, calls=20)
                assert (sample.problems, sample.calls) == ((), 20)
                assert sample.calls_per_s > 0
                assert 0 < sample.p50_us <= sample.p99_us
                assert sample.rss_mib > 1


@pytest.mark.timeout(180)
def test_every_peer_that_is_installed_carries_every_load_it_says(tmp_path: Path) -> None:
    """Few calls each, TLS, 64 KiB and streams included, all proved: syncs of the disk, and in the end the chain of seals."""
    systems = [system for system in (*SYSTEMS.values(), *PEERS.values()) if system.lacks() is None]
    with Arena(systems, tmp_path, Cores()) as arena:
        for system in systems:
            for workload in system.prefixes:
                sample = arena.sample(system, Point(workload, 2), seconds=20.0, calls=10)
                assert (sample.problems, sample.calls) == ((), 10), (system.name, workload)
                if system.is_strict and workload == "write" and syncs_can_be_counted():
                    assert sample.syncs is not None
                    assert sample.syncs >= 1
    assert arena.verdicts() == {}
