"""Plots of a storm, as figures that explain themselves: title, units, the trouble shaded, policies in one colour each.

matplotlib is the extra `seawall[lab]`; nothing else of Seawall imports this module.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter

from gateway.storm.recording import Recording

__all__ = ["PLOTS", "draw"]

Recordings = Mapping[str, Recording]
Scenario = Mapping[str, Any]

mpl.rcParams.update(
    {
        "font.size": 10, "axes.titlesize": 11, "axes.titleweight": "bold", "axes.spines.top": False,
        "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "figure.dpi": 110, "svg.hashsalt": "seawall",
        "svg.fonttype": "none", "legend.frameon": False, "axes.titlelocation": "left",
    }
)  # fmt: skip

_OURS = "#0b6e4f"
_OTHERS = ("#c1121f", "#e07a00", "#5e60ce", "#7a5195", "#0081a7", "#8d6e63", "#555555", "#b5838d")
_OFFERED, _SENT, _GOOD = "#666666", "#c1121f", "#0b6e4f"
_STATES = {"closed": "#b7e4c7", "half_open": "#ffe14d", "open": "#e5383b"}
_SHADE: dict[str, Any] = {"color": "#f4a261", "alpha": 0.22, "linewidth": 0, "zorder": 0}


def draw(kind: str, scenario: Scenario, recordings: Recordings) -> Figure:
    """Return one plot of a run.

    Raises:
        KeyError: there is no such plot.
    """
    return PLOTS[kind](scenario, recordings)


def _colours(recordings: Recordings) -> dict[str, str]:
    others = iter(_OTHERS * 3)
    return {name: _OURS if name == "seawall" else next(others) for name in recordings}


def _trouble(axes: Axes, scenario: Scenario) -> None:
    for fault in scenario["faults"]:
        axes.axvspan(fault["start"], min(fault["end"], scenario["seconds"]), **_SHADE)


def _per_second(times: Sequence[float], until: float, width_s: float = 1.0) -> tuple[list[float], list[float]]:
    counts = Counter(math.floor(when / width_s) for when in times)
    bins = range(math.ceil(until / width_s))
    return [number * width_s for number in bins], [counts[number] / width_s for number in bins]


def _width(scenario: Scenario) -> float:
    return 1.0 if scenario["seconds"] > 15 else 0.25


def _flow(scenario: Scenario, recordings: Recordings) -> Figure:
    """What is offered, sent and achieved, a panel for each policy."""
    columns = 2 if len(recordings) > 1 else 1
    rows = math.ceil(len(recordings) / columns)
    figure = Figure(figsize=(10, 0.9 + 2.3 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    width_s = _width(scenario)
    highest = 0.0
    for axes, (name, recording) in zip(panels.flat, recordings.items(), strict=False):
        good = [
            end
            for end, outcome in zip(recording.calls.end, recording.calls.outcome, strict=True)
            if outcome == "success"
        ]
        for label, times, colour, style in (
            ("calls made by agents", recording.calls.due, _OFFERED, "--"),
            ("requests sent to the tools", recording.attempts.at, _SENT, "-"),
            ("calls that succeeded", good, _GOOD, "-"),
        ):
            x, y = _per_second(times, scenario["seconds"], width_s)
            highest = max(highest, *y)
            axes.step(
                x, y, where="post", color=colour, linestyle=style, linewidth=1.6 if style == "-" else 1.2, label=label
            )
        _trouble(axes, scenario)
        axes.set_title(name, color=_OURS if name == "seawall" else "black")
    for axes in list(panels.flat)[len(recordings) :]:
        axes.set_visible(False)
    panels[0][0].set_ylim(0, 1.06 * highest)
    for axes in panels[:, 0]:
        axes.set_ylabel("a second")
    for axes in panels[-1]:
        axes.set_xlabel("seconds")
    handles, labels = panels.flat[0].get_legend_handles_labels()
    if scenario["faults"]:
        handles, labels = [*handles, Patch(**_SHADE)], [*labels, "the trouble"]
    figure.legend(handles, labels, loc="outside upper center", ncols=4)
    return figure


def _amplification(scenario: Scenario, recordings: Recordings) -> Figure:
    """Requests for each call over time."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    axes = figure.subplots()
    colours = _colours(recordings)
    for name, recording in recordings.items():
        x, calls = _per_second(recording.calls.due, scenario["seconds"], 1.0)
        _, sent = _per_second(recording.attempts.at, scenario["seconds"], 1.0)
        y = [requests / made if made else math.nan for requests, made in zip(sent, calls, strict=True)]
        axes.step(x, y, where="post", color=colours[name], linewidth=2.4 if name == "seawall" else 1.3, label=name)
    axes.axhline(1.1, color="black", linewidth=0.8, linestyle=":")
    axes.annotate("1.1", (scenario["seconds"], 1.1), xytext=(2, 2), textcoords="offset points", fontsize=9)
    _trouble(axes, scenario)
    axes.set(title="Requests sent to the tools for each call of an agent", xlabel="seconds", ylabel="requests a call")
    axes.set_ylim(0)
    figure.legend(loc="outside right upper")
    return figure


def _queue(scenario: Scenario, recordings: Recordings) -> Figure:
    """How many requests wait at the tool."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    axes = figure.subplots()
    colours = _colours(recordings)
    for name, recording in recordings.items():
        longest: dict[int, int] = {}
        for at, waiting in zip(recording.attempts.at, recording.attempts.queue, strict=True):
            longest[int(at * 4)] = max(longest.get(int(at * 4), 0), waiting)
        x = range(min(longest, default=0), max(longest, default=0) + 1)
        # Where nothing arrives for a second nobody looked at the queue, and no line says that somebody did.
        axes.plot(
            [quarter / 4 for quarter in x],
            [
                next((longest[near] for near in range(quarter, quarter - 4, -1) if near in longest), math.nan)
                for quarter in x
            ],
            color=colours[name],
            linewidth=2.4 if name == "seawall" else 1.3,
            label=name,
        )
    _trouble(axes, scenario)
    axes.set_yscale("symlog", linthresh=10)
    axes.set_ylim(0)
    axes.set(title="Requests that wait at the tool (logarithmic above 10)", xlabel="seconds", ylabel="requests waiting")
    figure.legend(loc="outside right upper")
    return figure


def _breaker(scenario: Scenario, recordings: Recordings) -> Figure:
    """The state of each breaker as a strip, a row for each policy that has one."""
    rows = [(name, recording) for name, recording in recordings.items() if recording.moves.at]
    figure = Figure(figsize=(10, 1.5 + 0.42 * max(1, len(rows))), layout="constrained")
    axes = figure.subplots()
    seconds = scenario["seconds"]
    for place, (_name, recording) in enumerate(rows):
        first = recording.moves.gateway[0]
        moves = [
            (at, state)
            for at, state, gateway in zip(
                recording.moves.at, recording.moves.state, recording.moves.gateway, strict=True
            )
            if gateway == first
        ]
        edges = [(0.0, "closed"), *moves, (seconds, "closed")]
        for (start, state), (end, _) in itertools.pairwise(edges):
            axes.barh(
                place, min(end, seconds) - start, left=start, height=0.62, color=_STATES[state], linewidth=0, zorder=2
            )
            if state == "half_open":
                axes.plot([start, start], [place - 0.31, place + 0.31], color=_STATES[state], linewidth=2.2, zorder=3)
    _trouble(axes, scenario)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_ylim(max(0, len(rows) - 1) + 0.55, -0.55)
    axes.set_xlim(0, seconds)
    axes.grid(visible=False, axis="y")
    axes.set(
        title="State of the breaker" + (" of the first gateway" if scenario["gateways"] > 1 else ""), xlabel="seconds"
    )
    handles: list[Any] = [Patch(color=colour) for colour in _STATES.values()]
    labels = ["closed: calls pass", "half open: one canary", "open: calls are refused"]
    figure.legend([*handles, Patch(**_SHADE)], [*labels, "the trouble"], loc="outside lower center", ncols=4)
    return figure


def _arrivals(scenario: Scenario, recordings: Recordings) -> Figure:
    """When repeats arrive, on one axis."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    axes = figure.subplots()
    colours = _colours(recordings)
    repeats = {
        name: [at for at, number in zip(r.attempts.at, r.attempts.number, strict=True) if number > 1]
        for name, r in recordings.items()
    }
    repeats = {name: at for name, at in repeats.items() if at}
    first = min((min(at) for at in repeats.values()), default=0.0)
    for name, at in repeats.items():
        counts = Counter(math.floor((when - first) * 1000) for when in at)
        last = max(counts) + 2
        x = list(range(last))
        busiest = max(counts.values())
        axes.step(
            x,
            [counts[bin_ms] if counts[bin_ms] else math.nan for bin_ms in x]
            if len(counts) < 4
            else [counts[b] for b in x],
            where="mid",
            color=colours[name],
            linewidth=1.0,
            label=f"{name}: {len(at)} requests, busiest millisecond {busiest}",
        )
        axes.fill_between(x, [counts[bin_ms] for bin_ms in x], step="mid", color=colours[name], alpha=0.5, linewidth=0)
        if busiest >= 10:
            where = counts.most_common(1)[0][0]
            axes.annotate(
                f"{busiest} in one millisecond",
                (where, busiest),
                xytext=(-10, -4),
                textcoords="offset points",
                horizontalalignment="right",
                color=colours[name],
            )
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(0, 200)
    axes.set_yticks([0, 1, 2, 5, 10, 20, 50, 100], ["0", "1", "2", "5", "10", "20", "50", "100"])
    axes.set(
        title="Second attempts of agents that failed together",
        xlabel="milliseconds since the first of them",
        ylabel="requests in each millisecond",
    )
    figure.legend(loc="outside upper right")
    return figure


def _latency(scenario: Scenario, recordings: Recordings) -> Figure:
    """How long successful calls took in the trouble, as a distribution, a panel for each tool."""
    start = min((fault["start"] for fault in scenario["faults"]), default=0.0)
    end = max((fault["end"] for fault in scenario["faults"]), default=scenario["seconds"])
    tools = sorted({tool for recording in recordings.values() for tool in recording.calls.tool})
    figure = Figure(figsize=(10, 4.0), layout="constrained")
    panels = figure.subplots(1, len(tools), sharey=True, squeeze=False)
    colours = _colours(recordings)
    for axes, tool in zip(panels.flat, tools, strict=True):
        for name, recording in recordings.items():
            took = sorted(
                max(0.001, (done - due) * 1000)
                for due, done, its, _, outcome in recording.calls.rows()
                if its == tool and outcome == "success" and start <= due < end
            )
            if took:
                shares = [100 * (index + 1) / len(took) for index in range(len(took))]
                step = max(1, len(took) // 1000)
                axes.plot(
                    [*took[::step], took[-1]],
                    [*shares[::step], 100.0],
                    color=colours[name],
                    linewidth=2.4 if name == "seawall" else 1.3,
                    drawstyle="steps-post",
                    label=name,
                )
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.xaxis.set_major_formatter(FuncFormatter(_number))
        axes.xaxis.set_minor_formatter(FuncFormatter(_number) if high < 10 * low else NullFormatter())
        axes.set(
            title=tool, xlabel="milliseconds, successful calls" + (" in the trouble" if scenario["faults"] else "")
        )
    panels[0][0].set_ylabel("% of calls at most")
    panels[0][0].set_ylim(0, 101)
    handles = [Line2D([], [], color=colour, linewidth=2) for colour in colours.values()]
    figure.legend(handles, list(colours), loc="outside upper center", ncols=min(6, len(colours)))
    return figure


def _number(value: float, _: object) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _hysteresis(scenario: Scenario, recordings: Recordings) -> Figure:
    """Goodput against load, on the way up and on the way down."""
    figure = Figure(figsize=(7.5, 5.4), layout="constrained")
    axes = figure.subplots()
    colours = _colours(recordings)
    half, seconds, width_s = scenario["seconds"] / 2, scenario["seconds"], 4.0
    highest = 0.0
    for name, recording in recordings.items():
        good = [
            end
            for end, outcome in zip(recording.calls.end, recording.calls.outcome, strict=True)
            if outcome == "success"
        ]
        x, offered = _per_second(recording.calls.due, seconds, width_s)
        _, achieved = _per_second(good, seconds, width_s)
        highest = max(highest, *offered)
        turn = sum(when < half for when in x)
        axes.plot(offered[:turn], achieved[:turn], color=colours[name], marker=".", label=f"{name}, load going up")
        axes.plot(
            offered[turn - 1 :], achieved[turn - 1 :], color=colours[name], linestyle="--", marker="v", markersize=4,
            label=f"{name}, load going down",
        )  # fmt: skip
    axes.plot([0, highest], [0, highest], color="black", linewidth=0.8, linestyle=":", label="everything succeeds")
    axes.set(
        title="The way down is not the way up",
        xlabel="calls made by agents, a second",
        ylabel="calls that succeeded, a second",
    )
    axes.legend(loc="upper left")
    axes.set_xlim(0)
    axes.set_ylim(0)
    return figure


def _shares(scenario: Scenario, recordings: Recordings) -> Figure:
    """What each agent gets, over time."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    panels = figure.subplots(1, len(recordings), sharey=True, squeeze=False)
    highest = 0.0
    palette = ("#c1121f", "#e07a00", "#0b6e4f", "#5e60ce", "#0081a7", "#555555")
    agents = sorted({agent for recording in recordings.values() for agent in recording.calls.agent})
    for axes, (name, recording) in zip(panels.flat, recordings.items(), strict=True):
        for agent, colour in zip(agents, palette * 9, strict=False):
            done = [
                end
                for end, who, outcome in zip(
                    recording.calls.end, recording.calls.agent, recording.calls.outcome, strict=True
                )
                if who == agent and outcome == "success"
            ]
            x, y = _per_second(done, scenario["seconds"], 2.0)
            highest = max(highest, *y)
            axes.step(x, y, where="post", color=colour, label=agent, linewidth=1.8)
        axes.set(title=name, xlabel="seconds")
    panels[0][0].set_ylim(0, 1.06 * highest)
    panels[0][0].set_ylabel("calls that succeeded, a second")
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=6)
    return figure


def _ceiling(scenario: Scenario, recordings: Recordings) -> Figure:
    """Goodput against load that rises."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    axes = figure.subplots()
    colours = _colours(recordings)
    highest = 0.0
    for name, recording in recordings.items():
        good = [due for due, _, _, _, outcome in recording.calls.rows() if outcome == "success"]
        _, offered = _per_second(recording.calls.due, scenario["seconds"], 1.0)
        _, achieved = _per_second(good, scenario["seconds"], 1.0)
        highest = max(highest, *offered)
        axes.plot(
            offered, achieved, color=colours[name], marker=".", linewidth=2.4 if name == "seawall" else 1.3, label=name
        )
    axes.plot([0, highest], [0, highest], color="black", linewidth=0.8, linestyle=":", label="everything succeeds")
    axes.set(
        title="What succeeds of what is asked for, as the load rises",
        xlabel="calls made by agents, a second",
        ylabel="of these succeeded",
    )
    axes.set_xlim(0)
    axes.set_ylim(0)
    figure.legend(loc="outside right upper")
    return figure


def _back(scenario: Scenario, recordings: Recordings) -> Figure:
    """How long the gateway was away after each kill."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    axes = figure.subplots()
    colours = _colours(recordings)
    for name, recording in recordings.items():
        if recording.kills.at:
            axes.vlines(recording.kills.at, 0, recording.kills.back_s, color=colours[name], linewidth=1.5, alpha=0.6)
            axes.plot(
                recording.kills.at, recording.kills.back_s, "o", color=colours[name],
                label=f"{name}: {len(recording.kills)} kills, {recording.toll.get('doubled', 0)} doubled effects",
            )  # fmt: skip
    axes.set(
        title="From each SIGKILL until the gateway listens again, its journal recovered",
        xlabel="second of the storm at which it was killed",
        ylabel="seconds",
    )
    axes.set_xlim(0, scenario["seconds"] * 1.1)
    axes.set_ylim(0)
    if any(recording.kills.at for recording in recordings.values()):
        figure.legend(loc="outside upper center", ncols=3)
    return figure


PLOTS: Mapping[str, Callable[[Scenario, Recordings], Figure]] = {
    "amplification": _amplification,
    "arrivals": _arrivals,
    "back": _back,
    "breaker": _breaker,
    "ceiling": _ceiling,
    "flow": _flow,
    "hysteresis": _hysteresis,
    "latency": _latency,
    "queue": _queue,
    "shares": _shares,
}
