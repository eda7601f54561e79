"""`seawall schema`: JSON Schema for editors and for other checkers."""

from __future__ import annotations

import click

__all__ = ["schema"]


@click.command()
@click.option("--server", is_flag=True, help="Of the server's own file instead of the manifest.")
def schema(server: bool) -> None:
    """Print the JSON Schema of the manifest.

    In an editor with the YAML language server, begin the file with
    `# yaml-language-server: $schema=manifest.schema.json`.
    """
    import json

    from gateway.config.schema import manifest_schema, server_schema

    click.echo(json.dumps(server_schema() if server else manifest_schema(), indent=2, ensure_ascii=False))
