"""What is contained: runs and agents that are quarantined, artifacts marked because of it, claims held for want of proof.

It is the fold of one stream of records beside those of the runs, because the order of touches over all runs is what taint
follows, and because a run that is long over can still be found to be bad. A `QuarantineSet` record is the tombstone: sealed
in the journal like every record, so that nobody can take it back unseen; lifting it is a record of its own.

A quarantine holds the tasks, too, that its run has handed on since the step from which it is bad, and what they hand on:
whoever does such a task does what a quarantined run has asked for. A task is an artifact like any other (`task:ID`), written
by the run that opens it, so what the marks say of it decides, and clearing it or lifting the quarantine lets go of it.

Quarantining what is quarantined, lifting what is lifted and clearing what is clear change nothing.

Source: seed 000, "The four-stage quarantine protocol".
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, assert_never

import orjson

from gateway.core.codes import Code
from gateway.core.hold import ClaimAccepted, ClaimHeld, ClaimReleased, Claims, EpochBegan
from gateway.core.outcome import Refusal
from gateway.core.taint import Artifact, Edge, Lineage, Taint

__all__ = [
    "STREAM",
    "ArtifactCleared",
    "ArtifactsTouched",
    "BadRecord",
    "Containment",
    "ContainmentRecord",
    "Measure",
    "Quarantine",
    "QuarantineLifted",
    "QuarantineMeasured",
    "QuarantineSet",
    "TouchSettled",
    "Trigger",
    "apply",
    "artifact_view",
    "clear",
    "contain",
    "decode",
    "encode",
    "lift",
    "quarantine_view",
    "task_artifact",
]

_GENERATIONS: Final = 16
"""So many tasks, one handed on by the next, are followed (as many as spend together, `journal/trajectories.py`): names are
agents' own, and may go in circles."""

STREAM: Final = "~containment"
"""The journal's stream; no run can have a name that begins so."""


class Trigger(StrEnum):
    """Who found that something has to be contained."""

    RULE = "rule"
    WATCHDOG = "watchdog"
    OPERATOR = "operator"
    DETECTOR = "detector"
    GATEWAY = "gateway"


class Measure(StrEnum):
    """The four stages of a quarantine. None waits for another."""

    SUSPEND = "suspend"
    REVOKE = "revoke"
    SEVER = "sever"
    TAINT = "taint"


class BadRecord(ValueError):
    """A record of a kind or shape that this release does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactsTouched:
    """A call of a run reads and writes artifacts. Written before it leaves; `step` is the run's next one."""

    run: str
    agent: str
    step: int
    operation: str
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    digest: str | None = None
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchSettled:
    """What became of a touch (the record at position `touch`): its real step, and whether it certainly had no effect."""

    touch: int
    run: str
    step: int | None = None
    digest: str | None = None
    has_effect: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineSet:
    """The tombstone of a run (what it made since step `since`), of an agent with all its runs, or of a run whose agent is
    kept out too, because it could only go on in another one."""

    quarantine: str
    trigger: str
    by: str
    reason: str
    run: str = ""
    agent: str = ""
    since: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineMeasured:
    """One stage of a quarantine is done (or failed, as `problem` says), so many microseconds after the trigger."""

    quarantine: str
    measure: str
    us: int
    detail: str = ""
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineLifted:
    """Somebody found that it was a false alarm, or that it is over: every mark of it is taken back."""

    quarantine: str
    by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactCleared:
    """A declared verifier or an operator found the artifact to be good."""

    artifact: str
    by: str
    reason: str


ContainmentRecord = (
    ArtifactsTouched
    | TouchSettled
    | QuarantineSet
    | QuarantineMeasured
    | QuarantineLifted
    | ArtifactCleared
    | EpochBegan
    | ClaimAccepted
    | ClaimHeld
    | ClaimReleased
)

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in ContainmentRecord.__args__}
_FIELDS = {kind: frozenset(f.name for f in fields(kind)) for kind in _KINDS.values()}
_REQUIRED = {
    kind: frozenset(f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING)
    for kind in _KINDS.values()
}


def encode(record: ContainmentRecord) -> tuple[str, bytes]:
    """Return the kind and the body of a record, as the journal stores them."""
    return type(record).__name__, orjson.dumps(record)


def decode(kind: str, data: bytes) -> ContainmentRecord:
    """Return the record that `encode` wrote, in this or any earlier release.

    Raises:
        BadRecord: the kind is unknown, or the body is not that of such a record.
    """
    cls = _KINDS.get(kind)
    if cls is None:
        raise BadRecord(f"record kind {kind!r} is not known to this release; was the journal written by a newer one?")
    try:
        values = orjson.loads(data)
        if missing := _REQUIRED[cls] - values.keys():
            raise BadRecord(f"a {kind} record lacks {', '.join(sorted(missing))}")
        record: ContainmentRecord = cls(**{name: value for name, value in values.items() if name in _FIELDS[cls]})
    except (ValueError, TypeError, AttributeError) as error:
        if isinstance(error, BadRecord):
            raise
        raise BadRecord(f"a {kind} record cannot be read: {type(error).__name__}") from error
    return record


@dataclass(slots=True)
class Quarantine:
    """One quarantine. `measures`: each stage as it was done."""

    told: QuarantineSet
    at: int
    measures: dict[str, QuarantineMeasured] = field(default_factory=dict)
    lifted: QuarantineLifted | None = None
    lifted_at: int = 0

    @property
    def is_in_force(self) -> bool:
        """Whether it still holds."""
        return self.lifted is None


@dataclass(slots=True)
class Containment:
    """The state of it all.

    Attributes:
        version: records folded so far.
        runs, agents: what is quarantined, with the names of the quarantines in force.
        lineage: artifacts and their marks.
        claims: what other agents say, and what is held for want of proof.
    """

    version: int = 0
    quarantines: dict[str, Quarantine] = field(default_factory=dict)
    runs: dict[str, list[str]] = field(default_factory=dict)
    agents: dict[str, list[str]] = field(default_factory=dict)
    lineage: Lineage = field(default_factory=Lineage)
    claims: Claims = field(default_factory=Claims)

    def holds(self, run: str, agent: str) -> str | None:
        """Return the quarantine that a run or its agent is under, or, of a task, who has handed it on; None if none is."""
        names = self.runs.get(run) or self.agents.get(agent)
        return names[0] if names else self._handed_on_by(run)

    def held_tasks(self, quarantine: str) -> list[str]:
        """Return the runs of the tasks that a quarantine holds because of who has handed them on."""
        return [run for run in self.lineage.contaminated(quarantine) if self._handed_on_by(run) is not None]

    def _handed_on_by(self, run: str) -> str | None:
        """Tainted: a quarantined run has handed the task on. Suspect: somebody did who had touched what is bad; if that was
        the work of a task itself, that one decides."""
        for _ in range(_GENERATIONS):
            artifact = self.lineage.artifacts.get(task_artifact(run))
            if artifact is None or not artifact.marks:
                return None
            taint, producer = artifact.taint, artifact.producer
            if taint is Taint.TAINTED:
                return min(
                    name
                    for name, mark in artifact.marks.items()
                    if mark.cleared_by is None and mark.level is Taint.TAINTED
                )
            if taint is not Taint.SUSPECT or producer is None:
                return None
            run = producer.run
        return None


def task_artifact(task: str) -> str:
    """Return the name of the artifact that a task is: its parent writes it, its own run reads it."""
    return f"task:{task}"


def apply(state: Containment, record: ContainmentRecord, at: int) -> None:
    """Fold one record into the state, which is changed. What refers to something unknown changes nothing."""
    state.version += 1
    match record:
        case ArtifactsTouched():
            _touched(state, record, at)
        case TouchSettled():
            state.lineage.settle(
                record.touch, record.run, step=record.step, digest=record.digest, has_effect=record.has_effect
            )
        case QuarantineSet():
            state.quarantines[record.quarantine] = Quarantine(record, at)
            for names, subject in ((state.runs, record.run), (state.agents, record.agent)):
                if subject:
                    names.setdefault(subject, []).append(record.quarantine)
            agent = "" if record.run else record.agent
            state.lineage.contain(record.quarantine, run=record.run, agent=agent, since=record.since)
        case QuarantineMeasured():
            if (known := state.quarantines.get(record.quarantine)) is not None:
                known.measures[record.measure] = record
        case QuarantineLifted():
            _lifted(state, record, at)
        case EpochBegan() | ClaimAccepted() | ClaimHeld() | ClaimReleased():
            state.claims.fold(record, at)
        case ArtifactCleared():
            if record.artifact in state.lineage.artifacts:
                state.lineage.clear(record.artifact, record.by)
        case _ as never:
            assert_never(never)


def _touched(state: Containment, record: ArtifactsTouched, at: int) -> None:
    for names, is_write in ((record.reads, False), (record.writes, True)):
        for name in names:
            state.lineage.touch(
                Edge(
                    order=state.version,
                    artifact=name,
                    run=record.run,
                    agent=record.agent,
                    step=record.step,
                    is_write=is_write,
                    operation=record.operation,
                    digest=record.digest if is_write else None,
                    epoch=record.epoch,
                    at=at,
                )
            )


def _lifted(state: Containment, record: QuarantineLifted, at: int) -> None:
    known = state.quarantines.get(record.quarantine)
    if known is None or not known.is_in_force:
        return
    known.lifted, known.lifted_at = record, at
    for names, subject in ((state.runs, known.told.run), (state.agents, known.told.agent)):
        if subject:
            names[subject].remove(record.quarantine)
            if not names[subject]:
                del names[subject]
    state.lineage.lift(record.quarantine)


# --- what leads to records


def contain(
    state: Containment, *, run: str, agent: str, since: int, trigger: Trigger, by: str, reason: str
) -> list[ContainmentRecord] | Refusal:
    """Return the tombstone of a run, of an agent, or of both; none where it is quarantined from as early on."""
    if not run and not agent:
        return Refusal(code=Code.INVALID_ARGUMENTS, detail="Nothing was quarantined: name a run, or an agent.")
    held = state.runs.get(run, ()) if run else state.agents.get(agent, ())
    if any(_covers(state.quarantines[name].told, agent, since) for name in held):
        return []
    return [
        QuarantineSet(
            quarantine=f"q{state.version + 1}",
            trigger=trigger.value,
            by=by,
            reason=reason,
            run=run,
            agent=agent,
            since=since,
        )
    ]


def _covers(told: QuarantineSet, agent: str, since: int) -> bool:
    return told.since <= since and (not agent or told.agent == agent)


def lift(state: Containment, quarantine: str, by: str, reason: str) -> list[ContainmentRecord] | Refusal:
    """Return the record that ends a quarantine; none where it is over."""
    known = state.quarantines.get(quarantine)
    if known is None:
        return Refusal(
            code=Code.UNKNOWN_INCIDENT,
            detail=f"No quarantine is called {quarantine[:64]!r}. `seawall quarantine ls` lists those in force.",
        )
    if not known.is_in_force:
        return []
    return [QuarantineLifted(quarantine=quarantine, by=by, reason=reason)]


def clear(state: Containment, artifact: str, by: str, reason: str) -> list[ContainmentRecord] | Refusal:
    """Return the record that clears an artifact; none where nothing is wrong with it."""
    known = state.lineage.artifacts.get(artifact)
    if known is None:
        return Refusal(
            code=Code.INVALID_ARGUMENTS,
            detail=f"No artifact is called {artifact[:200]!r}. `seawall taint ls` lists those that are marked.",
        )
    if known.taint not in (Taint.TAINTED, Taint.SUSPECT):
        return []
    return [ArtifactCleared(artifact=artifact, by=by, reason=reason)]


# --- as people see it


def quarantine_view(state: Containment, quarantine: Quarantine) -> dict[str, object]:
    """Return a quarantine as plain values: why, how quickly each stage was done, and what it reaches. Times are UTC
    milliseconds, latencies milliseconds after the trigger."""
    told = quarantine.told
    marked = state.lineage.marked(told.quarantine)
    return {
        "id": told.quarantine,
        "state": "in force" if quarantine.is_in_force else "lifted",
        "trajectory": told.run or None,
        "agent": told.agent or None,
        "since_step": told.since,
        "trigger": told.trigger,
        "by": told.by,
        "reason": told.reason,
        "at": quarantine.at,
        "stages": {
            measure.value: None
            if (one := quarantine.measures.get(measure.value)) is None
            else {"ms": one.us / 1000, "detail": one.detail or None, "problem": one.problem}
            for measure in Measure
        },
        "artifacts": {
            level.value: sorted(one.name for one in marked if one.taint is level)
            for level in (Taint.TAINTED, Taint.SUSPECT, Taint.CLEARED)
        },
        "contaminated": state.lineage.contaminated(told.quarantine),
        "held_tasks": state.held_tasks(told.quarantine),
        "lifted_by": None if quarantine.lifted is None else quarantine.lifted.by,
        "lifted_at": quarantine.lifted_at or None,
    }


def artifact_view(artifact: Artifact) -> dict[str, object]:
    """Return an artifact as plain values."""
    producer = artifact.producer
    return {
        "artifact": artifact.name,
        "taint": artifact.taint.value,
        "digest": None if producer is None else producer.digest,
        "producer": None if producer is None else producer.run,
        "step": None if producer is None else producer.step,
        "epoch": None if producer is None else producer.epoch,
        "quarantines": sorted(artifact.marks),
        "cleared_by": sorted({mark.cleared_by for mark in artifact.marks.values() if mark.cleared_by is not None}),
    }
