"""What `loadtests.bench --json` has measured, as plots for docs/performance.md.

    python -m loadtests.bench --json result.json --markdown docs/performance.md
    python -m loadtests.bench_plots result.json docs/performance

Three files, SVG: throughput of reads and writes by the number of connections, beside the bare proxy; processor time of a
call by system; latency added at a low rate. The whiskers are the lowest and highest of the rounds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

__all__ = ["PLOTS", "main"]

Row = dict[str, Any]

mpl.rcParams.update(
    {
        "font.size": 10, "axes.titlesize": 11, "axes.titleweight": "bold", "axes.spines.top": False,
        "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "figure.dpi": 110, "svg.hashsalt": "seawall",
        "svg.fonttype": "none", "legend.frameon": False, "axes.titlelocation": "left",
    }
)  # fmt: skip

_COLOURS = {
    "seawall": "#0b6e4f", "seawall-memory": "#52b788", "seawall-pass": "#b7e4c7", "bare-asyncio": "#c1121f",
    "bare-uvloop": "#e07a00", "envoy": "#5e60ce", "nginx": "#555555", "haproxy": "#8d6e63", "node-http-proxy": "#0081a7",
    "mitmproxy": "#b5838d",
}  # fmt: skip
_KINDS = {"read": "Reads", "write": "Writes, which only Seawall journals"}


def _systems(rows: Iterable[Row]) -> list[str]:
    found = dict.fromkeys(row["system"] for row in rows)
    return [name for name in _COLOURS if name in found]


def _closed(rows: Sequence[Row], kind: str) -> list[Row]:
    return [row for row in rows if row["point"]["workload"] == kind and not row["point"]["rate"]]


def _error(spreads: Sequence[dict[str, float]]) -> list[list[float]]:
    return [
        [max(0.0, each["median"] - each["low"]) for each in spreads],
        [max(0.0, each["high"] - each["median"]) for each in spreads],
    ]


def throughput(rows: Sequence[Row]) -> Figure:
    """Return calls a second in closed loops as multiples of the bare proxy's, by connections."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    for axes, (kind, title) in zip(figure.subplots(1, 2, sharey=True), _KINDS.items(), strict=True):
        found = _closed(rows, kind)
        for name in _systems(found):
            mine = sorted((row for row in found if row["system"] == name), key=lambda row: row["point"]["connections"])
            axes.errorbar(
                [row["point"]["connections"] for row in mine],
                [row["ratio"]["median"] for row in mine],
                yerr=_error([row["ratio"] for row in mine]),
                color=_COLOURS[name], marker="o", markersize=4, linewidth=2.4 if name == "seawall" else 1.3, label=name,
            )  # fmt: skip
        axes.set_xscale("log", base=4)
        axes.set_yscale("log", base=2)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_title(title)
        axes.set_xlabel("connections, each calls again when answered")
    figure.axes[0].set_ylabel("calls a second, x the bare aiohttp proxy")
    figure.axes[0].legend(fontsize=8, ncols=2)
    return figure


def processor(rows: Sequence[Row]) -> Figure:
    """Return processor time of a call at 64 connections, by system."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    for axes, (kind, title) in zip(figure.subplots(1, 2), _KINDS.items(), strict=True):
        found = [row for row in _closed(rows, kind) if row["point"]["connections"] == 64]
        mine = sorted((row for row in found if row["system"] in _COLOURS), key=lambda row: -row["cpu_us"]["median"])
        names, spent = [row["system"] for row in mine], [row["cpu_us"] for row in mine]
        bars = axes.barh(
            names, [each["median"] for each in spent], xerr=_error(spent), color=[_COLOURS[name] for name in names]
        )
        axes.bar_label(bars, [f" {each['median']:,.0f}" for each in spent], padding=3, fontsize=8)
        axes.set_title(title)
        axes.set_xlabel("µs of processor time a call, 64 connections")
        axes.set_xscale("log")
    return figure


def added(rows: Sequence[Row]) -> Figure:
    """Return the latency that each system adds at a low rate, median and 99th percentile."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    for axes, (kind, title) in zip(figure.subplots(1, 2), _KINDS.items(), strict=True):
        found = [row for row in rows if row["point"]["workload"] == kind and row["point"]["rate"]]
        mine = sorted(
            (row for row in found if row["system"] in _COLOURS), key=lambda row: -row["added_p50_us"]["median"]
        )
        for place, row in enumerate(mine):
            median, high = (row[what]["median"] / 1000 for what in ("added_p50_us", "added_p99_us"))
            axes.plot([median, high], [place, place], color=_COLOURS[row["system"]], linewidth=1.5)
            axes.plot([median], [place], "o", color=_COLOURS[row["system"]])
            axes.plot([high], [place], "|", color=_COLOURS[row["system"]], markersize=10)
        axes.set_yticks(range(len(mine)), [row["system"] for row in mine])
        axes.set_title(title)
        rate = mine[0]["point"]["rate"] if mine else 0.0
        axes.set_xlabel(f"ms added at {rate:g} calls/s: median to 99th percentile")
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return figure


PLOTS = {"throughput": throughput, "processor": processor, "added": added}


@click.command(help="Draw what RESULT (`loadtests.bench --json`) has measured into FOLDER.")
@click.argument("result", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def main(result: Path, folder: Path) -> None:
    """See the module."""
    rows: list[Row] = json.loads(result.read_text())["rows"]
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PLOTS.items():
        path = folder / f"{name}.svg"
        draw(rows).savefig(path, metadata={"Date": None})
        click.echo(path)


if __name__ == "__main__":
    main()
