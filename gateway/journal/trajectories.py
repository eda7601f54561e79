"""The live runs: their folded state in memory, and the one way in which a record is added to both memory and journal.

`record` folds a record at once and queues it; who needs it durable awaits the future. Because one stream is committed in
order, a later durable record implies every earlier one. If an append fails, memory has run ahead of the disk: the run is
marked lost, nobody may use it any more, and the next to ask for it reads the journal again. What this process knows and the
journal does not (an intent whose request never left, an outcome or an observation that could not be written) is kept aside
(`journal/aside.py`) and written first then, so a full disk turns no known outcome into a doubt once there is space again,
and takes nothing off a budget. What is under way goes over to the run that was read.

A run that nobody holds can be parked (`journal/parking.py`): it is packed, and whoever asks for it has it back as it was.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Final

from gateway.clock import Clock, dated_token
from gateway.core.budget import Meter
from gateway.core.call import Call
from gateway.core.codes import Code
from gateway.core.outbox import outcome_records
from gateway.core.outcome import Outcome, Refusal
from gateway.core.parked import Parked
from gateway.core.records import (
    CompensationCompleted,
    CompensationRefused,
    PolicyObserved,
    ReadObserved,
    ReadsObserved,
    Record,
    RefusalsObserved,
    StepCommitted,
    StepDeferred,
    StepFailed,
    StepInDoubt,
    StepIntended,
    StepStaged,
    TrajectoryOpened,
    UnknownRecord,
    decode,
    encode,
)
from gateway.core.saga import Command, Commit, Open, decide
from gateway.core.sparse import NONE, NOTHING
from gateway.core.trajectory import IllegalRecord, Phase, StepState, Trajectory, evolve
from gateway.core.watchdog import Watchdog
from gateway.journal import Append, Entry, Head, Journal, JournalCorrupt, JournalUnavailable, KeyClaim
from gateway.journal.aside import Aside, Ended, Observation, is_observation
from gateway.journal.parking import Parking, Resting
from gateway.telemetry import Telemetry

__all__ = ["GENERATIONS", "OWN", "TOGETHER", "Flight", "Read", "Run", "Trajectories"]

# Members that every call is compared with, looked up once (docs/adr/0092).
_FINALIZING: Final = Phase.FINALIZING
_PREPARING: Final = Phase.PREPARING

OWN = "~"
"""Streams of our own begin so; no run can have such a name."""

Read = tuple[str, str, str, str, str, int | None]
"""A read as it is observed: tool, operation, method, path, outcome, status."""

_CLOSED_KEPT = 256
_PAGE = 500
_REFUSING_RUNS = 4096
_OUTCOMES = (StepCommitted, StepFailed, StepInDoubt)
_OWED = (*_OUTCOMES, StepDeferred, CompensationCompleted, CompensationRefused)
_READS = 64
_SPARSE_BYTES = 250
"""Of a table for each run in it; a full one takes a third to a sixth of that."""

_READINGS = 3

GENERATIONS = 16
"""So many runs, one the parent of the next, spend together."""

TOGETHER = 50
"""Runs to which something is done in one pass of the event loop, so that no call waits for longer than milliseconds."""

_RECORDS_TOGETHER = 400
"""Records that are folded in one pass: those of `TOGETHER` usual runs."""

READS_S = 0.1
"""How long a read waits for others of its run before it is recorded; lazily journaled ones may be lost in a crash anyway."""


@dataclass(slots=True)
class Flight:
    """A call on its way: what it has taken from the run's budgets that no record tells of, and what the tool answered, even
    if the agent may not have that."""

    taken: dict[str, float]
    answer: Outcome | None = None


class Run:
    """One run in memory.

    Attributes:
        state: the fold of its records; read it freely, change it only through `Trajectories`.
        is_lost: memory and journal may disagree; ask `Trajectories` for the run again.
        busy: steps that are on their way in this process.
        flying: calls on their way that a budget counts; `stages/budget.py` keeps them here.
        leases_over: of its leases, how many people were told to be over.
        pending: appends that are not durable yet, in their order; no values.
        touched_s: monotonic time of the last call.
        parent: the run that counts it among its children, if that is not the one its packet names: that one is over.
        meter: what it has spent, once somebody asks; `stages/budget.py` keeps it here.
        watch: its watchdog, once it has one; `stages/watchdog.py` keeps it here, so that both end together.
        woken_s: monotonic time when somebody asked for it while it was parked, or parking it failed; 0.0: neither.
    """

    __slots__ = (
        "_live",
        "_watchers",
        "busy",
        "flying",
        "is_lost",
        "leases_over",
        "meter",
        "opening",
        "parent",
        "pending",
        "state",
        "touched_s",
        "watch",
        "woken_s",
    )

    def __init__(
        self, state: Trajectory, opening: Open | None, touched_s: float, live: Callable[[str], Run | None]
    ) -> None:
        """`live`: returns a live run by name, for its parent and children among them."""
        self.state = state
        self._live = live
        self.opening = opening
        self.is_lost = False
        self.busy: set[int] = NONE
        self.flying: dict[Call, Flight] = NOTHING
        self.leases_over = 0
        self.pending: dict[asyncio.Future[None], None] = NOTHING
        self.touched_s = touched_s
        self.parent = ""
        self.meter: Meter | None = None
        self.watch: Watchdog | None = None
        self.woken_s = 0.0
        self._watchers: tuple[asyncio.Future[None], ...] = ()

    def __repr__(self) -> str:
        return f"<Run {self.state.id} {self.state.phase} version={self.state.version} busy={len(self.busy)}>"

    async def written(self) -> None:
        """Wait until what is pending now is durable, or failed, one after the other: a set has another order every time."""
        for pending in tuple(self.pending):
            await asyncio.wait((pending,))

    def lineage(self) -> list[Run]:
        """Return the run, its parent, and so on up: those whose budgets it spends from."""
        line = [self]
        while len(line) < GENERATIONS and (parent := line[-1]._parent()) is not None:
            line.append(parent)
        return line

    def _parent(self) -> Run | None:
        named = self.parent or (self.state.task or {}).get("parent_task_id")
        parent = self._live(named) if named else None
        return parent if parent is not None and self.state.id in parent.state.children else None

    def children(self) -> list[Run]:
        """Return the runs of its children that are not settled yet."""
        return [child for name in self.state.children if (child := self._live(name)) is not None]

    def changed(self) -> asyncio.Future[None]:
        """Return a future that is done at the next record of this run, or when it is lost; at once if it is."""
        future = asyncio.get_running_loop().create_future()
        if self.is_lost:
            future.set_result(None)
        else:
            self._watchers += (future,)
        return future

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing of it is under way or waited for in this process."""
        return not (self.is_lost or self.busy or self.flying or self.pending or self._watchers or self.opening)

    def notify(self) -> None:
        """Wake who waits for a change."""
        if not self._watchers:
            return
        watchers, self._watchers = self._watchers, ()
        for future in watchers:
            if not future.done():
                future.set_result(None)


class Trajectories:
    """All runs that may still change, and the way to those that are over.

    `has_budgets`: some run of this process has had caps; without any nobody needs to look for them. `on_read` is told of
    each open run that was read, before anybody has it.
    """

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        telemetry: Telemetry,
        *,
        salt: bytes,
        implicit_steps: int = 1000,
        max_open: int = 100_000,
    ) -> None:
        """`implicit_steps`: an implicit run of so many steps is followed by a fresh one, so that none grows for ever."""
        self.journal = journal
        self.salt = salt
        self._clock = clock
        self._telemetry = telemetry
        self._implicit_steps = implicit_steps
        self._max_open = max_open
        self._runs: dict[str, Run] = {}
        self._live = self.get  # one bound method for all runs
        self._parking = Parking(salt)
        self._closed: OrderedDict[str, Run] = OrderedDict()
        self._implicit: dict[str, list[Run]] = {}
        self._loading: dict[str, asyncio.Future[Run | None]] = {}
        self._aside: dict[str, Aside] = {}
        self._phases: dict[Phase, set[str]] = {phase: set() for phase in Phase}
        self._doubtful: set[str] = set()
        self._reads: dict[str, list[tuple[str, str, str, str, str, int | None, int]]] = {}
        self._reads_timer: asyncio.TimerHandle | None = None
        self.has_budgets = False
        self._refusals: dict[str, Counter[tuple[str, str, str]]] = {}
        self._decisions: dict[str, Counter[tuple[str, str, str, bool]]] = {}
        self._attentive: set[str] = set()
        self._noticed: OrderedDict[str, None] = OrderedDict()
        self.on_read: Callable[[Run], None] = lambda run: None
        self.on_unwinding: Callable[[str], None] = lambda name: None
        self.on_phase: Callable[[str, Phase], None] = lambda name, phase: None
        self.on_finalizing: Callable[[str], None] = lambda name: None
        self.on_notice: Callable[[], None] = lambda: None

    # --- finding runs

    def __len__(self) -> int:
        return len(self._runs) + len(self._parking)

    @property
    def awake(self) -> int:
        """How many live runs are not parked."""
        return len(self._runs)

    def get(self, name: str) -> Run | None:
        """Return a live run by name; None if it is closed, unknown, or not in memory."""
        return self._runs.get(name) or self._wake(name)

    def known(self, name: str) -> Run | None:
        """Return a run that is in memory, closed ones too; None if it is not, or unknown."""
        return self._runs.get(name) or self._closed.get(name) or self._wake(name)

    def live(self) -> list[Run]:
        """Return the runs in memory that may still change, and wake all that are parked: for a start."""
        return [run for name in self.names() if (run := self.get(name)) is not None]

    def names(self) -> list[str]:
        """Return the names of the runs in memory that may still change."""
        return [*self._parking.names(), *self._runs]

    def awake_names(self) -> list[str]:
        """Return the names of those that are not parked."""
        return list(self._runs)

    def due(self, name: str, now: float) -> Run | None:
        """Return a live run by name, unless it is parked and time has made nothing due in it. `now`: monotonic seconds."""
        return self._runs.get(name) or (self._wake(name) if self._parking.is_due(name, now, self._clock.at()) else None)

    def of_agent(self, agent: str) -> list[Run]:
        """Return the live runs of an agent."""
        for name in self._parking.of_agent(agent):
            self._wake(name)
        return [run for run in self._runs.values() if run.state.agent == agent]

    def at(self) -> int:
        """Return UTC milliseconds, for records."""
        return self._clock.at()

    def attentive(self) -> list[Run]:
        """Return the live runs in which time alone makes something due: approvals, doubts, notices, work past the pivot."""
        return [run for name in self._attentive if (run := self._runs.get(name)) is not None]

    def attentive_names(self) -> list[str]:
        """Return the names of those."""
        return list(self._attentive)

    @property
    def has_noticed(self) -> bool:
        """Whether something is left to tell people in any live run."""
        return bool(self._noticed)

    def noticed(self, limit: int) -> list[str]:
        """Return the names of up to `limit` live runs in which something is left to tell people; others the next time."""
        names = list(islice(self._noticed, limit))
        for name in names:
            self._noticed.move_to_end(name)
        return names

    def in_phase(self, phase: Phase) -> list[Run]:
        """Return the live runs in a phase."""
        return [run for name in self.names_in(phase) if (run := self.get(name)) is not None]

    def compensating(self) -> list[str]:
        """Return the names of the runs that are being undone."""
        return self.names_in(Phase.COMPENSATING)

    def names_in(self, phase: Phase) -> list[str]:
        """Return the names of the live runs in a phase."""
        names = list(self._phases[phase])
        return [*names, *self._parking.names()] if phase is _PREPARING else names

    def in_doubt(self) -> list[str]:
        """Return the names of the live runs with a step in doubt."""
        return list(self._doubtful)

    def by_phase(self) -> dict[str, int]:
        """Return how many live runs are in each phase."""
        counts = {phase.value: len(names) for phase, names in self._phases.items() if names}
        if parked := len(self._parking):
            counts[_PREPARING.value] = counts.get(_PREPARING.value, 0) + parked
        return counts

    async def find(self, name: str) -> Run | None:
        """Return a run by name, open or closed, or None if it was never opened.

        Raises:
            JournalUnavailable: it is not in memory and cannot be read, or what only memory knows of it cannot be written.
        """
        run = self.known(name)
        if run is not None and not run.is_lost:
            return run
        loading = self._loading.get(name)
        if loading is None:
            loading = self._loading[name] = asyncio.ensure_future(self._load(name))
            loading.add_done_callback(lambda _: self._loading.pop(name, None))
        run = await asyncio.shield(loading)
        if run is not None and run.is_lost:
            raise JournalUnavailable(f"run {name} has to be read again after a failed write")
        return run

    async def named(self, name: str, opening: Open) -> Run | Refusal:
        """Return the run of that name, made (in memory, until its first record) if it is unknown."""
        found = await self.find(name)
        # Between the look-up and here another caller may have made it.
        return found or self.get(name) or self._make(name, opening)

    def implicit(self, agent: str) -> list[Run]:
        """Return the agent's implicit runs that are open, the current one last; empty before its first call."""
        runs = self._implicit.get(agent)
        if not runs:
            return []
        if any(run.is_lost for run in runs):
            return []
        return runs

    def at_hand(self, call: Call) -> Run | None:
        """Return the run that a call is for as far as memory knows, lost or not, before anybody looks it up: the named one,
        else the agent's newest implicit one; None where there is none yet."""
        if call.trajectory:
            return self._runs.get(call.trajectory) or self._wake(call.trajectory)
        runs = self._implicit.get(call.agent)
        return runs[-1] if runs else None

    def standing(self, agent: str) -> Run | None:
        """Return the implicit run that the agent's next step belongs to; None where a fresh one is due."""
        runs = self._implicit.get(agent)
        if not runs or runs[-1].is_lost:
            return None
        last = runs[-1].state
        takes_more = last.pivot is None and last.phase is _PREPARING and len(last.steps) < self._implicit_steps
        return runs[-1] if takes_more else None

    def current(self, agent: str) -> Run | Refusal:
        """Return the implicit run that the agent's next step belongs to, a fresh one where the last takes no more."""
        standing = self.standing(agent)
        if standing is not None:
            return standing
        made = self._make(f"auto-{dated_token(self._clock)}", Open(agent=agent, is_implicit=True))
        if isinstance(made, Run):
            self._implicit.setdefault(agent, []).append(made)
        return made

    async def reload_lost(self, agent: str) -> None:
        """Read the agent's lost implicit runs again; repeatable.

        Raises:
            JournalUnavailable: they cannot be read.
        """
        for run in list(self._implicit.get(agent, ())):
            if run.is_lost:
                await self.find(run.state.id)

    def _make(self, name: str, opening: Open) -> Run | Refusal:
        if len(self) >= self._max_open:
            return Refusal(
                code=Code.RESOURCE_EXHAUSTED,
                detail=f"{self._max_open} runs are open already. Commit or abort some, then try again.",
                retry_after_ms=5000,
            )
        self.has_budgets = self.has_budgets or bool(opening.budget)
        run = Run(
            Trajectory(id=name, agent=opening.agent, is_implicit=opening.is_implicit),
            opening,
            self._clock.now(),
            self._live,
        )
        self._runs[name] = run
        return run

    def forget(self, run: Run) -> None:
        """Drop a run that never wrote anything."""
        if run.state.version == 0 and not run.busy:
            self._aside.pop(run.state.id, None)
            self._drop(run)

    async def intent(self, run: Run, number: int) -> StepIntended:
        """Return what a step set out to do, read back from the journal: memory keeps no requests.

        Raises:
            JournalCorrupt: it is not where the run says.
            JournalUnavailable: it cannot be read.
        """
        await run.written()
        step = run.state.steps[number]
        entries = await self.journal.read(run.state.id, step.intended - 1)
        intended = decode(entries[0].kind, entries[0].data) if entries else None
        if isinstance(intended, StepStaged):
            intended = _intended(intended)
        if not isinstance(intended, StepIntended) or intended.step != number:
            raise JournalCorrupt(f"record {step.intended} of run {run.state.id} is not the intent of step {number}")
        return intended

    # --- parking them

    def is_idle(self, name: str, since: float) -> bool:
        """Whether a run is awake and nobody has asked for it since then, in monotonic seconds."""
        run = self._runs.get(name)
        return run is not None and max(run.touched_s, run.woken_s) <= since

    def park(self, name: str) -> bool:
        """Pack a live run that is being prepared, if it can be: nothing of it is under way or due, and nobody holds it.

        Whoever asks for it from then on has it back as it was. Returns whether it is parked now.
        """
        run = self._runs.get(name)
        if run is None or not self._may_rest(run) or sys.getrefcount(run) > _HELD_BY_ONE or _is_any_part_held(run):
            return run is None and name in self._parking
        parked = Parked(run.state, run.meter, run.watch)
        try:
            self._parking.put(Resting(parked, run.touched_s, run.leases_over, run.parent), self._clock.at())
        except Exception as error:  # of a kind that cannot be packed, or nested too deeply; others can be
            self._telemetry.background_failed(f"parking run {name}", error)
            run.woken_s = self._clock.now()
            return False
        del self._runs[name]
        self._phases[_PREPARING].discard(name)
        return True

    def shrink(self) -> None:
        """Give back the room in tables that those who were parked have left: a table never does so by itself."""
        if sys.getsizeof(self._runs) > _SPARSE_BYTES * (len(self._runs) + 1):
            self._runs = dict(self._runs)
            self._phases[_PREPARING] = set(self._phases[_PREPARING])

    def _may_rest(self, run: Run) -> bool:
        state, name = run.state, run.state.id
        if state.phase is not _PREPARING or state.is_implicit or not state.version or state.needs_attention:
            return False
        is_waited_for = name in self._reads or name in self._aside or name in self._loading or name in self._doubtful
        return run.is_at_rest and not (state.in_flight or is_waited_for or name in self._attentive)

    def _wake(self, name: str) -> Run | None:
        """Return a run that was parked, as it was; None if it was not."""
        if name not in self._parking:
            return None
        now = self._clock.now()
        try:
            resting = self._parking.take(name)
        except Exception as error:  # a bug; the journal has it all the same
            self._telemetry.background_failed(f"waking run {name}", error)
            resting = Resting(Parked(Trajectory(id=name), None, None), now)
            self._aside.setdefault(name, Aside())  # so that the janitor has it read, whoever asks for it or does not
        parked = resting.parked
        run = self._runs[name] = Run(parked.state, None, resting.touched_s, self._live)
        run.is_lost = not parked.state.version
        run.meter, run.watch = parked.meter, parked.watch
        run.leases_over, run.parent, run.woken_s = resting.leases_over, resting.parent, now
        self._phases[_PREPARING].add(name)
        return run

    # --- adding records

    def decide(self, run: Run, command: Command, *, lazy: bool = False) -> Refusal | asyncio.Future[None]:
        """Decide a command and record what follows. The future is done when that is durable (at once if nothing changes)."""
        verdict = decide(run.state, command)
        if isinstance(verdict, Refusal):
            return verdict
        return self.record(run, verdict, lazy=lazy)

    async def decided(self, run: Run, command: Command) -> Refusal | None:
        """Decide a command, and return once what follows is durable; or return why it is not legal.

        Where nothing follows, it returns once that is durable which made it so.

        Raises:
            JournalUnavailable: it may not be durable; the run has to be read again.
        """
        return await self.recorded(run, decide(run.state, command))

    async def durable(self, run: Run) -> Run:
        """Return the run once everything it shows is on disk: nobody is told what a crash could take back.

        Raises:
            JournalUnavailable: it cannot be written or read.
        """
        for _ in range(_READINGS):
            while run.pending:
                await run.written()
            if not run.is_lost:
                return run
            run = await self.find(run.state.id) or run  # what is written as it is read may fail, too
        raise JournalUnavailable(f"run {run.state.id} was read {_READINGS} times, and each time a write of it failed")

    async def recorded(self, run: Run, records: Sequence[Record] | Refusal) -> Refusal | None:
        """Record what a rule led to, and return once it is durable; or return the rule's refusal.

        Raises:
            JournalUnavailable: it may not be durable; the run has to be read again.
        """
        if isinstance(records, Refusal):
            return records
        if records:
            await asyncio.shield(self.record(run, records))
        elif run.pending:
            await run.written()
            if run.is_lost:
                raise JournalUnavailable(f"run {run.state.id} has to be read again after a failed write")
        return None

    def record(
        self, run: Run, records: Sequence[Record], *, lazy: bool = False, claims: Sequence[KeyClaim] = ()
    ) -> asyncio.Future[None]:
        """Fold records into the run now and queue them for the journal; the future is done when they are durable.

        The future fails with `JournalUnavailable` if they may not be; the run is lost then. It is the caller's own: to
        cancel it takes nothing back and disturbs nobody.
        """
        if run.is_lost:
            return self._record_late(run, records, is_lazy=lazy)
        state = run.state
        name, before, phase = state.id, state.version, state.phase
        if name in self._reads:
            records = [*self._take_reads(run), *records]
        if not records:
            return _done()
        if before == 0 and run.opening is not None:
            records = _opened(state, run.opening, records)
        was_open = phase is _PREPARING or state.is_open
        at = self._clock.at()
        entries = [_entry(state, record, at) for record in records]
        future = self._append(run, before, entries, is_lazy=lazy, claims=claims, is_owed=isinstance(records[-1], _OWED))
        if state.in_doubt or name in self._doubtful:
            self._note_doubt(state)
        if state.phase is not phase or before == 0 or (phase is not _PREPARING and state.is_open is not was_open):
            self._changed(run, phase)
        if state.needs_attention or name in self._attentive:
            self._attend(run)
        run.notify()
        return self._follow(future, run, before, records, entries, is_lazy=lazy)

    def _changed(self, run: Run, before: Phase) -> None:
        """The run has come to another phase, or to its end: tell whoever keeps runs by that."""
        state = run.state
        self._telemetry.trajectory_changed(state.id, state.phase.value, state.reason)
        if state.phase is not before:
            self.on_phase(state.id, state.phase)
        if state.is_open:
            self._file(run)
        else:
            self._retire(run)

    def _append(
        self,
        run: Run,
        before: int,
        entries: Sequence[Entry],
        *,
        is_lazy: bool,
        claims: Sequence[KeyClaim] = (),
        is_owed: bool = False,
    ) -> asyncio.Future[None]:
        """Queue entries that were folded into the run, which had the version `before`. Whoever does goes on to `_follow`."""
        state = run.state
        append = Append(state.id, before, entries, state.phase._value_, state.is_open, state.agent, claims, is_owed)
        future = self.journal.append(append, lazy=is_lazy)
        if run.pending:
            run.pending[future] = None
        else:
            run.pending = {future: None}
        return future

    def _follow(
        self,
        future: asyncio.Future[None],
        run: Run,
        before: int,
        records: Sequence[Record],
        entries: Sequence[Entry],
        *,
        is_lazy: bool,
    ) -> asyncio.Future[None]:
        """See to what becomes of an append; the future that is returned is done after that."""
        seen_to: asyncio.Future[None] = future.get_loop().create_future()
        if future.done():  # refused at once: nobody may find the run before it is known to be lost
            self._appended(run, before, records, entries, is_lazy, seen_to, future)
        else:
            future.add_done_callback(partial(self._appended, run, before, records, entries, is_lazy, seen_to))
        return seen_to

    def delivered(self, name: str, number: int) -> None:
        """Note that the agent has the result of a step; an implicit run that is over closes."""
        run = self.get(name)
        if run is None or run.is_lost:
            return
        run.state.delivered(number)
        if run.state.is_implicit and run.state.phase is _FINALIZING:
            self.close_if_done(run, by="pivot")

    def close_if_done(self, run: Run, *, by: str, forget: bool = False) -> bool:
        """Commit a run that nobody will commit, if nothing in it is open: no step in flight, in doubt or undelivered.

        `forget` gives undelivered results up: their caller has not come back for too long.
        """
        state = run.state
        if run.is_lost or run.busy or state.in_flight or state.in_doubt or (state.undelivered and not forget):
            return False
        if state.has_living_approvals or (state.staged and state.pivot is None):
            return False
        if state.phase not in (Phase.PREPARING, Phase.FINALIZING):
            return False
        if state.version == 0:
            self.forget(run)
            return True
        return not isinstance(self.decide(run, Commit(by=by), lazy=True), Refusal)

    def note_refusal(self, name: str, code: Code, tool: str, operation: str) -> None:
        """Count a refusal for the run's audit; `flush_refusals` writes the counts."""
        counts = self._refusals.get(name)
        if counts is None:
            if len(self._refusals) >= _REFUSING_RUNS:
                return
            counts = self._refusals[name] = Counter()
        counts[(code, tool, operation)] += 1

    def note_decision(self, name: str, rule: str, effect: str, operation: str, *, is_shadow: bool) -> None:
        """Count what a rule decided about a call of the run, or would have; written with the refusals."""
        if name in self._decisions or len(self._decisions) < _REFUSING_RUNS:
            self._decisions.setdefault(name, Counter())[(rule, effect, operation, is_shadow)] += 1

    def note_read(self, run: Run, read: Read) -> None:
        """Record a read, lazily. One that does not open the run waits for others, `READS_S` at most."""
        state = run.state
        if run.is_lost or not state.version or not (state.phase is _PREPARING or state.is_open):
            tool, operation, method, path, outcome, status = read
            observed = ReadObserved(
                tool=tool, operation=operation, method=method, path=path, outcome=outcome, status=status
            )
            self.record(run, [observed], lazy=True)
            return
        waiting = self._reads.get(state.id)
        if waiting is None:
            waiting = self._reads[state.id] = []
        waiting.append((*read, self._clock.at()))
        if len(waiting) >= _READS:
            self.record(run, [], lazy=True)
        elif self._reads_timer is None:
            self._reads_timer = asyncio.get_running_loop().call_later(READS_S, self._flush_some_reads)

    def flush_reads(self) -> None:
        """Write the reads that wait, lazily, one record a run."""
        if self._reads_timer is not None:
            self._reads_timer.cancel()
            self._reads_timer = None
        for name in list(self._reads):
            self._write_reads(name)

    def _flush_some_reads(self) -> None:
        """Write the reads of so many runs as one pass of the event loop may take, and go on in the next."""
        for name in list(islice(self._reads, TOGETHER)):
            self._write_reads(name)
        self._reads_timer = None
        if self._reads:
            self._reads_timer = asyncio.get_running_loop().call_later(0, self._flush_some_reads)

    def _write_reads(self, name: str) -> None:
        run = self._runs.get(name)
        if run is None:
            self._reads.pop(name, None)
        elif run.is_lost:
            self._record_late(run, [ReadsObserved(reads=self._reads.pop(name))], is_lazy=True)
        else:
            self.record(run, [], lazy=True)

    def _take_reads(self, run: Run) -> list[Record]:
        reads = self._reads.pop(run.state.id)
        return [ReadsObserved(reads=reads)] if run.state.is_open else []

    def flush_refusals(self) -> None:
        """Write the refusals and decisions counted since the last time, lazily, one record a run; reads that wait, too."""
        self.flush_reads()
        for _ in self.flushing():
            pass

    def flushing(self) -> Iterator[None]:
        """Do what `flush_refusals` does, and yield after each `TOGETHER` runs: whoever has time for calls takes it there.

        Given up half-way, it leaves the rest for the next time.
        """
        for write, waiting in (
            (self._write_reads, self._reads),
            (self._write_refusals, self._refusals),
            (self._write_decisions, self._decisions),
        ):
            names = list(waiting)
            for start in range(0, len(names), TOGETHER):
                for name in names[start : start + TOGETHER]:
                    if name in waiting:
                        write(name)
                yield

    def _write_refusals(self, name: str) -> None:
        counts = self._refusals.pop(name)
        run = self.known(name)
        if run is not None:
            told = [(str(code), tool, operation, count) for (code, tool, operation), count in counts.items()]
            self.record(run, [RefusalsObserved(refusals=told)], lazy=True)

    def _write_decisions(self, name: str) -> None:
        rules = self._decisions.pop(name)
        run = self.known(name)
        if run is not None:
            said = [(*decision, count) for decision, count in rules.items()]
            self.record(run, [PolicyObserved(decisions=said)], lazy=True)

    @property
    def has_aside(self) -> bool:
        """Whether outcomes or observations wait for the journal to work again."""
        return bool(self._aside)

    async def write_aside(self) -> None:
        """Write what was set aside, where the journal allows. Repeatable.

        Raises:
            JournalUnavailable: it still does not work.
            JournalCorrupt: a run cannot be read; what belongs to the others was written.
        """
        broken: JournalCorrupt | None = None
        for name in list(self._aside):
            try:
                await self.find(name)
            except JournalCorrupt as error:
                broken = broken or error
        if broken is not None:
            raise broken

    def _appended(
        self,
        run: Run,
        before: int,
        records: Sequence[Record],
        entries: Sequence[Entry],
        is_lazy: bool,
        seen_to: asyncio.Future[None],
        future: asyncio.Future[None],
    ) -> None:
        pending = run.pending
        pending.pop(future, None)
        if not pending:
            run.pending = NOTHING
        if future.cancelled():
            seen_to.cancel()
            return
        error = future.exception()
        if error is None:
            if not before:
                run.opening = None  # it is written down
            if self._aside and not run.is_lost:
                self._aside.pop(run.state.id, None)  # what hung before this can get there no more
            if not seen_to.done():
                seen_to.set_result(None)
            return
        aside = self._aside.setdefault(run.state.id, Aside())
        aside.failed(before, records, entries, run.state.steps, is_lazy=is_lazy)
        if not run.is_lost:
            run.is_lost = True
            self._closed.pop(run.state.id, None)
            self._telemetry.background_failed(f"journal append to run {run.state.id}", error)
            run.notify()
        if not seen_to.done():
            seen_to.set_exception(error)
            seen_to.exception()  # so that a caller who does not wait is not told off

    def _record_late(self, lost: Run, records: Sequence[Record], *, is_lazy: bool) -> asyncio.Future[None]:
        """Record the outcome of a step that began before its run was lost, or what was observed, in the run read anew, or
        once it is.

        Anything else was decided on what was lost, and has to be decided anew.
        """
        name = lost.state.id
        run = self.known(name)
        observed = [is_observation(record, is_lazy=is_lazy) for record in records]
        is_fit = all(
            is_seen or isinstance(record, _OUTCOMES) for record, is_seen in zip(records, observed, strict=True)
        )
        if run is not None and not run.is_lost and is_fit:
            late: list[Record] = []
            for record in records:
                if not isinstance(record, _OUTCOMES):
                    late.append(record)
                elif _fits(lost, run, record):
                    late += _amounts(run.state, record)
            return self.record(run, late, lazy=is_lazy)
        at = self._clock.at()
        aside = self._aside.setdefault(name, Aside())
        entries = [Entry(kind, at, data) for kind, data in map(encode, records)]
        aside.came_late(records, entries, lost.state.steps, is_lazy=is_lazy)
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failed.set_exception(JournalUnavailable(f"run {name} has to be read again after a failed write"))
        failed.exception()  # so that a caller who does not wait is not told off
        return failed

    def _note_doubt(self, state: Trajectory) -> None:
        if state.in_doubt and state.is_open:
            self._doubtful.add(state.id)
        else:
            self._doubtful.discard(state.id)

    def _file(self, run: Run) -> None:
        name, phase = run.state.id, run.state.phase
        for names in self._phases.values():
            names.discard(name)
        if name in self._runs:
            self._phases[phase].add(name)
        if phase is Phase.COMPENSATING:
            self.on_unwinding(name)

    def _attend(self, run: Run) -> None:
        """Keep the set of runs that need attention, and wake who gives it."""
        state = run.state
        if not state.needs_attention or state.id not in self._runs:
            self._attentive.discard(state.id)
            self._noticed.pop(state.id, None)
            return
        self._attentive.add(state.id)
        if state.phase is Phase.FINALIZING:
            self.on_finalizing(state.id)
        if not state.has_notices:
            self._noticed.pop(state.id, None)
        else:
            self._noticed[state.id] = None
            self.on_notice()

    def _retire(self, run: Run) -> None:
        self._drop(run)
        self._closed[run.state.id] = run
        if len(self._closed) > _CLOSED_KEPT:
            self._closed.popitem(last=False)

    def _drop(self, run: Run) -> None:
        self._runs.pop(run.state.id, None)
        self._doubtful.discard(run.state.id)
        self._attentive.discard(run.state.id)
        self._noticed.pop(run.state.id, None)
        self._file(run)
        siblings = self._implicit.get(run.state.agent)
        if siblings and run in siblings:
            siblings.remove(run)
            if not siblings:
                del self._implicit[run.state.agent]

    # --- reading them back

    async def recover(self) -> list[Run]:
        """Fold every open run, and put in doubt what a crash left in flight. Returns them. Repeatable.

        Raises:
            JournalCorrupt: a record cannot be read, or cannot follow the ones before it; names it.
            JournalUnavailable: the journal cannot be read or written.
        """
        await self.journal.flush()  # what is on its way there is read, too
        found: list[Run] = []
        after = ""
        while heads := await self.journal.open_heads(after, _PAGE):
            for names in _portions(heads):
                found.extend(await self._read_together(names))
            after = heads[-1].stream
        await self.journal.flush()
        return found

    async def _read_together(self, names: Sequence[str]) -> list[Run]:
        """Return runs by name: those that are nowhere in memory with one reading for all of them."""
        unknown = [name for name in names if not self._is_at_hand(name)]
        entries = dict(zip(unknown, await self.journal.read_many(unknown), strict=True))
        runs = []
        for name in names:
            is_nowhere = name in entries and not self._is_at_hand(name)  # nobody has asked for it meanwhile
            runs.append(self._folded(name, entries[name], None) if is_nowhere else await self.find(name))
        return [run for run in runs if run is not None]

    def _is_at_hand(self, name: str) -> bool:
        return name in self._runs or name in self._parking or name in self._closed or name in self._loading

    async def _load(self, name: str) -> Run | None:
        lost = self._runs.get(name)
        if lost is not None and not lost.is_lost:
            return lost
        if lost is not None and lost.pending:
            await lost.written()
        if name.startswith(OWN):
            return None
        entries = await self.journal.read(name)
        made = self.get(name)
        if made is not None and made is not lost:
            return made  # opened by another caller while this one was reading: there is only ever one
        return self._folded(name, entries, lost)

    def _folded(self, name: str, entries: Sequence[Entry], lost: Run | None) -> Run | None:
        """Fold what was read of a run, and put it in its place; `lost`: the one that it takes the place of."""
        if not entries:
            if lost is not None:
                return self._reset(lost)
            self._aside.pop(name, None)  # it was pruned: there is nowhere to write that to
            return None
        state = Trajectory(id=name)
        for number, entry in enumerate(entries, start=1):
            try:
                evolve(state, decode(entry.kind, entry.data), entry.at)
            except (UnknownRecord, IllegalRecord) as error:
                raise JournalCorrupt(f"record {number} of run {name} cannot be used: {error}") from error
        self.has_budgets = self.has_budgets or bool(state.budget)
        run = Run(state, None, self._clock.now(), self._live)
        if not state.is_open:
            if lost is not None:
                self._drop(lost)
            self._closed[name] = run
            if len(self._closed) > _CLOSED_KEPT:
                self._closed.popitem(last=False)
        elif lost is not None:
            self._replace(lost, run)
        else:
            self._runs[name] = run
            if state.is_implicit:
                self._implicit.setdefault(state.agent, []).append(run)
        self._taken_up(run, entries)
        if lost is not None and not state.is_open:
            self.on_phase(name, state.phase)  # the write that ended it was thought to have failed
        return run

    def _reset(self, lost: Run) -> Run:
        """A run whose very first append failed: nothing of it is on disk, so it starts over."""
        state = Trajectory(id=lost.state.id, agent=lost.state.agent, is_implicit=lost.state.is_implicit)
        run = Run(state, lost.opening, self._clock.now(), self._live)
        self._replace(lost, run)
        return self._taken_up(run, [])

    def _taken_up(self, run: Run, on_disk: Sequence[Entry]) -> Run:
        """Bring a run that was read up to what this process knows of it, and put it in its place among the others."""
        self._note_doubt(run.state)
        aside = self._aside.pop(run.state.id, None) or Aside()
        if run.state.is_open and (left := aside.not_there({step.key for step in run.state.steps.values()})):
            self._aside[run.state.id] = left
        self._observe_again(run, aside.missing(on_disk))
        if run.state.is_open:
            self._resolve_flights(run, aside.outcomes)
            self._file(run)
            self._attend(run)
            self.on_read(run)
        return run

    def _replace(self, lost: Run, run: Run) -> None:
        name = lost.state.id
        run.busy, run.flying, run.parent = lost.busy, lost.flying, lost.parent
        self._runs[name] = run
        siblings = self._implicit.get(lost.state.agent, [])
        for index, sibling in enumerate(siblings):
            if sibling is lost:
                siblings[index] = run

    def _observe_again(self, run: Run, observations: Sequence[Observation]) -> None:
        """Write observations as the entries that they were, so that they are recognised wherever they turn up."""
        if not observations:
            return
        if run.state.version == 0 and run.opening is not None:
            self.decide(run, run.opening, lazy=True)
        state, before = run.state, run.state.version
        for observation in observations:
            evolve(state, observation.record, observation.entry.at)
        records = [observation.record for observation in observations]
        entries = [observation.entry for observation in observations]
        future = self._append(run, before, entries, is_lazy=True)
        self._follow(future, run, before, records, entries, is_lazy=True)

    def _resolve_flights(self, run: Run, outcomes: Mapping[str, Ended]) -> None:
        """Write what is known of steps that the journal shows in flight, and put the rest in doubt; reads that wait, too."""
        known: list[Record] = []
        for number in sorted(run.state.in_flight | run.state.in_doubt):
            step = run.state.steps[number]
            outcome = outcomes.get(step.key)
            if step.state is StepState.IN_DOUBT and not isinstance(outcome, StepCommitted | StepFailed):
                continue
            if outcome is not None:
                known += _amounts(run.state, replace(outcome, step=number))
            elif number not in run.busy:
                known.append(_crashed(number))
        self.record(run, known)


def _held_by_one() -> int:
    """Return what `sys.getrefcount` says of something that one collection and one variable have."""
    kept = [object()]
    (one,) = kept
    return sys.getrefcount(one)


_HELD_BY_ONE: Final = _held_by_one()


def _is_any_part_held(run: Run) -> bool:
    """Whether somebody has the state of a run, its watchdog, its meter or one of its steps in a variable, without the run.

    Who has one across a wait, and the run was parked meanwhile, would go on with what is no longer the run's.
    """
    state, watch, meter = run.state, run.watch, run.meter
    if sys.getrefcount(state) > _HELD_BY_ONE:
        return True
    if watch is not None and sys.getrefcount(watch) > _HELD_BY_ONE:
        return True
    if meter is not None and sys.getrefcount(meter) > _HELD_BY_ONE:
        return True
    return any(sys.getrefcount(step) > _HELD_BY_ONE for step in state.steps.values())


def _portions(heads: Iterable[Head]) -> Iterator[list[str]]:
    """Give the names of agents' runs in portions that may be folded in one pass of the event loop."""
    names: list[str] = []
    records = 0
    for head in heads:
        if head.stream.startswith(OWN):
            continue
        names.append(head.stream)
        records += head.version
        if len(names) == TOGETHER or records >= _RECORDS_TOGETHER:
            yield names
            names, records = [], 0
    if names:
        yield names


def _intended(staged: StepStaged) -> StepIntended:
    """A staged step is intended in the same words, only that it is not sent yet."""
    return StepIntended(
        step=staged.step,
        tool=staged.tool,
        operation=staged.operation,
        tier=staged.tier,
        action=staged.action,
        fingerprint=staged.fingerprint,
        occurrence=staged.occurrence,
        key=staged.key,
        method=staged.method,
        target=staged.target,
        is_idempotent=staged.is_idempotent,
        caller=staged.caller,
        request=staged.request,
    )


def _amounts(state: Trajectory, record: Ended) -> list[Record]:
    """Return what an outcome amounts to in a run that was read anew: past its pivot a failure is not the end of a step."""
    return outcome_records(state, record, is_ours=record.step in state.released)


def _crashed(number: int) -> StepInDoubt:
    return StepInDoubt(
        step=number, fault="crash", detail="the gateway stopped after the intent was written and before the outcome was"
    )


def _done() -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future


def _fits(lost: Run, run: Run, record: Ended) -> bool:
    before, now = lost.state.steps.get(record.step), run.state.steps.get(record.step)
    if before is None or now is None or before.key != now.key:
        return False
    is_doubtful = now.state is StepState.IN_DOUBT and not isinstance(record, StepInDoubt)
    return now.state is StepState.INTENDED or is_doubtful


def _opened(state: Trajectory, opening: Open, records: Sequence[Record]) -> Sequence[Record]:
    """Return the first records of a run, with that of its opening at their head."""
    if isinstance(records[0], TrajectoryOpened):
        return records
    opened = decide(state, opening)
    return records if isinstance(opened, Refusal) else [*opened, *records]


def _entry(state: Trajectory, record: Record, at: int) -> Entry:
    """Fold a record into the state and return it as the journal keeps it.

    The envelope says which step it is about, and where that goes.
    """
    evolve(state, record, at)
    kind, data = encode(record)
    step = state.steps.get(getattr(record, "step", 0))
    if step is None:
        return Entry(kind, at, data)
    return Entry(kind, at, data, f"{state.id}/{step.number}", f"{step.tool}.{step.operation}")
