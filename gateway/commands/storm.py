"""`seawall storm`: run storms, read what came of them, compare two."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.commands import EXIT_FINDING, EXIT_OK, EXIT_USAGE
from gateway.commands.client import show

if TYPE_CHECKING:
    from gateway.storm.runner import Run

__all__ = ["storm"]


@click.group()
def storm() -> None:
    """Put tools and policies under stress, in virtual time or against real processes, and measure what holds."""


@storm.command("ls")
def ls() -> None:
    """List the scenarios that come with Seawall, and the policies that any of them may be compared with."""
    from gateway.storm.scenario import book, load, shipped

    scenarios = [load(name) for name in shipped()]
    show(
        [[one.name, ", ".join(one.engines), one.title] for one in scenarios],
        ["scenario", "engines", "what it shows"],
    )
    click.echo()
    show([[name, policy.about] for name, policy in book().items()], ["policy", "what it is"])


@storm.command("run")
@click.argument("scenario")
@click.option("--engine", type=click.Choice(["virtual", "live"]), help="Default: virtual, where the scenario has it.")
@click.option("--seed", default=1, show_default=True, help="Where chance begins.")
@click.option("--seeds", default=1, show_default=True, help="Storms of each policy, with the seeds that follow.")
@click.option("--policy", "policies", multiple=True, help="Only this policy, and the manifest itself. May be repeated.")
@click.option(
    "--manifest", type=click.Path(exists=True, dir_okay=False), help="Your manifest instead of the scenario's."
)
@click.option("--tool", help="Which of your tools the storm hits, if the scenario names another.")
@click.option("--against", help="Base URL of a gateway that runs already, instead of one of the lab's own.")
@click.option("--assert", "claims", multiple=True, help="Claim to hold it to, such as 'seawall.amplification <= 1.1'.")
@click.option("--max-amplification", type=float, help="Requests to the tools, for each call.")
@click.option("--min-goodput", type=float, help="Share of the calls that must succeed, 0 to 1.")
@click.option("--max-recovery", type=float, help="Seconds from the end of the trouble until all is well.")
@click.option("--jobs", default=1, show_default=True, help="Virtual storms at the same time, a process for each.")
@click.option("--out", type=click.Path(file_okay=False), help="Folder for recordings and report.")
@click.option("--no-plots", is_flag=True, help="Write figures only; the plots need the extra `seawall[lab]`.")
def run(
    scenario: str,
    engine: str | None,
    seed: int,
    seeds: int,
    policies: tuple[str, ...],
    manifest: str | None,
    tool: str | None,
    against: str | None,
    claims: tuple[str, ...],
    max_amplification: float | None,
    min_goodput: float | None,
    max_recovery: float | None,
    jobs: int,
    out: str | None,
    no_plots: bool,
) -> None:
    """Run SCENARIO (a name that `ls` lists, or a file); exit code 1 if a claim does not hold.

    Example: seawall storm run outage --manifest mine.yaml --tool payments --max-amplification 1.1
    """
    from gateway.config.errors import ConfigError
    from gateway.storm.mine import with_manifest
    from gateway.storm.runner import run_storm
    from gateway.storm.scenario import load

    try:
        chosen = load(scenario)
        if manifest is not None:
            chosen = with_manifest(chosen, Path(manifest), tool)
    except (ConfigError, ValueError) as error:
        _fail(str(error))
    unknown = set(policies) - set(chosen.policies)
    if unknown:
        _fail(
            f"{chosen.name} has no policy {', '.join(sorted(unknown))}; it has {', '.join(chosen.policies) or 'none'}"
        )
    name = engine or ("live" if against or "virtual" not in chosen.engines else "virtual")
    if name not in chosen.engines:
        _fail(f"{chosen.name} runs only {' and '.join(chosen.engines)}; leave out --engine")
    own = list(claims)
    own += [] if max_amplification is None else [f"seawall.amplification <= {max_amplification}"]
    own += [] if min_goodput is None else [f"seawall.goodput_share >= {min_goodput}"]
    own += [] if max_recovery is None else [f"seawall.recovery_s <= {max_recovery}"]
    judged = own if own or manifest or against else None
    folder = Path(out) if out is not None else None
    with _Progress() as progress:
        try:
            done = run_storm(
                chosen,
                engine_name=name,
                seeds=tuple(range(seed, seed + seeds)),
                policies=policies or None,
                claims=judged,
                out=folder,
                progress=progress.tell,
                jobs=jobs if name == "virtual" else 1,
                **_engine(name, against),
            )
        except (ConfigError, RuntimeError) as error:
            progress.end()
            _fail(str(error))
    _print(done)
    if folder is not None:
        _report(folder, plots=not no_plots)
    sys.exit(EXIT_OK if done.is_good else EXIT_FINDING)


@storm.command("report")
@click.argument("folder", type=click.Path(exists=True, file_okay=False))
@click.option("--no-plots", is_flag=True, help="Write the summary only.")
def report(folder: str, no_plots: bool) -> None:
    """Write summary, plots and one self-contained page for what `run --out FOLDER` left."""
    _report(Path(folder), plots=not no_plots)


@storm.command("compare")
@click.argument("before", type=click.Path(exists=True, file_okay=False))
@click.argument("after", type=click.Path(exists=True, file_okay=False))
@click.option("--tolerance", default=0.05, show_default=True, help="Share by which a figure may be worse.")
def compare(before: str, after: str, tolerance: float) -> None:
    """Say which figures of AFTER differ from those of BEFORE; exit code 1 if one is worse."""
    from gateway.storm.compare import compare_runs, read_run

    rows = compare_runs(read_run(Path(before)), read_run(Path(after)), tolerance)
    show([row.cells() for row in rows], ["policy", "figure", "before", "after", "verdict"])
    sys.exit(EXIT_FINDING if any(row.is_worse for row in rows) else EXIT_OK)


def _engine(name: str, against: str | None) -> dict[str, Any]:
    if name == "virtual":
        return {}
    from gateway.storm.live import live_engine

    return live_engine(against)


def _print(done: Run) -> None:
    from gateway.storm.summary import headline

    heads, rows = headline(done.document())
    show(rows, heads)
    if done.engine == "virtual":
        click.echo(f"simulated  {done.pace}")
    for name, reason in done.skipped.items():
        click.echo(f"left out  {name}: {reason}")
    for problem in done.problems:
        click.secho(problem, fg="red", err=True)
    for verdict in done.verdicts:
        click.secho(str(verdict), fg="green" if verdict.holds else "red")


def _report(folder: Path, *, plots: bool) -> None:
    from gateway.storm.report import PlotsUnavailable, write_report

    try:
        written = write_report(folder, plots=plots)
    except PlotsUnavailable as error:
        click.echo(f"seawall: {error}", err=True)
        written = write_report(folder, plots=False)
    except (OSError, ValueError) as error:
        _fail(f"{folder} holds no storm: {error}")
    click.echo(f"written: {written}")


class _Progress:
    """One line that says what is running; silent where nobody looks."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def tell(self, what: str, share: float) -> None:
        """Show what is running and how much of it is done."""
        if self._is_shown:
            full = round(share * 30)
            click.echo(f"\r{what:<32} [{'=' * full}{' ' * (30 - full)}] {share:4.0%}", err=True, nl=False)

    def end(self) -> None:
        """Clear the line."""
        if self._is_shown:
            click.echo("\r" + " " * 80 + "\r", err=True, nl=False)


def _fail(text: str) -> None:
    click.echo(f"seawall: {text}", err=True)
    sys.exit(EXIT_USAGE)
