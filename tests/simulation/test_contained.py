"""A run that is quarantined at every single point, one after the other, while another agent looks at what it makes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.taint import Lineage
from gateway.stages.flights import Flights
from gateway.workers.quarantine import Quarantiner
from tests.simulation.plan import Plan, canonical, contained
from tests.simulation.schedule import Report, play

ENDS = {"pivot": "succeeded", "undone": "aborted_clean", "late": "succeeded"}
STEP = 11
"""With a peer that keeps looking every eleventh point: most of them are its own."""


def undisturbed(plan: Plan) -> Report:
    return play(plan, random.Random(7), [])


@pytest.mark.parametrize("plan", contained(), ids=lambda plan: plan.name)
def test_undisturbed_it_ends_and_the_peer_sees_what_was_made(plan: Plan) -> None:
    report = undisturbed(plan)
    assert report.phase == ENDS[plan.name]
    assert any("/look/" in line for line in report.trace)


def contained_at(plan: Plan, points: range, **more: Any) -> Counter[str]:
    """Quarantine the run of a plan at each of some points. Returns the ends; fails with all that went wrong."""
    ended: Counter[str] = Counter()
    failed = []
    for at in points:
        try:
            report = play(replace(plan, is_contained=True, **more), random.Random(7), [], contain_at=at)
        except Exception as error:
            failed.append(f"quarantined before callback {at}: {error}")
            continue
        ended[report.phase] += 1
        if any(" CONTAIN in preparing" in line for line in report.trace) and report.phase != "frozen":
            failed.append(f"quarantined before callback {at}: the run ended {report.phase}")
    assert not failed, "\n".join(failed)
    return ended


@pytest.mark.timeout(300)
@pytest.mark.parametrize("plan", contained(), ids=lambda plan: plan.name)
def test_nothing_leaves_after_severing_and_nobody_reads_what_was_made(plan: Plan) -> None:
    """The egress of the simulation refuses every call of the run, and every look at its work, from that point on."""
    points = undisturbed(plan).handled
    assert points > 100
    assert contained_at(plan, range(1, points + 1, STEP))["frozen"] > 10


@pytest.mark.timeout(300)
@pytest.mark.parametrize("disk_faults", [0, 8], ids=["good disk", "bad disk"])
@pytest.mark.parametrize("plan", [*contained(), *canonical()], ids=lambda plan: plan.name)
def test_it_holds_at_every_await(plan: Plan, disk_faults: int) -> None:
    """Without a peer, which makes nine awaits in ten, every single one is tried; and on a disk that fails at everything the
    quarantine holds before it can be written, and the run is frozen once it can."""
    plan = replace(plan, has_peer=False, disk_faults=disk_faults)
    points = undisturbed(plan).handled
    ended = contained_at(plan, range(1, points + 1))
    assert sum(ended.values()) == points
    assert ended["frozen"] > points // 4


@pytest.mark.timeout(300)
def test_a_crash_right_after_takes_no_quarantine_back_that_was_on_the_disk() -> None:
    plan = replace(contained()[0], is_contained=True)
    points = undisturbed(contained()[0]).handled
    failed = []
    for at in range(5, points, 4 * STEP):
        for more in (1, 4, 30):
            try:
                play(plan, random.Random(7), [at + more], contain_at=at)
            except Exception as error:
                failed.append(f"quarantined before callback {at}, crash {more} later: {error}")
    assert not failed, "\n".join(failed)


def _unsevered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flights, "severed", lambda self, call: None)
    monkeypatch.setattr(Quarantiner, "_freeze", lambda self, run, told: None)


def _untainted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lineage, "blocked", lambda self, names, run: [])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("leave_out", [_unsevered, _untainted], ids=lambda step: step.__name__)
def test_without_this_step_the_simulation_turns_red(
    monkeypatch: pytest.MonkeyPatch, leave_out: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """Or it would show nothing."""
    plan = replace(contained()[0], is_contained=True)
    points = undisturbed(contained()[0]).handled
    leave_out(monkeypatch)
    for at in range(20, points, 5 * STEP):
        try:
            play(plan, random.Random(7), [], contain_at=at)
        except Exception:
            return
    pytest.fail(f"nothing went wrong without it at any of {points} points")
