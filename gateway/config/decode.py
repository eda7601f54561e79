"""From nodes to typed settings: the field decides what a scalar means, pydantic checks bounds, positions come along.

In a field of text every scalar is its text, as written (`limit: 20` in a query, `no` as a country). In any other field
only what YAML 1.1 and 1.2 agree on counts: `true`, `false`, decimal numbers. `yes`, `012` or `12:30:45` are refused with
a hint. All problems are collected; a message names keys and what was expected, and never a value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from gateway.config.errors import Problems, nearest, shown
from gateway.config.fields import SHORTHAND, Field, choices, fields_of, is_settings
from gateway.config.nodes import AMBIGUOUS, NOT_TEXT, Map, Node, Scalar, Seq
from gateway.core.setting import Format

__all__ = ["SIZE", "TIME", "decode", "parse_duration", "parse_size"]

S = TypeVar("S")
Path = tuple[str | int, ...]

TIME: Final = r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?(?:ms|s|m|h|d))+"
SIZE: Final = r"[0-9]{1,15}(?:\.[0-9]{1,9})? ?(?:B|[kK]B|MB|GB|TB|KiB|MiB|GiB|TiB)"

_TIME_PART = re.compile(r"([0-9.]+)(ms|s|m|h|d)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_SIZE_PARTS = re.compile(r"([0-9.]+) ?([A-Za-z]+)")
_BYTES: Final = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
}  # fmt: skip
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_ADAPTERS: dict[type, TypeAdapter[Any]] = {}
_TRUE, _FALSE = frozenset({"true", "True", "TRUE"}), frozenset({"false", "False", "FALSE"})


class _Bad(Exception):
    """This value was refused; the problem is noted already."""


def parse_duration(text: str) -> float | None:
    """Return seconds of `500ms`, `2s`, `1h30m` or a bare number of seconds; None if it is none of these."""
    if re.fullmatch(TIME, text):
        return math.fsum(float(number) * _SECONDS[unit] for number, unit in _TIME_PART.findall(text))
    return _number(text)


def parse_size(text: str) -> int | None:
    """Return the bytes of `64KiB`, `1.5MB` or a bare number of bytes; None if it is none of these or no whole number."""
    if not re.fullmatch(SIZE, text):
        return int(text) if _INTEGER.fullmatch(text) else None
    found = _SIZE_PARTS.fullmatch(text)
    assert found is not None
    size = float(found.group(1)) * _BYTES[found.group(2).upper()]
    return int(size) if size.is_integer() else None


def decode(node: Map, settings: type[S], problems: Problems) -> S | None:
    """Return the settings that a mapping describes, or None after noting in `problems` all that is wrong with it."""
    reader = _Reader(problems)
    data = reader.settings(node, settings, ())
    try:
        decoded = _adapter(settings).validate_python(data)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_input=False):
            path = tuple(detail["loc"])
            if not any(path[: len(bad)] == bad for bad in reader.bad):
                problems.add(node.at(*path), _sentence(path, detail["type"], detail.get("ctx", {})))
        return None
    return None if reader.bad else decoded


def _adapter(settings: type[S]) -> TypeAdapter[S]:
    if settings not in _ADAPTERS:
        _ADAPTERS[settings] = TypeAdapter(settings)
    return _ADAPTERS[settings]


def _sentence(path: Path, kind: str, context: Mapping[str, Any]) -> str:
    name = f"`{shown(str(path[-1]))}`"
    match kind:
        case "missing":
            return f"{name} is required"
        case "greater_than":
            return f"{name} must be more than {context['gt']:g}"
        case "greater_than_equal":
            return f"{name} must be at least {context['ge']:g}"
        case "less_than_equal":
            return f"{name} must be at most {context['le']:g}"
        case "less_than":
            return f"{name} must be less than {context['lt']:g}"
        case "string_too_short" | "too_short":
            return f"{name} must not be empty"
        case _:
            return f"{name} is not allowed here ({kind.replace('_', ' ')})"


class _Reader:
    """Turns nodes into plain values by the type of the field they stand in. `bad` are the paths it refused."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self.bad: set[Path] = set()

    def settings(self, node: Map, settings: type, path: Path) -> dict[str, object]:
        fields = fields_of(settings)
        data: dict[str, object] = {}
        for key, value in node.values.items():
            if key not in fields:
                self._problems.add(node.keys[key], f"unknown key `{shown(key)}`", nearest(key, fields))
                self.bad.add((*path, key))
                continue
            here = (*path, key)
            try:
                data[key] = self._field(value, fields[key], here)
            except _Bad:
                self.bad.add(here)
        return data

    def _field(self, node: Node, field: Field, path: Path) -> object:
        if isinstance(node, Scalar) and node.is_null:
            if field.is_optional or field.kind is object:
                return None
            if (
                not field.is_required
                and field.kind is not str
                and (is_settings(field.kind) or _is_container(field.kind))
            ):
                return field.default
        return self._value(node, field.kind, path, field.formats)

    def _value(self, node: Node, kind: Any, path: Path, formats: frozenset[Format] = frozenset()) -> object:
        if is_settings(kind):
            if isinstance(node, Scalar) and kind in SHORTHAND and not node.is_null:
                name = SHORTHAND[kind]
                return {name: self._field(node, fields_of(kind)[name], path)}
            return self.settings(self._a_map(node, path), kind, path)
        if get_origin(kind) in (Mapping, dict):
            return self._mapping(self._a_map(node, path), get_args(kind)[1], path)
        if get_origin(kind) is tuple:
            return self._sequence(node, get_args(kind)[0], path)
        if kind is object:
            return self._free(node, path)
        return self._scalar(node, kind, path, formats)

    def _a_map(self, node: Node, path: Path) -> Map:
        if not isinstance(node, Map):
            raise self._refuse(node, path, "expected a mapping")
        return node

    def _mapping(self, node: Map, kind: Any, path: Path) -> dict[str, object]:
        data = {}
        for key, value in node.values.items():
            try:
                data[key] = self._value(value, kind, (*path, key))
            except _Bad:
                self.bad.add((*path, key))
        return data

    def _sequence(self, node: Node, kind: Any, path: Path) -> list[object]:
        if not isinstance(node, Seq):
            raise self._refuse(node, path, "expected a list", "write [a] or one `- a` per line")
        items = []
        for index, item in enumerate(node.items):
            try:
                items.append(self._value(item, kind, (*path, index)))
            except _Bad:
                self.bad.add((*path, index))
        return items

    def _free(self, node: Node, path: Path) -> object:
        if isinstance(node, Map):
            return self._mapping(node, object, path)
        if isinstance(node, Seq):
            return self._sequence(node, object, path)
        if not node.is_plain:
            return node.text
        if node.is_null:
            return None
        if AMBIGUOUS.fullmatch(node.text):
            raise self._refuse(node, path, "means different things in YAML 1.1 and 1.2", "put text in quotes")
        if NOT_TEXT.fullmatch(node.text):
            if node.text.lower() in ("true", "false"):
                return node.text.lower() == "true"
            if _INTEGER.fullmatch(node.text):
                return int(node.text)
            if (number := _number(node.text)) is None or node.text.lstrip("+-").isdigit():
                raise self._refuse(node, path, "is too large for a number", "put it in quotes")
            return number
        return node.text

    def _scalar(self, node: Node, kind: Any, path: Path, formats: frozenset[Format]) -> object:
        if not isinstance(node, Scalar):
            raise self._refuse(node, path, f"expected {_expected(kind, formats)}, not a list or a mapping")
        if node.is_null:
            raise self._refuse(node, path, "has no value", f"write {_expected(kind, formats)}, or leave the key out")
        if kind is str:
            return node.text
        if (words := choices(kind)) is not None:
            if node.text not in words:
                listed = ", ".join(f"`{word}`" for word in words)
                hint = nearest(node.text, words)
                raise self._refuse(node, path, f"must be one of {listed}", hint if hint.startswith("did") else "")
            return node.text
        value = _typed(node.text, kind, formats)
        if value is None:
            hint = "`true` or `false`; YAML 1.1's yes, no, on, off are not read" if kind is bool else ""
            if kind is not bool and AMBIGUOUS.fullmatch(node.text):
                hint = "decimal digits without leading zeros, colons or underscores"
            raise self._refuse(node, path, f"must be {_expected(kind, formats)}", hint)
        return value

    def _refuse(self, node: Node, path: Path, message: str, hint: str = "") -> _Bad:
        self._problems.add(node.position, f"`{shown(str(path[-1]))}`: {message}", hint)
        return _Bad()


def _is_container(kind: Any) -> bool:
    return get_origin(kind) in (Mapping, dict, tuple)


def _typed(text: str, kind: Any, formats: frozenset[Format]) -> object:
    if kind is bool:
        return True if text in _TRUE else False if text in _FALSE else None
    if AMBIGUOUS.fullmatch(text):
        return None
    if Format.SECONDS in formats:
        return parse_duration(text)
    if Format.BYTES in formats:
        return parse_size(text)
    if kind is int:
        return int(text) if _INTEGER.fullmatch(text) else None
    assert kind is float, f"no reading for {kind}"
    return _number(text)


def _number(text: str) -> float | None:
    if not NOT_TEXT.fullmatch(text) or text.lower() in ("true", "false"):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def _expected(kind: Any, formats: frozenset[Format]) -> str:
    if Format.SECONDS in formats:
        return "a time such as `500ms`, `2s`, `10m`, `24h` or `7d`"
    if Format.BYTES in formats:
        return "a size such as `64KiB` or `10MiB`"
    words = {bool: "`true` or `false`", int: "a whole number", float: "a number", str: "text"}
    return words.get(kind, "one of " + ", ".join(f"`{word}`" for word in choices(kind) or ()))
