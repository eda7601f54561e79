"""What a settings dataclass says of its fields, read once: type, marks, default. Decoder, schema and pages all ask here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import annotated_types as at

from gateway.core.manifest import CompensatorSettings, ProbeSettings, StateSettings
from gateway.core.setting import Doc, Format
from gateway.core.websocket import WebSocketSettings

__all__ = ["REQUIRED", "SHORTHAND", "Field", "choices", "fields_of", "is_settings", "summary"]

REQUIRED: Final = object()
"""Stands for "no default"."""

SHORTHAND: Final[Mapping[type, str]] = {
    CompensatorSettings: "request",
    ProbeSettings: "request",
    StateSettings: "request",
    WebSocketSettings: "enabled",
}
"""Settings that may be written as a single value, and the key that it is then the value of."""


@dataclass(frozen=True, slots=True)
class Field:
    """One setting.

    Attributes:
        kind: the type without None and marks: `str`, `int`, a dataclass, `Mapping[str, X]`, `tuple[X, ...]`, …
        is_optional: whether null is a value.
        formats: how its text is read.
        doc: one sentence.
        bounds: JSON Schema keyword to number, such as `minimum: 1`.
        default: its default, or `REQUIRED`.
    """

    name: str
    kind: Any
    is_optional: bool
    formats: frozenset[Format]
    doc: str
    bounds: Mapping[str, float]
    default: object

    @property
    def is_required(self) -> bool:
        """Whether it must be written."""
        return self.default is REQUIRED


_BOUNDS: Final[tuple[tuple[type, str, str], ...]] = (
    (at.Ge, "ge", "minimum"),
    (at.Gt, "gt", "exclusiveMinimum"),
    (at.Le, "le", "maximum"),
    (at.Lt, "lt", "exclusiveMaximum"),
    (at.MinLen, "min_length", "minLength"),
    (at.MaxLen, "max_length", "maxLength"),
)


@cache
def fields_of(settings: type) -> Mapping[str, Field]:
    """Return the fields of a settings dataclass, in the order in which they are declared."""
    hints = get_type_hints(settings, include_extras=True)
    return {spec.name: _field(spec, hints[spec.name]) for spec in dataclasses.fields(settings)}


def _field(spec: dataclasses.Field[Any], hint: Any) -> Field:
    marks: tuple[Any, ...] = ()
    if get_origin(hint) is Annotated:
        hint, *found = get_args(hint)
        marks = tuple(found)
    kind, is_optional = _without_none(hint)
    if spec.default is not dataclasses.MISSING:
        default: object = spec.default
    elif spec.default_factory is not dataclasses.MISSING:
        default = spec.default_factory()
    else:
        default = REQUIRED
    return Field(
        name=spec.name,
        kind=kind,
        is_optional=is_optional,
        formats=frozenset(mark for mark in marks if isinstance(mark, Format)),
        doc=next((mark.text for mark in marks if isinstance(mark, Doc)), ""),
        bounds={
            keyword: getattr(mark, attribute)
            for mark in marks
            for kind_of_mark, attribute, keyword in _BOUNDS
            if isinstance(mark, kind_of_mark)
        },
        default=default,
    )


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    rest = [arm for arm in get_args(hint) if arm is not NoneType]
    assert len(rest) == 1, f"a setting has one type, or one and None: {hint}"
    return rest[0], True


def is_settings(kind: Any) -> bool:
    """Whether a type is a settings dataclass."""
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def choices(kind: Any) -> tuple[str, ...] | None:
    """Return the words that a type allows, if it is an enumeration or a `Literal`; else None."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return tuple(str(member.value) for member in kind)
    return tuple(map(str, get_args(kind))) if get_origin(kind) is Literal else None


def summary(settings: type) -> str:
    """Return the first paragraph of a dataclass's docstring as one line."""
    return " ".join((settings.__doc__ or "").strip().split("\n\n")[0].split())
