"""The server's settings as options."""

from __future__ import annotations

import click
from click.testing import CliRunner

from gateway.commands.options import with_server_options
from gateway.config.server import load_server


def test_a_command_gets_what_was_given_and_nothing_else() -> None:
    """So that the environment and the file can still say the rest."""
    seen: list[object] = []

    @click.command()
    @with_server_options
    def serve(config: str | None, given: dict[tuple[str, ...], str]) -> None:
        seen.extend([config, given, load_server(config, {}, given).limits.body])

    result = CliRunner().invoke(serve, ["--limits-body", "1MiB", "--manifest", "m"], catch_exceptions=False)
    assert result.exit_code == 0
    assert seen == [None, {("limits", "body"): "1MiB", ("manifest",): "m"}, 1 << 20]
    assert "SEAWALL_LIMITS_BODY" in CliRunner().invoke(serve, ["--help"]).output
