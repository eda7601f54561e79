"""`seawall trajectories`: see runs, undo one, or stop one for a person and let it go on."""

from __future__ import annotations

import json
from typing import Any

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

__all__ = ["trajectories"]


@click.group()
def trajectories() -> None:
    """See runs and their steps; undo, freeze, release, close a run."""


@trajectories.command("ls")
@click.option("--state", help="Only runs in this state, such as preparing, compensating, frozen.")
@click.option("--limit", default=50, show_default=True, help="How many.")
@control_option
@json_option
def ls(state: str | None, limit: int, control: str, as_json: bool) -> None:
    """List runs, last changed first."""
    query = f"?limit={limit}" + (f"&state={segment(state)}" if state else "")
    answer = fetch(control, "GET", f"/api/v1/trajectories{query}", as_json=as_json)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    runs = answer["trajectories"]
    show(
        [[run["id"], run["state"], run["agent"], str(run["records"]), moment(run["changed_at"])] for run in runs],
        ["RUN", "STATE", "AGENT", "RECORDS", "CHANGED"],
    )


@trajectories.command("show")
@click.argument("name")
@control_option
@json_option
def show_one(name: str, control: str, as_json: bool) -> None:
    """Show a run with its steps."""
    run = fetch(control, "GET", f"/api/v1/trajectories/{segment(name)}", as_json=as_json)
    _tell(run, as_json)


@trajectories.command("abort")
@click.argument("name")
@click.option("--reason", required=True, help="Why; it is journaled.")
@control_option
@json_option
def abort(name: str, reason: str, control: str, as_json: bool) -> None:
    """Undo a run: its compensators run in reverse order."""
    run = fetch(control, "POST", f"/api/v1/trajectories/{segment(name)}/abort", {"reason": reason}, as_json=as_json)
    _tell(run, as_json)


@trajectories.command("freeze")
@click.argument("name")
@principal_option
@reason_option
@control_option
@json_option
def freeze(name: str, principal: str, reason: str, control: str, as_json: bool) -> None:
    """Stop a run: no call, no compensator, until somebody decides."""
    _decide(name, "freeze", {"principal": principal, "reason": reason}, control, as_json)


@trajectories.command("release")
@click.argument("name")
@click.option("--to", help="Go on in this phase (preparing, compensating, finalizing), where that is possible.")
@principal_option
@reason_option
@control_option
@json_option
def release(name: str, to: str | None, principal: str, reason: str, control: str, as_json: bool) -> None:
    """Let a frozen run go on where it stopped; what was given up is tried again."""
    body = {"principal": principal, "reason": reason} | ({} if to is None else {"to": to})
    _decide(name, "release", body, control, as_json)


@trajectories.command("close")
@click.argument("name")
@principal_option
@reason_option
@control_option
@json_option
def close(name: str, principal: str, reason: str, control: str, as_json: bool) -> None:
    """End a frozen run as it is: nothing more is sent, undone or finished."""
    _decide(name, "close", {"principal": principal, "reason": reason}, control, as_json)


def _decide(name: str, verb: str, body: dict[str, str], control: str, as_json: bool) -> None:
    _tell(fetch(control, "POST", f"/api/v1/trajectories/{segment(name)}/{verb}", body, as_json=as_json), as_json)


def _tell(run: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(run, indent=2))
        return
    click.echo(f"{run['id']}: {run['state']}" + (f" ({run['incident']})" if run["incident"] else ""))
    if run["reason"]:
        click.echo(f"  {run['reason']}")
    show(
        [
            [
                str(step["step"]),
                f"{step['tool']}.{step['operation']}",
                step["tier"],
                step["state"],
                step["key"],
                step["unbound"] or step["bad"] or step["detail"] or "",
            ]
            for step in run["steps"]
        ],
        ["STEP", "OPERATION", "TIER", "STATE", "KEY", "NOTE"],
    )
    for left in run["residue"]:
        click.echo(f"  left in the world: step {left['step']} ({left['operation']}): {left['reason']}")
