"""A storm from end to end: every policy, every seed, figures, verdicts, and all of it in a folder.

run.json          what was run, on what, and every figure
events/*.gz       each call, attempt and move of a breaker: a file for each policy and seed
summary.md        the table and the verdicts
report.html, *.svg, *.png    the plots (with the extra `lab`)
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from gateway import __version__
from gateway.storm.judge import ClaimError, Verdict, judge
from gateway.storm.measure import Figures, measure
from gateway.storm.recording import Recording
from gateway.storm.scenario import OURS, PolicySettings, Scenario
from gateway.storm.virtual import simulate

__all__ = ["Engine", "Pace", "Run", "run_storm"]

Engine = Callable[[Scenario, PolicySettings, int, Callable[[float], None]], Recording]
"""Runs one storm under one policy."""

FORMAT = 1


@dataclass(slots=True)
class Pace:
    """How fast the engine was: what it simulated of all policies and seeds, and what that took.

    Attributes:
        calls: calls of agents, each repeat of an agent that insists among them.
        requests: requests that reached a tool.
        cpu_s: processor time of the engine alone, over all processes; nothing is measured or written in it.
        seconds: from the first storm to the last figure.
        jobs: processes at the same time.
    """

    calls: int = 0
    requests: int = 0
    cpu_s: float = 0.0
    seconds: float = 0.0
    jobs: int = 1

    def add(self, other: Pace) -> None:
        """Take a storm in."""
        self.calls += other.calls
        self.requests += other.requests
        self.cpu_s += other.cpu_s

    def __str__(self) -> str:
        rate = self.calls / max(self.cpu_s, 1e-9)
        both = (self.calls + self.requests) / max(self.cpu_s, 1e-9)
        return (
            f"{self.calls:,} calls and {self.requests:,} requests in {self.cpu_s:.2f} s of a core: "
            f"{rate:,.0f} calls a second, {both:,.0f} with their requests; measured and written after "
            f"{self.seconds:.2f} s with {self.jobs} process{'es' if self.jobs > 1 else ''}."
        )


@dataclass(slots=True)
class Run:
    """A storm that was run. `figures` are those of the middle seed's rank: the median of each figure over the seeds."""

    scenario: Scenario
    engine: str
    seeds: tuple[int, ...]
    figures: dict[str, Figures] = field(default_factory=dict)
    by_seed: dict[str, list[Figures]] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    pace: Pace = field(default_factory=lambda: Pace())

    @property
    def is_good(self) -> bool:
        """Whether every claim holds."""
        return not self.problems and all(verdict.holds for verdict in self.verdicts)

    def document(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "format": FORMAT,
            "scenario": asdict(self.scenario),
            "engine": self.engine,
            "seeds": self.seeds,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "figures": _finite(self.figures),
            "by_seed": _finite(self.by_seed),
            "pace": _finite(asdict(self.pace)),
            "verdicts": _finite([asdict(verdict) for verdict in self.verdicts]),
            "problems": self.problems,
            "skipped": self.skipped,
        }


def machine() -> dict[str, Any]:
    """Return what the storm ran on: versions, cores, platform."""
    return {
        "seawall": __version__,
        "python": sys.version.split()[0],
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count() or 1,
    }


def run_storm(
    scenario: Scenario,
    *,
    engine: Engine = simulate,
    engine_name: str = "virtual",
    seeds: Sequence[int] = (1,),
    policies: Sequence[str] | None = None,
    claims: Sequence[str] | None = None,
    out: Path | None = None,
    progress: Callable[[str, float], None] = lambda what, share: None,
    can_run: Callable[[PolicySettings], str | None] = lambda policy: None,
    jobs: int = 1,
) -> Run:
    """Run a storm under each policy and seed, measure it, and hold it to its claims.

    Args:
        scenario: what to run.
        engine: runs one storm under one policy.
        engine_name: what the engine is called in the report.
        seeds: one storm of each policy for each of them.
        policies: only these, and the manifest itself; all of the scenario's by default.
        claims: instead of the scenario's own.
        out: folder for recordings and `run.json`; nothing is written without one.
        progress: told what is running and how much of it is done, 0 to 1.
        can_run: says why this engine cannot run a policy, or None.
        jobs: storms at the same time, each in a process of its own; for an engine that waits for nobody. The result is
            the same with any number.
    """
    run = Run(scenario, engine_name, tuple(seeds))
    wanted = {name: policy for name, policy in scenario.policies.items() if policies is None or name in policies}
    storms: list[_One] = []
    for name, policy in {OURS: PolicySettings(about="the manifest as written"), **wanted}.items():
        reason = can_run(policy)
        if reason is not None:
            run.skipped[name] = reason
            continue
        storms += (_One(engine, scenario, name, policy, seed, out) for seed in seeds)
    if out is not None:
        (out / "events").mkdir(parents=True, exist_ok=True)
    began, run.pace.jobs = time.perf_counter(), max(1, min(jobs, len(storms)))
    for one, (figures, pace) in zip(storms, _all(storms, jobs, progress), strict=True):
        run.by_seed.setdefault(one.name, []).append(figures)
        run.pace.add(pace)
    run.pace.seconds = time.perf_counter() - began
    run.figures = {name: _medians(found) for name, found in run.by_seed.items()}
    ours = scenario.holds if engine_name == "virtual" else scenario.holds_live
    _hold(run, ours if claims is None else claims)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "run.json").write_text(json.dumps(run.document()) + "\n")
    return run


@dataclass(frozen=True, slots=True)
class _One:
    """One storm under one policy."""

    engine: Engine
    scenario: Scenario
    name: str
    policy: PolicySettings
    seed: int
    out: Path | None

    def run(self, progress: Callable[[float], None] = lambda share: None) -> tuple[Figures, Pace]:
        """Let it happen, keep its recording if there is a folder, and return its figures and how fast it went."""
        before_s = time.process_time()
        recording = self.engine(self.scenario, self.policy, self.seed, progress)
        pace = Pace(len(recording.calls), len(recording.attempts), time.process_time() - before_s)
        if self.out is not None:
            recording.save(self.out / "events" / f"{self.name}-{self.seed}.jsonl.gz")
        return measure(recording, self.scenario), pace


def _all(storms: Sequence[_One], jobs: int, progress: Callable[[str, float], None]) -> Iterator[tuple[Figures, Pace]]:
    """Yield each storm's figures and pace, in their order."""
    if jobs <= 1 or len(storms) <= 1:
        for one in storms:
            yield one.run(partial(progress, f"{one.name}, seed {one.seed}"))
        return
    # Processes that start afresh: a fork would take over whatever threads and locks the caller has.
    with ProcessPoolExecutor(min(jobs, len(storms)), multiprocessing.get_context("spawn")) as pool:
        for done, found in enumerate(pool.map(_One.run, storms, chunksize=_chunk(len(storms), jobs)), 1):
            progress(f"{done} of {len(storms)} storms", done / len(storms))
            yield found


def _chunk(storms: int, jobs: int) -> int:
    """Return how many storms a process takes at a time: few, so that all end together; not one by one of very many."""
    return max(1, storms // (8 * jobs))


def _hold(run: Run, claims: Sequence[str]) -> None:
    """Judge the claims: each for every seed, the worst counts; those about a policy that was not run are left out."""
    left_out = {name for name in run.scenario.policies if name not in run.figures}
    for claim in claims:
        if any(f"{name}." in claim for name in left_out):
            continue
        try:
            verdicts = [
                judge(claim, {name: figures[index] for name, figures in run.by_seed.items()})
                for index in range(len(run.seeds))
            ]
        except ClaimError as error:
            run.problems.append(str(error))
            continue
        run.verdicts.append(next((verdict for verdict in verdicts if not verdict.holds), verdicts[len(verdicts) // 2]))


def _medians(found: Sequence[Figures]) -> Figures:
    """Return the median of each figure over the seeds; what is no number, as the first has it."""
    merged: Figures = {}
    for key, value in found[0].items():
        others: list[Any] = [figures.get(key, value) for figures in found]
        if isinstance(value, Mapping):
            merged[key] = _medians([other for other in others if isinstance(other, dict)])
        elif isinstance(value, int | float):
            merged[key] = median(others)
        else:
            merged[key] = value
    return merged


def _finite(value: Any) -> Any:
    """Return JSON values: what is infinite becomes the word `never`."""
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float):
        return ("never" if math.isinf(value) else None) if not math.isfinite(value) else round(value, 6)
    return value
