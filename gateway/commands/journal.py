"""`seawall journal`: look at a journal, also beside a running gateway."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from gateway.commands import EXIT_FINDING

__all__ = ["journal"]


@click.group()
def journal() -> None:
    """Look at a journal."""


@journal.command("stats")
@click.option("--data", default="var", envvar="SEAWALL_DATA", show_default=True, help="The gateway's data folder.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def stats(data: str, as_json: bool) -> None:
    """Print figures of the journal in a data folder; a running gateway is not disturbed."""
    from gateway.journal import JournalError
    from gateway.journal.offline import offline_stats

    try:
        figures = asdict(offline_stats(data))
    except (JournalError, OSError) as error:
        click.echo(f"seawall: {error}", err=True)
        sys.exit(EXIT_FINDING)
    if as_json:
        click.echo(json.dumps(figures, indent=2, default=str))
        return
    details = figures.pop("details")
    for name, value in {**figures, **details}.items():
        click.echo(f"{name:>20}  {value}")
