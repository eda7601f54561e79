"""What is wrong with a configuration: all of it at once, each with its place and the next step.

Problems never quote values, which may be secrets; they quote keys, and names of tools, domains, operations and secrets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

__all__ = ["ConfigError", "Position", "Problem", "Problems", "nearest", "shown"]


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a file, counted from 1. Line 0 is a source without lines: a variable, an option, a whole file."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that is wrong, or (`is_warning`) merely odd."""

    position: Position
    message: str
    hint: str = ""
    is_warning: bool = False

    @property
    def file(self) -> str:
        """The file, variable or option."""
        return self.position.file

    @property
    def line(self) -> int:
        """Line, counted from 1; 0 where there are none."""
        return self.position.line

    @property
    def column(self) -> int:
        """Column, counted from 1; 0 where there are none."""
        return self.position.column

    def __str__(self) -> str:
        kind = "warning: " if self.is_warning else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.position}: {kind}{self.message}{hint}"


class ConfigError(Exception):
    """A configuration that cannot be used. `problems` are all of them, sorted by place."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        super().__init__("\n".join(map(str, self.problems)))


class Problems:
    """Collects problems while reading goes on, so that one run names them all."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: list[Problem] = []

    def add(self, position: Position, message: str, hint: str = "") -> None:
        """Note something wrong."""
        self._found.append(Problem(position, message, hint))

    def warn(self, position: Position, message: str, hint: str = "") -> None:
        """Note something odd that does not stop anything."""
        self._found.append(Problem(position, message, hint, is_warning=True))

    @property
    def has_errors(self) -> bool:
        """Whether something is wrong."""
        return any(not problem.is_warning for problem in self._found)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """What is odd, sorted by place."""
        return tuple(sorted({problem for problem in self._found if problem.is_warning}))

    def raise_if_any(self) -> None:
        """Raise `ConfigError` with everything noted, warnings included, if something is wrong."""
        if self.has_errors:
            raise ConfigError(self._found)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint that offers the known word most like `word`, or lists what there is; "" if there is nothing."""
    words = sorted(known)
    if close := get_close_matches(word[:100], words, n=1, cutoff=0.6):
        return f"did you mean `{close[0]}`?"
    if not words:
        return ""
    listed = ", ".join(f"`{name}`" for name in words[:12])
    return f"known: {listed}" + (", …" if len(words) > 12 else "")


def shown(key: str, limit: int = 60) -> str:
    """Return a key or path as it may be printed: one line, and not too long."""
    printable = "".join(character if character.isprintable() else "�" for character in key)
    return printable if len(printable) <= limit else printable[: limit - 1] + "…"
