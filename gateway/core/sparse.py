"""Collections that are empty most of the time, and take no room while they are: all who have none share one.

A live run has two dozen of them, and there may be a hundred thousand runs. A set alone is 216 bytes, empty or not. So a
field begins as `NONE` or `NOTHING`, neither of which can be changed, and whoever puts something in puts the collection
that is returned back into the field:

    state.in_doubt = including(state.in_doubt, 7)
    state.usage = own(state.usage)
    state.usage["usd"] = 0.5

Where every call does so, the same is written out: a call of a function costs more than all that it does.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn, TypeVar, cast

__all__ = ["NONE", "NOTHING", "excluding", "including", "own"]

K = TypeVar("K")
V = TypeVar("V")

NONE: Final = cast("set[Any]", frozenset())
"""The empty set that all share. The type checker takes it for a set; it has no methods that would change it."""


class _Nothing(dict[Any, Any]):
    """The empty dict that all share; an attempt to put something in is a bug, and says so."""

    __slots__ = ()

    def __setitem__(self, key: object, value: object) -> NoReturn:
        raise TypeError("this empty dict is shared: put into `own(...)` of it")

    def update(self, *args: object, **values: object) -> NoReturn:
        raise TypeError("this empty dict is shared: update `own(...)` of it")

    def setdefault(self, key: object, default: object = None) -> NoReturn:
        raise TypeError("this empty dict is shared: put into `own(...)` of it")

    def __ior__(self, other: object) -> NoReturn:  # type: ignore[misc]
        raise TypeError("this empty dict is shared: put into `own(...)` of it")

    def __hash__(self) -> int:  # type: ignore[override]
        """It never changes, so it may be a field's default."""
        return 0


NOTHING: Final[dict[Any, Any]] = _Nothing()


def including(values: set[V], value: V) -> set[V]:
    """Return the set with one more value: the one given, changed, unless it is empty."""
    if not values:
        return {value}
    values.add(value)
    return values


def excluding(values: set[V], value: V) -> set[V]:
    """Return the set without a value: the one given, changed; `NONE` where nothing is left."""
    if not values:
        return NONE
    values.discard(value)
    return values or NONE


def own(values: dict[K, V]) -> dict[K, V]:
    """Return a dict to put things into: the one given, or a new one in place of the one that all share."""
    return {} if values is NOTHING else values
