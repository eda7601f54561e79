"""A call that has grown is told apart from one that has not, on builds that are known and on those that are not."""

from pathlib import Path

from loadtests import limits
from loadtests.limits import judge, load, record

KNOWN = {"3.11": {"read": 100}, "3.12": {"read": 110}}


def test_growth_beyond_the_tolerance_is_a_problem_that_says_how_to_take_it_over() -> None:
    assert judge({"read": 101.9}, KNOWN, "3.11") == []
    assert judge({"read": 50}, KNOWN, "3.11") == []
    (problem,) = judge({"read": 102.1}, KNOWN, "3.11")
    assert problem.startswith("read: 102 a call, 2.1% above the limit of 100.")
    assert problem.endswith("python -m loadtests.opcodes --write")


def test_a_build_without_figures_of_its_own_is_guarded_all_the_same() -> None:
    assert judge({"read": 168}, KNOWN, "3.99") == []
    assert "above the limit of 165" in judge({"read": 171}, KNOWN, "3.99")[0]


def test_a_workload_without_any_limit_is_a_problem() -> None:
    """An empty file would let everything pass."""
    assert "no limit is recorded" in judge({"write": 1}, KNOWN, "3.11")[0]


def test_a_record_replaces_what_was_counted_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "limits.json"
    record("opcodes", "3.11", {"read": 99.6, "write": 200}, file)
    record("instructions", "3.11.7 x", {"read": 5000}, file)
    record("opcodes", "3.11", {"read": 90}, file)
    assert load("opcodes", file) == {"3.11": {"read": 90, "write": 200}}
    assert load("instructions", file) == {"3.11.7 x": {"read": 5000}}


def test_the_projects_own_limits_name_this_kind_of_interpreter() -> None:
    assert load("opcodes").keys() >= {"3.11"}
    assert limits.version().count(".") == 1
    assert limits.build().startswith(limits.version())
