"""Sessions that were ended stay ended, in bounded memory."""

from __future__ import annotations

from gateway.core.mcp_ended import EndedSessions


def test_an_ended_session_is_known_after_what_was_kept_is_loaded() -> None:
    """Page by page, as they were written."""
    ended, kept = EndedSessions(slots=4, page=2), {}
    for number in range(5):
        slot, data = ended.add(f"n{number}")
        kept[slot] = data
    again = EndedSessions(slots=4, page=2)
    again.load(kept)
    assert all(f"n{number}" in again for number in range(5))
    assert "n5" not in again
    assert again.add("n5") == ended.add("n5")


def test_the_latest_are_remembered_and_no_more_than_there_is_room_for() -> None:
    """The oldest page gives way as a whole, in memory and where it is kept."""
    ended, kept = EndedSessions(slots=3, page=2), {}
    for number in range(100):
        slot, data = ended.add(f"n{number}")
        kept[slot] = data
        assert len(ended) <= 6
    assert all(f"n{number}" in ended for number in range(96, 100))
    assert "n0" not in ended
    assert kept.keys() == {0, 1, 2}
    again = EndedSessions(slots=3, page=2)
    again.load(kept)
    assert len(again) == len(ended)


def test_a_goodbye_that_is_repeated_takes_no_room() -> None:
    """A client may send DELETE again."""
    ended = EndedSessions()
    assert ended.add("n") == ended.add("n")
    assert len(ended) == 1


def test_what_is_no_page_is_passed_over() -> None:
    """A slot that is cut off, or another one's, costs what was on it and nothing else."""
    slot, data = EndedSessions().add("n")
    ended = EndedSessions()
    ended.load({slot: data, 1: b"", 2: data, 3: b"x" * 30})
    assert len(ended) == 1
    assert "n" in ended
