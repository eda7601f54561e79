"""Runs that are parked are found by everybody who looks, as they were; those that somebody has are not parked."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.packing import DEEPEST
from gateway.core.parked import Parked
from gateway.core.records import ChildOpened, RecordedReply, StepCommitted, TaskAccepted
from gateway.core.saga import Abort, Begin, Command, Complete, Doubt, Freeze, Open
from gateway.core.sparse import including
from gateway.core.trajectory import Phase, StepState, Trajectory
from gateway.core.watchdog import Ended, Watchdog, WatchdogSettings
from gateway.journal import trajectories
from gateway.journal.memory import MemoryJournal
from gateway.journal.parking import Parking, Resting
from gateway.journal.trajectories import Run, Trajectories
from gateway.stages.budget import meter_of
from gateway.telemetry import Telemetry
from tests.builders import operation_of
from tests.fakes import FakeClock
from tests.journal.faulty import FaultyJournal

OK = RecordedReply(status=200, text="{}")
SALT = b"s" * 32


def begin(action: str = "a1") -> Begin:
    return Begin(
        tool="pay",
        operation=operation_of("hold"),
        action=action,
        fingerprint=action,
        method="POST",
        target="/",
        salt=SALT,
    )


class Runs:
    """A journal in memory, and what is live."""

    def __init__(self, journal: MemoryJournal | None = None) -> None:
        self.clock = FakeClock()
        self.journal = journal or MemoryJournal()
        self.all = Trajectories(self.journal, self.clock, Telemetry(keep_events=10), salt=SALT)

    async def open(self, name: str = "r1", *commands: Command, agent: str = "ann", **settings: object) -> None:
        """Open a run and do things in it, and keep nothing of it."""
        opening = Open(agent=agent, **settings)  # type: ignore[arg-type]
        run = await self.all.named(name, opening)
        assert isinstance(run, Run)
        for command in (opening, *commands):
            assert await self.all.decided(run, command) is None

    async def parked(self, name: str = "r1", *commands: Command, **settings: object) -> None:
        await self.open(name, *commands, **settings)  # type: ignore[arg-type]
        assert self.all.park(name)
        assert self.all.awake == 0


STEP = (begin(), Complete(step=1, reply=OK))


async def test_a_run_that_is_parked_is_had_back_as_it_was() -> None:
    runs = Runs()
    await runs.open("r1", *STEP, labels={"team": "x"}, ttl_s=60.0, budget={"usd": 1.0})
    run = runs.all.get("r1")
    assert run is not None
    run.watch, run.leases_over, run.parent = Watchdog(WatchdogSettings()), 2, "p1"
    run.watch.acted(b"x", 7, Ended.NO)
    meter_of(run).spend({"usd": 0.25})
    state, touched_s, view = run.state, run.touched_s, run.watch.view()
    del run
    assert not runs.all.park("r1"), "its state is held here"
    copy = Trajectory(**{name: getattr(state, name) for name in state.__slots__})
    del state
    assert runs.all.park("r1")
    assert runs.all.park("r1"), "parking it again changes nothing"
    await runs.clock.advance(5.0)
    run = runs.all.get("r1")
    assert run is not None
    assert run.state == copy
    assert (run.touched_s, run.leases_over, run.parent, run.woken_s) == (touched_s, 2, "p1", runs.clock.now())
    assert run.watch is not None
    assert run.meter is not None
    assert run.watch.view() == view
    assert (run.meter.used["usd"], run.meter.caps is run.state.budget) == (0.25, True)
    assert runs.all.get("r1") is run, "there is only ever one"


async def test_whoever_looks_sees_parked_runs() -> None:
    runs = Runs()
    await runs.parked("r1", *STEP)
    await runs.parked("r2", agent="bob")
    assert (len(runs.all), runs.all.awake) == (2, 0)
    assert runs.all.by_phase() == {"preparing": 2}
    assert sorted(runs.all.names()) == sorted(runs.all.names_in(Phase.PREPARING)) == ["r1", "r2"]
    assert runs.all.awake_names() == []
    assert [run.state.id for run in runs.all.of_agent("bob")] == ["r2"]
    assert runs.all.awake_names() == ["r2"], "the other sleeps on"
    assert await runs.all.find("r1") is runs.all.known("r1") is runs.all.get("r1")
    assert runs.all.get("nobody") is None
    assert runs.all.park("r2")
    named = await runs.all.named("r2", Open(agent="eve"))
    assert isinstance(named, Run)
    assert named.state.agent == "bob", "its name is not free"
    del named
    assert runs.all.park("r1")
    assert runs.all.park("r2")
    assert {run.state.id for run in runs.all.live()} == {"r1", "r2"}
    assert {run.state.id for run in runs.all.in_phase(Phase.PREPARING)} == {"r1", "r2"}


async def test_parked_runs_count_among_those_that_may_be_open() -> None:
    runs = Runs()
    runs.all._max_open = 1
    await runs.parked("r1")
    assert not isinstance(await runs.all.named("r2", Open(agent="ann")), Run)


async def test_a_parked_run_goes_on_and_ends_like_any_other() -> None:
    runs = Runs()
    await runs.parked("r1", *STEP)
    runs.all.delivered("r1", 1)
    assert runs.all.park("r1"), "what was delivered is remembered until the next record"
    runs.all.note_refusal("r1", trajectories.Code.RATE_LIMITED, "pay", "hold")
    runs.all.flush_refusals()
    await runs.journal.flush()
    await asyncio.sleep(0)
    assert runs.all.park("r1")
    run = await runs.all.find("r1")
    assert run is not None
    assert (run.state.refusals, run.state.newly_delivered) == (1, (1,))
    assert await runs.all.decided(run, Abort(reason="x")) is None
    assert run.state.phase is Phase.COMPENSATING
    del run
    assert not runs.all.park("r1"), "it is being undone"
    assert runs.all.by_phase() == {"compensating": 1}


async def test_what_is_under_way_or_due_keeps_a_run_awake() -> None:
    runs = Runs()
    await runs.open("flying", begin())
    await runs.open("doubtful", begin(), Doubt(step=1, fault="timeout", detail="late"))
    await runs.open("frozen", Freeze(incident="X", detail="y"))
    for name in ("flying", "doubtful", "frozen", "unknown"):
        assert not runs.all.park(name), name
    unwritten = await runs.all.named("unwritten", Open(agent="ann"))
    assert isinstance(unwritten, Run)
    implicit = runs.all.current("ann")
    assert isinstance(implicit, Run)
    name = implicit.state.id
    assert await runs.all.decided(implicit, begin()) is None
    assert await runs.all.decided(implicit, Complete(step=1, reply=OK)) is None
    del unwritten, implicit
    assert not runs.all.park("unwritten")
    assert not runs.all.park(name), "its agent's calls do not name it, and it ends by itself"


async def test_whoever_has_a_run_or_a_part_of_it_keeps_it_awake() -> None:
    """A call that waits must not go on with what is no longer the run's."""
    runs = Runs()
    await runs.open("r1", *STEP)

    async def waits(what: object, until: asyncio.Future[None]) -> None:
        await until
        assert what is not None

    for part in (
        lambda run: run,
        lambda run: run.state,
        lambda run: run.state.steps[1],
        lambda run: meter_of(run),
        lambda run: run.watch,
    ):
        run = runs.all.get("r1")
        assert run is not None
        run.watch = Watchdog(WatchdogSettings())
        until: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(waits(part(run), until))
        del run
        assert not runs.all.park("r1")
        await asyncio.sleep(0)
        assert not runs.all.park("r1")
        until.set_result(None)
        await task
        del task
        assert runs.all.park("r1")
    run = runs.all.get("r1")
    assert run is not None
    run.busy = including(run.busy, 1)
    del run
    assert not runs.all.park("r1")


async def test_who_waits_for_a_change_or_for_the_disk_keeps_a_run_awake() -> None:
    runs = Runs()
    await runs.open("r1")
    run = runs.all.get("r1")
    assert run is not None
    change = run.changed()
    del run
    assert not runs.all.park("r1")
    run = runs.all.get("r1")
    assert run is not None
    written = runs.all.record(run, [TaskAccepted(task={}, digest="d")], lazy=True)
    assert change.done()
    is_pending = bool(run.pending)
    del run
    assert runs.all.park("r1") is not is_pending
    await written
    runs.all.note_read(runs.all.get("r1"), ("pay", "get", "GET", "/", "success", 200))  # type: ignore[arg-type]
    assert not runs.all.park("r1"), "a read of it waits to be written"
    runs.all.flush_reads()
    await runs.journal.flush()
    await asyncio.sleep(0)
    assert runs.all.park("r1")


async def test_a_child_finds_its_parent_and_a_parent_its_children_though_they_are_parked() -> None:
    runs = Runs()
    await runs.open("p")
    await runs.open("c")
    for name, record in (("p", ChildOpened(child="c")), ("c", TaskAccepted(task={"parent_task_id": "p"}, digest="d"))):
        run = runs.all.get(name)
        assert run is not None
        await runs.all.record(run, [record])
        del run
    assert runs.all.park("p")
    assert runs.all.park("c")
    child = runs.all.get("c")
    assert child is not None
    assert [one.state.id for one in child.lineage()] == ["c", "p"]
    del child
    assert runs.all.park("c")
    parent = runs.all.get("p")
    assert parent is not None
    assert [one.state.id for one in parent.children()] == ["c"]


async def test_a_parked_run_is_looked_at_when_its_time_has_come() -> None:
    runs = Runs()
    await runs.parked("plain")
    await runs.parked("living", ttl_s=60.0)
    now = runs.clock.now()
    assert runs.all.due("living", now + 59.9) is None
    assert runs.all.due("plain", now + 1e9) is None
    assert runs.all.due("nobody", now) is None
    assert runs.all.due("living", now + 60.0) is runs.all.get("living")
    assert runs.all.due("living", now) is not None, "it is awake"


async def test_a_lease_and_a_tasks_deadline_make_a_parked_run_due() -> None:
    runs = Runs()
    at = runs.clock.at()
    await runs.open("leased", begin())
    await runs.open("task", ttl_s=1e6)
    leased = StepCommitted(step=1, reply=OK, lease="pay:lock", lease_until=at + 5000)
    for name, record in (("leased", leased), ("task", TaskAccepted(task={"deadline_ms": 4000}, digest="d"))):
        run = runs.all.get(name)
        assert run is not None
        await runs.all.record(run, [record])
        del run
        assert runs.all.park(name)
    await runs.clock.advance(4.9)
    assert runs.all.due("leased", runs.clock.now()) is None
    assert runs.all.due("task", runs.clock.now()) is None
    await runs.clock.advance(0.1)
    assert runs.all.due("leased", runs.clock.now()) is not None
    await runs.clock.advance(3.0)
    assert runs.all.due("task", runs.clock.now()) is not None


async def test_a_deadline_beyond_all_numbers_is_none() -> None:
    runs = Runs()
    await runs.open("task")
    run = runs.all.get("task")
    assert run is not None
    await runs.all.record(run, [TaskAccepted(task={"deadline_ms": 1e308}, digest="d")])
    del run
    assert runs.all.park("task")
    assert runs.all.due("task", 1e18) is None


async def test_a_packed_run_that_cannot_be_read_is_read_from_the_journal() -> None:
    """A bug in the packing may cost time, but no run."""
    runs = Runs()
    await runs.parked("r1", *STEP)
    runs.all._parking._packed["r1"] = runs.all._parking._packed["r1"][:12]
    run = runs.all.get("r1")
    assert run is not None
    assert run.is_lost
    again = await runs.all.find("r1")
    assert again is not None
    assert again.state.steps[1].state is StepState.COMMITTED
    assert runs.all.get("r1") is again


async def test_a_run_that_cannot_be_packed_stays_awake() -> None:
    runs = Runs()
    await runs.open("r1")
    run = runs.all.get("r1")
    assert run is not None
    run.state.task = {"x": object()}
    del run
    assert not runs.all.park("r1")
    assert runs.all.awake_names() == ["r1"]


async def test_a_disk_that_fails_finds_parked_runs_as_it_finds_others() -> None:
    journal = FaultyJournal()
    runs = Runs(journal)
    await runs.parked("r1", *STEP)
    run = runs.all.get("r1")
    assert run is not None
    journal.break_down()
    with pytest.raises(trajectories.JournalUnavailable):
        await runs.all.decided(run, begin("a2"))
    assert run.is_lost
    del run
    assert not runs.all.park("r1")
    journal.mend()
    again = await runs.all.find("r1")
    assert again is not None
    assert len(again.state.steps) == 1


def test_agents_beyond_the_table_are_found_too() -> None:
    parking = Parking(SALT)
    parking._shared._kept = 3
    for number in range(9):
        state = Trajectory(id=f"r{number}", agent=f"agent-{number % 3}", version=1)
        parking.put(Resting(Parked(state, None, None), 0.0), 0)
    assert parking.of_agent("agent-2") == ["r2", "r5", "r8"]
    assert parking.of_agent("agent") == []
    assert parking.take("r5").parked.state.agent == "agent-2"
    assert len(parking) == 8
    with pytest.raises(KeyError):
        parking.take("r5")


def test_a_time_to_live_beyond_the_table_is_kept_too() -> None:
    """Agents choose it: whoever fills the table with such times keeps nobody else awake."""
    parking = Parking(SALT)
    parking._shared._kept = 0
    state = Trajectory(id="x", ttl_s=7.5, task={"deadline_ms": 10_000})
    parking.put(Resting(Parked(state, None, None), 1.0), 0)
    assert not parking.is_due("x", 8.4, 0)
    assert parking.is_due("x", 8.5, 0)
    assert parking.is_due("x", 1.0, 20_000), "what stands before it is found as well"
    assert parking.take("x").parked.state == state


async def test_what_is_nested_too_deeply_keeps_its_run_awake_and_no_other() -> None:
    """The parker is one task: what it met there ended it, and nobody was parked any more."""
    runs = Runs()
    task: dict[str, object] = {}
    for _ in range(DEEPEST):
        task = {"x": task}
    await runs.open("deep")
    await runs.open("r2")
    run = runs.all.get("deep")
    assert run is not None
    run.state.task = task
    del run
    since = runs.clock.now()
    await runs.clock.advance(60.0)
    assert runs.all.is_idle("deep", since)
    assert not runs.all.park("deep")
    assert not runs.all.is_idle("deep", since), "it is not tried again at once"
    assert runs.all.park("r2")


async def test_a_run_that_could_not_be_read_back_is_read_from_the_journal_though_nobody_calls() -> None:
    """Or its time to live would go by."""
    runs = Runs()
    await runs.parked("r1", *STEP, ttl_s=60.0)
    runs.all._parking._packed["r1"] = runs.all._parking._packed["r1"][:12]
    lost = runs.all.get("r1")
    assert lost is not None
    assert lost.is_lost
    del lost
    assert runs.all.has_aside
    await runs.all.write_aside()
    assert not runs.all.has_aside
    run = runs.all.get("r1")
    assert run is not None
    assert (run.is_lost, run.state.ttl_s, len(run.state.steps)) == (False, 60.0, 1)
