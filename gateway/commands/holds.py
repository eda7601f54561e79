"""`seawall holds`: what is held for want of proof, and letting it go."""

from __future__ import annotations

import json

import click

from gateway.commands.client import (
    control_option,
    fetch,
    json_option,
    moment,
    principal_option,
    reason_option,
    segment,
    show,
)

__all__ = ["holds"]


@click.group()
def holds() -> None:
    """See what is held for want of proof; let it go."""


@holds.command("ls")
@click.option("--all", "is_all", is_flag=True, help="What was proven or released, too.")
@control_option
@json_option
def ls(is_all: bool, control: str, as_json: bool) -> None:
    """List what is held, the oldest first."""
    answer = fetch(control, "GET", f"/api/v1/holds{'?all=true' if is_all else ''}", as_json=as_json)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    show(
        [
            [
                one["id"],
                one["route_status"],
                one["reason"],
                one["destination"],
                one["trajectory"],
                one["agent"],
                moment(one["at"]),
                one["detail"],
            ]
            for one in answer["holds"]
        ],
        ["HOLD", "STATUS", "REASON", "FOR", "RUN", "AGENT", "SINCE", "WHAT"],
    )


@holds.command("release")
@click.argument("name")
@principal_option
@reason_option
@control_option
@json_option
def release(name: str, principal: str, reason: str, control: str, as_json: bool) -> None:
    """Let NAME go without proof, for an hour: the identical call or claim passes when it is sent again."""
    body = {"principal": principal, "reason": reason}
    one = fetch(control, "POST", f"/api/v1/holds/{segment(name)}/release", body, as_json=as_json)
    click.echo(json.dumps(one, indent=2) if as_json else f"{one['id']}: {one['route_status']} by {one['ended_by']}")
