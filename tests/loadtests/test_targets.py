from dataclasses import replace
from functools import partial

from loadtests.figures import Point, Sample
from loadtests.targets import RATE, TARGETS
from loadtests.targets import judge as judge_all
from tests.loadtests.test_figures import sample

STRICT = [target for target in TARGETS if not target.claim.startswith("first milestone")]
judge = partial(judge_all, targets=STRICT)


def one(
    system: str, workload: str, connections: int, calls_per_s: float, *, round: int = 1, rate: float = 0.0
) -> Sample:
    return replace(sample(system, round, calls_per_s), point=Point(workload, connections, rate))


def pair(mine: float, other: float, connections: int = 64, round: int = 1) -> list[Sample]:
    return [
        one("seawall", "write", connections, mine, round=round),
        one("bare-asyncio", "write", connections, other, round=round),
    ]


def test_a_target_for_several_loads_is_judged_by_the_worst() -> None:
    (verdict,) = judge(pair(300, 100) + pair(150, 100, 256), sync_us=100)
    assert (verdict.connections, verdict.measured.median, verdict.is_met) == (256, 1.5, False)


def test_systems_are_compared_within_a_round() -> None:
    """A machine that is twice as slow in one round is twice as slow for both."""
    (verdict,) = judge(pair(200, 100) + pair(100, 50, round=2), sync_us=100)
    assert (verdict.measured.low, verdict.measured.high, verdict.is_met) == (2.0, 2.0, True)


def test_latency_is_judged_beside_envoys_in_syncs_of_the_disk() -> None:
    point = Point("write", 32, RATE)
    samples = [replace(sample(name, 1, 300, p50), point=point) for name, p50 in (("seawall", 700.0), ("envoy", 400.0))]
    assert [verdict.is_met for verdict in judge(samples, sync_us=150)] == [True]
    assert [verdict.is_met for verdict in judge(samples, sync_us=149)] == [False]


def test_a_fast_wrong_answer_meets_nothing() -> None:
    """A gateway that skips its journal would win every race, and so would one beside a proxy that drops calls."""
    mine, other = pair(300, 100)
    for samples in ([replace(mine, problems=("no intents",)), other], [mine, replace(other, problems=("lost",))]):
        assert [verdict.is_met for verdict in judge(samples, sync_us=100)] == [False]


def test_what_was_not_measured_gets_no_verdict() -> None:
    assert judge(pair(300, 100)[:1], sync_us=100) == []
    assert judge(pair(300, 100, connections=16), sync_us=100) == []


def test_the_targets_of_the_project_are_all_judged() -> None:
    systems = ("seawall", "seawall-memory", "bare-asyncio", "node-http-proxy", "mitmproxy", "envoy")
    samples = [
        one(system, workload, connections, 100, rate=rate)
        for system in systems
        for workload in ("read", "write", "refused")
        for connections, rate in ((1, 0.0), (64, 0.0), (256, 0.0), (32, RATE))
    ]
    assert len(judge_all(samples, sync_us=100)) == len(TARGETS)
