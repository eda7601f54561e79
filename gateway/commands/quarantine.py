"""`seawall quarantine`: lock a run or an agent away, see what that reached, and lift it."""

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

__all__ = ["quarantine"]


@click.group()
def quarantine() -> None:
    """Lock a run or an agent away; see and lift quarantines."""


@quarantine.command("ls")
@click.option("--all", "is_all", is_flag=True, help="Those that were lifted, too.")
@control_option
@json_option
def ls(is_all: bool, control: str, as_json: bool) -> None:
    """List the quarantines in force, the oldest first."""
    answer = fetch(control, "GET", f"/api/v1/quarantine{'?all=true' if is_all else ''}", as_json=as_json)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    show(
        [
            [
                one["id"],
                one["state"],
                one["trajectory"] or "-",
                one["agent"] or "-",
                str(one["since_step"]),
                one["by"],
                moment(one["at"]),
                one["reason"],
            ]
            for one in answer["quarantines"]
        ],
        ["QUARANTINE", "STATE", "RUN", "AGENT", "SINCE STEP", "BY", "AT", "WHY"],
    )


@quarantine.command("show")
@click.argument("name")
@control_option
@json_option
def show_one(name: str, control: str, as_json: bool) -> None:
    """Show one: how quickly each stage was done, and what it reaches."""
    _tell(fetch(control, "GET", f"/api/v1/quarantine/{segment(name)}", as_json=as_json), as_json)


@quarantine.command("add")
@click.argument("run", required=False, default="")
@click.option("--agent", default="", help="All runs of this agent, present and future (with RUN: keep it out, too).")
@click.option("--since", default=0, show_default=True, help="The step from which on what the run made is tainted.")
@principal_option
@reason_option
@control_option
@json_option
def add(run: str, agent: str, since: int, principal: str, reason: str, control: str, as_json: bool) -> None:
    """Quarantine RUN: no call of it leaves any more, those under way are cut, what it made is tainted."""
    if not run and not agent:
        raise click.UsageError("Say what to quarantine: RUN, or --agent NAME.")
    body = {"trajectory": run, "agent": agent, "since": since, "principal": principal, "reason": reason}
    _tell(fetch(control, "POST", "/api/v1/quarantine", body, as_json=as_json), as_json)


@quarantine.command("lift")
@click.argument("name")
@principal_option
@reason_option
@control_option
@json_option
def lift(name: str, principal: str, reason: str, control: str, as_json: bool) -> None:
    """End a quarantine: its marks are taken back. The run stays frozen until it is released or closed."""
    body = {"principal": principal, "reason": reason}
    _tell(fetch(control, "POST", f"/api/v1/quarantine/{segment(name)}/lift", body, as_json=as_json), as_json)


def _tell(one: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(one, indent=2))
        return
    subject = " and ".join(
        part
        for part in (one["trajectory"] and f"run {one['trajectory']}", one["agent"] and f"agent {one['agent']}")
        if part
    )
    click.echo(f"{one['id']}: {subject}, {one['state']}, by {one['by']} at {moment(one['at'])}")
    click.echo(f"  {one['reason']}")
    for name, stage in one["stages"].items():
        if stage is None:
            click.echo(f"  {name}: under way")
        else:
            said = stage["problem"] or stage["detail"] or "done"
            click.echo(f"  {name}: {'FAILED ' if stage['problem'] else ''}after {stage['ms']:.3f} ms, {said}")
    for level, names in one["artifacts"].items():
        if names:
            click.echo(f"  {level}: {', '.join(names)}")
    if one["contaminated"]:
        click.echo(f"  read it: {', '.join(one['contaminated'])}")
    if one["held_tasks"]:
        click.echo(f"  tasks that it holds: {', '.join(one['held_tasks'])}")
    if one["state"] == "in force":
        click.echo(f"  next: seawall quarantine lift {one['id']} --reason TEXT")
