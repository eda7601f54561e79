"""Thousands of schedules, each of which must keep every invariant of design section 2 on the tools' own ledger."""

from __future__ import annotations

import os
import random

import pytest

from tests.simulation.disk import DiskFault
from tests.simulation.plan import directed
from tests.simulation.schedule import play, play_seed

SCHEDULES = int(os.environ.get("SEAWALL_SCHEDULES", "5000"))
CHUNK = 250
FIRST = int(os.environ.get("SEAWALL_FIRST_SEED", "0"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(FIRST, FIRST + SCHEDULES, CHUNK))
def test_every_schedule_keeps_the_invariants(first: int) -> None:
    """A red one names its seed; `python -m tests.simulation SEED` replays it with its trace."""
    failed = []
    for seed in range(first, min(first + CHUNK, FIRST + SCHEDULES)):
        try:
            play_seed(seed)
        except Exception as error:
            failed.append(f"seed {seed}: {error}")
    assert not failed, "\n".join(failed)


def test_what_never_came_to_be_has_no_order() -> None:
    """Its step failed, its run was rewound, and it was done anew after the one before it was undone."""
    assert play_seed(4002574).phase == "succeeded"


def test_a_schedule_repeats_exactly() -> None:
    """A seed that fails must fail again, or it cannot be mended. 341: a run had several appends pending, in a set."""
    for seed in (*range(40, 60), 341, 341, 341):
        assert play_seed(seed).trace == play_seed(seed).trace


def test_the_schedules_reach_every_end() -> None:
    """A simulation that never aborts, crashes or freezes shows nothing about aborting, crashing and freezing."""
    reports = [play_seed(seed) for seed in range(300)]
    assert {report.phase for report in reports} == {"succeeded", "aborted_clean", "frozen"}
    assert sum(report.crashes for report in reports) > 100


def test_the_schedules_reach_loops_repairs_and_caps() -> None:
    """Nor one in which nobody goes in circles."""
    said = " ".join(line for seed in range(300) for line in play_seed(seed).trace)
    for words in ("SEMANTIC_WATCHDOG_INTERRUPT", "ERR_SEMANTIC_DEADLOCK", "ERR_BUDGET_EXHAUSTED"):
        assert said.count(words) > 3, words
    assert "AGENT repairs" in said
    assert "-r2 <- success" in said


def test_the_schedules_reach_gates_the_outbox_and_every_fault_of_the_disk() -> None:
    bad_disk = directed()[-1]
    reports = [play_seed(seed) for seed in range(600)] + [play(bad_disk, random.Random(n), []) for n in range(100)]
    lines = "\n".join(line for report in reports for line in report.trace)
    for seen in (
        " LEDGER told ", " LEDGER pivot guarded-pivot", "HELD_FOR_APPROVAL", "ERR_PIVOT_GATE", " DISK ApprovalExpired",
        " DISK StepReleased", " DISK StepDeferred", "StepDeferred TrajectoryFrozen", "NO START",
    ):  # fmt: skip
        assert seen in lines, seen
    for method in ("write", "read", "open_heads", "recall", "find_key", "keep", "kept"):
        for fault in list(DiskFault)[1:]:
            assert f" DISK {method} {fault}\n" in lines, (method, fault)
