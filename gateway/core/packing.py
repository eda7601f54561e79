"""Values as few bytes: what an idle run is written with, and read back from, exactly.

Numbers take seven bits a byte. A text takes what its predecessor does not begin or end with. A digest, which nothing makes
smaller, is written once, and named by its place after that. What thousands of runs have in common is kept once in a table
(`Shared`), and a run names the place in it. Any other value is written with its type in front; of a dataclass, only what
is not as its class has it.

The bytes are for the process that wrote them, with the table that they were written with: nothing here is a format to keep.
A type that is not known here is never written in another's place: `Unpackable` says so, and whoever asked keeps the value.

Left out: `pickle`, which takes three times as many bytes, and `zlib`, which finds nothing in digests.
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import MISSING, fields
from enum import Enum
from itertools import chain
from typing import Any, Final

from gateway.core.sparse import NONE, NOTHING

__all__ = ["DEEPEST", "LANES", "Forms", "Reader", "Shared", "Unpackable", "Writer"]

_REAL: Final = struct.Struct("<d")
_ALIKE_MOST: Final = 126
"""Longest beginning that a text takes from its predecessor: one byte says how long it is."""

LANES: Final = 4
"""Kinds of texts, each of which is compared with its own kind."""

SHARED_KEPT: Final = 8192
"""Values in the table; what comes later is written out. Tools, operations and agents are few; this bounds what is not."""


DEEPEST: Final = 64
"""Collections in collections that are written: whoever reads them back, deep in its own calls, needs three more for each."""


class Unpackable(TypeError):
    """A value of a type that is not known here, or nested too deeply."""


class Shared:
    """What many packed forms have in common, each value once. Grows up to `kept`, and never forgets."""

    __slots__ = ("_kept", "_numbers", "values")

    def __init__(self, kept: int = SHARED_KEPT) -> None:
        self._kept = kept
        self._numbers: dict[Hashable, int] = {}
        self.values: list[Any] = []

    def number(self, value: Hashable) -> int | None:
        """Return the place of a value, a new one if need be; None where there is no room left."""
        number = self._numbers.get(value)
        if number is None and len(self.values) < self._kept:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
        return number


class Forms:
    """The classes that values may have: dataclasses, and enumerations by the place of their members."""

    def __init__(self, dataclasses: Sequence[type[Any]], enums: Sequence[type[Enum]]) -> None:
        self.classes = {kind: number for number, kind in enumerate(dataclasses)}
        self.shapes = [_shape(kind) for kind in dataclasses]
        self.members: list[Enum] = [member for kind in enums for member in kind]
        self.enums = {(type(member), member.name): number for number, member in enumerate(self.members)}


_Field = tuple[str, Any]
"""Its name, and what stands there where nothing is written: itself, or what makes it."""


def _shape(kind: type[Any]) -> tuple[type[Any], list[_Field]]:
    return kind, [
        (one.name, one.default if one.default_factory is MISSING else one.default_factory()) for one in fields(kind)
    ]


class Writer:
    """Writes values into `data`."""

    __slots__ = ("_blobs", "_depth", "_forms", "_last", "data", "shared")

    def __init__(self, shared: Shared, forms: Forms) -> None:
        self.shared = shared
        self.data = bytearray()
        self._forms = forms
        self._last = [b""] * LANES
        self._blobs: dict[bytes, int] = {}
        self._depth = 0

    def number(self, number: int) -> None:
        """Write a whole number from 0 on."""
        data = self.data
        while number > 127:
            data.append(number & 127 | 128)
            number >>= 7
        data.append(number)

    def signed(self, number: int) -> None:
        """Write a whole number."""
        self.number(number << 1 if number >= 0 else ~number << 1 | 1)

    def real(self, number: float) -> None:
        """Write a float in eight bytes."""
        self.data += _REAL.pack(number)

    def text(self, text: str, lane: int = 0) -> None:
        """Write a text as what is new in it: its predecessor in the same lane begins and ends with the rest.

        The first one of a lane has that of the lane below as its predecessor.
        """
        raw = text.encode("utf-8", "surrogatepass")
        last = self._last[lane] or self._last[lane - 1]
        self._last[lane] = raw
        if raw == last:
            self.data.append(0)
            return
        front = _alike(raw, last, min(len(raw), len(last), _ALIKE_MOST))
        back = _alike(raw[:front:-1], last[:front:-1], min(len(raw), len(last)) - front - 1)
        self.number(front + 1)
        self.number(back)
        self.number(len(raw) - front - back)
        self.data += raw[front : len(raw) - back]

    def blob(self, blob: bytes) -> None:
        """Write bytes, or where they stand already."""
        place = self._blobs.get(blob)
        if place is not None:
            self.number(place)
            return
        self.number(0)
        self.number(len(blob))
        self.raw(blob)

    def raw(self, blob: bytes) -> None:
        """Write bytes whose number whoever reads knows; they may be named later on."""
        self.data += blob
        self._blobs.setdefault(blob, len(self._blobs) + 1)

    def common(self, value: Hashable) -> None:
        """Write a value that many have in common: its place in the table, or itself."""
        number = self.shared.number(value)
        if number is None:
            self.number(0)
            self.value(value)
        else:
            self.number(number + 1)

    def value(self, value: Any) -> None:
        """Write any value.

        Raises:
            Unpackable: it, or a part of it, is of a type that is not known, or it is nested too deeply.
        """
        write = _WRITERS.get(type(value))
        if write is not None:
            write(self, value)
        elif type(value) in self._forms.classes:
            self.data.append(_OBJECT)
            self._object(value, self._forms.classes[type(value)])
        elif isinstance(value, Enum) and (type(value), value.name) in self._forms.enums:
            self.data.append(_ENUM)
            self.number(self._forms.enums[type(value), value.name])
        else:
            raise Unpackable(f"a value of the type {type(value).__name__} cannot be packed")

    def values(self, values: Iterable[Any]) -> None:
        """Write values, one after the other, that are parts of another.

        Raises:
            Unpackable: one cannot be written.
        """
        self._depth += 1
        if self._depth > DEEPEST:
            raise Unpackable(f"what is nested deeper than {DEEPEST} cannot be packed")
        for value in values:
            self.value(value)
        self._depth -= 1

    def _object(self, value: object, form: int) -> None:
        self.number(form)
        self.members(value, self._forms.shapes[form][1])

    def members(self, value: object, shape: Sequence[_Field]) -> None:
        """Write those members of an object that are not as its class has them."""
        odd, mask = [], 0
        for number, (name, usual) in enumerate(shape):
            member = getattr(value, name)
            if member is not usual and (type(member) is not type(usual) or member != usual):
                mask |= 1 << number
                odd.append(member)
        self.number(mask)
        self.values(odd)


def _alike(one: bytes, other: bytes, most: int) -> int:
    """Return with how many equal bytes both begin, up to `most`."""
    alike = 0
    while alike < most and one[alike] == other[alike]:
        alike += 1
    return alike


class Reader:
    """Reads what a `Writer` with the same table and forms wrote, in the same order."""

    __slots__ = ("_blobs", "_data", "_forms", "_last", "_shared", "place")

    def __init__(self, data: bytes, shared: Shared, forms: Forms, place: int = 0) -> None:
        self._data = data
        self._shared = shared
        self._forms = forms
        self._last = [b""] * LANES
        self._blobs: list[bytes] = []
        self.place = place

    def number(self) -> int:
        """Read a whole number from 0 on."""
        data, place, number, shift = self._data, self.place, 0, 0
        while (byte := data[place]) > 127:
            number |= (byte & 127) << shift
            shift += 7
            place += 1
        self.place = place + 1
        return number | byte << shift

    def signed(self) -> int:
        """Read a whole number."""
        number = self.number()
        return ~(number >> 1) if number & 1 else number >> 1

    def real(self) -> float:
        """Read a float."""
        (number,) = _REAL.unpack_from(self._data, self.place)
        self.place += _REAL.size
        return float(number)

    def text(self, lane: int = 0) -> str:
        """Read a text."""
        last, front = self._last[lane] or self._last[lane - 1], self.number()
        raw = last
        if front:
            back = self.number()
            raw = last[: front - 1] + self._take(self.number()) + last[len(last) - back :]
        self._last[lane] = raw
        return raw.decode("utf-8", "surrogatepass")

    def blob(self) -> bytes:
        """Read bytes."""
        place = self.number()
        return self._blobs[place - 1] if place else self.raw(self.number())

    def raw(self, count: int) -> bytes:
        """Read so many bytes."""
        blob = self._take(count)
        if blob not in self._blobs:
            self._blobs.append(blob)
        return blob

    def common(self) -> Any:
        """Read a value that many have in common."""
        number = self.number()
        return self._shared.values[number - 1] if number else self.value()

    def value(self) -> Any:
        """Read any value."""
        return _READERS[self.number()](self)

    def members(self, shape: Sequence[_Field]) -> dict[str, Any]:
        """Read the members of an object that are not as its class has them, by name."""
        mask = self.number()
        return {name: self.value() for number, (name, _) in enumerate(shape) if mask >> number & 1}

    def _take(self, count: int) -> bytes:
        start, self.place = self.place, self.place + count
        return self._data[start : self.place]

    def _object(self) -> Any:
        kind, shape = self._forms.shapes[self.number()]
        return kind(**self.members(shape))

    def _enum(self) -> Any:
        return self._forms.members[self.number()]


# --- any value: its type in a byte, then itself

_HEX_LEAST: Final = 16


def _write_str(writer: Writer, value: str) -> None:
    if len(value) >= _HEX_LEAST and (blob := _from_hex(value)) is not None:
        writer.data.append(_HEX)
        writer.blob(blob)
    else:
        writer.data.append(_TEXT)
        writer.text(value)


def _from_hex(text: str) -> bytes | None:
    """Return the bytes that a text in hexadecimal stands for, if it is written as those would be."""
    try:
        blob = bytes.fromhex(text)
    except ValueError:
        return None
    return blob if blob.hex() == text else None


def _write_float(writer: Writer, value: float) -> None:
    if value == 0.0 or not value.is_integer() or abs(value) > 1 << 40:  # of zeros there are two
        writer.data.append(_FLOAT)
        writer.real(value)
    else:
        writer.data.append(_WHOLE)
        writer.signed(int(value))


def _write_items(tag: int) -> Callable[[Writer, Any], None]:
    def write(writer: Writer, value: Any) -> None:
        writer.data.append(tag)
        writer.number(len(value))
        writer.values(value)

    return write


def _write_pairs(tag: int) -> Callable[[Writer, Any], None]:
    def write(writer: Writer, value: Any) -> None:
        writer.data.append(tag)
        writer.number(len(value))
        writer.values(chain.from_iterable(value.items()))

    return write


def _write_deque(writer: Writer, value: deque[Any]) -> None:
    writer.data.append(_DEQUE)
    writer.value(value.maxlen)
    writer.value(list(value))


def _write_tagged(tag: int, name: str) -> Callable[[Writer, Any], None]:
    def write(writer: Writer, value: Any) -> None:
        writer.data.append(tag)
        getattr(writer, name)(value)

    return write


def _items(reader: Reader) -> list[Any]:
    return [reader.value() for _ in range(reader.number())]


def _pairs(reader: Reader) -> dict[Any, Any]:
    return {reader.value(): reader.value() for _ in range(reader.number())}


def _deque(reader: Reader) -> deque[Any]:
    maxlen = reader.value()
    return deque(reader.value(), maxlen)


(
    _NULL, _TRUE, _FALSE, _NONE, _NOTHING, _INT, _FLOAT, _WHOLE, _TEXT, _HEX, _BLOB, _LIST, _TUPLE, _SET, _DICT, _COUNTER,
    _ORDERED, _DEQUE, _OBJECT, _ENUM,
) = range(20)  # fmt: skip

_WRITERS: Final[dict[type[Any], Callable[[Writer, Any], None]]] = {
    type(None): lambda writer, value: writer.data.append(_NULL),
    bool: lambda writer, value: writer.data.append(_TRUE if value else _FALSE),
    frozenset: lambda writer, value: _write_none(writer, value),
    type(NOTHING): lambda writer, value: writer.data.append(_NOTHING),
    int: _write_tagged(_INT, "signed"),
    float: _write_float,
    str: _write_str,
    bytes: _write_tagged(_BLOB, "blob"),
    list: _write_items(_LIST),
    tuple: _write_items(_TUPLE),
    set: _write_items(_SET),
    dict: _write_pairs(_DICT),
    Counter: _write_pairs(_COUNTER),
    OrderedDict: _write_pairs(_ORDERED),
    deque: _write_deque,
}


def _write_none(writer: Writer, value: object) -> None:
    if value is not NONE:
        raise Unpackable("a frozen set cannot be packed")
    writer.data.append(_NONE)


_READERS: Final[dict[int, Callable[[Reader], Any]]] = {
    _NULL: lambda reader: None,
    _TRUE: lambda reader: True,
    _FALSE: lambda reader: False,
    _NONE: lambda reader: NONE,
    _NOTHING: lambda reader: NOTHING,
    _INT: Reader.signed,
    _FLOAT: Reader.real,
    _WHOLE: lambda reader: float(reader.signed()),
    _TEXT: Reader.text,
    _HEX: lambda reader: reader.blob().hex(),
    _BLOB: Reader.blob,
    _LIST: _items,
    _TUPLE: lambda reader: tuple(_items(reader)),
    _SET: lambda reader: set(_items(reader)),
    _DICT: _pairs,
    _COUNTER: lambda reader: Counter(_pairs(reader)),
    _ORDERED: lambda reader: OrderedDict(_pairs(reader)),
    _DEQUE: _deque,
    _OBJECT: Reader._object,
    _ENUM: Reader._enum,
}
