"""`seawall wrap -- COMMAND`: the gateway around one stdio MCP server, for clients that start a command themselves."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gateway.app import Gateway

__all__ = ["wrap"]

_PLACES = 16
_LINE_LIMIT = 64 << 20


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--name", default="server", show_default=True, help="What the server is called in journal and refusals.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of the journal; by default one for each command.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def wrap(name: str, data: Path | None, command: tuple[str, ...]) -> None:
    """Run COMMAND, an MCP server on stdin and stdout, behind the gateway; speak MCP on our own stdin and stdout.

    Put `seawall wrap --` in front of the command in a client's settings; nothing else is needed.
    """
    sys.exit(asyncio.run(_serve(name, data, command)))


async def _serve(name: str, data: Path | None, command: tuple[str, ...]) -> int:
    from gateway.app import StartError
    from gateway.config.errors import ConfigError
    from gateway.journal import JournalError

    reader = asyncio.StreamReader(limit=_LINE_LIMIT)
    loop = asyncio.get_running_loop()
    try:
        gateway = await _started(name, data, command)
    except (StartError, ConfigError, JournalError, OSError) as error:
        click.echo(f"seawall wrap: {error}", err=True)
        return 2
    try:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
        await gateway.serve_pipes(name, reader, _write)
    finally:
        await gateway.stop()
    return 0


async def _write(data: bytes) -> None:
    await asyncio.to_thread(_write_now, data)


def _write_now(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


async def _started(name: str, data: Path | None, command: tuple[str, ...]) -> Gateway:
    from gateway.app import Gateway
    from gateway.core.server import ServerSettings
    from gateway.journal import JournalLocked

    for place in [data] if data is not None else _places(command):
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        manifest = place / "manifest.yaml"
        mcp = {"command": list(command), "inherit": True}
        manifest.touch(mode=0o600)
        manifest.write_text(json.dumps({"version": 1, "tools": {name: {"mcp": mcp}}}, ensure_ascii=False))
        settings = ServerSettings(
            manifest=str(manifest), data=str(place), listen="127.0.0.1:0", control="127.0.0.1:0", watch=False, drain=5.0
        )
        gateway = Gateway(settings)
        try:
            await gateway.start()
        except JournalLocked:
            if data is not None:
                raise
            continue
        return gateway
    raise OSError(f"{_PLACES} gateways are wrapped around this command already; end one, or name a folder with --data")


def _places(command: tuple[str, ...]) -> list[Path]:
    """Several clients may wrap the same command at a time; each has a journal of its own."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    digest = hashlib.sha256("\0".join(command).encode()).hexdigest()[:12]
    return [state / "seawall" / f"wrap-{digest}-{number}" for number in range(1, _PLACES + 1)]
