"""What memory knows of a run and its stream may lack, because an append failed: kept until the run is read anew.

Two things are kept. *Outcomes* of steps, the newest of each, by the step's key; a step whose intent could not be written
never left, and has the fault `unsent`. *Observations*, which nobody decided on and nobody waits for: reads, refusals,
metered usage, blocked content, and whatever of a watchdog's was written lazily. What somebody waited for is not kept: it
failed to their face, and they decide anew.

Whether a failed append is on disk after all is unknown, and one that hung may get there even after the run was read. So an
observation keeps its entry, time and all, and is written again as the very same entry: those that are found in the stream
beyond what was durable before are not written twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.core.records import (
    BudgetTightened,
    ChildSettled,
    ContentBlocked,
    LeaseEnded,
    LeaseTaken,
    LoopInterrupted,
    MetricsReported,
    PolicyObserved,
    ReadObserved,
    ReadsObserved,
    Record,
    RefusalsObserved,
    StateReported,
    StepCommitted,
    StepDeferred,
    StepFailed,
    StepInDoubt,
    StepIntended,
    StepReleased,
    UsageReported,
    encode,
)
from gateway.core.trajectory import UNSENT_FAULT, Step
from gateway.journal import Entry

__all__ = ["Aside", "Ended", "Observation", "is_observation"]

Ended = StepCommitted | StepFailed | StepInDoubt
"""How a step ended."""

KEPT = 1024
"""Observations of one run that are kept, less what counts against it: an audit may have a gap, a budget may not."""

_AUDIT = (ReadObserved, ReadsObserved, RefusalsObserved, PolicyObserved, LeaseTaken, LeaseEnded)
_WHERE_LAZY = (LoopInterrupted, StateReported, MetricsReported)


def is_observation(record: Record, *, is_lazy: bool) -> bool:
    """Whether a record tells what was seen, and is not asked for again by whoever saw it.

    An agent's report of usage is one if it carries a name, by which its repeat is recognised.
    """
    if isinstance(record, UsageReported):
        return record.source == "gateway" or record.report is not None
    return isinstance(record, (*_AUDIT, BudgetTightened, ChildSettled, ContentBlocked)) or (
        is_lazy and isinstance(record, _WHERE_LAZY)
    )


@dataclass(frozen=True, slots=True)
class Observation:
    """An observation and the entry that it is in the stream, or would be; `is_tried`: an append of it failed."""

    record: Record
    entry: Entry
    is_tried: bool


class Aside:
    """What is kept of one run. `outcomes` are by the key of their step: its number may be another one's on disk."""

    __slots__ = ("_observed", "_since", "outcomes")

    def __init__(self, outcomes: Mapping[str, Ended] | None = None) -> None:
        self.outcomes: dict[str, Ended] = dict(outcomes or {})
        self._observed: list[Observation] = []
        self._since: int | None = None

    def __bool__(self) -> bool:
        return bool(self.outcomes or self._observed)

    def failed(
        self,
        expected: int,
        records: Sequence[Record],
        entries: Sequence[Entry],
        steps: Mapping[int, Step],
        *,
        is_lazy: bool,
    ) -> None:
        """Keep what counts of an append that failed; `expected` is the version it was to follow, `steps` are the run's."""
        self._since = expected if self._since is None else min(self._since, expected)
        for record in records:
            if isinstance(record, StepIntended | StepReleased) and not is_lazy:
                self.outcomes[steps[record.step].key] = StepFailed(
                    step=record.step, fault=UNSENT_FAULT, detail="never sent: its intent could not be written"
                )
        self._keep(records, entries, steps, is_lazy=is_lazy, is_tried=True)

    def came_late(
        self, records: Sequence[Record], entries: Sequence[Entry], steps: Mapping[int, Step], *, is_lazy: bool
    ) -> None:
        """Keep what counts of records that came when their run was lost already, and were never tried."""
        self._keep(records, entries, steps, is_lazy=is_lazy, is_tried=False)

    def _keep(
        self,
        records: Sequence[Record],
        entries: Sequence[Entry],
        steps: Mapping[int, Step],
        *,
        is_lazy: bool,
        is_tried: bool,
    ) -> None:
        for record, entry in zip(records, entries, strict=True):
            if isinstance(record, StepDeferred):
                record = StepFailed(step=record.step, fault=record.fault, detail=record.detail, status=record.status)
            if isinstance(record, Ended):
                self.outcomes[steps[record.step].key] = record
            elif is_observation(record, is_lazy=is_lazy) and (
                len(self._observed) < KEPT or not isinstance(record, _AUDIT)
            ):
                self._observe(Observation(record, entry, is_tried))

    def _observe(self, observation: Observation) -> None:
        """Keep an observation. What was metered, and never tried, adds up: it comes for as long as the disk is full."""
        last = self._observed[-1] if self._observed else None
        if last is not None and _is_sum(last) and _is_sum(observation):
            observation = _added(last, observation)
            self._observed.pop()
        self._observed.append(observation)

    def not_there(self, keys: Collection[str]) -> Aside:
        """Return what has to be kept on although the run was read: outcomes of steps whose intents may get there yet."""
        return Aside({key: outcome for key, outcome in self.outcomes.items() if key not in keys})

    def missing(self, on_disk: Sequence[Entry]) -> list[Observation]:
        """Return the observations that a stream lacks, oldest first."""
        beyond = on_disk[len(on_disk) if self._since is None else self._since :]
        there = Counter((entry.kind, entry.at, entry.data) for entry in beyond)
        missing = []
        for observation in self._observed:
            entry = observation.entry
            identity = (entry.kind, entry.at, entry.data)
            if observation.is_tried and there[identity] > 0:
                there[identity] -= 1
            else:
                missing.append(observation)
        return missing


def _is_sum(observation: Observation) -> bool:
    record = observation.record
    return not observation.is_tried and isinstance(record, UsageReported) and record.report is None


def _added(first: Observation, second: Observation) -> Observation:
    assert isinstance(first.record, UsageReported)
    assert isinstance(second.record, UsageReported)
    values = Counter(first.record.values)
    values.update(second.record.values)
    record = replace(second.record, values=dict(values))
    return Observation(record, Entry(second.entry.kind, second.entry.at, encode(record)[1]), is_tried=False)
