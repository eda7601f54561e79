"""A scenario put on somebody's own manifest: the same storm, their tools, their policies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gateway.config.errors import nearest
from gateway.config.source import ManifestSource
from gateway.core.tool import Catalog, ToolSpec
from gateway.storm.scenario import Scenario

__all__ = ["with_manifest"]


def with_manifest(scenario: Scenario, path: Path, tool: str | None) -> Scenario:
    """Return the scenario with another manifest; its tools are played by those of the same name, the first by `tool`.

    Raises:
        ConfigError: something is wrong with the manifest.
        ValueError: the storm cannot be played with its tools; the message says why.
    """
    catalog = ManifestSource(path, is_offline=True).load()
    used = list(dict.fromkeys(load.tool for load in scenario.load))
    names = {name: name for name in used}
    if tool is not None:
        names[used[0]] = tool
    elif used[0] not in catalog.tools and len(catalog.tools) == 1:
        names[used[0]] = next(iter(catalog.tools))
    for name in names.values():
        if name not in catalog.tools:
            hint = nearest(name, catalog.tools) or f"it has {', '.join(sorted(catalog.tools))}"
            raise ValueError(f"{path} has no tool `{name}`: {hint}; say which with --tool")
    return replace(
        scenario,
        manifest=path.read_text(),
        folder=str(path.parent.resolve()),
        world={names.get(name, name): world for name, world in scenario.world.items()},
        load=tuple(
            replace(load, tool=names[load.tool], request=_request(catalog, names[load.tool], load.request))
            for load in scenario.load
        ),
        faults=tuple(replace(fault, tool=names.get(fault.tool, fault.tool)) for fault in scenario.faults),
        holds=(),
        holds_live=(),
    )


def _request(catalog: Catalog, tool: str, wanted: str) -> str:
    """Return a request of a tool that changes nothing: the scenario's if it is a read there, else its first read."""
    spec = catalog.tools[tool]
    method, _, target = wanted.partition(" ")
    if spec.match(method, target).operation.is_read and spec.match(method, target).operation.is_declared:
        return wanted
    return _first_read(spec) or wanted


def _first_read(spec: ToolSpec) -> str | None:
    for operation in spec.operations.values():
        if operation.is_read and operation.is_declared:
            found = _line(operation.source)
            if found is not None and spec.match(*found).operation is operation:
                return " ".join(found)
    return None


def _line(source: str) -> tuple[str, str] | None:
    method, _, template = source.partition(" ")
    if not template.startswith("/"):
        return None
    path = "/".join("1" if part.startswith("{") else part for part in template.split("/"))
    return method, path
