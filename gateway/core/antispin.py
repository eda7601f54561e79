"""Repairs that lead nowhere are stopped: at most K in a row for a step, and none once an error comes back.

A repair is another try of a step with changed arguments after it failed for good. Each failure adds its signature to the
step's sequence; a signature that is there already means that the last repair was idle or undid an earlier one, and ends
repairing at once, whatever is left of K. Success ends the sequence.

Source: seed 000, "Anti-Spin Invariant" (K_repair <= 3; sigma_k = sigma_j for some j < k).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["MAX_REPAIRS", "AntiSpin", "Spin"]

MAX_REPAIRS = 3


class Spin(StrEnum):
    """What the sequence of repairs says."""

    MAY_REPAIR = "may_repair"
    EXHAUSTED = "exhausted"
    CYCLE = "cycle"


@dataclass(slots=True)
class AntiSpin:
    """The repairs of one logical step. Bounded: at most K + 1 signatures."""

    limit: int = MAX_REPAIRS
    signatures: list[str] = field(default_factory=list)

    @property
    def repairs(self) -> int:
        """Repairs tried so far: every failure after the first was one."""
        return max(0, len(self.signatures) - 1)

    def failed(self, signature: str) -> Spin:
        """Note a failure of the step and return whether another repair may be tried."""
        is_cycle = signature in self.signatures
        if len(self.signatures) <= self.limit:
            self.signatures.append(signature)
        if is_cycle:
            return Spin.CYCLE
        return Spin.EXHAUSTED if self.repairs >= self.limit else Spin.MAY_REPAIR

    def succeeded(self) -> None:
        """The step worked: what comes later is another sequence."""
        self.signatures.clear()
