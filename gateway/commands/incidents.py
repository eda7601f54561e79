"""`seawall incidents`: frozen runs and everything a person needs to decide about them."""

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

__all__ = ["incidents"]


@click.group()
def incidents() -> None:
    """See frozen runs, look after them, resolve them."""


@incidents.command("ls")
@control_option
@json_option
def ls(control: str, as_json: bool) -> None:
    """List the open incidents, the oldest first."""
    answer = fetch(control, "GET", "/api/v1/incidents", as_json=as_json)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    show(
        [
            [
                one["id"],
                one["class"],
                one["state"],
                one["acknowledged_by"] or "",
                moment(one["opened_at"]),
                one["detail"],
            ]
            for one in answer["incidents"]
        ],
        ["INCIDENT", "CLASS", "STATE", "LOOKED AFTER BY", "SINCE", "WHAT"],
    )


@incidents.command("show")
@click.argument("name")
@control_option
@json_option
def show_one(name: str, control: str, as_json: bool) -> None:
    """Show what failed, what is and is not undone, what leaks, and what can be done."""
    _tell(fetch(control, "GET", f"/api/v1/incidents/{segment(name)}", as_json=as_json), as_json)


@incidents.command("ack")
@click.argument("name")
@principal_option
@click.option("--reason", default="", help="A note; it is journaled.")
@control_option
@json_option
def ack(name: str, principal: str, reason: str, control: str, as_json: bool) -> None:
    """Say that you look after it."""
    body = {"principal": principal, "reason": reason}
    _tell(fetch(control, "POST", f"/api/v1/incidents/{segment(name)}/ack", body, as_json=as_json), as_json)


@incidents.command("resolve")
@click.argument("name")
@principal_option
@reason_option
@click.option("--release", "to", default=None, metavar="[PHASE]", is_flag=False, flag_value="",
              help="Let the run go on where it stopped, or in this phase.")  # fmt: skip
@click.option("--close", "is_closing", is_flag=True, help="End the run as it is.")
@control_option
@json_option
def resolve(
    name: str, principal: str, reason: str, to: str | None, is_closing: bool, control: str, as_json: bool
) -> None:
    """Resolve an incident, by releasing its run or by closing it."""
    if (to is not None) == is_closing:
        raise click.UsageError("Say what becomes of the run: either --release or --close.")
    body: dict[str, object] = {"principal": principal, "reason": reason, "close": is_closing}
    if to:
        body["to"] = to
    _tell(fetch(control, "POST", f"/api/v1/incidents/{segment(name)}/resolve", body, as_json=as_json), as_json)


_PARTS = (
    ("done", "done, and its effect is in the world"),
    ("undone", "undone"),
    ("not_undone", "NOT undone"),
    ("unknown", "unknown whether it happened"),
    ("unfinished", "still to be done"),
)


def _tell(one: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(one, indent=2))
        return
    click.echo(f"{one['id']}: {one['class']}, {one['state']}, since {moment(one['opened_at'])}")
    click.echo(f"  {one['detail']}")
    click.echo(
        f"  run {one['trajectory']} of {one['agent']}, {one['run_state']}, journal position {one['journal_position']}"
    )
    if one["failed"]:
        call, answer = one["failed"]["call"], one["failed"]["answer"]
        click.echo(f"  failed: step {one['failed']['step']}, {call['method']} {call['target']} at {call['tool']}")
        click.echo(f"  answer: {answer['status'] or answer['fault'] or 'none'}; {answer['detail'] or ''}")
    for key, title in _PARTS:
        for step in one[key]:
            click.echo(
                f"  {title}: step {step['step']} ({step['tool']}.{step['operation']}) {step['detail'] or ''}".rstrip()
            )
    for leak in one["leaks"]:
        click.echo(
            f"  leaks: {leak['what']}, {leak['amount']:g} {leak['currency']} each {leak['per_s']:g} s, "
            f"{leak['so_far']:g} {leak['currency']} so far"
        )
    for command in one["next"]:
        click.echo(f"  next: {command}")
