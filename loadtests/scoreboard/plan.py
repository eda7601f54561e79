"""Which fault falls into which turn: drawn once, before anything runs, the same for every configuration.

Each turn is faulty with 20 % (drop 8, exception 6, kill 4, format 2). A drop loses the request before the tool acted or its
answer after, with even chances; a quarter of the exceptions are raised after the tool acted; a kill strikes before the tool
acts, after it, or after it has answered. One exception in twenty is no accident: the tool says that it is out of capacity,
and goes on saying so, whatever is repaired.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["RATES", "TURNS", "Fault", "Kind", "Moment", "plan"]

TURNS = 9


class Kind(StrEnum):
    """What goes wrong in a turn."""

    DROP = "drop"
    EXCEPTION = "exception"
    KILL = "kill"
    FORMAT = "format"
    CAPACITY = "capacity"


class Moment(StrEnum):
    """When it goes wrong, as the tool sees it."""

    BEFORE = "before"
    APPLIED = "applied"
    ANSWERED = "answered"


RATES: Mapping[Kind, float] = {Kind.DROP: 0.08, Kind.EXCEPTION: 0.06, Kind.KILL: 0.04, Kind.FORMAT: 0.02}
_LASTING_SHARE = 0.05
_APPLIED_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one turn."""

    kind: Kind
    moment: Moment = Moment.BEFORE


def plan(runs: int, seed: int) -> dict[tuple[int, int], Fault]:
    """Return the faults by (run, turn)."""
    source = random.Random(f"scoreboard/{seed}")
    faults = {}
    for run in range(runs):
        for turn in range(TURNS):
            fault = _drawn(source)
            if fault is not None:
                faults[run, turn] = fault
    return faults


def _drawn(source: random.Random) -> Fault | None:
    draw, moment = source.random(), source.random()
    for kind, rate in RATES.items():
        if draw < rate:
            return _at(kind, moment, source)
        draw -= rate
    return None


def _at(kind: Kind, moment: float, source: random.Random) -> Fault:
    match kind:
        case Kind.DROP:
            return Fault(kind, Moment.BEFORE if moment < 0.5 else Moment.APPLIED)
        case Kind.EXCEPTION if source.random() < _LASTING_SHARE:
            return Fault(Kind.CAPACITY)
        case Kind.EXCEPTION:
            return Fault(kind, Moment.APPLIED if moment < _APPLIED_SHARE else Moment.BEFORE)
        case Kind.KILL:
            return Fault(kind, (Moment.BEFORE, Moment.APPLIED, Moment.ANSWERED)[int(moment * 3)])
        case _:
            return Fault(kind)
