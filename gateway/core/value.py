"""Values that are made on every call: frozen for the type checker, plain at run time.

A dataclass that is frozen at run time sets each field through `object.__setattr__`, which makes it three times as dear to
make. What is decorated with `frozen` is checked as such by mypy wherever it is used, and costs no more than any object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform, overload

__all__ = ["frozen"]

T = TypeVar("T")


@overload
def frozen(cls: type[T], /) -> type[T]: ...


@overload
def frozen(*, kw_only: bool = True, slots: bool = True) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen(cls: type[T] | None = None, /, *, kw_only: bool = True, slots: bool = True) -> Any:
    """Make a class a dataclass with slots, by keyword unless told otherwise, and frozen for the type checker.

    Without slots an instance holds a dict, which orjson writes in a quarter of the time: for what is written to the journal.
    What every call makes is made by position, with `kw_only` off: a class that is called by keyword takes twice as long,
    since its keywords go through a dict (docs/adr/0165-by-position.md).
    """
    made = dataclass(slots=slots, kw_only=kw_only)
    return made if cls is None else made(cls)
