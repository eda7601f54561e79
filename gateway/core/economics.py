"""Is a repair worth trying? It is, where it succeeds more often than its price demands.

Going back costs U, the unwinding, and R, doing the lost work again. One repair costs c_r. Repairing first is cheaper on
average when its chance p is above

    p* = c_r / (U + R)

since the expected cost of repairing first is c_r + (1 - p) (U + R) and that of going back at once is U + R. p is measured
for each operation and class of error, never assumed: a Beta posterior over what became of earlier repairs, starting from
the uniform prior.

Costs are plain numbers in one unit, seconds or money; the caller compares each unit with itself.

Source: seed 000, "Forward repair against compensation and rerun"; Laplace's rule of succession for the mean of a Beta
posterior under the uniform prior.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Bill", "Chance", "Costs", "break_even", "expected_repair_cost", "loop_bill"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What the two ways cost, in one unit."""

    unwind: float
    rerun: float
    repair: float

    @property
    def rollback(self) -> float:
        """The whole price of going back."""
        return self.unwind + self.rerun


def break_even(costs: Costs) -> float:
    """Return p*, the chance of success above which a repair is the better bet; above 1 where it never is."""
    return costs.repair / costs.rollback if costs.rollback > 0 else float("inf")


def expected_repair_cost(costs: Costs, chance: float) -> float:
    """Return the expected cost of trying one repair first and going back if it fails."""
    return costs.repair + (1.0 - chance) * costs.rollback


@dataclass(frozen=True, slots=True)
class Chance:
    """How often repairs of an operation after a class of error worked. Counts are whole; persisted as they are."""

    worked: int = 0
    failed: int = 0

    @property
    def mean(self) -> float:
        """Expected chance of the next repair, from the Beta(worked + 1, failed + 1) posterior."""
        return (self.worked + 1) / (self.worked + self.failed + 2)

    @property
    def seen(self) -> int:
        """Repairs that were watched to their end."""
        return self.worked + self.failed

    def after(self, *, worked: bool) -> Chance:
        """Return what is known once another repair was watched to its end."""
        return Chance(self.worked + worked, self.failed + (not worked))


@dataclass(frozen=True, slots=True)
class Bill:
    """What the turns of a loop cost, by the seed's prices: 3 and 15 USD a million tokens, 10 s a turn."""

    turns: int
    input_tokens: int
    usd: float
    seconds: float


def loop_bill(turns: int) -> Bill:
    """Return the bill of so many turns of an unnoticed loop.

    The first sends 1000 tokens; each adds 300 of output and an error of 800, and the whole context is sent again.

    Source: seed 000, "What an unnoticed loop costs".
    """
    tokens = turns * 1000 + 1100 * turns * (turns - 1) // 2
    return Bill(turns, tokens, tokens * 3e-6 + turns * 300 * 15e-6, turns * 10.0)
