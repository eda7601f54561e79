"""A process goes on when the last quarantine that holds it is lifted, and not before."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gateway.core.containment import Trigger
from gateway.journal.containment import ContainmentLog
from gateway.journal.memory import MemoryJournal
from gateway.stages.flights import Flights
from gateway.telemetry import Telemetry
from gateway.workers.quarantine import Quarantiner
from tests.fakes import FakeClock


@pytest.fixture
def resumed():
    return []


@pytest.fixture
def quarantiner(resumed):
    state = SimpleNamespace(id="r", agent="a", labels={}, is_implicit=False, is_over=True, incident=None, version=1)
    run = SimpleNamespace(state=state, is_lost=False, opening=None)
    runs = SimpleNamespace(get={"r": run}.get, of_agent=lambda name: [run] if name == "a" else [])
    clock, telemetry = FakeClock(), Telemetry()
    made = Quarantiner(ContainmentLog(MemoryJournal(), clock, telemetry), runs, Flights(), clock, telemetry)

    async def resume(subject):
        resumed.append((subject.run, subject.agent))
        return ""

    made.resume = lambda: {"process": resume}
    return made


def contained(quarantiner, **subject):
    return quarantiner.contain(**subject, trigger=Trigger.OPERATOR, by="ann", reason="x").quarantine.told.quarantine


async def test_a_process_goes_on_with_the_lifting(quarantiner, resumed):
    assert await quarantiner.lift(contained(quarantiner, run="r"), "ann", "fine") is None
    assert resumed == [("r", "a")]


async def test_a_run_whose_agent_is_still_contained_stays_stopped_until_that_is_lifted(quarantiner, resumed):
    of_run, of_agent = contained(quarantiner, run="r"), contained(quarantiner, agent="a")
    await quarantiner.lift(of_run, "ann", "fine")
    assert resumed == []
    await quarantiner.lift(of_agent, "ann", "fine")
    assert resumed == [("", "a"), ("r", "a")]


async def test_a_run_contained_twice_stays_stopped_until_both_are_lifted(quarantiner, resumed):
    late, early = contained(quarantiner, run="r", since=3), contained(quarantiner, run="r")
    await quarantiner.lift(early, "ann", "fine")
    assert resumed == []
    await quarantiner.lift(late, "ann", "fine")
    assert resumed == [("r", "a")]
