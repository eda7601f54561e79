"""The figures of a run as tables, for the terminal and for `summary.md`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.storm.runner import Pace

__all__ = ["headline", "pace", "summary"]

_Row = tuple[str, tuple[str, ...], str]
_ALWAYS: tuple[_Row, ...] = (
    ("calls", ("calls",), "d"),
    ("requests", ("attempts",), "d"),
    ("requests a call", ("amplification",), ".2f"),
    ("succeeded", ("goodput_share",), ".1%"),
    ("p50 ms", ("p50_ms",), ".1f"),
    ("p99 ms", ("p99_ms",), ".1f"),
    ("longest queue", ("max_queue",), "d"),
)
_TROUBLE: tuple[_Row, ...] = (
    ("requests in the trouble", ("during", "attempts"), "d"),
    ("a call", ("during", "amplification"), ".3f"),
    ("recovery s", ("recovery_s",), ".2f"),
    ("goodput kept", ("retained",), ".0%"),
    ("opened", ("opens",), "d"),
    ("canaries", ("canaries",), "d"),
)
_EFFECTS: tuple[_Row, ...] = (
    ("best second", ("goodput_peak_per_s",), "d"),
    ("effects", ("toll", "effects"), "d"),
    ("doubled", ("toll", "doubled"), "d"),
    ("lost", ("toll", "lost"), "d"),
    ("unclaimed", ("toll", "unclaimed"), "d"),
)
_KILLS: tuple[_Row, ...] = (
    ("kills", ("kills",), "d"),
    ("back p50 ms", ("back_p50_ms",), "d"),
    ("back p99 ms", ("back_p99_ms",), "d"),
)
_HERD: tuple[_Row, ...] = (
    ("repeats", ("repeats", "count"), "d"),
    ("mean /s", ("repeats", "mean_per_s"), ".0f"),
    *((f"peak {bin_ms} ms", ("repeats", "peak_per_s", f"ms{bin_ms}"), ",.0f") for bin_ms in (1, 2, 10, 100, 1000)),
)


def headline(document: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows of the table that says most about a run: a row for each policy."""
    columns = list(_ALWAYS)
    if any(fault["kind"] != "kill" for fault in document["scenario"]["faults"]):
        columns += _TROUBLE
    if any((figures.get("toll") or {}).get("effects") for figures in document["figures"].values()):
        columns += _EFFECTS
    if any(figures.get("kills") for figures in document["figures"].values()):
        columns += _KILLS
    heads = ["policy", *(head for head, _, _ in columns)]
    rows = [[name, *(_cell(document, name, path, form) for _, path, form in columns)] for name in document["figures"]]
    return heads, rows


def summary(document: Mapping[str, Any]) -> str:
    """Return a run as Markdown: what was run, the tables, the verdicts."""
    scenario, machine = document["scenario"], document["machine"]
    seeds = document["seeds"]
    parts = [
        f"# {scenario['title']}",
        scenario["about"].strip(),
        f"**What arithmetic says.** {scenario['theory'].strip()}" if scenario["theory"] else "",
        f"Engine `{document['engine']}`, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}; "
        f"{document['date']}; Seawall {machine['seawall']}, Python {machine['python']}, {machine['platform']}, "
        f"{machine['cores']} cores."
        + (" Medians, with lowest and highest over the seeds where they differ." if len(seeds) > 1 else ""),
        _table(*headline(document)),
        pace(document),
    ]
    if "arrivals" in scenario["plots"]:
        heads = ["second attempts", *(head for head, _, _ in _HERD)]
        rows = [[name, *(_cell(document, name, path, form) for _, path, form in _HERD)] for name in document["figures"]]
        parts += [
            "Peaks are rates of the busiest bin of that width; like for like, compare within a column.",
            _table(heads, rows),
        ]
    if "shares" in scenario["plots"]:
        parts += [_shares(document)]
    tools = _tools(document)
    parts += [tools] if tools else []
    parts += [_policies(document), _verdicts(document)]
    return "\n\n".join(part for part in parts if part) + "\n"


def pace(document: Mapping[str, Any]) -> str:
    """Return how fast virtual storms went; live ones take the time that they last."""
    return f"Simulated: {Pace(**document['pace'])}" if document["engine"] == "virtual" and "pace" in document else ""


def _tools(document: Mapping[str, Any]) -> str:
    rows = []
    for policy, figures in document["figures"].items():
        for tool, whole in figures["tools"].items() if len(figures["tools"]) > 1 else ():
            before, during = (figures.get(phase, {}).get("tools", {}).get(tool, {}) for phase in ("before", "during"))
            rows.append(
                [policy, tool, f"{whole['calls']:.0f}"]
                + [f"{phase.get('p99_ms', 0):.2f}" for phase in (before, during)]
                + [f"{during.get('goodput_share', 0):.1%}"]
            )
    heads = ["policy", "tool", "calls", "p99 ms before", "p99 ms in the trouble", "succeeded in the trouble"]
    return _table(heads, rows) if rows else ""


def _shares(document: Mapping[str, Any]) -> str:
    rows = [
        [policy, kind, f"{group['agents']:.0f}", f"{group['least_per_s']:.2f}", f"{group['most_per_s']:.2f}"]
        for policy, figures in document["figures"].items()
        for kind, group in figures["groups"].items()
    ]
    return _table(["policy", "agents", "how many", "least served, calls/s", "most served, calls/s"], rows)


def _policies(document: Mapping[str, Any]) -> str:
    known = document["scenario"]["policies"]
    lines = [f"* `{name}`: {policy['about']}" for name, policy in known.items() if name in document["figures"]]
    lines += [f"* `{name}` was left out: {reason}" for name, reason in document["skipped"].items()]
    return "\n".join(["* `seawall`: the manifest as written", *lines])


def _verdicts(document: Mapping[str, Any]) -> str:
    lines = [
        f"* {'holds' if verdict['holds'] else '**does not hold**'}: `{verdict['claim']}` "
        f"({_plain(verdict['left'])} against {_plain(verdict['right'])})"
        for verdict in document["verdicts"]
    ]
    lines += [f"* **cannot be judged**: {problem}" for problem in document["problems"]]
    return "\n".join(lines)


def _cell(document: Mapping[str, Any], policy: str, path: Sequence[str], form: str) -> str:
    value = _at(document["figures"][policy], path)
    seeds = [_at(figures, path) for figures in document["by_seed"][policy]]
    text = _formatted(value, form)
    numbers = [seed for seed in seeds if isinstance(seed, int | float)]
    if len(set(seeds)) > 1 and len(numbers) == len(seeds):
        low, high = _formatted(min(numbers), form), _formatted(max(numbers), form)
        return text if low == high else f"{text} ({low}–{high})"
    return text if len(set(seeds)) == 1 else f"{text} ({len(seeds) - len(numbers)} of {len(seeds)} never)"


def _at(figures: Any, path: Sequence[str]) -> Any:
    for step in path:
        figures = figures.get(step) if isinstance(figures, Mapping) else None
    return figures


def _formatted(value: Any, form: str) -> str:
    if not isinstance(value, int | float):
        return "–" if value is None else "never"
    return f"{round(value):,d}" if form == "d" else f"{value:{form}}"


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "never"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|--:" * (len(heads) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])
