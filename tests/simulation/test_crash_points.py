"""The canonical scenarios of seed 000, with the process ended at every single point, one after the other."""

from __future__ import annotations

import random

import pytest

from tests.simulation.plan import Plan, canonical
from tests.simulation.schedule import Report, play

ENDS = {"deployment": "aborted_clean", "double pivot": "succeeded", "six turns": "succeeded", "hanging": "succeeded"}
ENDS["in circles"] = "aborted_clean"
PARTS = 4


def undisturbed(plan: Plan) -> Report:
    return play(plan, random.Random(7), [])


@pytest.mark.parametrize("plan", canonical(), ids=lambda plan: plan.name)
def test_the_scenario_ends_as_the_theory_says(plan: Plan) -> None:
    report = undisturbed(plan)
    assert report.phase == ENDS[plan.name]
    assert report.crashes == 0


def test_the_deployment_is_undone_last_step_first() -> None:
    """Seed 000: C4, C3, C2, C1 after the name is taken."""
    trace = undisturbed(canonical()[0]).trace
    undone = [line.split()[-1] for line in trace if " LEDGER undone " in line]
    assert undone == ["brief-firewall", "keyed-build", "probed-address", "keyed-sandbox"]


def test_the_second_pivot_of_the_trap_never_leaves() -> None:
    trace = undisturbed(canonical()[1]).trace
    assert not [line for line in trace if " SEND " in line and "/go/probed-webhook" in line]
    assert [line for line in trace if "AGENT probed-webhook <- Rejected ERR_PIVOT_ORDER" in line]


def test_the_lost_answer_of_the_third_turn_is_settled_before_anything_is_repeated() -> None:
    """Seed 000, "settle before retry": the database is made once, and the agent gets its answer from the probe."""
    trace = undisturbed(canonical()[2]).trace
    sent = [line for line in trace if " SEND " in line and "probed-database" in line]
    assert [line.split()[3] for line in sent] == ["POST", "GET"]
    assert [line for line in trace if "AGENT probed-database <- success 200" in line]


def test_the_loop_is_taken_back_and_then_stopped_for_good() -> None:
    """Seed 000, the three levels: an interrupt, a rewind that undoes the fixes, a deadlock that undoes the run."""
    trace = undisturbed(next(plan for plan in canonical() if plan.name == "in circles")).trace
    sent = [line for line in trace if " SEND " in line and "/make/keyed-again" in line]
    assert len(sent) == 4
    undone = [line.split()[-1] for line in trace if " LEDGER undone " in line]
    assert undone == [f"keyed-fix{n}" for n in (3, 2, 1, 0)] + ["keyed-before"]
    said = [line.split()[-1] for line in trace if "insists on" in line]
    assert said == ["422"] * 4 + ["SEMANTIC_WATCHDOG_INTERRUPT"] * 3 + ["ERR_SEMANTIC_DEADLOCK"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("plan", canonical(), ids=lambda plan: plan.name)
def test_it_ends_the_same_whatever_point_the_process_ends_at(plan: Plan, part: int) -> None:
    """langchain-ai/langgraph#8039, #8234: a kill between two records executed a step again."""
    points = undisturbed(plan).handled
    assert points > 50
    failed = []
    for crash_at in range(1 + part, points + 1, PARTS):
        try:
            report = play(plan, random.Random(7), [crash_at])
        except Exception as error:
            failed.append(f"crash before callback {crash_at}: {error}")
        else:
            if report.phase != ENDS[plan.name]:
                failed.append(f"crash before callback {crash_at}: the run ended {report.phase}")
    assert not failed, "\n".join(failed)
