"""The files of a manifest, read and joined: one file or a folder, and what they include.

A file that several others include is read once; a file that includes itself through others is an error. Nothing
overrides anything: a name that is given twice is an error that names both places.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, TypeVar

from gateway.config import openapi
from gateway.config.decode import decode
from gateway.config.errors import Position, Problems, nearest, shown
from gateway.config.files import FileLog
from gateway.config.nodes import Map, Node, Scalar, Seq, parse_yaml
from gateway.core.hold import ClaimSettings
from gateway.core.manifest import (
    ApprovalSettings,
    DomainSettings,
    GateSettings,
    Manifest,
    SecretSettings,
    SinkSettings,
    SuspendSettings,
    ToolSettings,
)
from gateway.core.openapi import Document
from gateway.core.policy import RuleSettings
from gateway.core.watchdog import WatchdogSettings

__all__ = ["SHIPPED", "Entry", "Loaded", "load_files"]

SHIPPED: Final = "seawall:"
"""An include that begins so is one of the files that come with Seawall: `seawall:policies/external.yaml`."""

_SUFFIXES: Final = (".yaml", ".yml")
SECTIONS: Final = ("tools", "domains", "secrets", "approvals", "gates", "incidents", "suspend", "claims", "rules")
_PACKAGE: Final = Path(__file__).resolve().parent.parent

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """A named thing as written: its settings, its node (positioned at its name), and the folder of its file."""

    settings: T
    node: Map
    folder: Path

    def at(self, *path: str | int) -> Position:
        """Return where a value of it stands."""
        return self.node.at(*path)


@dataclass(slots=True)
class Loaded:
    """Everything that the files say. `names` also holds names whose settings were refused; `documents` are tools' OpenAPI
    documents, by tool, each with a digest of its file."""

    tools: dict[str, Entry[ToolSettings]] = field(default_factory=dict)
    domains: dict[str, Entry[DomainSettings]] = field(default_factory=dict)
    secrets: dict[str, Entry[SecretSettings]] = field(default_factory=dict)
    approvals: dict[str, Entry[ApprovalSettings]] = field(default_factory=dict)
    gates: dict[str, Entry[GateSettings]] = field(default_factory=dict)
    incidents: dict[str, Entry[SinkSettings]] = field(default_factory=dict)
    watchdog: WatchdogSettings = field(default_factory=WatchdogSettings)
    documents: dict[str, tuple[bytes, Document]] = field(default_factory=dict)
    suspend: dict[str, Entry[SuspendSettings]] = field(default_factory=dict)
    claims: dict[str, Entry[ClaimSettings]] = field(default_factory=dict)
    rules: dict[str, Entry[RuleSettings]] = field(default_factory=dict)
    names: dict[str, dict[str, Position]] = field(default_factory=lambda: {section: {} for section in SECTIONS})


def load_files(path: Path, files: FileLog, problems: Problems) -> Loaded:
    """Read a manifest; what is wrong goes to `problems`."""
    loader = _Loader(files, problems)
    loader.load(path, Position(str(path)), ())
    loader.read_documents()
    return loader.loaded


class _Loader:
    def __init__(self, files: FileLog, problems: Problems) -> None:
        self._files = files
        self._problems = problems
        self._done: set[str] = set()
        self._watchdog_at: Position | None = None
        self.loaded = Loaded()

    def load(self, path: Path, asked_at: Position, chain: tuple[str, ...]) -> None:
        names = self._files.list(path)
        if names is None:
            self._file(path, asked_at, chain)
            return
        files = [path / name for name in names if name.endswith(_SUFFIXES) and name[0] != "."]
        if not files:
            self._problems.add(asked_at, "the folder holds no *.yaml files", "put the manifest's files there")
        for file in files:
            self._file(file, asked_at, chain)

    def _file(self, path: Path, asked_at: Position, chain: tuple[str, ...]) -> None:
        try:
            data = self._files.read(path)
        except OSError as error:
            reason = error.strerror or "it cannot be read"
            self._problems.add(asked_at, f"cannot read `{shown(str(path), 500)}`: {reason}", _beside(path))
            return
        identity = os.path.realpath(path)
        if identity in chain:
            self._problems.add(
                asked_at, f"`{shown(path.name)}` includes itself, through this line", "remove one include"
            )
            return
        if identity in self._done:
            return
        self._done.add(identity)
        node = parse_yaml(data, str(path), self._problems)
        manifest = decode(_without_sections(node), Manifest, self._problems)
        for index, include in enumerate(manifest.include if manifest is not None else ()):
            self.load(_included(include, path), _include_position(node, index), (*chain, identity))
        if manifest is not None and (here := node.keys.get("watchdog")) is not None:
            self._watchdog(manifest.watchdog, here)
        self._section(node, path, "tools", ToolSettings, self.loaded.tools)
        self._section(node, path, "domains", DomainSettings, self.loaded.domains)
        self._section(node, path, "secrets", SecretSettings, self.loaded.secrets)
        self._section(node, path, "approvals", ApprovalSettings, self.loaded.approvals)
        self._section(node, path, "gates", GateSettings, self.loaded.gates)
        self._section(node, path, "incidents", SinkSettings, self.loaded.incidents)
        self._section(node, path, "suspend", SuspendSettings, self.loaded.suspend)
        self._section(node, path, "claims", ClaimSettings, self.loaded.claims)
        self._section(node, path, "rules", RuleSettings, self.loaded.rules)

    def read_documents(self) -> None:
        for name, entry in self.loaded.tools.items():
            if entry.settings.openapi is None:
                continue
            path = entry.folder / entry.settings.openapi
            try:
                data = self._files.read(path, openapi.LIMIT_BYTES)
                self.loaded.documents[name] = openapi.document_of(data)
            except OSError as error:
                reason = error.strerror or "it cannot be read"
                problem = f"cannot read `{shown(str(path), 500)}`: {reason}"
                self._problems.add(entry.at("openapi"), problem, "name a file beside the manifest")
            except openapi.DocumentProblem as error:
                self._problems.add(entry.at("openapi"), f"`{shown(path.name)}`: {error}")

    def _watchdog(self, settings: WatchdogSettings, here: Position) -> None:
        if self._watchdog_at is not None:
            self._problems.add(here, f"`watchdog` is given at {self._watchdog_at} already", "keep one of them")
            return
        self._watchdog_at, self.loaded.watchdog = here, settings

    def _section(self, node: Map, path: Path, key: str, settings: type[T], into: dict[str, Entry[T]]) -> None:
        section = node.values.get(key)
        if section is None or (isinstance(section, Scalar) and section.is_null):
            return
        if not isinstance(section, Map):
            self._problems.add(section.position, f"`{key}`: expected a mapping of names")
            return
        for name, value in section.values.items():
            here = section.keys[name]
            names = self.loaded.names[key]
            if name in names:
                self._problems.add(here, f"`{shown(name)}` is already declared at {names[name]}", "rename one of them")
                continue
            names[name] = here
            child = _child(value, here)
            if child is None:
                self._problems.add(here, f"`{shown(name)}`: expected a mapping")
            elif (decoded := decode(child, settings, self._problems)) is not None:
                into[name] = Entry(decoded, child, path.parent)


def _child(value: Node, here: Position) -> Map | None:
    if isinstance(value, Map):
        return Map(here, value.values, value.keys)
    return Map(here) if isinstance(value, Scalar) and value.is_null else None


def _without_sections(node: Map) -> Map:
    return Map(node.position, {key: value for key, value in node.values.items() if key not in SECTIONS}, node.keys)


def _include_position(node: Map, index: int) -> Position:
    includes = node.values["include"]
    return includes.items[index].position if isinstance(includes, Seq) else includes.position


def _included(include: str, including: Path) -> Path:
    if include.startswith(SHIPPED):
        name = include.removeprefix(SHIPPED)
        installed = _PACKAGE / f"_{name}"
        return installed if installed.exists() else _PACKAGE.parent / name
    return including.parent / include


def _beside(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix in _SUFFIXES]
    except (OSError, ValueError):
        return "the folder does not exist either"
    return nearest(path.name, names)
