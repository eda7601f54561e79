"""`seawall catalog`: manifests made from what tools say of themselves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from gateway.commands import EXIT_FINDING

if TYPE_CHECKING:
    from gateway.core.draft import DraftTool

__all__ = ["catalog", "import_", "write_draft"]

_TIMEOUT_S = 30.0


@click.group()
def catalog() -> None:
    """Make manifests from what tools say of themselves."""


@catalog.group("import")
def import_() -> None:
    """Write a draft of a manifest. Writes stay pivots, and undoing is proposed only: a person decides."""


@import_.command("openapi")
@click.argument("document", metavar="FILE|URL")
@click.option("--name", help="Name of the tool; else made from the title.")
@click.option("--upstream", help="Base URL of the tool; else the document's first server.")
@click.option("--only", multiple=True, metavar="/PREFIX", help="Only paths that begin so. Repeatable.")
@click.option(
    "--out", type=click.Path(dir_okay=False), help="File to write, which must not be there yet; else printed."
)
def openapi(document: str, name: str | None, upstream: str | None, only: tuple[str, ...], out: str | None) -> None:
    """Draft a manifest from an OpenAPI document (2.0, 3.0 or 3.1; JSON or YAML).

    Example: seawall catalog import openapi https://api.example.com/openapi.json --out payments.yaml
    """
    from gateway.importers.openapi import ImportProblem, draft_openapi

    try:
        tool, title = draft_openapi(_read(document), source=document, name=name, upstream=upstream, only=only)
    except ImportProblem as error:
        _fail(f"{document}: {error}")
    write_draft(tool, f"{title} ({document})", out)


@import_.command("mcp")
@click.argument("server", metavar="URL | -- COMMAND", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--name", help="Name of the tool; else made from the server's own.")
@click.option(
    "--credential", metavar="'HEADER: VALUE'", help="Sent with each request to URL; VALUE may hold ${secret:NAME}."
)
@click.option(
    "--env",
    multiple=True,
    metavar="NAME=VALUE",
    help="Variable for COMMAND; VALUE may hold ${secret:NAME}. Repeatable.",
)
@click.option("--secrets", type=click.Path(), envvar="SEAWALL_SECRETS", help="Folder with a file per secret.")
@click.option("--timeout", default=_TIMEOUT_S, show_default=True, help="Seconds that one answer may take.")
@click.option(
    "--out", type=click.Path(dir_okay=False), help="File to write, which must not be there yet; else printed."
)
def mcp(
    server: tuple[str, ...],
    name: str | None,
    credential: str | None,
    env: tuple[str, ...],
    secrets: str | None,
    timeout: float,
    out: str | None,
) -> None:
    """Draft a manifest from an MCP server: at URL (Streamable HTTP), or started as COMMAND (stdio). No tool is called.

    Example: seawall catalog import mcp --out memory.yaml -- npx -y @modelcontextprotocol/server-memory
    """
    import asyncio

    from gateway.importers.mcp import Server, draft_mcp
    from gateway.importers.openapi import ImportProblem

    is_url = len(server) == 1 and server[0].startswith(("http://", "https://"))
    where = server[0] if is_url else " ".join(server)
    given = Server(
        url=server[0] if is_url else None,
        command=() if is_url else server,
        environment=dict(_halves(one, "=", "--env", "NAME=VALUE") for one in env),
        credential=None if credential is None else _halves(credential, ":", "--credential", "'HEADER: VALUE'"),
    )
    if (env if is_url else credential) and (option := "--env" if is_url else "--credential"):
        _fail(f"{option} is for {'a command' if is_url else 'a URL'}; leave it out")
    try:
        tool, title = asyncio.run(draft_mcp(given, name=name, secrets=secrets, timeout_s=timeout))
    except ImportProblem as error:
        _fail(f"{where}: {error}")
    write_draft(tool, f"{title} ({where})", out)


def _halves(text: str, mark: str, option: str, form: str) -> tuple[str, str]:
    first, found, second = text.partition(mark)
    if not found or not first.strip():
        _fail(f"{option} is {form}")
    return first.strip(), second.strip()


def write_draft(tool: DraftTool, source: str, out: str | None) -> None:
    """Check a draft, then print it or write it to a new file; end the program if it cannot be used."""
    from gateway.core.draft import render

    text = render(tool, source)
    _check(text)
    if out is None:
        click.echo(text, nl=False)
    else:
        try:
            with Path(out).open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            _fail(f"{out} cannot be written: {error.strerror}")
    writes = sum(operation.guess.tier.value != "read" for operation in tool.operations)
    click.echo(
        f"seawall: {tool.name}: {len(tool.operations)} operations, {writes} writes as pivots, {len(tool.pairs)} proposals, "
        f"{len(tool.notes)} left out. Read it, then run `seawall check`.",
        err=True,
    )


def _check(text: str) -> None:
    import tempfile

    from gateway.config.errors import ConfigError
    from gateway.config.source import ManifestSource

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "draft.yaml")
        path.write_text(text, encoding="utf-8")
        try:
            ManifestSource(path, is_offline=True).load()
        except ConfigError as error:
            problem = error.problems[0]
            _fail(
                f"no manifest can be made of it: {problem.message}. Give --name; "
                "of an OpenAPI document, --upstream, or leave parts out with --only."
            )


def _read(document: str) -> bytes:
    import urllib.error
    import urllib.request

    from gateway.importers.openapi import LIMIT_BYTES

    try:
        if document.startswith(("http://", "https://")):
            with urllib.request.urlopen(document, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - http(s), and the operator's own
                data: bytes = answer.read(LIMIT_BYTES + 1)
                return data
        return Path(document).read_bytes()
    except urllib.error.HTTPError as error:
        error.close()
        _fail(f"{document} cannot be fetched: {error.code} {error.reason}")
    except urllib.error.URLError as error:
        _fail(f"{document} cannot be fetched: {error.reason}")
    except OSError as error:
        _fail(f"{document} cannot be read: {error.strerror}")


def _fail(text: str) -> NoReturn:
    click.echo(f"seawall: {text}", err=True)
    sys.exit(EXIT_FINDING)
