"""Text with holes: `${…}` is a CEL expression, `${secret:NAME}` a secret, `$${` a literal `${`.

A hole ends at its own closing brace; braces inside CEL maps and strings do not end it. The cut is made once, at load, so
that a value can never open a hole of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.config.cel import NAMES, CelExpression, ExpressionProblem, compile_expression, text_of
from gateway.core.expression import Environment

__all__ = ["Part", "SecretRef", "compile_parts", "render", "secrets_in", "split_holes"]

_SECRET: Final = re.compile(r"\s*secret:\s*(.*?)\s*", re.DOTALL)
SECRET_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True)
class SecretRef:
    """A secret by name."""

    name: str

    @property
    def placeholder(self) -> str:
        """What stands for it until it is sent."""
        return f"${{secret:{self.name}}}"


Part = str | CelExpression | SecretRef


@dataclass(frozen=True, slots=True)
class Hole:
    """The text between `${` and its brace."""

    text: str


def split_holes(text: str) -> list[str | Hole]:
    """Cut a text into literals and holes.

    Raises:
        ExpressionProblem: a hole is empty or has no end.
    """
    pieces: list[str | Hole] = []
    literal: list[str] = []
    position = 0
    while position < len(text):
        if text.startswith("$${", position):
            literal.append("${")
            position += 3
        elif text.startswith("${", position):
            end = _end_of_hole(text, position + 2)
            inside = text[position + 2 : end]
            if not inside.strip():
                raise ExpressionProblem("`${}` is empty", "write an expression in it, or `$${` for the text itself")
            if literal:
                pieces.append("".join(literal))
                literal = []
            pieces.append(Hole(inside))
            position = end + 1
        else:
            literal.append(text[position])
            position += 1
    if literal:
        pieces.append("".join(literal))
    return pieces


def _end_of_hole(text: str, start: int) -> int:
    depth = 0
    position = start
    while position < len(text):
        character = text[position]
        if character in "'\"":
            position = _end_of_string(text, position, start)
            continue
        if character == "{":
            depth += 1
        elif character == "}":
            if depth == 0:
                return position
            depth -= 1
        position += 1
    raise ExpressionProblem("`${` has no closing `}`", "close it, or write `$${` for the text itself")


def _end_of_string(text: str, start: int, hole: int) -> int:
    quote = text[start] * 3 if text.startswith(text[start] * 3, start) else text[start]
    is_raw = start > hole and text[start - 1] in "rR" and not (start - 2 >= hole and text[start - 2].isalnum())
    position = start + len(quote)
    while position < len(text):
        if text[position] == "\\" and not is_raw:
            position += 2
        elif text.startswith(quote, position):
            return position + len(quote)
        else:
            position += 1
    raise ExpressionProblem("`${` holds a string without an end", "close the quotes")


def compile_parts(text: str, names: frozenset[str] = NAMES, later: Mapping[str, str] | None = None) -> tuple[Part, ...]:
    """Return the parts of a template, expressions compiled.

    Raises:
        ExpressionProblem: a hole that is no expression and no secret.
    """
    return tuple(piece if isinstance(piece, str) else _part(piece.text, names, later) for piece in split_holes(text))


def _part(inside: str, names: frozenset[str], later: Mapping[str, str] | None) -> Part:
    if secret := _SECRET.fullmatch(inside):
        if not SECRET_NAME.fullmatch(secret.group(1)):
            raise ExpressionProblem(
                "a secret's name is letters, digits, `_`, `-` and `.`", "as in `${secret:payments}`"
            )
        return SecretRef(secret.group(1))
    return compile_expression(inside, names, later)


def secrets_in(parts: Sequence[Part]) -> frozenset[str]:
    """Return the names of the secrets in a template."""
    return frozenset(part.name for part in parts if isinstance(part, SecretRef))


def render(parts: Sequence[Part], env: Environment) -> str:
    """Return the text with each hole filled; secrets stay placeholders.

    Raises:
        ExpressionError: a value is missing or is no text.
    """
    return "".join(_rendered(part, env) for part in parts)


def _rendered(part: Part, env: Environment) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, SecretRef):
        return part.placeholder
    return text_of(part(env), part.source)
