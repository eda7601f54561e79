"""`seawall check`: everything that is wrong with a manifest or a server file, with places and next steps."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from gateway.commands import EXIT_FINDING, EXIT_OK

if TYPE_CHECKING:
    from gateway.config.errors import Problem
    from gateway.core.tool import Catalog

__all__ = ["check"]


@click.command()
@click.argument("manifest", type=click.Path(), envvar="SEAWALL_MANIFEST")
@click.option("--secrets", type=click.Path(), envvar="SEAWALL_SECRETS", help="Folder with a file per secret.")
@click.option("--without-secrets", is_flag=True, help="Do not look for secrets, as in a build that has none.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(manifest: str, secrets: str | None, without_secrets: bool, as_json: bool) -> None:
    """Say everything that is wrong with MANIFEST (a file, or a folder of *.yaml); exit code 1 if anything is."""
    from gateway.config.errors import ConfigError
    from gateway.config.source import ManifestSource

    source = ManifestSource(manifest, secrets=secrets, is_offline=without_secrets)
    try:
        catalog = source.load()
    except ConfigError as error:
        _report(manifest, error.problems, None, as_json)
        sys.exit(EXIT_FINDING)
    _report(manifest, source.warnings, catalog, as_json)
    sys.exit(EXIT_OK)


def _report(manifest: str, problems: tuple[Problem, ...], catalog: Catalog | None, as_json: bool) -> None:
    if as_json:
        import json

        click.echo(json.dumps(_document(problems, catalog), indent=2))
        return
    for problem in problems:
        click.echo(str(problem), err=True)
    if catalog is None:
        count = sum(not problem.is_warning for problem in problems)
        click.secho(f"{manifest}: {count} problem{'s' if count != 1 else ''}", fg="red", err=True)
        return
    operations = sum(operation.is_declared for tool in catalog.tools.values() for operation in tool.operations.values())
    click.secho(
        f"{manifest}: good: {len(catalog.tools)} tools, {operations} operations, {len(catalog.domains)} domains",
        fg="green",
    )


def _document(problems: tuple[Problem, ...], catalog: Catalog | None) -> dict[str, object]:
    return {
        "ok": catalog is not None,
        "problems": [
            {
                "file": problem.file,
                "line": problem.line,
                "column": problem.column,
                "severity": "warning" if problem.is_warning else "error",
                "message": problem.message,
                "hint": problem.hint,
            }
            for problem in problems
        ],
        "tools": sorted(catalog.tools) if catalog is not None else [],
        "digest": catalog.digest if catalog is not None else "",
    }
