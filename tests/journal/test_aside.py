"""What was only observed is not lost with the memory of a run whose write failed, and is not there twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable

import pytest

from gateway.core.budget import RESOURCES
from gateway.core.codes import Code
from gateway.core.manifest import Tier
from gateway.core.records import (
    BudgetTightened,
    ContentBlocked,
    LoopInterrupted,
    MetricsReported,
    ReadObserved,
    Record,
    StateReported,
    StepCommitted,
    StepFailed,
    StepIntended,
    StepReleased,
    UsageReported,
    encode,
)
from gateway.core.saga import Abort, Commit, Complete, Open
from gateway.core.sparse import including
from gateway.core.trajectory import UNSENT_FAULT, Phase, Step, StepState, Trajectory
from gateway.journal import Append, Entry, JournalCorrupt, JournalUnavailable
from gateway.journal.aside import KEPT, Aside, is_observation
from gateway.journal.trajectories import Run, Trajectories
from tests.journal.faulty import FaultyJournal
from tests.journal.test_trajectories import OK, a_run, begin, do, read_of, trajectories

SPENT = UsageReported(values={"usd": 0.25, "tokens": 7.0}, source="gateway")
MASK = LoopInterrupted(pattern="REPEATED_FAILURE_DETECTED", verdict="mask", action="ab" * 16, tool="t", operation="o")
OBSERVED: list[Record] = [
    SPENT,
    SPENT,
    MASK,
    MetricsReported(values={"passing": 3.0}),
    StateReported(state="00000000000000ff"),
    BudgetTightened(caps={"usd": 2.0}),
    ContentBlocked(tool="t", operation="o", action="cd" * 16),
    UsageReported(values={"tokens": 5.0}, report="turn-1"),
]


def entry(record: Record, at: int = 1) -> Entry:
    kind, data = encode(record)
    return Entry(kind, at, data)


def a_step(key: str) -> Step:
    return Step(
        number=1, tool="pay", operation="hold", tier=Tier.COMPENSABLE, action="a", fingerprint="f", occurrence=1,
        key=key, state=StepState.INTENDED, order=1,
    )  # fmt: skip


def entries(*records: Record, at: int = 1) -> list[Entry]:
    return [entry(record, at) for record in records]


# --- the rule


def test_what_somebody_waits_for_is_no_observation() -> None:
    """It failed to their face: they ask again, and it would be there twice."""
    assert all(is_observation(record, is_lazy=True) for record in OBSERVED)
    assert not is_observation(UsageReported(values={"tokens": 5.0}), is_lazy=False), "an agent's, without a name"
    assert is_observation(UsageReported(values={"tokens": 5.0}, report="r"), is_lazy=False)
    assert not is_observation(MASK, is_lazy=False), "a decision that was not recorded is taken anew"


def test_only_what_the_stream_lacks_is_missing_however_equal_it_looks() -> None:
    aside = Aside()
    aside.failed(2, [SPENT, SPENT, MASK], entries(SPENT, SPENT, MASK), {}, is_lazy=True)
    before = entries(MASK, SPENT)  # durable before, and equal to what failed
    assert [one.record for one in aside.missing(before)] == [SPENT, SPENT, MASK]
    assert [one.record for one in aside.missing([*before, entry(SPENT)])] == [SPENT, MASK]
    assert not aside.missing([*before, *entries(SPENT, SPENT, MASK)])


def test_what_came_late_was_never_tried() -> None:
    aside = Aside()
    aside.failed(0, [MASK, SPENT], entries(MASK, SPENT), {}, is_lazy=True)
    aside.came_late([SPENT], entries(SPENT), {}, is_lazy=True)
    assert [one.record for one in aside.missing(entries(MASK, SPENT, SPENT))] == [SPENT]


def test_what_is_metered_while_the_disk_is_full_adds_up() -> None:
    """It comes with every call for as long as that takes; what was tried is recognised as it was, and is left alone."""
    aside = Aside()
    aside.failed(0, [SPENT], entries(SPENT), {}, is_lazy=True)
    for _ in range(1_000):
        aside.came_late([SPENT], entries(SPENT, at=2), {}, is_lazy=True)
    tried, late = aside.missing([])
    assert tried.entry == entry(SPENT)
    assert late.record == UsageReported(values={"usd": 250.0, "tokens": 7_000.0}, source="gateway")
    assert late.entry == entry(late.record, at=2)


def test_a_step_that_was_to_leave_never_did() -> None:
    aside = Aside()
    released = StepReleased(step=1)
    aside.failed(3, [released], entries(released), {1: a_step("k1")}, is_lazy=False)
    kept = aside.outcomes["k1"]
    assert isinstance(kept, StepFailed)
    assert kept.fault == UNSENT_FAULT
    assert not aside.not_there({"k1"})
    assert aside.not_there({"k2"}).outcomes == {"k1": kept}, "its intent may get there yet"


def test_an_audit_may_have_a_gap_and_a_budget_may_not() -> None:
    aside = Aside()
    seen = ReadObserved(tool="t", operation="o", method="GET", path="/", outcome="success")
    for _ in range(KEPT + 50):
        aside.came_late([seen], entries(seen), {}, is_lazy=True)
    aside.came_late([SPENT], entries(SPENT), {}, is_lazy=True)
    missing = aside.missing([])
    assert len(missing) == KEPT + 1
    assert missing[-1].record is SPENT


# --- in a run


class ByTurns(FaultyJournal):
    """Its append number `turn` fails, before it takes effect or after, and all that were queued behind it."""

    def __init__(self, turn: int, *, takes_effect: bool) -> None:
        super().__init__()
        self.turn, self.does = turn, takes_effect

    def append(self, append: Append, *, lazy: bool = False) -> asyncio.Future[None]:
        self.turn -= 1
        if self.turn == 0:
            self.break_down(takes_effect=self.does)
        elif self.turn < 0 and self.is_broken:
            self.takes_effect = False  # as the fence has it
        return super().append(append, lazy=lazy)

    def mend(self) -> None:
        super().mend()
        self.turn = 0


def facts(state: Trajectory) -> dict[str, object]:
    """What the observations of `story` amount to."""
    circles = state.circles
    return {
        "usage": {name: state.usage.get(name, 0.0) for name in RESOURCES},
        "reads": state.reads,
        "refusals": state.refusals,
        "caps": state.budget,
        "blocked": {key: list(one.actions) for key, one in state.blocked.items()},
        "reports": list(state.reports),
        "masked": None if circles is None else list(circles.masked),
        "interrupted": None if circles is None else circles.interrupted,
        "told": None if circles is None else Counter(type(one).__name__ for _, one in circles.reports),
    }


async def story(runs: Trajectories, run: Run) -> None:
    """A run is observed: nobody waits for any of it, and steps come in between."""
    for number, record in enumerate(OBSERVED):
        runs.record(run, [record], lazy=True)
        runs.note_read(run, read_of(f"/{number}"))
        if number % 3 == 1:
            verdict = runs.decide(run, begin(f"a{number}"))
            if isinstance(verdict, asyncio.Future):
                await asyncio.wait((verdict,))
        runs.note_refusal("r1", Code.CIRCUIT_OPEN, "pay", "hold")
        if number % 4 == 2:
            runs.flush_refusals()
    runs.flush_refusals()


TOLD = {
    "usage": {"tokens": 19.0, "usd": 0.5, "calls": 0.0, "steps": 0.0, "seconds": 0.0, "retries": 0.0},
    "reads": 8,
    "refusals": 8,
    "caps": {"usd": 2.0},
    "blocked": {("t", "o"): ["cd" * 16]},
    "reports": ["turn-1"],
    "masked": ["ab" * 16],
    "interrupted": 1,
    "told": Counter(StateReported=1, MetricsReported=1),
}


@pytest.mark.parametrize("takes_effect", [False, True], ids=["before the commit", "after the commit"])
@pytest.mark.parametrize("turn", range(1, 18))
async def test_wherever_the_disk_fails_each_observation_is_in_the_stream_once(turn: int, takes_effect: bool) -> None:
    """A budget would be under-counted and a mask forgotten (or counted twice, where the write had taken effect)."""
    journal = ByTurns(turn, takes_effect=takes_effect)
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    await story(runs, run)
    await asyncio.gather(*list(run.pending), return_exceptions=True)
    journal.mend()
    again = a_run(await runs.find("r1"))
    await runs.durable(again)
    assert facts(again.state) == TOLD
    assert facts(a_run(await trajectories(journal).find("r1")).state) == TOLD
    assert not runs.has_aside


@pytest.mark.parametrize("batches", [1, 2, 3])
async def test_a_disk_that_fails_again_while_it_is_made_up_for_changes_nothing(batches: int) -> None:
    journal = FaultyJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    await do(runs, run, begin(), Complete(step=1, reply=OK))
    journal.break_down()
    await story(runs, run)
    for again in range(batches):
        journal.break_down(takes_effect=bool(again % 2))
        with contextlib.suppress(JournalUnavailable):  # it hears of it at once, or when it asks next
            await runs.write_aside()
        while (found := runs.get("r1")) is not None and found.pending:
            await asyncio.wait(set(found.pending))
    journal.mend()
    await runs.write_aside()
    assert facts(a_run(await runs.find("r1")).state) == TOLD
    await journal.flush()
    assert facts(a_run(await trajectories(journal).find("r1")).state) == TOLD


class Hangs(FaultyJournal):
    """An append that was given up may reach the disk later: here, right before the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.hung: list[Append] = []

    def append(self, append: Append, *, lazy: bool = False) -> asyncio.Future[None]:
        if self.is_broken:
            self.hung.append(append)
        else:
            for late in self.hung:
                if self._refusal(late) is None:
                    self._store(late)
            self.hung.clear()
        return super().append(append, lazy=lazy)


async def test_what_hung_and_reaches_the_disk_after_the_run_was_read_is_not_doubled() -> None:
    journal = Hangs()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    await do(runs, run, begin(), Complete(step=1, reply=OK))
    journal.break_down()
    await story(runs, run)
    journal.mend()
    with pytest.raises(JournalUnavailable):
        await runs.find("r1")
    again = a_run(await runs.find("r1"))
    await runs.durable(again)
    assert facts(again.state) == TOLD
    assert facts(a_run(await trajectories(journal).find("r1")).state) == TOLD


async def test_a_run_whose_first_write_failed_keeps_what_was_seen_and_what_it_was_opened_with() -> None:
    journal = FaultyJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann", budget={"usd": 9.0}, labels={"team": "blue"})))
    journal.break_down()
    runs.note_read(run, read_of("/1"))
    runs.record(run, [SPENT], lazy=True)
    await asyncio.gather(*list(run.pending), return_exceptions=True)
    journal.mend()
    again = a_run(await runs.find("r1"))
    await runs.durable(again)
    state = a_run(await trajectories(journal).find("r1")).state
    assert (state.budget, state.labels, state.reads) == ({"usd": 9.0}, {"team": "blue"}, 1)
    assert state.usage["usd"] == 0.25


async def test_what_is_seen_of_a_run_that_ended_on_disk_is_written_behind_its_end() -> None:
    journal = FaultyJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    await do(runs, run, begin(), Complete(step=1, reply=OK))
    journal.break_down(takes_effect=True)
    with pytest.raises(JournalUnavailable):
        await runs.decided(run, Commit())
    runs.record(run, [SPENT], lazy=True)
    journal.mend()
    await runs.write_aside()
    assert not runs.has_aside, "or the janitor would try for ever"
    again = a_run(await runs.find("r1"))
    assert again.state.phase is Phase.SUCCEEDED
    assert again.state.usage["usd"] == 0.25
    await journal.flush()
    assert a_run(await trajectories(journal).find("r1")).state.usage["usd"] == 0.25


@pytest.mark.parametrize("record", [SPENT, ReadObserved(tool="t", operation="o", method="GET", path="/", outcome="s")])
async def test_an_observation_of_the_lost_run_goes_to_the_one_read_anew(record: Record) -> None:
    """A call that began before the run was lost ends after it was read again."""
    journal = FaultyJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    await do(runs, run, begin(), Complete(step=1, reply=OK))
    journal.break_down()
    with pytest.raises(JournalUnavailable):
        await runs.decided(run, Abort(reason="x"))
    journal.mend()
    again = a_run(await runs.find("r1"))
    runs.record(run, [record], lazy=True)
    assert again.state.usage.get("usd", 0.0) + again.state.reads == (0.25 if record is SPENT else 1)


@pytest.mark.parametrize("takes_effect", [False, True])
async def test_an_intent_that_failed_never_left_and_is_told_apart(takes_effect: bool) -> None:
    journal = FaultyJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    await do(runs, run, begin(), Complete(step=1, reply=OK))
    journal.break_down(takes_effect=takes_effect)
    with pytest.raises(JournalUnavailable):
        await runs.decided(run, begin("a2"))
    journal.mend()
    state = a_run(await runs.find("r1")).state
    assert len(state.steps) - state.unsent == 1
    if takes_effect:
        assert (state.steps[2].state, state.steps[2].fault) == (StepState.FAILED, UNSENT_FAULT)


@pytest.mark.parametrize("made", [lambda: StepIntended, lambda: StepCommitted], ids=["an intent", "an outcome"])
async def test_what_is_under_way_goes_over_to_the_run_read_anew(made: Callable[[], object]) -> None:
    """Or its budget would forget calls that have left, and a step that is on its way would be put in doubt."""
    journal = FaultyJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    await do(runs, run, begin())
    run.busy = including(run.busy, 1)
    flying = run.flying
    journal.break_down()
    with pytest.raises(JournalUnavailable):
        await runs.decided(run, begin("a2") if made() is StepIntended else Complete(step=1, reply=OK))
    journal.mend()
    again = a_run(await runs.find("r1"))
    assert again is not run
    assert again.busy is run.busy
    assert again.flying is flying


async def test_nobody_is_shown_what_was_written_while_the_run_was_read_before_that_is_durable() -> None:
    journal = FaultyJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="ann")))
    await do(runs, run, begin(), Complete(step=1, reply=OK))
    journal.break_down()
    runs.record(run, [SPENT], lazy=True)
    with pytest.raises(JournalUnavailable):
        await runs.durable(run)
    journal.mend()
    shown = await runs.durable(run)
    assert not shown.pending
    assert a_run(await trajectories(journal).find("r1")).state.usage["usd"] == 0.25


async def test_who_reads_a_run_is_told_before_anybody_has_it() -> None:
    journal = FaultyJournal()
    runs = trajectories(journal)
    read: list[Run] = []
    runs.on_read = read.append
    run = a_run(await runs.named("r1", Open(agent="ann")))
    await do(runs, run, begin(), Complete(step=1, reply=OK))
    assert read == []
    journal.break_down()
    with pytest.raises(JournalUnavailable):
        await runs.decided(run, Abort(reason="x"))
    journal.mend()
    assert read == [await runs.find("r1")]


async def test_an_outcome_of_a_run_that_is_over_is_kept_no_longer() -> None:
    """Nothing can follow in its stream, so it would be kept, and the run read again, each second for ever."""
    journal = FaultyJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="a")))
    await do(runs, run, begin(), Complete(step=1, reply=OK), Commit())
    runs._aside["r1"] = Aside({"unknown": StepFailed(step=2, fault=UNSENT_FAULT, detail="")})
    runs._closed.clear()
    await runs.write_aside()
    assert not runs.has_aside
    assert not runs.in_doubt()


async def test_caps_that_were_kept_aside_only_lower_each_other() -> None:
    """Each was lower than what the lost run knew of, which had none of them; the later one may be the higher."""
    journal = FaultyJournal()
    runs = trajectories(journal)
    run = a_run(await runs.named("r1", Open(agent="a")))
    await do(runs, run, begin())
    journal.break_down()
    with contextlib.suppress(JournalUnavailable):
        await runs.record(run, [SPENT])
    for cap in (2.0, 5.0):
        runs.record(run, [BudgetTightened(caps={"usd": cap})])
    journal.mend()
    assert a_run(await runs.find("r1")).state.budget == {"usd": 2.0}


async def test_a_run_that_cannot_be_read_keeps_nobody_else_waiting() -> None:
    class Torn(FaultyJournal):
        torn = ""

        async def read(self, stream: str, after: int = 0) -> list[Entry]:
            if stream == self.torn:
                raise JournalCorrupt("entry 1 of run 'r1' is missing")
            return await super().read(stream, after)

    journal = Torn()
    runs = trajectories(journal)
    both = [a_run(await runs.named(name, Open(agent="ann"))) for name in ("r1", "r2")]
    for run in both:
        await do(runs, run, begin())
    journal.break_down()
    lost = [runs.record(run, [SPENT], lazy=True) for run in both]
    await asyncio.gather(*lost, return_exceptions=True)
    journal.mend()
    journal.torn = "r1"
    with pytest.raises(JournalCorrupt):
        await runs.write_aside()
    written = a_run(await trajectories(journal).find("r2")).state
    assert written.usage["usd"] == 0.25
