"""`seawall key`: the keys that seal the journal."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.commands.journal import data_option, guarded, keys_option

if TYPE_CHECKING:
    from gateway.journal.keyring import KeyRing

__all__ = ["key"]


@click.group()
def key() -> None:
    """See and rotate the keys that seal the journal. Secrets are never printed."""


@key.command("ls")
@data_option
@keys_option
@guarded
def ls(data: str, keys: str | None) -> None:
    """List the keys of the ring: id, state, age."""
    from gateway.commands.client import show

    ring = _ring(data, keys)
    show(
        [
            [
                one.id,
                "active" if one.is_active else "verify only",
                datetime.fromtimestamp(one.made_at / 1000, tz=UTC).isoformat(sep=" ", timespec="seconds"),
            ]
            for one in ring.keys
        ],
        ["KEY", "STATE", "MADE"],
    )


@key.command("make")
@data_option
@keys_option
@guarded
def make(data: str, keys: str | None) -> None:
    """Make a ring where there is none: for a secret store before the first start, or after the old ring was lost.

    A gateway makes its own at its first start. With a new ring in the place of a lost one the journal says `missing_key`
    until `seawall journal acknowledge`.
    """
    import sys

    from gateway.commands import EXIT_FINDING
    from gateway.journal.keyring import KeyRing

    path = _path(data, keys)
    if path.exists():
        click.echo(f"seawall: {path} is there already: `seawall key rotate` makes a fresh key in it", err=True)
        sys.exit(EXIT_FINDING)
    ring = KeyRing.make(path, time.time_ns() // 1_000_000)
    click.echo(f"{path}: {ring.active.id} is active")


@key.command("rotate")
@data_option
@keys_option
@guarded
def rotate(data: str, keys: str | None) -> None:
    """Make a fresh active key; the old one stays for verifying.

    A running gateway takes it up within seconds and writes the change into the journal, sealed under both keys. A copy of
    the ring that lies elsewhere, such as a Kubernetes Secret, has to be brought up to date by whoever put it there.
    """
    ring = _ring(data, keys).rotate(time.time_ns() // 1_000_000)
    click.echo(f"{ring.path}: {ring.active.id} is active, {len(ring.keys) - 1} kept for verifying")


def _ring(data: str, keys: str | None) -> KeyRing:
    from gateway.journal.keyring import KeyRing

    return KeyRing.load(_path(data, keys))


def _path(data: str, keys: str | None) -> Path:
    from gateway.journal.keyring import default_ring
    from gateway.journal.place import Place

    return Path(keys) if keys is not None else default_ring(Place.of(data).folder)
