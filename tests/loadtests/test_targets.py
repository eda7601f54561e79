from dataclasses import replace

from loadtests.figures import Point, Row, Spread, summarise
from loadtests.targets import TARGETS, judge
from tests.loadtests.test_figures import sample


def row(workload: str, connections: int, ratio: float | None, p99_us: float = 500.0, rate: float = 0.0) -> Row:
    (made,) = summarise([sample("seawall", 1, 100)], base="", direct="")
    spread = None if ratio is None else Spread(ratio, ratio - 0.1, ratio + 0.1)
    point = Point(workload, connections, rate)
    return replace(made, point=point, ratio=spread, p99_us=Spread(p99_us, p99_us, p99_us))


def test_a_target_for_every_load_is_judged_by_the_worst() -> None:
    (verdict,) = judge([row("read", 1, 0.9), row("read", 64, 0.7), row("read", 256, 0.8)], system="seawall")
    assert (verdict.connections, verdict.measured.median, verdict.is_met) == (64, 0.7, False)


def test_a_target_for_one_load_ignores_the_others() -> None:
    (verdict,) = judge([row("write", 1, 0.1), row("write", 64, 0.5)], system="seawall")
    assert (verdict.connections, verdict.is_met) == (64, True)


def test_a_ceiling_must_be_undercut() -> None:
    (*_, verdict) = judge([row("refused", 1, None, p99_us=1000.0)], system="seawall")
    assert not verdict.is_met


def test_a_fast_wrong_answer_meets_nothing() -> None:
    """A gateway that skips its journal would win every race."""
    (verdict,) = judge([replace(row("write", 64, 2.0), problems=("no intents",))], system="seawall")
    assert not verdict.is_met


def test_what_was_not_measured_gets_no_verdict() -> None:
    """Neither open loops nor other systems count, and a ratio needs the system it is quoted against."""
    rows = [row("read", 64, 0.9, rate=300.0), row("read", 64, None), replace(row("read", 64, 0.9), system="bare")]
    assert judge(rows, system="seawall") == []


def test_the_targets_of_the_project_are_all_judged() -> None:
    rows = [row("read", 64, 0.8), row("write", 64, 0.5), row("refused", 1, None)]
    assert [verdict.is_met for verdict in judge(rows, system="seawall")] == [True] * len(TARGETS)
