"""Two runs side by side: which figures differ, and which got worse."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Difference", "compare_runs", "read_run"]

# Whether more of a figure is better. Latencies under half a millisecond of difference are noise.
_BETTER_HIGH = {
    ("goodput_share",): True,
    ("amplification",): False,
    ("p50_ms",): False,
    ("p99_ms",): False,
    ("max_queue",): False,
    ("during", "attempts"): False,
    ("during", "amplification"): False,
    ("recovery_s",): False,
    ("retained",): True,
    ("canaries_at_once",): False,
    ("false_opens",): False,
}
_NOISE_MS = 0.5


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure in both runs."""

    policy: str
    figure: str
    before: float
    after: float
    is_worse: bool

    def cells(self) -> list[str]:
        """Return a row for people."""
        verdict = "worse" if self.is_worse else "same" if self.before == self.after else "within tolerance or better"
        return [self.policy, self.figure, f"{self.before:.4g}", f"{self.after:.4g}", verdict]


def read_run(folder: Path) -> dict[str, Any]:
    """Return the document of a run.

    Raises:
        OSError, ValueError: the folder holds none.
    """
    document = json.loads((folder / "run.json").read_text())
    if not isinstance(document, dict) or document.get("format") != 1:
        raise ValueError("run.json has another format")
    return document


def compare_runs(before: Mapping[str, Any], after: Mapping[str, Any], tolerance: float) -> list[Difference]:
    """Return the figures of policies that both runs have; worse is what is worse by more than the tolerance."""
    rows = []
    for policy in before["figures"]:
        if policy not in after["figures"]:
            continue
        for path, is_better_high in _BETTER_HIGH.items():
            one, other = _number(before["figures"][policy], path), _number(after["figures"][policy], path)
            if one is None or other is None:
                continue
            loss = (one - other) if is_better_high else (other - one)
            slack = tolerance * abs(one) + (_NOISE_MS if path[-1].endswith("_ms") else 1e-9)
            is_worse = loss > slack if math.isfinite(one) else False
            rows.append(Difference(policy, ".".join(path), one, other, is_worse))
    return rows


def _number(figures: Any, path: Sequence[str]) -> float | None:
    for step in path:
        figures = figures.get(step) if isinstance(figures, Mapping) else None
    if figures == "never":
        return math.inf
    return float(figures) if isinstance(figures, int | float) else None
