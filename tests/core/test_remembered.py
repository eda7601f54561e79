"""What is remembered is what the function says, and neither many words nor long ones fill the memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.remembered import LONGEST, MOST, Remembered


@given(st.lists(st.binary(max_size=2 * LONGEST), max_size=50))
def test_it_says_what_the_function_says(words: list[bytes]) -> None:
    remembered = Remembered[bytes, bytes](bytes.upper)
    assert [remembered[word] for word in words * 2] == [word.upper() for word in words * 2]


def test_a_word_that_comes_again_is_not_worked_out_again() -> None:
    asked: list[str] = []
    remembered = Remembered[str, int](lambda word: (asked.append(word), len(word))[1])
    assert [remembered["accept"] for _ in range(3)] == [6, 6, 6]
    assert asked == ["accept"]


def test_words_from_anybody_are_bounded_in_number_and_length_and_leave_room_for_others() -> None:
    remembered = Remembered[bytes, bytes](bytes.upper)
    for number in range(3 * MOST):
        remembered[b"x-%d" % number]
        remembered[b"x" * (LONGEST + 1 + number)]
        assert len(remembered) <= MOST
    assert remembered[b"accept"] == b"ACCEPT"
    assert b"accept" in remembered
    assert max(map(len, remembered)) <= LONGEST
