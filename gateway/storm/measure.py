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
from collections.abc import Sequence
from itertools import accumulate, compress, islice
from operator import le, sub
from typing import Any, TypeVar

from gateway.storm.recording import Attempts, Calls, Recording
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
    figures["canaries"] = len(recording.attempts) - recording.attempts.half_open.count(0)
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
    calls, attempts = recording.calls, recording.attempts
    if start > 0 or end < math.inf:
        calls = _chosen(calls, [start <= due < end for due in calls.due])
        attempts = _between(attempts, start, end)
    figures = _figures(calls, attempts.at, seconds)
    figures["tools"] = _tools(calls, attempts, figures, seconds)
    figures["repeats"] = _arrivals(list(compress(attempts.at, [number > 1 for number in attempts.number])))
    figures["max_queue"] = max(attempts.queue, default=0)
    figures["groups"] = _groups(calls, start + seconds, seconds)
    return figures


def _tools(calls: Calls, attempts: Attempts, whole: Figures, seconds: float) -> Figures:
    """Return the figures of each tool that was called; of the only one, those of the whole."""
    names = sorted(set(calls.tool))
    if len(names) == 1 and set(attempts.tool) <= set(names):
        return {names[0]: dict(whole)}
    return {
        name: _figures(
            _chosen(calls, [tool == name for tool in calls.tool]),
            [at for at, tool in zip(attempts.at, attempts.tool, strict=True) if tool == name],
            seconds,
        )
        for name in names
    }


Table = TypeVar("Table", Calls, Attempts)


def _chosen(table: Table, mask: Sequence[bool]) -> Table:
    """Return the chosen rows of a table; the table itself if that is all of them."""
    if all(mask):
        return table
    return type(table)(*(list(compress(getattr(table, name), mask)) for name in type(table).__slots__))


def _between(attempts: Attempts, start: float, end: float) -> Attempts:
    """Return the attempts of a time; those of a virtual storm are in order, which makes it a slice."""
    at = attempts.at
    if not all(map(le, at, islice(at, 1, None))):
        return _chosen(attempts, [start <= when < end for when in at])
    first, last = bisect_left(at, start), bisect_left(at, end)
    return Attempts(*(getattr(attempts, name)[first:last] for name in Attempts.__slots__))


def _figures(calls: Calls, arrivals: Sequence[float], seconds: float) -> Figures:
    count, codes = len(calls), Counter(calls.outcome)
    kinds: Counter[str] = Counter()
    for code, hits in codes.items():
        kinds[code.partition(":")[0]] += hits
    waits = list(map(sub, calls.end, calls.due))
    is_good = [outcome == "success" for outcome in calls.outcome]
    good = sorted(compress(waits, is_good))
    refusals = {code for code in codes if code.startswith("refused")}
    refused = sorted(compress(waits, [outcome in refusals for outcome in calls.outcome])) if refusals else []
    seconds_of = Counter(map(int, compress(calls.end, is_good)))
    return {
        "calls": count,
        "attempts": len(arrivals),
        "amplification": len(arrivals) / count if count else 0.0,
        "goodput_share": kinds["success"] / count if count else 0.0,
        "goodput_per_s": kinds["success"] / seconds,
        "goodput_peak_per_s": max(seconds_of.values(), default=0),
        "succeeded": kinds["success"],
        "refused": kinds["refused"],
        "failed": kinds["failed"],
        "in_doubt": kinds["in_doubt"],
        "p50_ms": 1000 * percentile(good, 0.50),
        "p99_ms": 1000 * percentile(good, 0.99),
        "refusal_p99_ms": 1000 * percentile(refused, 0.99),
        "arrivals": _arrivals(arrivals),
        "codes": dict(sorted(codes.items())),
    }


def _arrivals(at: Sequence[float]) -> Figures:
    """Return count, span, mean rate and peak rates of arrivals."""
    if not at:
        return {"count": 0, "span_s": 0.0, "mean_per_s": 0.0, "peak_per_s": {f"ms{bin_ms}": 0.0 for bin_ms in BINS_MS}}
    first, span_s = min(at), max(at) - min(at)
    return {
        "count": len(at),
        "span_s": span_s,
        "mean_per_s": len(at) / span_s if span_s > 0 else math.inf,
        "peak_per_s": _peaks(Counter([int((when - first) * 1000 + 1e-6) for when in at])),
    }


def _peaks(bins: dict[int, int]) -> dict[str, float]:
    """Return the rate of the busiest bin of each width, from a count for each millisecond."""
    peaks, width_ms = {}, BINS_MS[0]
    for bin_ms in BINS_MS:
        if bin_ms > width_ms:
            bins, width_ms = _wider(bins, bin_ms // width_ms), bin_ms
        peaks[f"ms{bin_ms}"] = max(bins.values()) * 1000 / bin_ms
    return peaks


def _wider(bins: dict[int, int], times: int) -> dict[int, int]:
    wider: dict[int, int] = {}
    for number, hits in bins.items():
        wide = number // times
        wider[wide] = wider.get(wide, 0) + hits
    return wider


def _groups(calls: Calls, until: float, seconds: float) -> Figures:
    """Return successes a second of each kind of agent, and of its least and most served agent; calls that ended in time."""
    agents, outcomes = calls.agent, calls.outcome
    if max(calls.end, default=0.0) >= until:
        in_time = [end < until for end in calls.end]
        agents, outcomes = list(compress(agents, in_time)), list(compress(outcomes, in_time))
    good = Counter(compress(agents, [outcome == "success" for outcome in outcomes]))
    served: dict[str, list[int]] = {}
    for agent in dict.fromkeys(agents):
        served.setdefault(agent.rpartition("-")[0].replace("-", "_"), []).append(good[agent])
    return {
        kind: {
            "agents": len(counts),
            "goodput_per_s": sum(counts) / seconds,
            "least_per_s": min(counts) / seconds,
            "most_per_s": max(counts) / seconds,
        }
        for kind, counts in sorted(served.items())
    }


def recovery_s(recording: Recording, end: float, seconds: float) -> float:
    """Return how long after the trigger the storm was over, or infinity."""
    calls = recording.calls
    is_later = [due >= end for due in calls.due]
    rows = sorted(compress(zip(calls.due, map("success".__eq__, calls.outcome), strict=True), is_later))
    due, is_good = [row[0] for row in rows], [row[1] for row in rows]
    won = list(accumulate(is_good, initial=0))
    for index, start in enumerate(due):
        if start + RECOVERY_WINDOW_S > seconds + 1e-9:
            break
        if not is_good[index]:
            continue
        stop = bisect_left(due, start + RECOVERY_WINDOW_S)
        if won[stop] - won[index] >= RECOVERED_SHARE * (stop - index):
            return start - end
    return math.inf


def _retained(recording: Recording, start: float, end: float, seconds: float) -> float:
    def rate(since: float, until: float) -> float:
        hits = bisect_left(good, until) - bisect_left(good, since)
        return hits / (until - since) if until > since else 0.0

    calls = recording.calls
    good = sorted([due for due, outcome in zip(calls.due, calls.outcome, strict=True) if outcome == "success"])
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
