"""The janitor: each pass bounded, nobody starved, abandoned runs end as they were opened to."""

from __future__ import annotations

import pytest

from gateway.core.codes import Code
from gateway.core.manifest import TimeoutSettings
from gateway.core.records import RecordedReply, StepCommitted
from gateway.core.saga import Begin, Commit, Complete, Freeze, Open
from gateway.core.sparse import including
from gateway.core.trajectory import Phase, StepState
from gateway.core.views import trajectory_view
from gateway.journal.memory import MemoryJournal
from gateway.journal.trajectories import Run, Trajectories
from gateway.telemetry import Telemetry
from gateway.workers.janitor import Janitor
from tests.builders import catalog_of, operation_of, tool_of
from tests.fakes import FakeClock


class Desk:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.runs = Trajectories(MemoryJournal(), self.clock, Telemetry(), salt=b"s" * 32)
        self.janitor = Janitor(self.runs, self.clock, Telemetry(), idle_s=300.0)

    async def open(self, name: str, on_abandon: str = "escalate", ttl_s: float | None = 60.0) -> Run:
        opening = Open(agent="ann", on_abandon=on_abandon, ttl_s=ttl_s)
        run = await self.runs.named(name, opening)
        assert isinstance(run, Run)
        await self.runs.decided(run, opening)
        return run


@pytest.mark.parametrize(
    ("on_abandon", "phase"),
    [("escalate", Phase.FROZEN), ("unwind", Phase.COMPENSATING), ("commit", Phase.SUCCEEDED)],
)
async def test_an_abandoned_run_ends_as_it_was_opened_to(on_abandon: str, phase: Phase) -> None:
    desk = Desk()
    run = await desk.open("r1", on_abandon)
    assert await desk.janitor.run_once(desk.clock.now() + 59.0) == 0
    assert await desk.janitor.run_once(desk.clock.now() + 61.0) == 1
    assert run.state.phase is phase
    assert await desk.janitor.run_once(desk.clock.now() + 120.0) == 0, "once is enough"


async def test_thousands_of_frozen_runs_do_not_starve_one_that_is_due() -> None:
    """riverqueue/river#1318: a full page of rows that nothing could be done about hid the rows behind."""
    desk = Desk()
    due = await desk.open("a-due", "commit")
    for number in range(3000):
        await desk.runs.decided(await desk.open(f"r{number}", ttl_s=1.0), Freeze(incident="X", detail="y"))
    for _ in range(4):
        await desk.janitor.run_once(desk.clock.now() + 61.0)
    assert due.state.phase is Phase.SUCCEEDED, "a thousand a pass"


async def test_a_step_that_runs_twice_its_time_needs_recovery() -> None:
    """Seed 003: never "wait on"."""
    desk = Desk()
    run = await desk.open("r1", ttl_s=None)
    operation = operation_of("hold", timeouts=TimeoutSettings(total=10.0))
    desk.janitor = Janitor(desk.runs, desk.clock, Telemetry(), catalog=lambda: catalog_of(tool_of("pay", operation)))
    begin = Begin(tool="pay", operation=operation, action="aa", fingerprint="f", method="POST", target="/", salt=b"s")
    assert await desk.runs.decided(run, begin) is None
    run.busy = including(run.busy, 1)
    await desk.clock.advance(20.0)
    await desk.janitor.run_once(desk.clock.now())
    assert run.state.needs_recovery == []
    await desk.clock.advance(0.1)
    await desk.janitor.run_once(desk.clock.now())
    assert (run.state.needs_recovery, run.state.steps[1].state) == ([1], StepState.IN_DOUBT)
    assert trajectory_view(run.state)["needs_recovery"] == [1]
    refusal = await desk.runs.decided(run, Commit())
    assert refusal is not None
    assert refusal.code is Code.OUTCOME_UNKNOWN
    assert await desk.runs.decided(run, Complete(step=1, reply=RecordedReply(status=200))) is None
    assert run.state.needs_recovery == [], "an answer that comes after all settles it"


async def test_a_lease_that_is_over_is_told_of_once_before_the_pivot_meets_it() -> None:
    desk, telemetry = Desk(), Telemetry(keep_events=10)
    desk.janitor = Janitor(desk.runs, desk.clock, telemetry)
    run = await desk.open("r1", ttl_s=None)
    operation = operation_of("lock")
    begin = Begin(tool="pay", operation=operation, action="aa", fingerprint="f", method="POST", target="/", salt=b"s")
    assert await desk.runs.decided(run, begin) is None
    until = desk.clock.at() + 5000
    committed = StepCommitted(step=1, reply=RecordedReply(status=200), lease="pay:lock", lease_until=until)
    await desk.runs.record(run, [committed])
    assert trajectory_view(run.state)["leases"] == [{"name": "pay:lock", "step": 1, "until": until}]
    await desk.janitor.run_once(desk.clock.now())
    await desk.clock.advance(5.1)
    for _ in range(3):
        await desk.janitor.run_once(desk.clock.now())
    told = [event.fields for event in telemetry.timeline.recent() if event.kind == "leases.over"]
    assert told == [{"trajectory": "r1", "detail": "what step 1 (lock) gave has run out 0 s ago"}]
    assert b"gateway_leases_over_total 1.0" in telemetry.render()
    assert run.state.phase is Phase.PREPARING, "a new lease of that name may yet be had"
