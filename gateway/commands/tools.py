"""`seawall tools`: the definitions of MCP tools that changed since they were agreed to."""

from __future__ import annotations

import json
import sys

import click

from gateway.commands import EXIT_FINDING
from gateway.commands.client import control_option, fetch, json_option, segment

__all__ = ["tools"]


@click.group()
def tools() -> None:
    """See definitions of MCP tools that have changed, and accept them."""


@tools.command("diff")
@control_option
@json_option
def diff(control: str, as_json: bool) -> None:
    """Show what is held, old beside new; exit code 1 if anything is."""
    answer = fetch(control, "GET", "/api/v1/tools", as_json=as_json)
    held = answer["held"]
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    elif not held:
        click.echo(f"Nothing is held; {sum(answer['pinned'].values())} definitions are pinned.")
    for change in () if as_json else held:
        click.secho(f"{change['tool']}: {change['name']}", bold=True)
        for member in change["changed"]:
            click.secho(f"  {member}")
            click.secho(f"    - {_line(change['pinned'].get(member))}", fg="red")
            click.secho(f"    + {_line(change['offered'].get(member))}", fg="green")
    if held and not as_json:
        click.echo("Accept with: seawall tools accept SERVER [NAME…]")
    sys.exit(EXIT_FINDING if held else 0)


@tools.command("accept")
@click.argument("server")
@click.argument("names", nargs=-1)
@control_option
@json_option
def accept(server: str, names: tuple[str, ...], control: str, as_json: bool) -> None:
    """Agree to the changed definitions of SERVER: all of them, or those NAMES."""
    body = {"names": list(names)} if names else {}
    answer = fetch(control, "POST", f"/api/v1/tools/{segment(server)}/accept", body, as_json=as_json)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        click.echo(f"Accepted: {', '.join(answer['accepted']) or 'nothing was held'}.")


def _line(value: object) -> str:
    return "(none)" if value is None else json.dumps(value, ensure_ascii=False)
