"""`seawall rules`: which rules decided about calls, and what those in shadow would have done."""

from __future__ import annotations

import json

import click

from gateway.commands.client import control_option, fetch, json_option, moment, show

__all__ = ["rules"]


@click.group()
def rules() -> None:
    """See what rules decide about calls."""


@rules.command("report")
@click.option("--shadow", "only_shadow", is_flag=True, help="Only what would have happened.")
@control_option
@json_option
def report(only_shadow: bool, control: str, as_json: bool) -> None:
    """Tell how often each rule decided about which operation, and how often it would have, in shadow."""
    answer = fetch(control, "GET", "/api/v1/rules", as_json=as_json)
    rows = [row for row in answer["decisions"] if row["is_shadow"] or not only_shadow]
    if as_json:
        click.echo(json.dumps({**answer, "decisions": rows}, indent=2))
        return
    show(
        [
            [
                row["rule"],
                ("would " if row["is_shadow"] else "") + row["effect"],
                row["operation"],
                str(row["times"]),
                moment(row["first_at"]),
                moment(row["last_at"]),
                row["last_run"],
                row["last_agent"],
            ]
            for row in rows
        ],
        ["RULE", "EFFECT", "OPERATION", "CALLS", "FIRST", "LAST", "LAST RUN", "LAST AGENT"],
    )
    if answer["is_shadow"]:
        click.echo("The gateway is in shadow: rules are asked and recorded, and none is acted on.", err=True)
