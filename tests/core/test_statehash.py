"""Equal where nothing that matters differs, and only there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.statehash import DEPTH, no_hash, result_hash, state_hash

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES, st.integers(0, 9))
def test_what_changes_by_itself_does_not_count_and_neither_does_order(value: object, at: int) -> None:
    state = {"a": value, "b": [{"mtime": at, "x": 1}], "Updated_At": at}
    assert state_hash(state) == state_hash({"b": [{"x": 1}], "a": value})
    assert state_hash({"seen": at, "a": value}, {"seen"}) == state_hash({"a": value})


@given(VALUES, VALUES)
def test_two_states_are_two_numbers(one: object, other: object) -> None:
    assert (state_hash({"a": one}) == state_hash({"a": other})) == (repr(one) == repr(other) or state_same(one, other))


def state_same(one: object, other: object) -> bool:
    """The same JSON, whatever the order of members."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(state_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(state_same, one, other))
    return type(one) is type(other) and one == other


def test_a_state_may_be_deep() -> None:
    deep: object = {"mtime": 1}
    for _ in range(DEPTH + 5):
        deep = [deep]
    assert isinstance(state_hash(deep), int)


def test_what_is_no_json_is_no_state() -> None:
    with pytest.raises(TypeError):
        state_hash({"a": {1, 2}})


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (b'{"error": "x", "request_id": "a"}', b'{"request_id": "b", "error": "x"}', True),
        (b"3 tests failed at 12:01:02", b"3 tests failed at 12:05:59", True),
        (b"3 tests failed", b"5 tests failed", False),
        (b'{"failed": 3}', b'{"failed": 5}', False),
        (b"No such file: /tmp/a81f/x", b"No such file: /tmp/b77c/x", True),
        (b"", b"", True),
        (b"\xff\xfe", b"\xff\xfd", True),
    ],
)
def test_a_no_is_the_same_no_apart_from_ids_and_times(one: bytes, other: bytes, is_same: bool) -> None:
    assert (no_hash(422, one) == no_hash(422, other)) is is_same
    assert no_hash(422, one) != no_hash(403, one)
    assert result_hash(200, one) != result_hash(201, one)
