"""What a pure function says of short words that come again with every call: names of fields, media types, operations.

A look-up costs a tenth of a call. Words come from anybody, so both their number and their length are bounded, and nobody who
sends many of them leaves it filled with words that never come again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["LONGEST", "MOST", "Remembered"]

K = TypeVar("K", bound=str | bytes)
V = TypeVar("V")

MOST: Final = 1024
"""Words remembered; one more, and it begins anew."""

LONGEST: Final = 64
"""Length of the longest word remembered."""


class Remembered(dict[K, V]):
    """A dict that makes what is missing. Take `remembered[word]`, or its `__getitem__` where each call does so."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[K], V]) -> None:
        """`make` is the pure function."""
        super().__init__()
        self._make: Callable[[K], V] = make

    def __missing__(self, word: K) -> V:
        made = self._make(word)
        if len(word) <= LONGEST:
            if len(self) >= MOST:
                self.clear()
            self[word] = made
        return made
