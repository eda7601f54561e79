"""Every server setting as an option and as a variable: names made from its path. Light enough for `--help`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gateway.config.fields import Field, fields_of, is_settings
from gateway.core.server import ServerSettings

__all__ = ["PREFIX", "option_of", "server_options", "variable_of"]

PREFIX: Final = "SEAWALL_"


def server_options() -> Iterator[tuple[tuple[str, ...], Field]]:
    """Yield every single setting with its path: `("limits", "body_max")`."""
    yield from _leaves(ServerSettings, ())


def _leaves(settings: type, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Field]]:
    for name, field in fields_of(settings).items():
        if is_settings(field.kind):
            yield from _leaves(field.kind, (*path, name))
        else:
            yield (*path, name), field


def variable_of(path: tuple[str, ...]) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + "_".join(path).upper()


def option_of(path: tuple[str, ...]) -> str:
    """Return the command line option of a setting."""
    return "--" + "-".join(path).replace("_", "-")
