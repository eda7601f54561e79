"""`seawall schema`: JSON Schema for editors and for other checkers."""

from __future__ import annotations

import click

__all__ = ["schema"]


@click.command()
@click.option("--server", is_flag=True, help="Of the server's own file instead of the manifest.")
@click.option(
    "--packet", type=click.Choice(["task_packet", "task_result", "result_packet"]), help="Of a packet instead."
)
def schema(server: bool, packet: str | None) -> None:
    """Print the JSON Schema of the manifest, the server's file, or a packet that agents exchange.

    In an editor with the YAML language server, begin the file with
    `# yaml-language-server: $schema=manifest.schema.json`.
    """
    import json

    from gateway.config.schema import manifest_schema, packet_schemas, server_schema

    if server and packet is not None:
        raise click.UsageError("--server and --packet name two schemas; give one of them.")
    chosen = packet_schemas()[packet] if packet is not None else server_schema() if server else manifest_schema()
    click.echo(json.dumps(chosen, indent=2, ensure_ascii=False))
