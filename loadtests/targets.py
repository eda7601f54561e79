"""What the figures must reach, and whether they did: by ratios and differences within one round, never by absolute figures.

The one absolute limit is a refusal's CPU time, which nothing else could be measured against.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtests.figures import Point, Sample, Spread

__all__ = ["RATE", "TARGETS", "Target", "Verdict", "judge"]

RATE = 300.0
"""Calls a second of the open loop that latencies are judged in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A limit on one figure of the gateway, beside another system in the same round.

    Attributes:
        claim: the target in words.
        system, workload: what is judged; `connections` where, by the worst of them; `rate` 0 is a closed loop.
        other: the system beside it; the system itself where nothing is beside it.
        figure: of a sample, that of the other in the same round, and one sync of the disk in microseconds, at the open
            loop's rate.
        is_floor: whether the figure must be at least `limit`; else it must be at most that.
    """

    claim: str
    system: str
    workload: str
    other: str
    figure: Callable[[Sample, Sample, float], float]
    limit: float
    is_floor: bool
    connections: Sequence[int] = ()
    rate: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was measured for a target, and at how many connections it was worst."""

    claim: str
    limit: float
    measured: Spread
    connections: int
    is_met: bool


def _throughput(mine: Sample, other: Sample, sync_us: float) -> float:
    return mine.calls_per_s / max(other.calls_per_s, 1e-9)


def _more_latency(mine: Sample, other: Sample, sync_us: float) -> float:
    """What the median is above the other's, in microseconds: what both add to a direct call cancels out."""
    return mine.p50_us - other.p50_us


def _more_latency_in_syncs(mine: Sample, other: Sample, sync_us: float) -> float:
    return (mine.p50_us - other.p50_us) / max(sync_us, 1e-9)


def _throughput_target(claim: str, system: str, workload: str, other: str, limit: float) -> Target:
    return Target(
        claim=claim, system=system, workload=workload, other=other, figure=_throughput, limit=limit, is_floor=True,
        connections=(64, 256),
    )  # fmt: skip


TARGETS = (
    Target(
        claim="first milestone: reads, x the bare proxy's calls/s", system="seawall", workload="read", other="bare-asyncio",
        figure=_throughput, limit=0.8, is_floor=True, connections=(64,)),
    Target(
        claim="first milestone: strictly journaled writes, x the bare proxy's calls/s", system="seawall", workload="write",
        other="bare-asyncio", figure=_throughput, limit=0.5, is_floor=True, connections=(64,)),
    Target(
        claim="first milestone: refusal by an open breaker, median in us", system="seawall", workload="refused",
        other="seawall", figure=lambda mine, other, sync_us: mine.p50_us, limit=1000.0, is_floor=False, connections=(1,)),
    _throughput_target("strictly journaled writes, x the bare proxy's calls/s", "seawall", "write", "bare-asyncio", 2.0),
    _throughput_target("reads with no journal, x the bare proxy's calls/s", "seawall-memory", "read", "bare-asyncio", 2.8),
    _throughput_target(
        "writes with no journal, x the bare proxy's calls/s", "seawall-memory", "write", "bare-asyncio", 2.8),
    _throughput_target("strictly journaled writes, x Node http-proxy's calls/s", "seawall", "write", "node-http-proxy", 1.0),
    _throughput_target("strictly journaled writes, x mitmproxy's calls/s", "seawall", "write", "mitmproxy", 12.0),
    Target(
        claim="reads without a journal: median above Envoy's, us", system="seawall-memory", workload="read", other="envoy",
        figure=_more_latency, limit=0.0, is_floor=False, connections=(32,), rate=RATE),
    Target(
        claim="strictly journaled writes: median above Envoy's, in syncs of the disk", system="seawall", workload="write",
        other="envoy", figure=_more_latency_in_syncs, limit=2.0, is_floor=False, connections=(32,), rate=RATE),
    Target(
        claim="refusal by an open breaker: CPU time, us", system="seawall", workload="refused", other="seawall",
        figure=lambda mine, other, sync_us: mine.cpu_us, limit=35.0, is_floor=False, connections=(64, 256)),
)  # fmt: skip


def judge(samples: Sequence[Sample], *, sync_us: float, targets: Sequence[Target] = TARGETS) -> list[Verdict]:
    """Return a verdict by the median for each target that the samples allow one for.

    A sample with problems, on either side, meets nothing, however fast.
    """
    by_turn = {(sample.system, sample.point, sample.round): sample for sample in samples}
    verdicts = []
    for target in targets:
        judged: list[tuple[Spread, Point, bool]] = []
        for connections in target.connections:
            point = Point(target.workload, connections, target.rate)
            pairs = [
                (sample, by_turn[target.other, point, sample.round])
                for sample in samples
                if (sample.system, sample.point) == (target.system, point)
                and (target.other, point, sample.round) in by_turn
            ]
            if pairs:
                spread = Spread.of(target.figure(mine, other, sync_us) for mine, other in pairs)
                judged.append((spread, point, not any(one.problems for pair in pairs for one in pair)))
        if judged:
            worst = (min if target.is_floor else max)(judged, key=lambda one: one[0].median)
            verdicts.append(_verdict(target, *worst[:2], is_proved=all(is_proved for _, _, is_proved in judged)))
    return verdicts


def _verdict(target: Target, measured: Spread, point: Point, *, is_proved: bool) -> Verdict:
    reached = measured.median >= target.limit if target.is_floor else measured.median <= target.limit
    return Verdict(
        claim=target.claim,
        limit=target.limit,
        measured=measured,
        connections=point.connections,
        is_met=reached and is_proved,
    )
