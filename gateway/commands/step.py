"""`seawall step`: say what you found out about one step."""

from __future__ import annotations

import json

import click

from gateway.commands.client import control_option, fetch, json_option, principal_option, segment

__all__ = ["step"]


@click.group()
def step() -> None:
    """Say what you found out about a step."""


@step.command("resolve")
@click.argument("run")
@click.argument("number", type=click.IntRange(1))
@click.option("--as", "verdict", type=click.Choice(["landed", "not_landed"]), required=True,
              help="Is the step's effect in the world now?")  # fmt: skip
@click.option("--evidence", required=True, help="How you know; it is journaled.")
@principal_option
@control_option
@json_option
def resolve(run: str, number: int, verdict: str, evidence: str, principal: str, control: str, as_json: bool) -> None:
    """Resolve a step that is in doubt, could not be undone, or could not be finished.

    `landed`: its effect is in the world, so it is undone or counted like any other. `not_landed`: it is not, be it that it
    never happened or that you undid it by hand.
    """
    path = f"/api/v1/trajectories/{segment(run)}/steps/{number}/resolve"
    body = {"principal": principal, "as": verdict, "evidence": evidence}
    told = fetch(control, "POST", path, body, as_json=as_json)
    if as_json:
        click.echo(json.dumps(told, indent=2))
        return
    one = next(one for one in told["steps"] if one["step"] == number)
    click.echo(f"{told['id']} step {number} ({one['operation']}): {one['state']}; the run is {told['state']}")
