"""`seawall approvals`: see which calls wait for people, and decide."""

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

__all__ = ["approvals"]


@click.group()
def approvals() -> None:
    """See which calls wait for people, and decide."""


@approvals.command("ls")
@click.option(
    "--state", default="pending", show_default=True, help="pending, granted, rejected, expired, used, or all."
)
@control_option
@json_option
def ls(state: str, control: str, as_json: bool) -> None:
    """List what waits, the longest waiting first."""
    answer = fetch(control, "GET", f"/api/v1/approvals?state={segment(state)}", as_json=as_json)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    show(
        [
            [
                one["id"],
                one["state"],
                f"{one['tool']}.{one['operation']}",
                one["agent"],
                _votes(one),
                moment(one["expires_at"]),
            ]
            for one in answer["approvals"]
        ],
        ["APPROVAL", "STATE", "OPERATION", "AGENT", "VOTES", "EXPIRES"],
    )


@approvals.command("show")
@click.argument("name")
@control_option
@json_option
def show_one(name: str, control: str, as_json: bool) -> None:
    """Show exactly what is asked, and who said what."""
    _tell(fetch(control, "GET", f"/api/v1/approvals/{segment(name)}", as_json=as_json), as_json)


@approvals.command("approve")
@click.argument("name")
@principal_option
@reason_option
@control_option
@json_option
def approve(name: str, principal: str, reason: str, control: str, as_json: bool) -> None:
    """Vote for a call. Saying it twice counts once."""
    _vote(name, "approve", principal, reason, control, as_json)


@approvals.command("reject")
@click.argument("name")
@principal_option
@reason_option
@control_option
@json_option
def reject(name: str, principal: str, reason: str, control: str, as_json: bool) -> None:
    """Vote against a call, which denies it; also takes back an approval that was not used yet."""
    _vote(name, "reject", principal, reason, control, as_json)


def _vote(name: str, verdict: str, principal: str, reason: str, control: str, as_json: bool) -> None:
    body = {"principal": principal, "reason": reason}
    _tell(fetch(control, "POST", f"/api/v1/approvals/{segment(name)}/{verdict}", body, as_json=as_json), as_json)


def _votes(one: dict[str, Any]) -> str:
    yes = [vote["principal"] for vote in one["votes"] if vote["verdict"] == "approve"]
    return f"{len(yes)} of {one['required']}" + (f" ({', '.join(yes)})" if yes else "")


def _tell(one: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(one, indent=2))
        return
    call = one["call"]
    click.echo(f"{one['id']}: {one['state']}, {_votes(one)}, expires {moment(one['expires_at'])}")
    click.echo(f"  {one['agent']} wants {one['tool']}.{one['operation']} ({one['tier']}) in run {one['trajectory']}")
    click.echo(f"  {call['method']} {call['origin']}{call['target']}")
    if call["body_bytes"]:
        click.echo(f"  body: {call['content_type']}, {call['body_bytes']} bytes, sha256 {call['body_digest']}")
        click.echo(f"  {call['body']}" if call["body"] is not None else "  (too long, or not text, to be shown)")
    click.echo(f"  may decide: {', '.join(one['approvers']) or 'anyone but the agent'}")
    for vote in one["votes"]:
        click.echo(f"  {vote['principal']}: {vote['verdict']} at {moment(vote['at'])}: {vote['reason']}")
