"""CEL expressions: compiled and checked at load, evaluated without ever telling a value.

A plain path (`response.json.id`), which most expressions are, is walked in Python: it costs a microsecond whatever the
size of the answer, and integers of any length keep their digits. Everything else goes to the CEL library with only those
names that it uses. Expressions are bounded in length, because the library's recursion ends the process on very long ones
(seen from about 40 KB on; the bound leaves a factor of twenty).

Source: the Common Expression Language specification, github.com/google/cel-spec.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

import cel

from gateway.config.errors import nearest, shown
from gateway.core.environment import Lazily
from gateway.core.expression import Environment, ExpressionError

__all__ = [
    "NAMES",
    "CelExpression",
    "ExpressionProblem",
    "check_exact",
    "compile_condition",
    "compile_expression",
    "text_of",
]

LIMIT_CHARACTERS: Final = 2_000

NAMES: Final = frozenset({"request", "response", "key", "trajectory", "step", "params"})
"""What an expression may speak of. `params` are the values of the matched template's segments."""

FUNCTIONS: Final = frozenset({
    "size", "contains", "startsWith", "endsWith", "matches", "int", "uint", "double", "string", "bytes", "timestamp",
    "duration", "getFullYear", "getMonth", "getDayOfYear", "getDayOfMonth", "getDate", "getDayOfWeek",
    "getHours", "getMinutes", "getSeconds", "getMilliseconds", "type",
})  # fmt: skip
"""What the library knows; a call of anything else would fail only at run time, so it is refused at load."""

_PATH = re.compile(r"\s*([a-z]+)((?:\.[A-Za-z_][A-Za-z0-9_]*)*)\s*")
_TEXT = re.compile(r"'''.*?'''|\"\"\".*?\"\"\"|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_BOUND = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(\s*([A-Za-z_][A-Za-z0-9_]*)\s*,")
_FUNCTION = re.compile(r"[A-Za-z][A-Za-z0-9_.]*")
EXACT_BELOW: Final = 2.0**53
"""Doubles from here on may stand for another integer than the tool wrote."""


class ExpressionProblem(ValueError):
    """An expression that cannot be compiled. `hint` offers the next step."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class CelExpression:
    """A compiled expression (`gateway.core.expression.Expression`)."""

    __slots__ = ("_evaluate", "_is_condition", "_looked_at", "_members", "_name", "_names", "_program", "source")

    def __init__(self, source: str, program: cel.Program, names: frozenset[str], is_condition: bool) -> None:
        self.source = source
        self._program = program
        self._names = names
        self._is_condition = is_condition
        self._looked_at = {name: _looked_at(source, name) for name in names}
        plain = _PATH.fullmatch(source) if names else None
        self._evaluate = self._execute if plain is None else self._walk
        words = [""] if plain is None else (plain[1] + plain[2]).split(".")
        self._name, self._members = words[0], words[1:]

    @property
    def names(self) -> frozenset[str]:
        """The names of the environment that it speaks of."""
        return self._names

    def __call__(self, env: Environment) -> object:
        """Evaluate; a condition yields a bool and nothing else.

        Raises:
            ExpressionError: a name or member is missing, or the types do not fit.
        """
        value = self._evaluate(env)
        if self._is_condition and not isinstance(value, bool):
            raise ExpressionError(f"`{self.source}` is neither true nor false")
        return value

    def _walk(self, env: Environment) -> object:
        try:
            value = env[self._name]
        except KeyError:
            value = _lookup(env, self._name, self.source)
        for member in self._members:
            if not isinstance(value, dict) and not isinstance(value, Mapping):
                raise ExpressionError(f"`{self.source}`: there is nothing to take `{member}` from")
            try:
                value = value[member]
            except KeyError:
                raise ExpressionError(f"`{self.source}`: `{member}` is missing") from None
        return value.whole() if isinstance(value, Lazily) else value

    def _execute(self, env: Environment) -> object:
        known = {name: _part(_lookup(env, name, self.source), members) for name, members in self._looked_at.items()}
        try:
            return self._program.execute(known)
        except KeyError as error:
            member = error.args[0] if error.args else ""
            named = f"`{member}`" if isinstance(member, str) and member and member in self.source else "a member"
            reason = f"{named} is missing"
        except TypeError:
            reason = "the types do not fit"
        except (ArithmeticError, IndexError):
            reason = "a number or an index is out of bounds"
        except (RuntimeError, ValueError):
            reason = "a function does not accept what it was given"
        raise ExpressionError(f"`{self.source}`: {reason}")

    def __repr__(self) -> str:
        return f"CelExpression({self.source!r})"


def compile_expression(
    source: str, names: frozenset[str] = NAMES, later: Mapping[str, str] | None = None
) -> CelExpression:
    """Return the expression, after checking all that can be known before it is evaluated.

    Args:
        source: CEL.
        names: what is known where it stands.
        later: of the names that are not, why not.

    Raises:
        ExpressionProblem: not CEL, too long, or it speaks of a name or function that does not exist (here).
    """
    return _compile(source, names, later or {}, is_condition=False)


def compile_condition(source: str, names: frozenset[str] = NAMES) -> CelExpression:
    """Return an expression whose value must be true or false; see `compile_expression`."""
    return _compile(source, names, {}, is_condition=True)


def _compile(source: str, names: frozenset[str], later: Mapping[str, str], is_condition: bool) -> CelExpression:
    if len(source) > LIMIT_CHARACTERS:
        raise ExpressionProblem(f"the expression is longer than {LIMIT_CHARACTERS} characters")
    try:
        program = cel.compile(source)
    except ValueError as error:
        raise ExpressionProblem(f"not a CEL expression: {_first_error(str(error))}") from None
    used = frozenset(program.variables()) - _bound_names(source)
    for name in sorted(used - names):
        if name in later:
            raise ExpressionProblem(f"`{shown(name)}` is not known here: {later[name]}")
        raise ExpressionProblem(f"unknown name `{shown(name)}`", nearest(name, names))
    for function in sorted(set(program.functions()) - FUNCTIONS):
        if _FUNCTION.fullmatch(function):
            raise ExpressionProblem(f"unknown function `{function}`", nearest(function, FUNCTIONS))
    return CelExpression(source.strip(), program, used, is_condition)


def _first_error(message: str) -> str:
    found = re.search(r"ERROR: <input>:([0-9]+):([0-9]+): (?:Syntax error: )?([^\n]*)", message)
    if found is None:
        return "it cannot be parsed"
    line, column, reason = found.groups()
    reason = reason.partition(" expecting ")[0]
    place = f"character {column}" if line == "1" else f"line {line}, character {column}"
    return f"{reason} at {place} of the expression"


def _looked_at(source: str, name: str) -> frozenset[str] | None:
    """Return the members of a name that an expression looks at, or None where it may look at all of it.

    The library takes over whatever it is given, all the way down; a member that nobody looks at need not be made.
    """
    text = _TEXT.sub("''", source)
    use = rf"(?<![A-Za-z0-9_.]){name}(?![A-Za-z0-9_])"
    member = r"(?:\s*\.\s*([A-Za-z_][A-Za-z0-9_]*)(?![A-Za-z0-9_])(?!\s*\())?"
    uses = re.findall(use + member, text)
    return None if not uses or "" in uses else frozenset(uses)


def _part(value: object, members: frozenset[str] | None) -> object:
    if members is None or not isinstance(value, Mapping):
        return value.whole() if isinstance(value, Lazily) else value
    found: dict[str, object] = {}
    for member in members:
        try:
            one = value[member]
        except KeyError:
            continue  # the library says that it is missing
        found[member] = one.whole() if isinstance(one, Lazily) else one
    return found


def _bound_names(source: str) -> frozenset[str]:
    return frozenset(_BOUND.findall(_TEXT.sub("''", source)))


def _lookup(env: Environment, name: str, source: str) -> object:
    try:
        return env[name]
    except KeyError:
        pass
    if name == "params":
        request = env.get("request")
        if isinstance(request, Mapping) and "params" in request:
            params: object = request["params"]
            return params
    raise ExpressionError(f"`{source}`: `{name}` is not known here")


def text_of(value: object, source: str) -> str:
    """Return a value as it stands in a path, query, header or text.

    Raises:
        ExpressionError: null, a list or a mapping, or a number that may have lost digits.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        check_exact(value, source)
        return str(int(value)) if value.is_integer() else repr(value)
    raise ExpressionError(f"`{source}` is {_kind(value)}, where text, a number, true or false is needed")


def check_exact(value: float, source: str) -> None:
    """Refuse a number that is not finite, or so large that it may not be the one that the tool wrote.

    Raises:
        ExpressionError: it is.
    """
    if not math.isfinite(value) or abs(value) >= EXACT_BELOW:
        raise ExpressionError(f"`{source}` is a number that may have lost digits; a tool's id is better sent as text")


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else "a value of another kind"
