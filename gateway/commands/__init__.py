"""The commands, one module each, imported only when asked for: `--help` must not wait for what it does not need.

A command module imports click alone at its top; whatever does the work is imported inside the command.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

__all__ = ["EXIT_FINDING", "EXIT_OK", "EXIT_REFUSED", "EXIT_UNREACHABLE", "EXIT_USAGE", "LazyGroup"]

EXIT_OK: Final = 0
EXIT_FINDING: Final = 1
"""The command ran and found something wrong."""
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
"""No gateway answered."""
EXIT_REFUSED: Final = 4
"""The gateway said no."""


class LazyGroup(click.Group):
    """A group that knows its commands by name, place and one line of help, and imports one when it is run."""

    def __init__(self, *args: object, lazy: dict[str, tuple[str, str]], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order in which they are declared."""
        return [*self._lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command of that name."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._lazy.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; of one that is nearly right, offer the right one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            if close := get_close_matches(args[0], self._lazy, n=1):
                raise click.UsageError(f"{error.message} Did you mean `{close[0]}`?", ctx) from None
            raise
