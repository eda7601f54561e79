"""Runs in memory and on disk agree, also when the disk fails at the worst moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from unittest import mock

import pytest

from gateway.core.codes import Code
from gateway.core.manifest import Tier
from gateway.core.outbox import Send, next_finish
from gateway.core.outcome import Refusal
from gateway.core.records import (
    BudgetTightened,
    ReadsObserved,
    RecordedReply,
    RecordedRequest,
    StepCommitted,
    StepDeferred,
    StepFailed,
    StepIntended,
    StepReleased,
    TrajectoryOpened,
    decode,
)
from gateway.core.saga import Abort, Begin, Commit, Complete, Doubt, Open
from gateway.core.sparse import excluding, including
from gateway.core.trajectory import Phase, StepState
from gateway.journal import Entry, Journal, JournalCorrupt, JournalUnavailable
from gateway.journal.memory import MemoryJournal
from gateway.journal.trajectories import Read, Run, Trajectories
from gateway.telemetry import Telemetry
from tests.builders import operation_of
from tests.fakes import FakeClock
from tests.journal.faulty import FaultyJournal

OK = RecordedReply(status=200, text="{}")


def trajectories(journal: Journal, **options: int) -> Trajectories:
    return Trajectories(journal, FakeClock(), Telemetry(), salt=b"s" * 32, **options)


def begin(action: str = "a1", tier: Tier = Tier.COMPENSABLE) -> Begin:
    return Begin(
        tool="pay", operation=operation_of("hold", tier), action=action, fingerprint=action, method="POST", target="/",
        salt=b"s" * 32,
    )  # fmt: skip


async def do(runs: Trajectories, run: Run, *commands: object) -> None:
    for command in commands:
        assert await runs.decided(run, command) is None  # type: ignore[arg-type]


def a_run(found: Run | Refusal | None) -> Run:
    assert isinstance(found, Run)
    return found


async def test_a_run_is_on_disk_as_it_is_in_memory() -> None:
    journal = MemoryJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann", labels={"k": "v"})))
    await do(runs, run, begin(), Complete(step=1, reply=OK), begin("a2"), Doubt(step=2, fault="timeout", detail="late"))
    again = a_run(await trajectories(journal).find("r1"))
    assert again.state == run.state


async def test_nothing_is_written_for_a_run_that_did_nothing() -> None:
    journal = MemoryJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    assert await journal.head("r1") is None
    runs.forget(run)
    assert len(runs) == 0


async def test_the_opening_is_written_with_the_first_step_in_one_append() -> None:
    journal = FaultyJournal()
    runs = trajectories(journal)
    run = runs.current("ann")
    await do(runs, a_run(run), begin())
    (append,) = journal.appends
    assert [type(decode(e.kind, e.data)) for e in append.entries] == [TrajectoryOpened, StepIntended]
    assert append.expected == 0


async def test_outcomes_are_owed_and_intents_are_not() -> None:
    """A full queue refuses what has not been sent yet, and takes what has become of everything else."""
    journal = FaultyJournal()
    runs = trajectories(journal)
    run = a_run(runs.current("ann"))
    await do(runs, run, begin(), Complete(step=1, reply=OK), begin("a2"), Doubt(step=2, fault="timeout", detail="late"))
    assert [append.is_owed for append in journal.appends] == [False, True, False, True]


async def test_what_opened_a_run_is_kept_until_that_is_on_disk() -> None:
    journal = FaultyJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    await do(runs, run, begin())
    assert run.opening is None


async def test_an_implicit_run_is_followed_by_another_after_its_pivot_and_after_enough_steps() -> None:
    runs = trajectories(MemoryJournal(), implicit_steps=2)
    first = a_run(runs.current("ann"))
    await do(runs, first, begin("a1", Tier.PIVOT), Complete(step=1, reply=OK))
    second = a_run(runs.current("ann"))
    assert second is not first
    await do(runs, second, begin("a1"), begin("a2"))
    assert runs.current("ann") is not second
    assert runs.current("bob") is not runs.current("ann")


async def test_an_implicit_run_closes_once_its_pivots_answer_is_delivered_and_not_before() -> None:
    runs = trajectories(MemoryJournal())
    run = a_run(runs.current("ann"))
    await do(runs, run, begin("a1", Tier.PIVOT), Complete(step=1, reply=OK))
    assert run.state.phase is Phase.FINALIZING
    runs.delivered(run.state.id, 1)
    assert run.state.phase is Phase.SUCCEEDED
    assert runs.implicit("ann") == []


async def test_a_crash_leaves_what_was_in_flight_in_doubt_and_recovering_twice_changes_nothing() -> None:
    """camunda/camunda#415: recovery repeated a command."""
    journal = MemoryJournal()
    before = trajectories(journal)
    run = a_run(await before.named("r1", Open(agent="ann")))
    await do(before, run, begin(), Complete(step=1, reply=OK), begin("a2"))

    after = trajectories(journal)
    (found,) = await after.recover()
    assert found.state.steps[2].state is StepState.IN_DOUBT
    assert found.state.steps[1].state is StepState.COMMITTED
    version = found.state.version
    (again,) = await trajectories(journal).recover()
    assert again.state.version == version


async def test_recovery_finds_the_agents_implicit_run_again() -> None:
    journal = MemoryJournal()
    runs = trajectories(journal)
    run = a_run(runs.current("ann"))
    await do(runs, run, begin(), Complete(step=1, reply=OK))
    after = trajectories(journal)
    await after.recover()
    assert a_run(after.current("ann")).state.id == run.state.id


class Counting(MemoryJournal):
    """Counts how many runs are read with each trip."""

    def __init__(self) -> None:
        super().__init__()
        self.together: list[int] = []
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def read_many(self, streams: Sequence[str]) -> list[list[Entry]]:
        self.together.append(len(streams))
        entries = await super().read_many(streams)
        if self.meanwhile is not None:
            await self.meanwhile()
        return entries


async def test_recovery_reads_fifty_runs_with_each_trip_and_fewer_where_they_are_long() -> None:
    """A trip for each run was a third of a start; runs of many records would hold the loop."""
    journal = Counting()
    before = trajectories(journal)
    for number in range(61):
        run = a_run(await before.named(f"r{number:02}", Open(agent="ann")))
        await do(before, run, begin())
        if number == 0:
            before.record(run, [BudgetTightened(caps={"usd": 5.0})] * 400, lazy=True)
    await journal.flush()
    await trajectories(journal).recover()
    assert journal.together == [1, 50, 10]


async def test_a_run_that_is_asked_for_while_recovery_reads_it_is_there_once() -> None:
    journal = Counting()
    before = trajectories(journal)
    for name in ("r1", "r2"):
        await do(before, a_run(await before.named(name, Open(agent="ann"))), begin())
    after = trajectories(journal)
    asked: list[Run | None] = []

    async def ask() -> None:
        asked.append(await after.find("r2"))

    journal.meanwhile = ask
    found = await after.recover()
    assert [run.state.id for run in found] == ["r1", "r2"]
    assert found[1] is asked[0]


@pytest.mark.parametrize("takes_effect", [False, True])
async def test_a_failed_intent_leaves_no_doubt_because_nothing_was_sent(takes_effect: bool) -> None:
    """Whether or not the failed write is on disk after all, the step certainly had no effect."""
    journal = FaultyJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    await do(runs, run, begin("a0"), Complete(step=1, reply=OK))
    journal.break_down(takes_effect=takes_effect)
    verdict = runs.decide(run, begin())
    assert not isinstance(verdict, Refusal)
    with pytest.raises(JournalUnavailable):
        await verdict
    assert run.is_lost
    journal.mend()
    again = a_run(await runs.find("r1"))
    assert not again.is_lost
    assert again.state.steps[1].state is StepState.COMMITTED
    if takes_effect:
        assert again.state.steps[2].state is StepState.FAILED
    else:
        assert 2 not in again.state.steps
    await do(runs, again, begin())
    assert a_run(await trajectories(journal).find("r1")).state.steps.keys() == again.state.steps.keys()


async def test_an_outcome_that_could_not_be_written_is_written_once_the_disk_works() -> None:
    """A full disk turns no known outcome into a doubt."""
    journal = FaultyJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    await do(runs, run, begin())
    run.busy = including(run.busy, 1)
    journal.break_down()
    with pytest.raises(JournalUnavailable):
        await runs.record(run, [StepCommitted(step=1, reply=OK)])
    run.busy = excluding(run.busy, 1)
    assert runs.has_aside
    journal.mend()
    await runs.write_aside()
    assert not runs.has_aside
    assert a_run(await runs.find("r1")).state.steps[1].state is StepState.COMMITTED
    await journal.flush()
    assert a_run(await trajectories(journal).find("r1")).state.steps[1].state is StepState.COMMITTED


async def test_an_outcome_that_comes_after_its_run_was_lost_finds_its_way() -> None:
    """One step's failed write must not lose the outcome of another that was in flight."""
    journal = FaultyJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    await do(runs, run, begin("a1"), begin("a2"))
    run.busy = {1, 2}
    journal.break_down()
    with pytest.raises(JournalUnavailable):
        await runs.record(run, [StepCommitted(step=1, reply=OK)])
    journal.mend()
    again = a_run(await runs.find("r1"))
    assert again.state.steps[1].state is StepState.COMMITTED
    assert again.state.steps[2].state is StepState.INTENDED, "still on its way"
    await runs.record(run, [StepCommitted(step=2, reply=OK)])
    assert again.state.steps[2].state is StepState.COMMITTED


async def test_concurrent_look_ups_of_a_lost_run_read_it_once() -> None:
    journal = FaultyJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    await do(runs, run, begin())
    journal.break_down()
    with pytest.raises(JournalUnavailable):
        await runs.decided(run, Abort(reason="x"))
    journal.mend()
    found = await asyncio.gather(*(runs.find("r1") for _ in range(20)))
    assert len({id(one) for one in found}) == 1
    assert a_run(found[0]).state.phase is Phase.PREPARING


async def test_a_closed_run_is_found_and_stays_closed() -> None:
    journal = MemoryJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    await do(runs, run, begin(), Complete(step=1, reply=OK), Commit())
    assert len(runs) == 0
    for fresh in (runs, trajectories(journal)):
        found = a_run(await fresh.named("r1", Open(agent="bob")))
        assert found.state.phase is Phase.SUCCEEDED
        verdict = fresh.decide(found, begin("a2"))
        assert isinstance(verdict, Refusal)
        assert verdict.code is Code.TRAJECTORY_CLOSED


async def test_too_many_open_runs_are_refused() -> None:
    runs = trajectories(MemoryJournal(), max_open=1)
    a_run(runs.current("ann"))
    refusal = runs.current("bob")
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.RESOURCE_EXHAUSTED


async def test_refusals_are_counted_into_the_run_in_one_record() -> None:
    journal = MemoryJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    await do(runs, run, begin())
    for _ in range(1000):
        runs.note_refusal("r1", Code.CIRCUIT_OPEN, "pay", "hold")
    version = run.state.version
    runs.flush_refusals()
    assert run.state.version == version + 1
    assert run.state.refusals == 1000


async def test_an_agent_that_was_only_ever_refused_leaves_a_trace_too() -> None:
    journal = MemoryJournal()
    runs = trajectories(journal)
    a_run(await runs.named("r1", Open(agent="ann")))
    runs.note_refusal("r1", Code.CIRCUIT_OPEN, "pay", "hold")
    runs.flush_refusals()
    await journal.flush()
    assert [entry.kind for entry in await journal.read("r1")] == ["TrajectoryOpened", "RefusalsObserved"]


async def test_a_journal_that_contradicts_itself_is_named() -> None:
    journal = MemoryJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    await do(runs, run, begin())
    await runs.record(run, [StepCommitted(step=1, reply=OK)])
    stream = journal._streams["r1"]
    stream.entries.append(stream.entries[-1])
    with pytest.raises(JournalCorrupt, match="record 4 of run r1"):
        await trajectories(journal).find("r1")


async def test_watchers_are_told_of_the_next_record() -> None:
    runs = trajectories(MemoryJournal())
    run = a_run(await runs.named("r1", Open(agent="ann")))
    changed = run.changed()
    await do(runs, run, begin())
    assert changed.done()


def read_of(path: str) -> Read:
    return ("pay", "list", "GET", path, "success", 200)


async def test_reads_of_a_run_share_a_record_that_comes_before_the_next_step() -> None:
    """A record for each costs more than the read itself; their order among the steps is kept."""
    journal = MemoryJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    for path in ("/1", "/2", "/3"):
        runs.note_read(run, read_of(path))
    await do(runs, run, begin())
    runs.note_read(run, read_of("/4"))
    runs.flush_reads()
    await journal.flush()
    entries = await journal.read("r1")
    kinds = [entry.kind for entry in entries]
    assert kinds == ["TrajectoryOpened", "ReadObserved", "ReadsObserved", "StepIntended", "ReadsObserved"]
    told = decode(entries[2].kind, entries[2].data)
    assert isinstance(told, ReadsObserved)
    assert [read[:6] for read in told.reads] == [("pay", "list", "GET", path, "success", 200) for path in ("/2", "/3")]
    assert a_run(await trajectories(journal).find("r1")).state.reads == run.state.reads == 4


async def test_reads_that_wait_are_written_after_a_moment_and_when_there_are_many() -> None:
    journal = MemoryJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    for number in range(1 + 64):
        runs.note_read(run, read_of(f"/{number}"))
    assert run.state.reads == 65
    runs.note_read(run, read_of("/last"))
    changed = run.changed()
    await asyncio.wait_for(changed, 5)
    assert run.state.reads == 66


async def test_reads_of_a_run_that_ended_are_not_written_after_its_end() -> None:
    journal = MemoryJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    for path in ("/1", "/2"):
        runs.note_read(run, read_of(path))
    await do(runs, run, Commit())
    runs.flush_reads()
    assert [entry.kind for entry in await journal.read("r1")][-2:] == ["ReadsObserved", "TrajectoryCommitted"]


async def test_calls_that_open_a_run_at_the_same_time_share_one_run() -> None:
    """Found by the simulation: one look-up ended after the other had written, and a second live copy took its place."""
    journal = MemoryJournal()
    runs = trajectories(journal)
    waiting = asyncio.ensure_future(runs.find("r1"))
    await asyncio.sleep(0)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    await do(runs, run, begin())
    again = asyncio.ensure_future(runs._load("r1"))
    assert await waiting in (None, run)
    assert await again is run
    assert runs.get("r1") is run


async def test_the_intent_of_a_step_is_read_back_from_the_journal() -> None:
    journal = MemoryJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    await do(runs, run, begin(), Complete(step=1, reply=OK), begin("a2"), Doubt(step=2, fault="timeout", detail="late"))
    intended = await runs.intent(run, 2)
    assert (intended.step, intended.action) == (2, "a2")
    assert runs.in_doubt() == ["r1"]
    await do(runs, run, Complete(step=2, reply=OK))
    assert runs.in_doubt() == []


# --- what the simulation found on a disk that fails, takes effect and fails, or hangs


async def lost_run(journal: FaultyJournal, runs: Trajectories, command: object, *, takes_effect: bool) -> Run:
    """A run whose last write failed."""
    run = runs.get("r1") or a_run(await runs.named("r1", Open(agent="ann")))
    journal.break_down(takes_effect=takes_effect)
    verdict = runs.decide(run, command)  # type: ignore[arg-type]
    assert not isinstance(verdict, Refusal)
    with pytest.raises(JournalUnavailable):
        await verdict
    journal.mend()
    assert run.is_lost
    return run


async def test_a_doubt_that_was_written_after_all_is_not_written_twice() -> None:
    """It is known twice then, by the disk and by memory: reading the run again broke on it."""
    journal = FaultyJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    await do(runs, run, begin())
    await lost_run(journal, runs, Doubt(step=1, fault="timeout", detail="late"), takes_effect=True)
    again = a_run(await runs.find("r1"))
    assert again.state.steps[1].state is StepState.IN_DOUBT
    assert [entry.kind for entry in await journal.read("r1")].count("StepInDoubt") == 1


@pytest.mark.parametrize("takes_effect", [False, True])
async def test_a_staged_call_whose_release_failed_is_neither_lost_nor_in_doubt(takes_effect: bool) -> None:
    """The release may be on the disk, and nothing was sent: it is to be sent still. It was dropped as failed."""
    journal = FaultyJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    notice = replace(
        begin("n"), operation=operation_of("notice", Tier.PIVOT, is_staged=True), request=RecordedRequest()
    )
    await do(runs, run, notice, begin("p", Tier.PIVOT), Complete(step=2, reply=OK))
    journal.break_down(takes_effect=takes_effect)
    with pytest.raises(JournalUnavailable):
        await runs.record(run, [StepReleased(step=1)])
    late = runs.record(run, [StepFailed(step=1, fault="none", detail="its release could not be written")])
    with pytest.raises(JournalUnavailable):
        await late
    journal.mend()
    again = a_run(await runs.find("r1"))
    assert again.state.steps[1].state is (StepState.DEFERRED if takes_effect else StepState.STAGED)
    assert isinstance(next_finish(again.state), Send)


async def test_a_failure_past_the_pivot_that_could_not_be_written_is_known_still() -> None:
    journal = FaultyJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    after = replace(begin("a"), operation=operation_of("note", Tier.REVERSIBLE, is_idempotent=True))
    await do(runs, run, begin("p", Tier.PIVOT), Complete(step=1, reply=OK), after)
    journal.break_down()
    with pytest.raises(JournalUnavailable):
        await runs.record(run, [StepDeferred(step=2, fault="connect", detail="refused")])
    journal.mend()
    assert a_run(await runs.find("r1")).state.steps[2].state is StepState.DEFERRED


async def test_a_run_that_starts_over_is_in_no_phase_that_it_never_reached() -> None:
    """Its abort was its first record, and failed: the unwinder took it up again and again without a pause."""
    journal = FaultyJournal()
    runs = trajectories(journal)
    await lost_run(journal, runs, Abort(reason="cut"), takes_effect=False)
    assert a_run(await runs.find("r1")).state.phase is Phase.PREPARING
    assert runs.compensating() == []


async def test_a_run_that_cannot_be_brought_up_to_date_is_not_handed_out() -> None:
    """What is known of a flight cannot be written yet: whoever decided on it would be told what the disk does not have."""
    journal = FaultyJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    await do(runs, run, begin())
    await lost_run(journal, runs, Complete(step=1, reply=OK), takes_effect=False)
    refused = asyncio.get_running_loop().create_future()
    refused.set_exception(JournalUnavailable("the disk hangs"))
    with mock.patch.object(journal, "append", return_value=refused), pytest.raises(JournalUnavailable):
        await runs.find("r1")
    assert a_run(await runs.find("r1")).state.steps[1].state is StepState.COMMITTED


async def test_whoever_waits_for_a_lost_run_is_not_left_waiting() -> None:
    journal = FaultyJournal()
    runs = trajectories(journal)
    await do(runs, a_run(await runs.named("r1", Open(agent="ann"))), begin())
    run = await lost_run(journal, runs, Complete(step=1, reply=OK), takes_effect=False)
    await asyncio.wait_for(run.changed(), 1)


@pytest.mark.parametrize("is_read_again", [False, True])
async def test_what_is_decided_on_a_lost_run_is_not_taken_for_recorded(is_read_again: bool) -> None:
    """An abort was answered with success, and nothing was written."""
    journal = FaultyJournal()
    runs = trajectories(journal)
    await do(runs, a_run(await runs.named("r1", Open(agent="ann"))), begin(), Complete(step=1, reply=OK))
    lost = await lost_run(journal, runs, begin("a2"), takes_effect=False)
    if is_read_again:
        await runs.find("r1")
    with pytest.raises(JournalUnavailable):
        await runs.decided(lost, Abort(reason="enough"))
    assert a_run(await runs.find("r1")).state.phase is Phase.PREPARING


@pytest.mark.parametrize("is_full", [False, True])
async def test_giving_up_the_wait_for_a_record_takes_nothing_back_and_hides_no_failure(is_full: bool) -> None:
    """The future is the caller's own: a call that is cancelled while its outcome is written may not make it unknown."""
    journal = FaultyJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    await do(runs, run, begin())
    if is_full:
        journal.break_down()
    written = runs.decide(run, Complete(step=1, reply=OK))
    assert isinstance(written, asyncio.Future)
    written.cancel()
    await asyncio.wait(set(run.pending))
    assert run.is_lost is is_full
    journal.mend()
    assert a_run(await runs.find("r1")).state.steps[1].state is StepState.COMMITTED
    await journal.flush()
    assert [decode(entry.kind, entry.data).__class__ for entry in await journal.read("r1")][-1] is StepCommitted


async def test_deciding_the_same_twice_is_answered_once_the_first_is_on_disk() -> None:
    """A second click, or a second abort, changed nothing in memory and was answered before the first had failed."""
    journal = FaultyJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    await do(runs, run, begin(), Complete(step=1, reply=OK))
    journal.break_down()
    first = asyncio.ensure_future(runs.decided(run, Abort(reason="enough")))
    second = asyncio.ensure_future(runs.decided(run, Abort(reason="enough")))
    outcomes = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [JournalUnavailable, JournalUnavailable]
