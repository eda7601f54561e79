"""Problems are sorted, whole, and printable."""

from __future__ import annotations

from gateway.config.errors import ConfigError, Position, Problem, Problems, nearest, shown


def test_problems_come_sorted_by_place_and_once() -> None:
    """The same thing found by two rules is one thing to repair."""
    late, early = Problem(Position("a", 10, 1), "late"), Problem(Position("a", 2, 5), "early", "do this")
    error = ConfigError([late, early, late])
    assert str(error) == "a:2:5: early (do this)\na:10:1: late"


def test_warnings_do_not_stop_anything() -> None:
    """They are told apart in print."""
    problems = Problems()
    problems.warn(Position("a", 1, 1), "odd")
    problems.raise_if_any()
    assert str(problems.warnings[0]) == "a:1:1: warning: odd"


def test_the_nearest_word_is_offered_else_what_there_is() -> None:
    """A hint is short."""
    assert nearest("tols", ["tools", "domains"]) == "did you mean `tools`?"
    assert nearest("zzz", ["b", "a"]) == "known: `a`, `b`"
    assert nearest("zzz", []) == ""
    assert nearest("zzz", [f"n{number}" for number in range(50)]).endswith("…")


def test_keys_are_printed_on_one_line() -> None:
    """A key may hold anything."""
    assert shown("a\nb\x1b[31m") == "a�b�[31m"
    assert len(shown("x" * 1000)) == 60


def test_a_place_without_lines_prints_its_name() -> None:
    """A variable or an option."""
    assert str(Position("SEAWALL_LISTEN")) == "SEAWALL_LISTEN"
