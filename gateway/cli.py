"""The command line."""

from __future__ import annotations

import click

__all__ = ["main"]


@click.group()
def main() -> None:
    """Seawall: an HTTP sidecar and tool gateway for AI agents."""
