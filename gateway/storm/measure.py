"""Figures of a recording: the numbers that a report prints and a scenario's claims are held to.

Definitions, the same for both engines:

    amplification   requests that reached the tools, for each call that agents made
    goodput_share   calls that succeeded, of those made
    recovery_s      from the end of the trigger to the first call from which on, for three seconds, 95 % of calls due
                    succeed; infinite if there is none
    retained        successes a second after the trigger (from 10 s after it), relative to before it
    goodput_peak_per_s    successes in the best second
    toll            by the tools' own ledgers, for calls that have an effect: `effects`; `doubled`, effects beyond the
                    first of a call; `lost`, calls that were told of success and have no effect; `unclaimed`, calls that
                    have an effect and were never told of success
    back_*_ms       from a kill until the gateway listens again
    peak            the busiest bin of arrivals, as a rate; bins of 1, 2, 10, 100 and 1,000 ms

Phases: `before`, `during` and `after` the trigger, by the time a call was due; a scenario without faults has none.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from gateway.storm.recording import Recording
from gateway.storm.scenario import Scenario

__all__ = ["BINS_MS", "Figures", "measure", "percentile", "recovery_s", "spread_of"]

Figures = dict[str, Any]

BINS_MS = (1, 2, 10, 100, 1000)
RECOVERED_SHARE = 0.95
RECOVERY_WINDOW_S = 3.0
SETTLED_AFTER_S = 10.0


def measure(recording: Recording, scenario: Scenario) -> Figures:
    """Return the figures of a storm, and within them those of each phase and tool."""
    seconds, trigger = scenario.seconds, scenario.trigger
    figures = _phase(recording, 0.0, math.inf, seconds)
    figures["calls_skipped"] = recording.skipped
    figures["opens"] = sum(state == "open" for state in recording.moves.state)
    figures["heals"] = sum(cause == "healed" for cause in recording.moves.cause)
    figures["canaries"] = sum(trials > 0 for trials in recording.attempts.half_open)
    figures["canaries_at_once"] = max(recording.attempts.half_open, default=0)
    figures["cooldowns_s"] = [round(wait, 3) for wait in recording.moves.cooldown_s if wait > 0]
    figures["toll"] = dict(recording.toll)
    figures["kills"] = len(recording.kills)
    if recording.kills.back_s:
        back_s = sorted(recording.kills.back_s)
        figures["back_p50_ms"] = 1000 * percentile(back_s, 0.50)
        figures["back_p99_ms"] = 1000 * percentile(back_s, 0.99)
        figures["back_max_ms"] = 1000 * back_s[-1]
    if trigger is not None:
        start, end = trigger
        figures["before"] = _phase(recording, 0.0, start, max(0.001, start))
        figures["during"] = _phase(recording, start, end, end - start)
        figures["after"] = _phase(recording, end, math.inf, max(0.001, seconds - end))
        figures["recovery_s"] = recovery_s(recording, end, seconds)
        figures["retained"] = _retained(recording, start, end, seconds)
        figures["false_opens"] = sum(
            state == "open" and not start <= at <= end + 1.0
            for at, state, cause in zip(recording.moves.at, recording.moves.state, recording.moves.cause, strict=True)
            if cause in ("consecutive", "failure_ratio", "slow_ratio")
        )
    return figures


def _phase(recording: Recording, start: float, end: float, seconds: float) -> Figures:
    calls = [row for row in recording.calls.rows() if start <= row[0] < end]
    attempts = recording.attempts
    chosen = [index for index, at in enumerate(attempts.at) if start <= at < end]
    figures = _figures(calls, [attempts.at[index] for index in chosen], seconds)
    repeats = [attempts.at[index] for index in chosen if attempts.number[index] > 1]
    figures["repeats"] = _arrivals(repeats)
    figures["max_queue"] = max((attempts.queue[index] for index in chosen), default=0)
    tools: Figures = {}
    for tool in sorted({row[2] for row in calls}):
        at = [attempts.at[index] for index in chosen if attempts.tool[index] == tool]
        tools[tool] = _figures([row for row in calls if row[2] == tool], at, seconds)
    figures["tools"] = tools
    figures["groups"] = _groups((row for row in calls if row[1] < start + seconds), seconds)
    return figures


def _figures(calls: Sequence[tuple[float, float, str, str, str]], arrivals: Sequence[float], seconds: float) -> Figures:
    outcomes = Counter(row[4].partition(":")[0] for row in calls)
    good = sorted(row[1] - row[0] for row in calls if row[4] == "success")
    refused = sorted(row[1] - row[0] for row in calls if row[4].startswith("refused"))
    return {
        "calls": len(calls),
        "attempts": len(arrivals),
        "amplification": len(arrivals) / len(calls) if calls else 0.0,
        "goodput_share": outcomes["success"] / len(calls) if calls else 0.0,
        "goodput_per_s": outcomes["success"] / seconds,
        "goodput_peak_per_s": max(
            Counter(math.floor(row[1]) for row in calls if row[4] == "success").values(), default=0
        ),
        "succeeded": outcomes["success"],
        "refused": outcomes["refused"],
        "failed": outcomes["failed"],
        "in_doubt": outcomes["in_doubt"],
        "p50_ms": 1000 * percentile(good, 0.50),
        "p99_ms": 1000 * percentile(good, 0.99),
        "refusal_p99_ms": 1000 * percentile(refused, 0.99),
        "arrivals": _arrivals(arrivals),
        "codes": dict(sorted(Counter(row[4] for row in calls).items())),
    }


def _arrivals(at: Sequence[float]) -> Figures:
    """Return count, span, mean rate and peak rates of arrivals."""
    if not at:
        return {"count": 0, "span_s": 0.0, "mean_per_s": 0.0, "peak_per_s": {f"ms{bin_ms}": 0.0 for bin_ms in BINS_MS}}
    first, span_s = min(at), max(at) - min(at)
    peaks = {}
    for bin_ms in BINS_MS:
        busiest = max(Counter(math.floor((when - first) * 1000 / bin_ms + 1e-9) for when in at).values())
        peaks[f"ms{bin_ms}"] = busiest * 1000 / bin_ms
    return {
        "count": len(at),
        "span_s": span_s,
        "mean_per_s": len(at) / span_s if span_s > 0 else math.inf,
        "peak_per_s": peaks,
    }


def _groups(calls: Iterable[tuple[float, float, str, str, str]], seconds: float) -> Figures:
    """Return successes a second of each kind of agent, and of its least and most served agent."""
    served: dict[str, Counter[str]] = {}
    for _, _, _, agent, outcome in calls:
        kind = agent.rpartition("-")[0].replace("-", "_")
        served.setdefault(kind, Counter())[agent] += outcome == "success"
    return {
        kind: {
            "agents": len(counts),
            "goodput_per_s": counts.total() / seconds,
            "least_per_s": min(counts.values()) / seconds,
            "most_per_s": max(counts.values()) / seconds,
        }
        for kind, counts in sorted(served.items())
    }


def recovery_s(recording: Recording, end: float, seconds: float) -> float:
    """Return how long after the trigger the storm was over, or infinity."""
    rows = sorted((due, outcome == "success") for due, _, _, _, outcome in recording.calls.rows() if due >= end)
    due = [row[0] for row in rows]
    won = [0]
    for _, is_good in rows:
        won.append(won[-1] + is_good)
    for index, start in enumerate(due):
        if start + RECOVERY_WINDOW_S > seconds + 1e-9:
            break
        stop = bisect_left(due, start + RECOVERY_WINDOW_S)
        if rows[index][1] and won[stop] - won[index] >= RECOVERED_SHARE * (stop - index):
            return start - end
    return math.inf


def _retained(recording: Recording, start: float, end: float, seconds: float) -> float:
    def rate(since: float, until: float) -> float:
        hits = sum(since <= row[0] < until and row[4] == "success" for row in recording.calls.rows())
        return hits / (until - since) if until > since else 0.0

    settled = min(end + SETTLED_AFTER_S, (end + seconds) / 2)
    before = rate(0.0, start)
    return rate(settled, seconds) / before if before else 0.0


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value that `share` of the sorted ones do not exceed; 0 if there are none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def spread_of(values: Sequence[float]) -> tuple[float, float, float]:
    """Return median, lowest and highest of a figure over several seeds."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[0], ordered[-1]
