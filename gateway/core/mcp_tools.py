"""Tools as MCP servers describe them: their names here, what their hints make of them, and whether they changed.

*Names.* Behind one endpoint for all servers a tool is called `server__tool`; the first `__` divides, since no server's
name holds one at its end. Behind an endpoint of its own it keeps its name.

*Tiers.* The manifest decides. Where it is silent, a server's hints are a claim, not a proof: `readOnlyHint` makes a read
unless `destructiveHint` contradicts it; everything else is a pivot. `idempotentHint` and a `destructiveHint` of false
promise what we could not undo if they were wrong, so they are not believed.

*Pins.* A tool's definition is what a person or a model agreed to. Its digest is kept when it is first seen; another
description, schema or hint later is another tool under an old name, and waits for an operator.

Source: MCP 2025-11-25 "Tools" (hints are untrusted; SEP-986 names); Invariant Labs 2025, "rug pull" of descriptions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from urllib.parse import quote, unquote

from gateway.core.manifest import Tier, TimeoutSettings
from gateway.core.mcp import members
from gateway.core.tool import AmbiguousPath, Match, Operation, ToolSpec

__all__ = [
    "CALL",
    "CallMatcher",
    "Change",
    "Definition",
    "Pins",
    "called",
    "definitions",
    "joined",
    "operation_of",
    "parted",
    "target_of",
    "tier_of",
]

CALL = "CALL"
"""The method under which a tool call of MCP goes through pipeline and journal; its target is `/` and the tool's name."""

SEPARATOR = "__"
PINS_MAX = 5_000
_PINNED = ("description", "inputSchema", "outputSchema", "annotations", "title")


@dataclass(frozen=True, slots=True)
class Definition:
    """One tool of one server: its name and its definition."""

    name: str
    value: Mapping[str, object]

    @property
    def digest(self) -> str:
        """Names everything in the definition that a model reads or a caller relies on."""
        pinned = {key: self.value.get(key) for key in _PINNED}
        return sha256(_dumped(pinned).encode()).hexdigest()

    @property
    def is_task_alone(self) -> bool:
        """Whether its server takes calls of it as tasks only (2025-11-25)."""
        execution = self.value.get("execution")
        return isinstance(execution, Mapping) and execution.get("taskSupport") == "required"

    @property
    def schema(self) -> object:
        """What its arguments look like."""
        return self.value.get("inputSchema")


def definitions(result: str) -> list[Definition]:
    """Return the tools of a `tools/list` result; what has no name is left out.

    Raises:
        ValueError: it is no such result.
    """
    _, value = members(result).get("tools", ("", None))
    if not isinstance(value, list):
        raise ValueError("the result lists no tools")
    return [
        Definition(name, item)
        for item in value
        if isinstance(item, dict) and isinstance(name := item.get("name"), str) and name
    ]


def joined(server: str, name: str) -> str:
    """Return a tool's name among all servers."""
    return f"{server}{SEPARATOR}{name}"


def parted(name: str, servers: Iterable[str]) -> tuple[str, str] | None:
    """Return the server and the tool's own name, or None if no such server is known; the longest server's name wins."""
    fits = [server for server in servers if name.startswith(server + SEPARATOR)]
    if not fits:
        return None
    server = max(fits, key=len)
    return server, name[len(server) + len(SEPARATOR) :]


def tier_of(annotations: object) -> Tier:
    """Return the tier of a tool that the manifest does not declare."""
    if not isinstance(annotations, Mapping):
        return Tier.PIVOT
    is_read = annotations.get("readOnlyHint") is True and annotations.get("destructiveHint") is not True
    return Tier.READ if is_read else Tier.PIVOT


def target_of(name: str) -> str:
    """Return the target of a call of the tool of that name."""
    return "/" + quote(name, safe="")


def called(target: str) -> str:
    """Return the tool's name of a target."""
    return unquote(target.removeprefix("/"))


class CallMatcher:
    """Finds the operation of a call to an MCP server: by the tool's name. Immutable.

    Args:
        declared: by the tool's name, each operation and the sentence that `explain` prints for it.
        other: what stands for all other tools, with its sentence.
    """

    __slots__ = ("_declared", "_other")

    def __init__(self, declared: Mapping[str, tuple[Operation, str]], other: tuple[Operation, str]) -> None:
        self._declared = {name: Match(operation, {}, reason) for name, (operation, reason) in declared.items()}
        self._other = Match(other[0], {}, other[1])

    def __call__(self, method: str, target: str) -> Match:
        """Return the operation.

        Raises:
            AmbiguousPath: it is no tool call.
        """
        if method != CALL:
            raise AmbiguousPath("it is an MCP server: its tools are called at /seawall/mcp, not by paths")
        return self._declared.get(called(target), self._other)


def operation_of(tool: ToolSpec, name: str, definition: Definition | None) -> Operation:
    """Return the operation of a tool's call: the declared one, else what its hints make of it."""
    declared = tool.match(CALL, target_of(name)).operation
    if declared.is_declared:
        return declared
    tier = tier_of(None if definition is None else definition.value.get("annotations"))
    timeouts: TimeoutSettings = declared.timeouts
    reads = (one for one in tool.operations.values() if one.is_read and not one.is_declared)
    like = next(reads, declared) if tier is Tier.READ else declared
    return Operation(
        name=f"tool:{name}",
        tier=tier,
        timeouts=timeouts,
        source=f"CALL {name}",
        is_declared=False,
        rules=like.rules,
    )


@dataclass(frozen=True, slots=True)
class Change:
    """A definition that is not the one that was agreed to."""

    tool: str
    name: str
    pinned: Mapping[str, object]
    offered: Mapping[str, object]

    def view(self) -> dict[str, object]:
        """Return what an operator compares: the members that differ."""
        keys = [key for key in _PINNED if self.pinned.get(key) != self.offered.get(key)]
        return {
            "tool": self.tool,
            "name": self.name,
            "changed": keys,
            "pinned": {key: self.pinned.get(key) for key in keys},
            "offered": {key: self.offered.get(key) for key in keys},
        }


@dataclass(slots=True)
class Pins:
    """The definitions of one server that were agreed to, and those that wait. At most `PINS_MAX`.

    Attributes:
        agreed: by tool's name, the pinned members.
        held: by tool's name, what is offered instead.
    """

    tool: str
    agreed: dict[str, dict[str, object]] = field(default_factory=dict)
    held: dict[str, dict[str, object]] = field(default_factory=dict)

    def see(self, offered: Iterable[Definition]) -> bool:
        """Take note of what a server offers now. New tools are pinned, changed ones held. Returns whether it changed us."""
        before = (dict(self.agreed), dict(self.held))
        for definition in offered:
            pinned = {key: definition.value[key] for key in _PINNED if key in definition.value}
            if definition.name not in self.agreed and len(self.agreed) >= PINS_MAX:
                continue
            known = self.agreed.setdefault(definition.name, pinned)
            if _same(known, pinned):
                self.held.pop(definition.name, None)
            else:
                self.held[definition.name] = pinned
        return before != (self.agreed, self.held)

    def accept(self, names: Iterable[str] | None = None) -> list[str]:
        """Agree to what is held (all of it, or those names). Returns the names."""
        chosen = [name for name in self.held if names is None or name in set(names)]
        for name in chosen:
            self.agreed[name] = self.held.pop(name)
        return chosen

    def changes(self) -> list[Change]:
        """Return what waits for an operator."""
        return [Change(self.tool, name, self.agreed.get(name, {}), offered) for name, offered in self.held.items()]

    def dumped(self) -> bytes:
        """Return all of it as bytes."""
        return _dumped({"agreed": self.agreed, "held": self.held}).encode()

    @classmethod
    def loaded(cls, tool: str, data: bytes) -> Pins:
        """Read what `dumped` wrote."""
        value = json.loads(data)
        return cls(tool, value["agreed"], value["held"])


def _same(one: object, other: object) -> bool:
    return _dumped(one) == _dumped(other)


def _dumped(value: object) -> str:
    # Not orjson: a definition may hold integers beyond 64 bits.
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
