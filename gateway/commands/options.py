"""The server's settings as click options, all of them, made from the same fields as everything else.

@click.command()
@with_server_options
def serve(config: str | None, given: dict[tuple[str, ...], str]) -> None:
    settings = load_server(config, options=given)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from gateway.config.options import option_of, server_options, variable_of

__all__ = ["with_server_options"]


def with_server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--config` and an option for every setting; the command gets `config` and `given` (path to text).

    The variables are read by `load_server`, so that a wrong one is reported with all other problems.
    """
    paths = {"__".join(path): path for path, _ in server_options()}

    @wraps(command)
    def run(**arguments: Any) -> Any:
        texts = {path: arguments.pop(name) for name, path in paths.items()}
        return command(given={path: text for path, text in texts.items() if text is not None}, **arguments)

    decorated: Callable[..., Any] = run
    for path, field in reversed(list(server_options())):
        decorated = click.option(
            option_of(path), "__".join(path), metavar="TEXT", help=f"{field.doc} [{variable_of(path)}]"
        )(decorated)
    return click.option("--config", type=click.Path(), envvar="SEAWALL_CONFIG", help="The server's own file.")(
        decorated
    )
