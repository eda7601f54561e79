"""Whatever is written is read back as it was, of the same types, and what is not known is refused."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.packing import DEEPEST, LANES, Forms, Reader, Shared, Unpackable, Writer
from gateway.core.sparse import NONE, NOTHING


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


@dataclass
class Thing:
    name: str
    colour: Colour = Colour.RED
    parts: dict[str, int] = NOTHING  # type: ignore[assignment]
    more: list[int] = field(default_factory=list)
    count: float = 0.0


FORMS = Forms([Thing], [Colour])

plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=[]))
    | st.binary()
    | st.binary(min_size=8, max_size=20).map(bytes.hex)
    | st.sampled_from([*Colour, NONE, NOTHING, -0.0, math.inf])
)
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4).map(OrderedDict)
        | st.builds(
            Thing, st.text(), st.sampled_from(Colour), st.just(NOTHING), st.lists(st.integers()), st.floats(0, 9)
        )
        | st.lists(inner, max_size=4).map(lambda items: deque(items, maxlen=9))
        | st.sets(st.integers()).map(set)
        | st.dictionaries(st.text(max_size=3), st.integers(), max_size=4).map(Counter)
    ),
    max_leaves=12,
)


def alike(one: object, other: object) -> bool:
    """Whether two values are equal and of the same types all through; of dicts the order counts, too."""
    if type(one) is not type(other):
        return False
    if one is NOTHING or one is NONE:
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return alike(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple | deque) and isinstance(other, list | tuple | deque):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one.hex() == other.hex()
    if isinstance(one, Thing) and isinstance(other, Thing):
        return alike(list(vars(one).values()), list(vars(other).values()))
    return one == other


@given(st.lists(values, max_size=4))
def test_any_values_are_read_back_as_they_were(written: list[object]) -> None:
    writer = Writer(Shared(), FORMS)
    for value in written:
        writer.value(value)
    reader = Reader(bytes(writer.data), writer.shared, FORMS)
    for value in written:
        assert alike(reader.value(), value)
    assert reader.place == len(writer.data)


@given(st.lists(st.tuples(st.text("ab/é", max_size=150), st.integers(0, LANES - 1))))
def test_a_text_that_begins_and_ends_like_the_one_before_is_read_back(written: list[tuple[str, int]]) -> None:
    writer = Writer(Shared(), FORMS)
    for text, lane in written:
        writer.text(text, lane)
    reader = Reader(bytes(writer.data), writer.shared, FORMS)
    assert [(reader.text(lane), lane) for _, lane in written] == written


@given(st.lists(st.sampled_from(["a", "b", (1, "c"), "d"]), max_size=30), st.integers(0, 3))
def test_what_many_have_in_common_is_read_back_with_a_full_table_and_without(written: list[object], kept: int) -> None:
    shared = Shared(kept)
    first, second = Writer(shared, FORMS), Writer(shared, FORMS)
    for writer in (first, second):
        for value in written:
            writer.common(value)  # type: ignore[arg-type]
        reader = Reader(bytes(writer.data), shared, FORMS)
        assert [reader.common() for _ in written] == written
    assert len(shared.values) <= kept


def test_a_digest_that_comes_again_takes_two_bytes() -> None:
    writer = Writer(Shared(), FORMS)
    writer.raw(b"x" * 16)
    writer.value((b"x" * 16).hex())
    writer.value(b"x" * 16)
    assert len(writer.data) == 16 + 2 + 2
    reader = Reader(bytes(writer.data), writer.shared, FORMS)
    assert (reader.raw(16), reader.value(), reader.value()) == (b"x" * 16, (b"x" * 16).hex(), b"x" * 16)


def test_an_object_takes_what_is_not_as_its_class_has_it() -> None:
    writer = Writer(Shared(), FORMS)
    writer.value(Thing("x"))
    assert len(writer.data) == 8


@pytest.mark.parametrize("value", [object(), [1, {2: object()}], frozenset({1}), 1j, ValueError()])
def test_what_is_not_known_is_refused(value: object) -> None:
    """A run with such a thing in it stays as it is."""
    with pytest.raises(Unpackable):
        Writer(Shared(), FORMS).value(value)


def test_what_is_nested_too_deeply_to_be_read_back_is_refused() -> None:
    """It was written where there was room for two calls a level, and not read where there was none for three."""
    value: object = 1
    for level in range(DEEPEST):
        value = {"x": value} if level % 2 else [value]
    writer = Writer(Shared(), FORMS)
    for _ in range(3):
        writer.value(value)
    assert Reader(bytes(writer.data), writer.shared, FORMS).value() == value
    with pytest.raises(Unpackable):
        writer.value((value,))
