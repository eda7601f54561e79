"""Two moments of the world: nothing that was left, taken or changed may go unseen."""

import dataclasses

import pytest

from gateway.demo.snapshot import Snapshot, differences

EMPTY = Snapshot(volumes={}, names=frozenset(), files={}, clusters=frozenset(), holds={}, taken={})


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"volumes": {"fs-1": "a"}}, "volume fs-1 is new"),
        ({"names": frozenset({"n"})}, "name n is new"),
        ({"files": {"n/k": "1"}}, "file n/k is new"),
        ({"clusters": frozenset({"c"})}, "cluster c is new"),
        ({"holds": {"pi_1": 1}}, "hold pi_1 is new"),
        ({"taken": {"pi_1": 1}}, "payment pi_1 is new"),
    ],
)
def test_anything_new_anywhere_is_a_difference(change: dict[str, object], found: str) -> None:
    """One kind forgotten would make the proof blind to it."""
    changed = dataclasses.replace(EMPTY, **change)  # type: ignore[arg-type]
    assert differences(EMPTY, changed) == [found]
    assert differences(changed, EMPTY) == [found.replace("new", "gone")]


def test_a_file_with_other_content_and_a_released_hold_are_told_apart() -> None:
    """Changed content is a difference; a released hold is history."""
    old, new = dataclasses.replace(EMPTY, files={"n/k": "1"}), dataclasses.replace(EMPTY, files={"n/k": "2"})
    assert differences(old, new) == ["file n/k has changed"]
    assert differences(EMPTY, dataclasses.replace(EMPTY, released=frozenset({"pi_1"}))) == []
