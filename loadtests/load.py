"""What the generator is told to offer, when each call is due, and what it reports.

Closed loop: a connection calls again as soon as it has its answer, until time or calls are used up. Open loop: calls are
due at the times of a Poisson process whatever the system does, and a latency counts from the time the call was due, so a
stall is not hidden by calls that were never made (G. Tene, "How not to measure latency": coordinated omission).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from loadtests.figures import Histogram

__all__ = ["Load", "Tally", "due_times"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to offer.

    Attributes:
        prefix: path in front of every target.
        first: number of the first call; the next load begins `Tally.sent` later.
        seconds, calls: ends at whichever comes first; the calls that open the connections are not counted in either.
        rate: calls per second of an open loop; 0 is a closed loop.
        pids: the processes of the system, whose CPU time is taken.
        own_pids: all processes of the benchmark; what others use meanwhile is told apart.
    """

    port: int
    workload: str
    prefix: str = ""
    connections: int = 1
    first: int = 0
    seconds: float = 3600.0
    calls: int = sys.maxsize
    rate: float = 0.0
    calls_per_run: int = 20
    pids: tuple[int, ...] = ()
    own_pids: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class Tally:
    """What came of it. `sent` counts every call, those that opened the connections included; `calls` the measured ones."""

    sent: int = 0
    calls: int = 0
    wrong: int = 0
    seconds: float = 0.0
    cpu_ns: int = 0
    foreign_ns: int = 0
    latencies_ns: dict[int, int] = field(default_factory=dict)
    problem: str = ""

    @property
    def histogram(self) -> Histogram:
        """The latencies of the measured calls."""
        return Histogram(self.latencies_ns)


def due_times(load: Load, start_ns: int) -> Iterator[int]:
    """Yield when the calls of an open loop are due; the same gaps for the same load.

    Source: gaps of a Poisson process are exponential with mean 1/rate.
    """
    gaps = random.Random(load.first)
    due_s = gaps.expovariate(load.rate)
    for _ in range(load.calls):
        if due_s >= load.seconds:
            return
        yield start_ns + round(due_s * 1e9)
        due_s += gaps.expovariate(load.rate)
