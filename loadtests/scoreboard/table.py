"""The verdict on each run, by the ledger, and the table that it makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.scoreboard.contestants import Ending
from loadtests.scoreboard.plan import TURNS
from loadtests.scoreboard.world import Ledger

__all__ = ["SEED_000", "Score", "score", "table"]

SEED_000: Mapping[str, float] = {
    "bare client": 14.2,
    "journal without recovery": 38.6,
    "saga without durable journal": 49.1,
    "the whole gateway": 94.8,
}
"""Completion rates, in percent, as the benchmark of seed 000 reports them for its own runtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What became of all runs of a configuration. `orphans` and `doubled` are effects, counted at the tool."""

    name: str
    runs: int
    completed: int
    aborted: int
    neither: int
    orphans: int
    doubled: int
    lost_turns: int
    kills: int
    repaired: int
    recovery_s: tuple[float, ...]
    seconds: float

    @property
    def is_flawless(self) -> bool:
        """Whether every run ended completed or cleanly aborted, and nothing was orphaned, doubled or forgotten."""
        return not (self.neither or self.orphans or self.doubled or self.lost_turns)

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "name": self.name, "runs": self.runs, "completed": self.completed, "aborted": self.aborted,
            "neither": self.neither, "orphans": self.orphans, "doubled": self.doubled, "lost_turns": self.lost_turns,
            "kills": self.kills, "repaired": self.repaired, "seconds": round(self.seconds, 1),
            "rto_p50_ms": _percentile_ms(self.recovery_s, 0.5), "rto_p99_ms": _percentile_ms(self.recovery_s, 0.99),
        }  # fmt: skip


def score(name: str, endings: Mapping[int, Ending], ledger: Ledger, kills: int, seconds: float) -> Score:
    """Return the score of a configuration, by what is alive at the tool.

    Completed: said so, and each turn has exactly one effect. Cleanly aborted: said so, and nothing is alive. An effect is
    orphaned if its run did not complete, doubled if its turn has another that is alive.
    """
    completed = aborted = orphans = doubled = 0
    alive: dict[int, Counter[int]] = {number: Counter() for number in endings}
    for resource in ledger.made.values():
        if resource.is_alive:
            alive[resource.run][resource.turn] += 1
    for number, ending in endings.items():
        turns = alive[number]
        extra = sum(count - 1 for count in turns.values())
        doubled += extra
        if ending.said == "finished" and not extra and len(turns) == TURNS:
            completed += 1
        elif ending.said == "aborted" and not turns:
            aborted += 1
        if ending.said != "finished":
            orphans += len(turns)
    return Score(
        name=name,
        runs=len(endings),
        completed=completed,
        aborted=aborted,
        neither=len(endings) - completed - aborted,
        orphans=orphans,
        doubled=doubled,
        lost_turns=sum(ending.lost_turns for ending in endings.values()),
        kills=kills,
        repaired=sum(ending.repaired for ending in endings.values()),
        recovery_s=tuple(sorted(wait for ending in endings.values() for wait in ending.recovery_s)),
        seconds=seconds,
    )


def table(scores: Iterable[Mapping[str, Any]]) -> str:
    """Return the scoreboard as Markdown, from the documents of scores."""
    lines = [
        "| configuration | runs | completed | seed 000 says | cleanly aborted | neither | orphaned effects "
        "| doubled effects | turns lost (RPO) | RTO p50 ms | RTO p99 ms | kills |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for told in scores:
        runs, name = told["runs"], told["name"]
        lines.append(
            f"| {name} | {runs:,} | {told['completed'] / runs:.1%} | {SEED_000[name]} % "
            f"| {told['aborted'] / runs:.1%} | {told['neither'] / runs:.1%} "
            f"| {told['orphans']} | {told['doubled']} | {told['lost_turns']} "
            f"| {_shown(told['rto_p50_ms'])} | {_shown(told['rto_p99_ms'])} | {told['kills']} |"
        )
    return "\n".join(lines) + "\n"


def _percentile_ms(ordered: Sequence[float], share: float) -> float | None:
    if not ordered:
        return None
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"
