"""`seawall ca`: the authority under which the gateway reads HTTPS to the manifest's tools."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.commands import EXIT_FINDING, EXIT_USAGE
from gateway.commands.client import json_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.ingress.certificates import Authority

__all__ = ["ca"]


def _folder_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--ca",
        "folder",
        default="var/ca",
        show_default=True,
        type=click.Path(file_okay=False),
        envvar="SEAWALL_FORWARD_CA",
        help="The authority's folder (forward.ca).",
    )(command)


@click.group()
def ca() -> None:
    """Make and show the authority under which HTTPS to the tools is read (forward.intercept)."""
    from importlib.util import find_spec

    if find_spec("cryptography") is None:
        _fail("this needs an extra: pip install 'seawall[intercept]'")


@ca.command("init")
@_folder_option
@click.option("--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="How long it is good.")
@click.option("--name", default="Seawall agent gateway", show_default=True, help="What lists of authorities show.")
@click.option("--only", multiple=True, metavar="HOST", help="A host or *.domain it can sign for; else all. Repeatable.")
@json_option
def init(folder: str, days: int, name: str, only: tuple[str, ...], as_json: bool) -> None:
    """Make an authority. Whoever trusts it trusts whoever holds its key: keep the folder, and name the hosts with --only.

    Example: seawall ca init --ca /etc/seawall/ca --only api.example.com
    """
    from gateway.core.authority import parse_host_pattern
    from gateway.ingress.certificates import Authority, AuthorityError

    try:
        hosts = [str(parse_host_pattern(host)) for host in only]
    except ValueError as error:
        click.echo(f"seawall: --only: {error}", err=True)
        sys.exit(EXIT_USAGE)
    if any(parse_host_pattern(host).port is not None for host in hosts):
        click.echo("seawall: --only takes hosts without a port", err=True)
        sys.exit(EXIT_USAGE)
    try:
        authority = Authority.create(Path(folder), at=_now(), days=days, name=name, only=hosts)
    except AuthorityError as error:
        _fail(str(error))
    _tell(Path(folder), authority, as_json)


@ca.command("show")
@_folder_option
@click.option("--pem", is_flag=True, help="Print the certificate itself.")
@click.option(
    "--bundle", is_flag=True, help="Print it behind the system's own authorities, for clients that take one file."
)
@json_option
def show(folder: str, pem: bool, bundle: bool, as_json: bool) -> None:
    """Show the authority, and how clients are made to trust it."""
    from gateway.ingress.certificates import Authority, AuthorityError

    try:
        authority = Authority.load(Path(folder))
    except AuthorityError as error:
        _fail(str(error))
    if bundle:
        click.echo(_system_bundle() + authority.pem, nl=False)
    elif pem:
        click.echo(authority.pem, nl=False)
    else:
        _tell(Path(folder), authority, as_json)


def _tell(folder: Path, authority: Authority, as_json: bool) -> None:
    from gateway.ingress.certificates import CERTIFICATE

    path = str((folder / CERTIFICATE).resolve())
    facts = {
        "certificate": path,
        "fingerprint": authority.fingerprint,
        "good_until": authority.certificate.not_valid_after_utc.isoformat(sep=" ", timespec="seconds"),
        "is_good": authority.is_good(_now()),
    }
    if as_json:
        import json

        click.echo(json.dumps(facts, indent=2))
        return
    for name, value in facts.items():
        click.echo(f"{name.replace('_', ' '):>12}  {str(value).lower() if isinstance(value, bool) else value}")
    click.echo(
        f"\nClients that only add to what they trust:   NODE_EXTRA_CA_CERTS={path}\n"
        "Clients that take one file for everything:  seawall ca show --bundle > bundle.pem, then\n"
        "  REQUESTS_CA_BUNDLE, SSL_CERT_FILE, CURL_CA_BUNDLE or AWS_CA_BUNDLE=bundle.pem"
    )


def _system_bundle() -> str:
    import ssl

    path = ssl.get_default_verify_paths().cafile
    if not path:
        _fail("the system's authorities are in no single file here; append the output of --pem to your own bundle")
    text = Path(path).read_text()
    return text if text.endswith("\n") else text + "\n"


def _now() -> int:
    return time.time_ns() // 1_000_000


def _fail(text: str) -> None:
    click.echo(f"seawall: {text}", err=True)
    sys.exit(EXIT_FINDING)
