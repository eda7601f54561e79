"""What happened in a storm, call by call and attempt by attempt, in columns: a million calls are a few megabytes.

Both engines fill one; everything that is measured or drawn comes from here, and it is kept in a file as it is.
"""

from __future__ import annotations

import gzip
import json
from array import array
from collections.abc import Iterator, MutableSequence, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

__all__ = ["Attempts", "Calls", "Kills", "Moves", "Recording"]

# Lines that are packed together: large enough to cost nothing, small enough to need no memory.
_AT_ONCE = 4096


def _floats() -> array[float]:
    """Return a column of numbers side by side: a list of a million floats is spread over memory, and slow to go through."""
    return array("d")


@dataclass(slots=True)
class Calls:
    """Calls as the agents saw them, in the order in which they ended. `due` and `end` are seconds from the start."""

    due: MutableSequence[float] = field(default_factory=_floats)
    end: MutableSequence[float] = field(default_factory=_floats)
    tool: list[str] = field(default_factory=list)
    agent: list[str] = field(default_factory=list)
    outcome: list[str] = field(default_factory=list)
    """`success`, `refused:CODE`, `failed:FAULT` or `in_doubt:FAULT`."""

    def add(self, due: float, end: float, tool: str, agent: str, outcome: str) -> None:
        """Note one call."""
        self.due.append(due)
        self.end.append(end)
        self.tool.append(tool)
        self.agent.append(agent)
        self.outcome.append(outcome)

    def __len__(self) -> int:
        return len(self.due)

    def rows(self) -> Iterator[tuple[float, float, str, str, str]]:
        """Yield (due, end, tool, agent, outcome)."""
        return zip(self.due, self.end, self.tool, self.agent, self.outcome, strict=True)


@dataclass(slots=True)
class Attempts:
    """Requests as they arrived at the tools. `number` counts the attempts of a call from 1, 0 where nobody knows."""

    at: MutableSequence[float] = field(default_factory=_floats)
    tool: list[str] = field(default_factory=list)
    number: list[int] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)
    half_open: list[int] = field(default_factory=list)
    """Calls in flight under a half-open breaker, this one included; 0 if the breaker is closed or nobody knows."""

    def add(self, at: float, tool: str, number: int, queue: int, half_open: int) -> None:
        """Note one arrival; `queue` is how many wait at the tool."""
        self.at.append(at)
        self.tool.append(tool)
        self.number.append(number)
        self.queue.append(queue)
        self.half_open.append(half_open)

    def __len__(self) -> int:
        return len(self.at)


@dataclass(slots=True)
class Moves:
    """Moves of breakers."""

    at: list[float] = field(default_factory=list)
    gateway: list[int] = field(default_factory=list)
    tool: list[str] = field(default_factory=list)
    state: list[str] = field(default_factory=list)
    cause: list[str] = field(default_factory=list)
    cooldown_s: list[float] = field(default_factory=list)

    def add(self, at: float, gateway: int, tool: str, state: str, cause: str, cooldown_s: float) -> None:
        """Note one move."""
        self.at.append(at)
        self.gateway.append(gateway)
        self.tool.append(tool)
        self.state.append(state)
        self.cause.append(cause)
        self.cooldown_s.append(cooldown_s)

    def __len__(self) -> int:
        return len(self.at)


@dataclass(slots=True)
class Kills:
    """SIGKILLs of gateways; `back_s` is from the kill until the gateway listened again, its journal recovered."""

    at: list[float] = field(default_factory=list)
    gateway: list[int] = field(default_factory=list)
    back_s: list[float] = field(default_factory=list)

    def add(self, at: float, gateway: int, back_s: float) -> None:
        """Note one."""
        self.at.append(at)
        self.gateway.append(gateway)
        self.back_s.append(back_s)

    def __len__(self) -> int:
        return len(self.at)


@dataclass(slots=True)
class Recording:
    """One storm under one policy.

    Attributes:
        skipped: calls that the generator could not send in time.
        toll: what the tools' own ledgers say of calls that have an effect; see `measure`.
    """

    calls: Calls = field(default_factory=Calls)
    attempts: Attempts = field(default_factory=Attempts)
    moves: Moves = field(default_factory=Moves)
    kills: Kills = field(default_factory=Kills)
    skipped: int = 0
    toll: dict[str, int] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write everything as lines of JSON, compressed: a line for each call, attempt, move and kill."""
        with path.open("wb") as raw, gzip.GzipFile("", "wb", 5, raw, mtime=0) as file:
            for kind in ("calls", "attempts", "moves", "kills"):
                columns = _columns(getattr(self, kind))
                form = ",".join([f'{{"kind":"{kind[:-1]}"', *(f'"{name}":%s' for name in columns)]) + "}\n"
                rows = zip(*map(_texts, columns.values()), strict=True)
                while some := list(islice(rows, _AT_ONCE)):
                    file.write("".join([form % row for row in some]).encode())
            file.write(json.dumps({"kind": "end", "skipped": self.skipped, "toll": self.toll}).encode() + b"\n")

    @classmethod
    def read(cls, path: Path) -> Recording:
        """Return what `save` wrote."""
        recording = cls()
        with gzip.open(path, "rb") as file:
            for line in file:
                row: dict[str, Any] = json.loads(line)
                kind = row.pop("kind")
                if kind == "end":
                    recording.skipped, recording.toll = row["skipped"], row["toll"]
                else:
                    getattr(recording, kind + "s").add(**row)
        return recording


def _columns(table: object) -> dict[str, list[Any]]:
    return {name: getattr(table, name) for name in type(table).__slots__}  # type: ignore[attr-defined]


def _texts(column: Sequence[Any]) -> Iterator[str]:
    """Yield a column's values as JSON: numbers to a tenth of a microsecond, names as often as they come but made once."""
    if column and isinstance(column[0], str):
        return map({name: json.dumps(name) for name in set(column)}.__getitem__, column)
    return (repr(round(value, 7)) for value in column)
