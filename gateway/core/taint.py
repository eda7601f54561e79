"""Who made which artifact out of what, and what must not be touched because of it.

An artifact is anything that a manifest gives a name: a file, a branch, a row, a message. A run that writes one makes an edge
to it, a run that reads one an edge from it; edges are in the order in which the gateway saw them, over all runs.

A quarantine of a run from step t taints what the run wrote since. Whoever read a tainted artifact after it was written is
contaminated from there on: what it wrote since, and will write, is suspect, and so on along the edges.

        untainted ──(written by a quarantined run)──► tainted ──(verifier, operator)──► cleared
            └──────(written by a contaminated run)──► suspect ──(verifier, operator)──► cleared

Nobody else may touch what is tainted or suspect; the run that wrote a suspect artifact last may go on with it. A write by
a clean run does not make an artifact clean: it is refused like a read, until somebody has looked. A cleared artifact that a
contaminated run writes again is suspect again. Lifting a quarantine, which says that it was a false alarm, takes back all
its marks. The agent's own word never does.

The number of edges kept is bounded: the oldest ones of artifacts that nothing is wrong with are forgotten first.

Source: seed 000, "Dynamic taint tracking" (the states, the graph, who may clear); King & Chen, "Backtracking Intrusions",
SOSP 2003 (edges by order of events).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import Final

__all__ = ["EDGES_LIMIT", "Artifact", "Blocked", "Edge", "Lineage", "Taint"]

EDGES_LIMIT: Final = 200_000
"""Edges kept, at about 200 bytes each."""


class Taint(StrEnum):
    """What is known of an artifact."""

    UNTAINTED = "untainted"
    SUSPECT = "suspect"
    TAINTED = "tainted"
    CLEARED = "cleared"


@dataclass(slots=True, eq=False)
class Edge:
    """One touch. `order` is over all runs; `step` the run's step that touched it, of a read the last one before it."""

    order: int
    artifact: str
    run: str
    agent: str
    step: int
    is_write: bool
    operation: str = ""
    digest: str | None = None
    epoch: int = 0
    at: int = 0


@dataclass(slots=True)
class Mark:
    """Why an artifact is tainted or suspect: since which edge. `cleared_by` took it off."""

    level: Taint
    since: int
    cleared_by: str | None = None


@dataclass(slots=True)
class Artifact:
    """An artifact and everything known of it. `marks` are by the name of the quarantine."""

    name: str
    edges: deque[Edge] = field(default_factory=deque)
    marks: dict[str, Mark] = field(default_factory=dict)

    @property
    def taint(self) -> Taint:
        """What is known of it."""
        left = {mark.level for mark in self.marks.values() if mark.cleared_by is None}
        if Taint.TAINTED in left:
            return Taint.TAINTED
        if Taint.SUSPECT in left:
            return Taint.SUSPECT
        return Taint.CLEARED if self.marks else Taint.UNTAINTED

    @property
    def producer(self) -> Edge | None:
        """Its last write."""
        return next((edge for edge in reversed(self.edges) if edge.is_write), None)


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why a run may not touch an artifact."""

    artifact: str
    taint: Taint
    quarantines: tuple[str, ...]


@dataclass(slots=True)
class _Spread:
    """How far a quarantine reaches: its own runs (from a step on), and the contaminated ones (from an edge on)."""

    since: dict[str, int] = field(default_factory=dict)
    agent: str = ""
    contaminated: dict[str, int] = field(default_factory=dict)

    def is_own(self, edge: Edge) -> bool:
        since = self.since.get(edge.run)
        if since is None and self.agent and edge.agent == self.agent:
            since = 0
        return since is not None and edge.step >= since


class Lineage:
    """All artifacts, and the marks on them. Changed by `touch`, `settle`, `contain`, `lift` and `clear` alone."""

    def __init__(self, *, limit: int = EDGES_LIMIT) -> None:
        self.artifacts: dict[str, Artifact] = {}
        self._runs: dict[str, deque[Edge]] = {}
        self._edges: deque[Edge] = deque()
        self._kept: list[Edge] = []  # older than all of `_edges`, and marked
        self._spreads: dict[str, _Spread] = {}
        self._limit = limit

    def __len__(self) -> int:
        return len(self._kept) + len(self._edges)

    # --- what happens

    def touch(self, edge: Edge) -> None:
        """Add an edge, the latest so far, and what follows from it."""
        artifact = self.artifacts.setdefault(edge.artifact, Artifact(edge.artifact))
        artifact.edges.append(edge)
        self._runs.setdefault(edge.run, deque()).append(edge)
        self._edges.append(edge)
        for name, spread in self._spreads.items():
            self._follow(name, spread, edge)
        if len(self._edges) > self._limit:
            self._forget()

    def settle(self, order: int, run: str, *, step: int | None, digest: str | None, has_effect: bool) -> None:
        """Correct the edges of one record: the step's real number and digest; one without effect is no write at all."""
        moved = []
        for edge in reversed(self._runs.get(run, ())):
            if edge.order < order:
                break
            if edge.order != order:
                continue
            if step is not None and edge.step != step:
                moved.append(edge)
            edge.step = edge.step if step is None else step
            edge.digest = digest or edge.digest
            edge.is_write = edge.is_write and has_effect
        if moved:
            for name, spread in self._spreads.items():
                self._follow_from(name, spread, moved)

    def contain(self, quarantine: str, *, run: str = "", agent: str = "", since: int = 0) -> None:
        """Mark what a run made since a step, or an agent at any time, and all that was made from it."""
        spread = self._spreads[quarantine] = _Spread({run: since} if run else {}, agent)
        known = self._runs.values() if agent else (self._runs.get(run, ()),)
        self._follow_from(quarantine, spread, (edge for edges in known for edge in edges if spread.is_own(edge)))

    def lift(self, quarantine: str) -> None:
        """Take back every mark of a quarantine."""
        self._spreads.pop(quarantine, None)
        for artifact in self.artifacts.values():
            artifact.marks.pop(quarantine, None)

    def clear(self, artifact: str, by: str) -> None:
        """Take the marks off an artifact that somebody has looked at. Whoever read it stays contaminated."""
        for mark in self.artifacts[artifact].marks.values():
            mark.cleared_by = mark.cleared_by or by

    # --- what follows

    def blocked(self, artifacts: Iterable[str], run: str) -> list[Blocked]:
        """Return those artifacts that a run may not touch, and why."""
        found = []
        for name in artifacts:
            artifact = self.artifacts.get(name)
            if artifact is None or not artifact.marks:
                continue
            taint = artifact.taint
            if taint not in (Taint.TAINTED, Taint.SUSPECT):
                continue
            producer = artifact.producer
            if taint is Taint.SUSPECT and producer is not None and producer.run == run:
                continue
            why = tuple(sorted(one for one, mark in artifact.marks.items() if mark.cleared_by is None))
            found.append(Blocked(name, taint, why))
        return found

    def is_known_read(self, artifact: str, run: str) -> bool:
        """Whether the last that happened to an artifact is that this run read it, so that reading it again adds nothing."""
        known = self.artifacts.get(artifact)
        last = None if known is None or not known.edges else known.edges[-1]
        return last is not None and last.run == run and not last.is_write

    def contaminated(self, quarantine: str) -> list[str]:
        """Return the runs that read what a quarantined run made, or what was made from that."""
        spread = self._spreads.get(quarantine)
        return [] if spread is None else sorted(spread.contaminated)

    def marked(self, quarantine: str) -> list[Artifact]:
        """Return the artifacts that a quarantine has marked."""
        return [artifact for artifact in self.artifacts.values() if quarantine in artifact.marks]

    def around(self, run: str) -> list[Edge]:
        """Return a run's edges and, transitively, those of what was made from its artifacts, in order."""
        reached = {run: 0}
        live: dict[str, int] = {}
        found = []
        for edge in chain(self._kept, self._edges):
            if edge.run == run or (edge.run in reached and edge.order >= reached[edge.run]):
                found.append(edge)
                if edge.is_write:
                    live.setdefault(edge.artifact, edge.order)
            elif edge.artifact in live:
                found.append(edge)
                if not edge.is_write:
                    reached.setdefault(edge.run, edge.order)
        return found

    def _follow_from(self, name: str, spread: _Spread, edges: Iterable[Edge]) -> None:
        """Follow some edges, and all that they lead to, in order: what is reached is what it costs, not all there is."""
        waiting = [(edge.order, id(edge), edge) for edge in edges]
        heapify(waiting)
        seen: set[int] = set()
        while waiting:
            order, number, edge = heappop(waiting)
            if number in seen:
                continue
            seen.add(number)
            for later in self._follow(name, spread, edge):
                if later.order <= order:
                    break
                heappush(waiting, (later.order, id(later), later))

    def _follow(self, name: str, spread: _Spread, edge: Edge) -> Iterator[Edge]:
        """See what one edge means to one quarantine. Returns the edges that this may mean something to, the newest first."""
        if spread.is_own(edge):
            if edge.is_write and self._mark(name, edge, Taint.TAINTED):
                return reversed(self.artifacts[edge.artifact].edges)
            return iter(())
        if edge.is_write:
            since = spread.contaminated.get(edge.run)
            if since is not None and edge.order > since and self._mark(name, edge, Taint.SUSPECT):
                return reversed(self.artifacts[edge.artifact].edges)
            return iter(())
        mark = self.artifacts[edge.artifact].marks.get(name)
        if mark is None or mark.since >= edge.order or mark.cleared_by is not None:
            return iter(())
        if spread.contaminated.get(edge.run, edge.order + 1) <= edge.order:
            return iter(())
        spread.contaminated[edge.run] = edge.order
        return reversed(self._runs[edge.run])

    def _mark(self, name: str, edge: Edge, level: Taint) -> bool:
        """Mark what an edge has written. Returns whether it is marked from there on, which it was not before."""
        marks = self.artifacts[edge.artifact].marks
        mark = marks.get(name)
        if mark is None or (mark.cleared_by is not None and edge.order > mark.since):
            marks[name] = Mark(level, edge.order)
            return True
        if level is Taint.TAINTED and mark.level is Taint.SUSPECT:
            marks[name] = Mark(level, mark.since)
        return False

    def _forget(self) -> None:
        """Drop the oldest edge of an artifact without marks; the edges of marked ones are kept."""
        while self._edges:
            edge = self._edges.popleft()
            artifact = self.artifacts[edge.artifact]
            if artifact.marks:
                self._kept.append(edge)
                continue
            artifact.edges.remove(edge)
            if not artifact.edges:
                del self.artifacts[edge.artifact]
            edges = self._runs[edge.run]
            edges.remove(edge)
            if not edges:
                del self._runs[edge.run]
            return
