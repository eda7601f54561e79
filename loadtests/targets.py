"""What the figures must reach, and whether they did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtests.figures import Row, Spread

__all__ = ["TARGETS", "Target", "Verdict", "judge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A limit on one figure of the gateway in closed loops.

    Attributes:
        claim: the target in words.
        connections: where it is judged; None is everywhere, by the worst.
        is_floor: whether the figure must be at least `limit`; else it must be below.
    """

    claim: str
    workload: str
    figure: Callable[[Row], Spread | None]
    limit: float
    is_floor: bool
    connections: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was measured for a target, and at how many connections it was worst."""

    claim: str
    limit: float
    measured: Spread
    connections: int
    is_met: bool


TARGETS = (
    Target(
        claim="reads: share of the bare proxy's calls per second",
        workload="read",
        figure=lambda row: row.ratio,
        limit=0.8,
        is_floor=True,
    ),
    Target(
        claim="strictly journaled writes: share of the bare proxy's calls per second",
        workload="write",
        connections=64,
        figure=lambda row: row.ratio,
        limit=0.5,
        is_floor=True,
    ),
    Target(
        claim="refusal by an open breaker: median in microseconds",
        workload="refused",
        connections=1,
        figure=lambda row: row.p50_us,
        limit=1000.0,
        is_floor=False,
    ),
    Target(
        claim="refusal by an open breaker: p99 in microseconds",
        workload="refused",
        connections=1,
        figure=lambda row: row.p99_us,
        limit=1000.0,
        is_floor=False,
    ),
)


def judge(rows: Sequence[Row], *, system: str, targets: Sequence[Target] = TARGETS) -> list[Verdict]:
    """Return a verdict by the median for each target that the rows of `system` allow one for.

    Rows with problems meet nothing, however fast.
    """
    verdicts = []
    for target in targets:
        judged = [
            (spread, row)
            for row in rows
            if row.system == system and row.point.workload == target.workload and not row.point.rate
            if target.connections in (None, row.point.connections) and (spread := target.figure(row)) is not None
        ]
        if judged:
            worst = (min if target.is_floor else max)(judged, key=lambda one: one[0].median)
            verdicts.append(_verdict(target, *worst, is_proved=not any(row.problems for _, row in judged)))
    return verdicts


def _verdict(target: Target, measured: Spread, row: Row, *, is_proved: bool) -> Verdict:
    reached = measured.median >= target.limit if target.is_floor else measured.median < target.limit
    return Verdict(
        claim=target.claim,
        limit=target.limit,
        measured=measured,
        connections=row.point.connections,
        is_met=reached and is_proved,
    )
