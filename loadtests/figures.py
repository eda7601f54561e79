"""From latencies to figures: a histogram, medians with their range, and what each system costs beside the others.

Absolute numbers drift with the machine, so systems are compared within one round, where each had the same neighbours a
moment apart, and the figure quoted is the median of the rounds' ratios with the lowest and highest beside it.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Histogram", "Point", "Row", "Sample", "Spread", "summarise"]

_MANTISSA_BITS = 8  # 128 steps to each power of two: a bucket is at most 1/128 wide, 0.8 % of its value


class Histogram:
    """Counts of whole numbers (nanoseconds here), exact below 256 and within 0.8 % above, in bounded memory.

    Source: G. Tene, HdrHistogram: linear steps within each power of two.
    """

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts: Counter[int] = Counter(counts or {})

    def record(self, value: int) -> None:
        """Count one value, at least 0."""
        shift = max(0, value.bit_length() - _MANTISSA_BITS)
        self.counts[(shift << (_MANTISSA_BITS - 1)) + (value >> shift)] += 1

    def percentile(self, share: float) -> float:
        """Return the value that `share` (0 to 1) of the recorded ones do not exceed; nan if there are none."""
        rank = max(1, math.ceil(share * self.counts.total()))
        for bucket, count in sorted(self.counts.items()):
            rank -= count
            if rank <= 0:
                return _middle(bucket)
        return math.nan


def _middle(bucket: int) -> float:
    shift = max(0, (bucket >> (_MANTISSA_BITS - 1)) - 1)
    return ((bucket - (shift << (_MANTISSA_BITS - 1))) << shift) + ((1 << shift) - 1) / 2


@dataclass(frozen=True, slots=True)
class Point:
    """Under which load something was measured. `rate` 0 is a closed loop: each connection calls again when answered."""

    workload: str
    connections: int
    rate: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One system under one load in one round.

    Attributes:
        cpu_us: CPU time of the system's process tree per call.
        foreign_cores: cores that processes outside of the benchmark kept busy meanwhile.
        syncs: how often the disk was synced for a write, where each must be on it before it is answered; else None.
        problems: what was wrong with the answers, the ledger or the journal; a sample with any counts for nothing.
    """

    system: str
    point: Point
    round: int
    calls: int
    calls_per_s: float
    p50_us: float
    p99_us: float
    cpu_us: float
    rss_mib: float
    foreign_cores: float
    syncs: float | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and the lowest and highest value it came from."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Return the spread of at least one value."""
        known = sorted(values)
        return cls(statistics.median(known), known[0], known[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One system under one load, over all rounds. `ratio` and the added latencies are None where nothing compares."""

    system: str
    point: Point
    calls: int
    calls_per_s: Spread
    p50_us: Spread
    p99_us: Spread
    cpu_us: Spread
    rss_mib: Spread
    foreign_cores: Spread
    ratio: Spread | None
    added_p50_us: Spread | None
    added_p99_us: Spread | None
    problems: tuple[str, ...]


def summarise(samples: Sequence[Sample], *, base: str, direct: str) -> list[Row]:
    """Return a row for each system and load, in order of first appearance.

    Ratios are of calls per second to those of system `base`, added latencies are over system `direct`, both taken within
    each round.
    """
    groups: dict[tuple[Point, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.point, sample.system), []).append(sample)
    return [
        _row(mine, groups.get((point, base), []), groups.get((point, direct), []))
        for (point, _), mine in groups.items()
    ]


def _row(mine: Sequence[Sample], base: Sequence[Sample], direct: Sequence[Sample]) -> Row:
    def own(figure: Callable[[Sample], float]) -> Spread:
        return Spread.of(map(figure, mine))

    return Row(
        system=mine[0].system,
        point=mine[0].point,
        calls=sum(sample.calls for sample in mine),
        calls_per_s=own(lambda sample: sample.calls_per_s),
        p50_us=own(lambda sample: sample.p50_us),
        p99_us=own(lambda sample: sample.p99_us),
        cpu_us=own(lambda sample: sample.cpu_us),
        rss_mib=own(lambda sample: sample.rss_mib),
        foreign_cores=own(lambda sample: sample.foreign_cores),
        ratio=_paired(mine, base, lambda one, other: one.calls_per_s / other.calls_per_s),
        added_p50_us=_paired(mine, direct, lambda one, other: one.p50_us - other.p50_us),
        added_p99_us=_paired(mine, direct, lambda one, other: one.p99_us - other.p99_us),
        problems=tuple(dict.fromkeys(problem for sample in mine for problem in sample.problems)),
    )


def _paired(
    mine: Sequence[Sample], others: Sequence[Sample], compare: Callable[[Sample, Sample], float]
) -> Spread | None:
    by_round = {sample.round: sample for sample in others if sample.calls}
    values = [compare(sample, by_round[sample.round]) for sample in mine if sample.round in by_round]
    return Spread.of(values) if values else None
