from dataclasses import replace

import pytest

from loadtests.figures import Point, Spread, summarise
from loadtests.report import BEGIN, END, render, replace_section
from loadtests.targets import Verdict
from tests.loadtests.test_figures import sample

SAMPLES = [sample("direct", 1, 4000, 20.0), sample("bare", 1, 1000, 300.0), sample("seawall", 1, 900, 420.0)]


def test_the_section_shows_ratio_added_latency_verdict_and_machine() -> None:
    rows = summarise(SAMPLES, base="bare", direct="direct")
    verdict = Verdict(claim="fast", limit=1.0, measured=Spread(1.5, 1.0, 2.0), connections=64, is_met=True)
    absent = {"envoy": "make peers"}
    section = render({"cores": 2, "packages": {"uvloop": "1"}}, rows, [verdict], base="bare", absent=absent)
    assert "- envoy: make peers" in section
    line = next(line for line in section.splitlines() if line.startswith("| 64") and "seawall" in line)
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        "64", "seawall", "900", "0.90 (0.90..0.90)", "0.42", "0.84", "0.40", "0.80", "50", "40",
    ]  # fmt: skip
    assert "met" in section
    assert "- packages: uvloop 1" in section
    assert "exactly once" in section


def test_what_was_not_proved_is_marked_and_explained() -> None:
    rows = summarise([replace(SAMPLES[2], problems=("3 calls went missing",))], base="bare", direct="direct")
    section = render({}, rows, [], base="bare")
    assert "seawall (invalid)" in section
    assert "- seawall, Reads: each connection calls again when answered, 64 connections: 3 calls" in section
    assert "exactly once" not in section


def test_open_loops_have_a_table_of_their_own_without_ratios() -> None:
    """The rate is given there, so a ratio of rates would say nothing."""
    rows = summarise([replace(one, point=Point("read", 32, 300.0)) for one in SAMPLES], base="bare", direct="direct")
    section = render({}, rows, [], base="bare")
    assert "### Reads: 300 calls/s at random times" in section
    assert "x bare" not in section


def test_noise_is_admitted() -> None:
    rows = summarise([replace(SAMPLES[0], foreign_cores=0.7)], base="bare", direct="direct")
    assert "took up to 0.7 cores" in render({}, rows, [], base="bare")


def test_a_page_keeps_everything_outside_of_the_markers() -> None:
    page = replace_section(f"before\n{BEGIN}\nold\n{END}\nafter\n", "new\n")
    assert page == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert replace_section(page, "new\n") == page


@pytest.mark.parametrize("page", ["", BEGIN, END, END + BEGIN])
def test_a_page_without_markers_is_left_alone(page: str) -> None:
    with pytest.raises(ValueError, match="must hold"):
        replace_section(page, "new")
