"""Settings of the process, from its file, the environment and the command line; the nearest to the process wins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, get_origin

from gateway.config.decode import decode
from gateway.config.errors import ConfigError, Position, Problem, Problems, nearest, shown
from gateway.config.nodes import Map, Node, Scalar, Seq, parse_yaml
from gateway.config.options import PREFIX, option_of, server_options, variable_of
from gateway.core.authority import parse_host_pattern
from gateway.core.server import Address, ServerSettings

__all__ = ["load_server"]

NOT_OURS: Final = (
    "SEAWALL_SECRET_", "SEAWALL_CONFIG", "SEAWALL_DEMO_", "SEAWALL_URL", "SEAWALL_AGENT", "SEAWALL_TOKEN",
)  # fmt: skip
"""Variables with our prefix that are no server settings; any other unknown one is a spelling mistake."""


def load_server(
    file: Path | str | None = None,
    environ: Mapping[str, str] | None = None,
    options: Mapping[tuple[str, ...], str] | None = None,
) -> ServerSettings:
    """Return the settings of the process.

    Args:
        file: YAML file, or None to do without one.
        environ: the process's own environment by default.
        options: what the command line says, by path; texts as written there.

    Raises:
        ConfigError: with everything that is wrong; a position is a file, a variable or an option.
    """
    problems = Problems()
    top = _from_file(Path(file), problems) if file is not None else Map(Position("defaults"))
    known = {path for path, _ in server_options()}
    _overlay_environment(top, os.environ if environ is None else environ, known, problems)
    for path, text in (options or {}).items():
        _set(top, path, text, Position(option_of(path)), problems)
    settings = decode(top, ServerSettings, problems)
    if settings is not None:
        _check(settings, top, problems)
    problems.raise_if_any()
    assert settings is not None
    return settings


def _from_file(file: Path, problems: Problems) -> Map:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            [Problem(Position(str(file)), f"cannot read it: {error.strerror or 'unknown error'}")]
        ) from None
    return parse_yaml(data, str(file), problems)


def _overlay_environment(top: Map, environ: Mapping[str, str], known: set[tuple[str, ...]], problems: Problems) -> None:
    variables = {variable_of(path): path for path in known}
    for name, text in sorted(environ.items()):
        if name in variables:
            _set(top, variables[name], text, Position(name), problems)
        elif name.startswith(PREFIX) and not name.startswith(NOT_OURS):
            hint = nearest(name, variables)
            if hint.startswith("did"):
                problems.add(Position(name), "this variable sets nothing", hint)


def _set(top: Map, path: tuple[str, ...], text: str, position: Position, problems: Problems) -> None:
    node = top
    for step in path[:-1]:
        child = node.values.get(step)
        if child is None or (isinstance(child, Scalar) and child.is_null):
            child = Map(position)
            node.values[step] = child
            node.keys[step] = position
        if not isinstance(child, Map):
            problems.add(child.position, f"`{step}`: expected a mapping")
            return
        node = child
    node.values[path[-1]] = _written(path, text, position)
    node.keys[path[-1]] = position


def _written(path: tuple[str, ...], text: str, position: Position) -> Node:
    """Return the node that an option or variable stands for; commas separate the items of a list."""
    if path not in _LISTS:
        return Scalar(position, text, is_plain=False)
    items = [item.strip() for item in text.split(",") if item.strip()]
    return Seq(position, [Scalar(position, item, is_plain=False) for item in items])


_LISTS: Final = frozenset(path for path, field in server_options() if get_origin(field.kind) is tuple)


def _check(settings: ServerSettings, top: Map, problems: Problems) -> None:
    for key in ("listen", "control"):
        try:
            address = Address.parse(getattr(settings, key))
        except ValueError as error:
            problems.add(top.at(key), f"`{key}`: {error}")
            continue
        if not address.is_local and settings.tokens is None and not settings.allow_unauthenticated:
            problems.add(
                top.at(key),
                f"`{key}` can be reached from other machines, and nobody has to prove who they are",
                "set `tokens` (see `seawall token issue`), listen on 127.0.0.1 or a Unix socket, or, behind a network "
                "policy only, set `allow_unauthenticated: true`",
            )
    try:
        _ = settings.metrics_address
    except ValueError as error:
        problems.add(top.at("metrics"), f"`metrics`: {error}")
    if settings.listen == settings.control and not settings.listen.endswith(":0"):
        problems.add(top.at("control"), "`control` must be another address than `listen`")
    for index, text in enumerate(settings.forward.tunnel):
        try:
            parse_host_pattern(text)
        except ValueError as error:
            problems.add(top.at("forward", "tunnel", index), f"`{shown(text)}` is not a host", str(error))
    if settings.metrics in (settings.listen, settings.control) and not str(settings.metrics).endswith(":0"):
        problems.add(top.at("metrics"), "`metrics` must be another address than `listen` and `control`")
    if settings.limits.memory > settings.limits.body:
        problems.add(top.at("limits", "memory"), "`memory` must be at most `body`", "larger bodies are refused anyway")
