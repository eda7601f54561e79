"""`seawall journal`: look at a journal, also beside a running gateway; and, with none running, what only an operator may."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gateway.commands import EXIT_FINDING

if TYPE_CHECKING:
    from gateway.journal.verification import Verification

__all__ = ["data_option", "guarded", "journal", "keys_option"]

C = TypeVar("C", bound=Callable[..., Any])

data_option = click.option(
    "--data", default="var", envvar="SEAWALL_DATA", show_default=True, help="The gateway's data folder."
)
keys_option = click.option(
    "--keys", envvar="SEAWALL_JOURNAL_KEYS", help="The key ring, if `serve` was given one with --journal-keys."
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_by_option = click.option("--by", envvar="USER", required=True, help="Who does this; it is journaled.")
_reason_option = click.option("--reason", required=True, help="Why; it is journaled.")


def guarded(command: C) -> C:
    """Print a journal's error as one line, and exit with a finding."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        from gateway.journal import JournalError

        try:
            return command(*args, **kwargs)
        except (JournalError, OSError) as error:
            click.echo(f"seawall: {error}", err=True)
            sys.exit(EXIT_FINDING)

    return run  # type: ignore[return-value]


@click.group()
def journal() -> None:
    """Look at a journal: figures, seal, copies. Most of it works beside a running gateway."""


@journal.command("stats")
@data_option
@_json_option
@guarded
def stats(data: str, as_json: bool) -> None:
    """Print figures of the journal in a data folder; a running gateway is not disturbed."""
    from gateway.journal.offline import offline_stats

    figures = asdict(offline_stats(data))
    if as_json:
        click.echo(json.dumps(figures, indent=2, default=str))
        return
    details = figures.pop("details")
    for name, value in {**figures, **details}.items():
        click.echo(f"{name:>20}  {value}")


@journal.command("verify")
@data_option
@keys_option
@click.option("--against", metavar="CHECKPOINT", help="A checkpoint to compare with. Default: the gateway's own file.")
@_json_option
@guarded
def verify(data: str, keys: str | None, against: str | None, as_json: bool) -> None:
    """Check every record's seal; say what is wrong and where.

    Verdicts: ok, acknowledged (broken, and a person has said why), missing_key, truncated, tampered. Exit code 0 for the
    first, 1 for all others.
    """
    from gateway.journal.offline import verify_folder

    _tell(verify_folder(data, keys=keys, against=against or True), as_json)


@journal.command("acknowledge")
@data_option
@keys_option
@_reason_option
@_by_option
@guarded
def acknowledge(data: str, keys: str | None, reason: str, by: str) -> None:
    """Write down why the journal does not verify, so that the gateway starts again. It will never be called ok again.

    No gateway may be running on it. Look at `verify` first, and keep a copy of the folder.
    """
    from gateway.journal.offline import acknowledge_folder

    found = acknowledge_folder(data, reason=reason, by=by, keys=keys)
    if not found.bad and found.verdict in ("ok", "acknowledged"):
        click.echo(f"{found.verdict.value}: nothing new to acknowledge")
        return
    click.echo(f"acknowledged: {found.finding}")


@journal.command("export")
@data_option
@click.option(
    "--output", "-o", type=click.File("wb", lazy=False), default="-", help="File to write; default: standard output."
)
@guarded
def export(data: str, output: Any) -> None:
    """Print every sealed record as a line of JSON: the envelope's ten fields, payload, seal."""
    from gateway.journal import offline

    count = offline.export(data, output)
    click.echo(f"{count} records", err=True)


@journal.command("backup")
@click.argument("to", type=click.Path())
@data_option
@keys_option
@guarded
def backup(to: str, data: str, keys: str | None) -> None:
    """Copy the journal with its large bodies to a new folder TO, beside a running gateway, and verify the copy.

    The key ring is not copied: keep it where secrets are kept. To restore, stop the gateway and put the copy in the place
    of the data folder.
    """
    from gateway.journal.offline import back_up

    found = back_up(data, to, keys=keys)
    click.echo(f"{to}: {found.rows} records, {found.verdict.value}")


@journal.command("prune")
@click.option("--older-than", required=True, metavar="DURATION", help="Such as 30d: runs that closed longer ago go.")
@click.option("--archive", type=click.Path(), help="Folder for what is pruned. Default: `archive` in the data folder.")
@data_option
@keys_option
@guarded
def prune(older_than: str, archive: str | None, data: str, keys: str | None) -> None:
    """Archive and delete closed runs, with no gateway running; one that runs does it by itself (--journal-retention)."""
    import time

    before = time.time_ns() // 1_000_000 - round(_seconds(older_than) * 1000)
    runs, records = _opened(data, keys, _pruning(before, archive))
    click.echo(f"{runs} runs, {records} records archived and deleted")


@journal.command("erase")
@click.argument("run")
@_reason_option
@_by_option
@data_option
@keys_option
@guarded
def erase(run: str, reason: str, by: str, data: str, keys: str | None) -> None:
    """Erase what a closed RUN's records hold of people and payloads, with no gateway running.

    Times, tools, states and seals stay, and the journal still verifies. Copies (archives, backups) are yours to see to.
    """

    async def work(journal: Any) -> int:
        count: int = await journal.erase(run, reason=reason, by=by)
        return count

    count = _opened(data, keys, work)
    click.echo(f"{run}: payloads erased, {count} large bodies deleted")


@journal.command("doctor")
@data_option
@keys_option
@_json_option
@guarded
def doctor(data: str, keys: str | None, as_json: bool) -> None:
    """Look over what the journal's promises rest on: file, library, file system, disk, clock, keys."""
    from gateway.commands.client import show
    from gateway.journal.doctor import Health, examine

    findings = examine(data, keys=keys)
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        show([[finding.health.value, finding.name, finding.text] for finding in findings], ["", "WHAT", "FOUND"])
    if any(finding.health is Health.BAD for finding in findings):
        sys.exit(EXIT_FINDING)


def _tell(found: Verification, as_json: bool) -> None:
    told = {
        "verdict": found.verdict.value,
        "first_bad": found.first_bad,
        "finding": found.finding,
        "records": found.rows - found.own,
        "own": found.own,
        "erased": found.erased,
        "archived": found.archived,
        "unsealed": found.unsealed,
        "size": found.size,
        "root": found.root.hex(),
        "missing_keys": found.missing_keys,
    }
    if as_json:
        click.echo(json.dumps(told, indent=2))
    else:
        click.echo(f"{found.verdict.value}: {found.finding}")
        for name in ("records", "erased", "archived", "unsealed", "size"):
            click.echo(f"{name:>10}  {told[name]}")
    if found.verdict.value != "ok":
        sys.exit(EXIT_FINDING)


def _pruning(before: int, archive: str | None) -> Callable[[Any], Any]:
    async def work(journal: Any) -> tuple[int, int]:
        runs = records = 0
        bodies: set[str] = set()
        while (done := await journal.prune(before, archive)).runs:
            runs, records = runs + done.runs, records + done.records
            bodies |= done.bodies
        await journal.sweep(bodies)
        return runs, records

    return work


def _opened(data: str, keys: str | None, work: Callable[[Any], Any]) -> Any:
    """Open a journal as its gateway would, do some work on it, close it."""
    import asyncio

    from gateway.journal.offline import offline_stats
    from gateway.journal.sqlite import SqliteJournal

    offline_stats(data)  # says so where there is no journal, instead of making one

    async def run() -> Any:
        journal = await SqliteJournal.open(data, keys=keys)
        try:
            return await work(journal)
        finally:
            await journal.close()

    return asyncio.run(run())


def _seconds(text: str) -> float:
    from gateway.config.decode import parse_duration

    seconds = parse_duration(text)
    if seconds is None or seconds <= 0:
        raise click.BadParameter(f"{text!r} is no duration such as 30d or 12h", param_hint="--older-than")
    return seconds
