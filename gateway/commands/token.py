"""`seawall token`: issue, list and revoke the tokens that agents and operators prove themselves with."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from gateway.commands import EXIT_FINDING, EXIT_USAGE
from gateway.commands.client import json_option, show

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.config.tokens import TokenFile
    from gateway.core.tokens import Entry

__all__ = ["token"]


def _file_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--tokens",
        "path",
        required=True,
        type=click.Path(dir_okay=False),
        envvar="SEAWALL_TOKENS",
        help="The file of tokens, the one that the gateway is given.",
    )(command)


@click.group()
def token() -> None:
    """Issue, list and revoke tokens.

    A running gateway takes a change over within a second. The file holds digests: a token is shown once, when it is issued.
    """


@token.command("issue")
@click.argument("name")
@click.option(
    "--scope",
    type=click.Choice(["agent", "viewer", "operator"]),
    default="agent",
    show_default=True,
    help="agent: calls tools; viewer: reads the control plane; operator: also acts there.",
)
@click.option("--ttl", help="For how long it is good, such as 12h or 30d; without it, until it is revoked.")
@_file_option
@json_option
def issue(name: str, scope: str, ttl: str | None, path: str, as_json: bool) -> None:
    """Issue a token that proves its holder to be NAME, and print it.

    Example: seawall token issue billing-agent --ttl 30d --tokens var/tokens.json
    """
    from gateway.config.decode import parse_duration
    from gateway.config.tokens import TokenFile, TokenFileError
    from gateway.core.tokens import Scope

    at = _now()
    lifetime_s = None if ttl is None else parse_duration(ttl)
    if ttl is not None and (lifetime_s is None or lifetime_s <= 0):
        click.echo("seawall: --ttl is a time such as 12h or 30d", err=True)
        sys.exit(EXIT_USAGE)
    expires_at = None if lifetime_s is None else at + int(lifetime_s * 1000)
    try:
        text, entry = TokenFile(path).issue(Scope(scope), name, at, expires_at)
    except ValueError as error:
        click.echo(f"seawall: {error}", err=True)
        sys.exit(EXIT_USAGE)
    except TokenFileError as error:
        _fail(str(error))
    if as_json:
        _print_json({"token": text, **_facts(entry, at)})
    else:
        click.echo(text)


@token.command("ls")
@_file_option
@json_option
def ls(path: str, as_json: bool) -> None:
    """List tokens: ids and names, never the tokens themselves."""
    at = _now()
    facts = [_facts(entry, at) for entry in _read(path).tokens.entries]
    if as_json:
        _print_json({"tokens": facts})
        return
    show([[str(one[key] or "-") for key in _COLUMNS] for one in facts], [key.upper() for key in _COLUMNS])


@token.command("revoke")
@click.argument("id_or_name")
@_file_option
@json_option
def revoke(id_or_name: str, path: str, as_json: bool) -> None:
    """Revoke the token with that id, or every token of that name."""
    from gateway.config.tokens import TokenFileError

    at = _now()
    try:
        revoked = _read(path).revoke(id_or_name, at)
    except TokenFileError as error:
        _fail(str(error))
    if as_json:
        _print_json({"revoked": [_facts(entry, at) for entry in revoked]})
    elif revoked:
        click.echo(f"revoked {', '.join(entry.id for entry in revoked)}")
    if not revoked:
        _fail(f"no token that is in use has the id or name {id_or_name!r}; see `seawall token ls`")


_COLUMNS = ("id", "scope", "name", "state", "issued", "expires")


def _facts(entry: Entry, at: int) -> dict[str, str | None]:
    state = "good" if entry.is_good(at) else "revoked" if entry.revoked_at is not None else "expired"
    return {
        "id": entry.id,
        "scope": entry.scope.value,
        "name": entry.name,
        "state": state,
        "issued": _time(entry.issued_at),
        "expires": None if entry.expires_at is None else _time(entry.expires_at),
    }


def _read(path: str) -> TokenFile:
    from gateway.config.tokens import TokenFile, TokenFileError

    file = TokenFile(path)
    try:
        file.read()
    except TokenFileError as error:
        _fail(str(error))
    return file


def _print_json(value: object) -> None:
    import json

    click.echo(json.dumps(value, indent=2))


def _now() -> int:
    return time.time_ns() // 1_000_000


def _time(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, tz=UTC).isoformat(sep=" ", timespec="seconds")


def _fail(text: str) -> None:
    click.echo(f"seawall: {text}", err=True)
    sys.exit(EXIT_FINDING)
