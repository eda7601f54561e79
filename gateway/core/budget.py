"""What a run may spend, what it has spent, and whether another call fits.

    tokens, usd     reported, or read from answers; usd also by the declared price of an operation
    calls, steps    counted as they leave: every call; calls that change something
    retries         attempts beyond the first, the gateway's own and the agent's of an action that failed
    seconds         since the run was opened

A call is admitted while nothing is spent up, and takes what is known of its price at once; what only its answer tells is
added then. So a cap is exceeded by no more than the calls in flight when it is reached, and calls, steps and retries not at
all. Caps can be lowered during a run, never raised: an agent cannot write itself a cheque.

Figures are plain numbers in the units above. Nothing here reads a clock.

Source: seed 003, section 2 (caps travel with the task) and section 4 (timeout budgets); seed 000, gate 2 (reserve).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = [
    "REPORTABLE",
    "RESOURCES",
    "Meter",
    "Spent",
    "caps_from",
    "caps_of_header",
    "is_amount",
    "shown",
    "tightened",
    "usage_from",
]

RESOURCES: Final = ("tokens", "usd", "calls", "steps", "seconds", "retries")
REPORTABLE: Final = ("tokens", "usd", "calls", "retries")
"""What an agent may report on top of what the gateway sees."""

WARN_AT: Final = 0.8
"""Share of a cap from which on the agent is told."""

AMOUNT_MOST: Final = 1e15


def is_amount(value: object) -> bool:
    """Whether a value is a finite number from 0 on that a budget can be counted in."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= AMOUNT_MOST


def caps_from(value: object) -> dict[str, float] | list[str]:
    """Return caps from JSON, or what is wrong with them. A cap of 0 lets nothing of it be spent; null is no cap."""
    return _amounts(value, RESOURCES, "a cap")


def usage_from(value: object) -> dict[str, float] | list[str]:
    """Return reported usage from JSON, or what is wrong with it."""
    return _amounts(value, REPORTABLE, "an amount")


def _amounts(value: object, names: tuple[str, ...], what: str) -> dict[str, float] | list[str]:
    if not isinstance(value, Mapping):
        return [f"must be an object of {', '.join(names)}"]
    problems = [f"{name!r} is not one of {', '.join(names)}" for name in value if name not in names]
    problems += [
        f"{name}: {what} is a number from 0 on" for name, one in value.items() if one is not None and not is_amount(one)
    ]
    return problems or {str(name): float(one) for name, one in value.items() if one is not None}


def caps_of_header(text: str) -> dict[str, float] | list[str]:
    """Return the caps of a `Seawall-Budget` field (`usd=0.5, tokens=250000`), or what is wrong with it."""
    caps: dict[str, object] = {}
    for part in text.split(","):
        name, sign, number = part.partition("=")
        try:
            caps[name.strip()] = float(number)
        except ValueError:
            return [f"{part.strip()[:40]!r} is not like usd=0.5"]
        if not sign:
            return [f"{part.strip()[:40]!r} is not like usd=0.5"]
    return caps_from(caps)


def tightened(caps: Mapping[str, float], wanted: Mapping[str, float]) -> dict[str, float]:
    """Return those of the wanted caps that are lower than what holds, or new."""
    return {name: cap for name, cap in wanted.items() if cap < caps.get(name, math.inf)}


@dataclass(frozen=True, slots=True)
class Spent:
    """A budget that is spent."""

    name: str
    used: float
    cap: float


class Meter:
    """What one run has spent. `used` counts calls in flight as spent."""

    __slots__ = ("caps", "opened_at", "used")

    def __init__(self, caps: Mapping[str, float], used: Mapping[str, float], opened_at: int) -> None:
        """`caps` may be lowered later on, by whoever holds it; `opened_at`: UTC milliseconds, 0: not yet."""
        self.caps = caps
        self.used = {name: float(used.get(name, 0.0)) for name in RESOURCES if name != "seconds"}
        self.opened_at = opened_at

    def spent(self, at: int, *, is_step: bool, is_retry: bool) -> Spent | None:
        """Return the budget that keeps another call from leaving, or None.

        Args:
            at: UTC milliseconds.
            is_step: the call changes something.
            is_retry: it repeats an action that failed.
        """
        for name, cap in self.caps.items():
            if (name == "steps" and not is_step) or (name == "retries" and not is_retry):
                continue
            used = self.of(name, at)
            if used >= cap:
                return Spent(name, used, cap)
        return None

    def of(self, name: str, at: int) -> float:
        """Return what is spent of a budget."""
        if name != "seconds":
            return self.used[name]
        return max(0, at - self.opened_at) / 1000 if self.opened_at else 0.0

    def left(self, name: str, at: int) -> float:
        """Return what is left of a budget; infinite without a cap."""
        cap = self.caps.get(name)
        return math.inf if cap is None else max(0.0, cap - self.of(name, at))

    def spend(self, amounts: Mapping[str, float], sign: float = 1.0) -> None:
        """Add to what is spent; `sign` -1 gives it back."""
        for name, amount in amounts.items():
            if name in self.used:
                self.used[name] = max(0.0, self.used[name] + sign * amount)

    def warnings(self, at: int) -> list[Spent]:
        """Return the budgets of which four fifths or more are spent."""
        return [
            Spent(name, used, cap) for name, cap in self.caps.items() if (used := self.of(name, at)) >= WARN_AT * cap
        ]

    def view(self, at: int) -> dict[str, object]:
        """Return caps and what is spent, for people and programs."""
        return {
            "caps": dict(self.caps),
            "used": {name: round(self.of(name, at), 9) for name in RESOURCES},
            "warnings": [one.name for one in self.warnings(at)],
        }


def shown(budgets: list[Spent]) -> str:
    """Return budgets as they stand in a header field: `usd=0.41/0.5, calls=82/100`."""
    return ", ".join(f"{one.name}={one.used:g}/{one.cap:g}" for one in budgets)
