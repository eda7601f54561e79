"""YAML as a tree that remembers where each thing stands, and nothing that YAML should not be used for.

Parsed by libyaml from its events, so positions are exact and no object is ever constructed. Refused: a repeated key (the
last would win in silence, and could turn a pivot into something reversible), anchors and aliases (an alias bomb loads in
milliseconds and walks for ever), tags, several documents, merge keys, keys that are not text, more than 256 KiB, more
than 20 levels. A scalar keeps its text; what it means is decided by the type of the field it stands in (`decode.py`).

Source: YAML 1.2.2; the traps of YAML 1.1 are Norway's `no`, `12:30:45` in base 60 and `012` in base 8.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from gateway.config.errors import Position, Problems, shown

__all__ = ["AMBIGUOUS", "NOT_TEXT", "Map", "Node", "Scalar", "Seq", "parse_yaml"]

LIMIT_BYTES: Final = 256 << 10
LIMIT_DEPTH: Final = 20

NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
AMBIGUOUS: Final = re.compile(
    r"(?i:yes|no|on|off|y|n)|[-+]?0[0-9_]+|[-+]?0[xob][0-9a-fA-F_]+|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?"
    r"|[-+]?[0-9]+_[0-9_.]*"
)
"""Plain scalars that YAML 1.1 and 1.2 read differently, or that look like numbers and are none."""

NOT_TEXT: Final = re.compile(r"(?i:true|false)|[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
"""Plain scalars that YAML 1.2 does not read as text."""


@dataclass(slots=True)
class Scalar:
    """A single value as written. `is_plain` is False if it stood in quotes or in a block."""

    position: Position
    text: str
    is_plain: bool = True

    @property
    def is_null(self) -> bool:
        """Whether it says that there is nothing."""
        return self.is_plain and self.text in NULL


@dataclass(slots=True)
class Seq:
    """A list."""

    position: Position
    items: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Map:
    """A mapping. `keys` holds where each key stands."""

    position: Position
    values: dict[str, Node] = field(default_factory=dict)
    keys: dict[str, Position] = field(default_factory=dict)

    def at(self, *path: str | int) -> Position:
        """Return where a nested value stands: a scalar itself, else its key; of what is absent, its nearest parent."""
        node: Node = self
        position = self.position
        for step in path:
            if isinstance(node, Map) and isinstance(step, str) and step in node.values:
                position, node = node.keys[step], node.values[step]
            elif isinstance(node, Seq) and isinstance(step, int) and step < len(node.items):
                node = node.items[step]
                position = node.position
            else:
                return position
        return node.position if isinstance(node, Scalar) else position

    def map(self, *path: str) -> Map:
        """Return a nested mapping, or an empty one in its place."""
        node = self
        for step in path:
            child = node.values.get(step)
            if not isinstance(child, Map):
                return Map(self.at(*path))
            node = child
        return node


Node = Scalar | Seq | Map


def parse_yaml(data: bytes, file: str, problems: Problems) -> Map:
    """Return the top mapping of a YAML file; what is wrong goes to `problems`. An empty file is an empty mapping.

    Never raises, whatever the bytes are.
    """
    top = Position(file, 1, 1)
    if len(data) > LIMIT_BYTES:
        problems.add(Position(file), "the file is larger than 256 KiB", "split it into several and use a folder")
        return Map(top)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        problems.add(Position(file, line, column), "the file is not UTF-8", "save it as UTF-8")
        return Map(top)
    builder = _Builder(file, problems)
    try:
        node = builder.build(text)
    except _Stop:
        return Map(top)
    except yaml.MarkedYAMLError as error:
        problems.add(_mark(file, error.problem_mark), f"not YAML: {error.problem}", error.context or "")
        return Map(top)
    except yaml.reader.ReaderError as error:
        where = Position(file, text.count("\n", 0, error.position) + 1, 1)
        problems.add(where, "the file holds a control character, which YAML does not allow")
        return Map(top)
    if node is None or (isinstance(node, Scalar) and node.is_null):
        return Map(top)
    if not isinstance(node, Map):
        problems.add(node.position, "expected a mapping with keys such as `tools:`")
        return Map(top)
    return node


def _mark(file: str, mark: Any) -> Position:
    return Position(file, mark.line + 1, mark.column + 1) if mark is not None else Position(file)


class _Stop(Exception):
    """Reading on would make no sense."""


class _Builder:
    """Builds the tree from events, with a stack of its own so that depth is a number and not a crash."""

    def __init__(self, file: str, problems: Problems) -> None:
        self._file = file
        self._problems = problems
        self._open: list[Seq | Map] = []
        self._pending_key: list[str | None] = []
        self._root: Node | None = None
        self._documents = 0

    def build(self, text: str) -> Node | None:
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            self._take(event, _mark(self._file, event.start_mark))
        return self._root

    def _take(self, event: yaml.Event, here: Position) -> None:
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                self._problems.add(here, "a second document begins here", "one file holds one document")
                raise _Stop
            return
        if isinstance(event, yaml.AliasEvent):
            self._problems.add(here, "aliases (`*name`) are not allowed", "write the value out, or use `include`")
            self._place(Scalar(here, "", is_plain=True))
            return
        if isinstance(event, yaml.NodeEvent):
            self._check(event, here)
        if isinstance(event, yaml.ScalarEvent):
            self._place(Scalar(here, event.value, is_plain=event.style is None or event.style == ""))
        elif isinstance(event, yaml.SequenceStartEvent):
            self._begin(Seq(here))
        elif isinstance(event, yaml.MappingStartEvent):
            self._begin(Map(here))
        elif isinstance(event, yaml.CollectionEndEvent):
            self._open.pop()
            self._pending_key.pop()

    def _check(self, event: yaml.NodeEvent, here: Position) -> None:
        if event.anchor is not None:
            self._problems.add(here, "anchors (`&name`) are not allowed", "write the value out, or use `include`")
        if getattr(event, "tag", None) is not None:
            self._problems.add(here, "tags (`!name`) are not allowed", "leave it out; the field decides the type")

    def _begin(self, node: Seq | Map) -> None:
        if len(self._open) >= LIMIT_DEPTH:
            self._problems.add(node.position, f"nested more than {LIMIT_DEPTH} levels deep")
            raise _Stop
        self._place(node)
        self._open.append(node)
        self._pending_key.append(None)

    def _place(self, node: Node) -> None:
        if not self._open:
            self._root = node
            return
        parent = self._open[-1]
        if isinstance(parent, Seq):
            parent.items.append(node)
            return
        key = self._pending_key[-1]
        if key is None:
            self._pending_key[-1] = self._key(parent, node)
            return
        self._pending_key[-1] = None
        parent.values[key] = node

    def _key(self, parent: Map, node: Node) -> str:
        if not isinstance(node, Scalar):
            self._problems.add(node.position, "a key must be text, not a list or a mapping")
            raise _Stop
        if node.is_plain and node.text == "<<":
            self._problems.add(node.position, "merge keys (`<<`) are not allowed", "write the keys out")
        elif node.is_plain and (node.is_null or AMBIGUOUS.fullmatch(node.text) or NOT_TEXT.fullmatch(node.text)):
            self._problems.add(node.position, "a key must be text", "put it in quotes")
        elif node.text in parent.keys:
            first = parent.keys[node.text]
            self._problems.add(
                node.position, f"`{shown(node.text)}` is already set at line {first.line}", "keep one of the two"
            )
        if node.text not in parent.keys:
            parent.keys[node.text] = node.position
        return node.text
