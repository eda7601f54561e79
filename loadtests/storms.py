"""The full report: every scenario, five seeds, both engines, kept as pages with its date and machine.

    python -m loadtests.storms --out docs/storms        # or: make storm

A folder for each scenario and engine with `run.json`, `summary.md` and the plots; `index.md` is made of all that lie there
and shows all of it. The recordings are large, and a run's own page only repeats the rest: both stay in `--keep`, if given.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from gateway.storm.compare import read_run
from gateway.storm.live import live_engine
from gateway.storm.report import write_report
from gateway.storm.runner import run_storm
from gateway.storm.scenario import Scenario, load, shipped
from gateway.storm.summary import headline, pace

__all__ = ["index", "live_policies", "main", "storms"]


def storms(
    names: Iterable[str], engines: Iterable[str], seeds: int, out: Path, keep: Path | None = None, jobs: int = 1
) -> bool:
    """Run scenarios and write their pages; return whether every claim holds."""
    is_good = True
    for name in names:
        scenario = load(name)
        for engine in engines:
            if engine not in scenario.engines:
                continue
            folder = scenario.name if engine == "virtual" else f"{scenario.name}-{engine}"
            began = time.monotonic()
            try:
                failed = _storm(
                    scenario, engine, seeds, jobs, out / folder, keep / folder if keep is not None else None
                )
            except (RuntimeError, OSError) as error:
                failed = [str(error)]
            is_good = is_good and not failed
            click.echo(f"{'BAD ' if failed else 'good'}  {folder}, {time.monotonic() - began:.0f} s", err=True)
            for claim in failed:
                click.echo(f"      {claim}", err=True)
    return is_good


def _storm(scenario: Scenario, engine: str, seeds: int, jobs: int, out: Path, keep: Path | None) -> list[str]:
    """Run one scenario on one engine and write its pages; return the claims that do not hold."""
    how: dict[str, Any] = {"seeds": range(1, seeds + 1), "jobs": jobs}
    if engine == "live":
        how = {"seeds": (1,), "policies": live_policies(scenario), **live_engine()}
    with tempfile.TemporaryDirectory(prefix="seawall-storms-") as where:
        run = run_storm(scenario, engine_name=engine, out=Path(where), **how)
        write_report(Path(where))
        _move(Path(where), out, keep)
    return [*run.problems, *(str(verdict) for verdict in run.verdicts if not verdict.holds)]


def live_policies(scenario: Scenario) -> tuple[str, ...]:
    """Return the policies that are worth their time on real sockets: those of which a claim speaks."""
    can_run = live_engine()["can_run"]
    return tuple(
        name
        for name, policy in scenario.policies.items()
        if can_run(policy) is None and any(f"{name}." in claim for claim in scenario.holds_live)
    )


def _move(where: Path, out: Path, keep: Path | None) -> None:
    if keep is not None:
        shutil.copytree(where, keep, dirs_exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    for pattern in ("*.png", "run.json", "summary.md"):
        for path in where.glob(pattern):
            shutil.copy(path, out / path.name)


def index(folder: Path) -> str:
    """Return the page that leads to everything in a folder of storms."""
    runs = {path.parent.name: read_run(path.parent) for path in sorted(folder.glob("*/run.json"))}
    parts = [
        "# The storm report",
        "`make storm` makes it again. How to read it, and how to storm your own tools: [storms.md](../storms.md).",
        (folder / "notes.md").read_text().strip() if (folder / "notes.md").is_file() else "",
        _others(folder),
        _engines(runs),
    ]
    for name, document in runs.items():
        scenario, made = document["scenario"], document["machine"]
        heads, rows = headline(document)
        table = [heads, ["---"] + ["--:"] * (len(heads) - 1), *rows]
        holding = sum(verdict["holds"] for verdict in document["verdicts"])
        count = len(document["seeds"])
        parts += [
            f"## {scenario['title']}",
            f"[`{name}`]({name}/summary.md), engine {document['engine']}, {count} seed{'s' * (count > 1)}, "
            f"{document['date'][:10]}, Seawall {made['seawall']}, Python {made['python']}, {made['platform']}, "
            f"{made['cores']} cores: {holding} of {len(document['verdicts'])} claims hold.",
            f"**What arithmetic says.** {scenario['theory'].strip()}",
            pace(document),
            "\n".join("| " + " | ".join(row) + " |" for row in table),
            "\n".join(f"![{kind}]({name}/{scenario['name']}-{kind}.png)" for kind in scenario["plots"]),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


_BOTH = (
    ("calls made", ("calls",), ",.0f"),
    ("requests", ("attempts",), ",.0f"),
    ("requests in the trouble", ("during", "attempts"), ",.0f"),
    ("succeeded", ("goodput_share",), ".1%"),
    ("recovered after, s", ("recovery_s",), ".2f"),
    ("p50 of successes, ms", ("p50_ms",), ".1f"),
    ("p99 of successes, ms", ("p99_ms",), ".1f"),
)


def _engines(runs: Mapping[str, Any]) -> str:
    """Return both engines side by side, for every scenario and policy that both have run."""
    rows = []
    for name, virtual in runs.items():
        live = runs.get(f"{name}-live")
        if live is None:
            continue
        for policy in (name for name in virtual["figures"] if name in live["figures"]):
            both = [document["figures"][policy] for document in (virtual, live)]
            cells = [" / ".join(_shown(figures, path, form) for figures in both) for _, path, form in _BOTH]
            rows.append([name, policy, *cells])
    if not rows:
        return ""
    heads = ["scenario", "policy", *(head for head, _, _ in _BOTH)]
    lines = [heads, ["---", "---", *["--:"] * len(_BOTH)], *rows]
    return (
        "## Both engines on the same storms\n\n"
        "Virtual / live. Why they differ: [storms.md](../storms.md#the-two-engines).\n\n"
        + "\n".join("| " + " | ".join(line) + " |" for line in lines)
    )


def _shown(figures: Any, path: tuple[str, ...], form: str) -> str:
    for step in path:
        figures = figures.get(step) if isinstance(figures, Mapping) else None
    if figures is None:
        return "–"
    return f"{figures:{form}}" if isinstance(figures, int | float) else str(figures)


def _others(folder: Path) -> str:
    """Return what scoreboard, baselines and crash storm have left in the folder."""
    parts = []
    for name, title in (("scoreboard", "The scoreboard"), ("baselines", "An outage, and who stands before the tool")):
        text, told = folder / name / f"{name}.md", folder / name / f"{name}.json"
        if text.is_file() and told.is_file():
            parts += [f"## {title}", _about(name, json.loads(told.read_text())), text.read_text().strip()]
    crashes = folder / "crashes" / "crashes.json"
    if crashes.is_file():
        told_of = json.loads(crashes.read_text())
        kept = {key: value for key, value in told_of.items() if key != "machine"}
        rows = "\n".join(f"| {key} | {value} |" for key, value in kept.items())
        parts += ["## The crash storm", f"| what | how much |\n|---|--:|\n{rows}"]
    journal = folder / "journal" / "journal.json"
    if journal.is_file():
        rows = json.loads(journal.read_text())
        heads = list(rows[0])
        lines = [heads, ["---"] * len(heads), *([str(row[head]) for head in heads] for row in rows)]
        parts += ["## The journal's ceiling", "\n".join("| " + " | ".join(line) + " |" for line in lines)]
    return "\n\n".join(parts)


def _about(name: str, told: dict[str, Any]) -> str:
    if name == "scoreboard":
        return (
            f"Runs of nine turns, seed {told['seed']}; a fifth of the turns faulty. What the columns mean, "
            "and why our figures for the partial configurations are not the book's: "
            "[storms.md](../storms.md#the-scoreboard)."
        )
    return f"The scenario `{told['scenario']}` on real sockets, seed {told['seed']}."


@click.command()
@click.option("--only", multiple=True, help="Only this scenario.")
@click.option("--engine", "engines", multiple=True, type=click.Choice(["virtual", "live"]), help="Only this engine.")
@click.option("--seeds", default=5, show_default=True, help="Seeds of each virtual storm.")
@click.option("--jobs", default=1, show_default=True, help="Virtual storms at the same time, a process for each.")
@click.option("--out", default="docs/storms", show_default=True, type=click.Path(file_okay=False), help="Where to.")
@click.option("--keep", type=click.Path(file_okay=False), help="Folder for the recordings.")
def main(only: tuple[str, ...], engines: tuple[str, ...], seeds: int, jobs: int, out: str, keep: str | None) -> None:
    """Run every storm and write the report; exit code 1 if a claim does not hold."""
    folder = Path(out)
    is_good = storms(
        only or tuple(shipped()),
        engines or ("virtual", "live"),
        seeds,
        folder,
        Path(keep) if keep is not None else None,
        jobs,
    )
    (folder / "index.md").write_text(index(folder))
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
