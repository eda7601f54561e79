"""Taint: what a quarantined run made, and what others made from it."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.core.taint import Edge, Lineage, Taint


class Story:
    """`writes("bad", 2, "a")`, `reads("peer", 1, "a")`, in order."""

    def __init__(self, limit: int = 1000) -> None:
        self.lineage = Lineage(limit=limit)
        self.order = 0

    def writes(self, run: str, step: int, *names: str, agent: str = "x") -> int:
        return self._touch(run, step, names, is_write=True, agent=agent)

    def reads(self, run: str, step: int, *names: str, agent: str = "x") -> int:
        return self._touch(run, step, names, is_write=False, agent=agent)

    def _touch(self, run: str, step: int, names: tuple[str, ...], *, is_write: bool, agent: str) -> int:
        self.order += 1
        for name in names:
            self.lineage.touch(Edge(self.order, name, run, agent, step, is_write))
        return self.order

    def taints(self) -> dict[str, str]:
        return {name: one.taint.value for name, one in self.lineage.artifacts.items() if one.marks}


def seed() -> Story:
    """A bad run writes a before and b after it went bad; a peer reads b and writes c; a third reads c and writes d."""
    story = Story()
    story.writes("bad", 1, "a")
    story.writes("bad", 3, "b")
    story.reads("other", 1, "a")
    story.reads("peer", 1, "b")
    story.writes("peer", 2, "c")
    story.reads("third", 0, "c")
    story.writes("third", 1, "d")
    story.writes("other", 2, "e")
    return story


def test_what_was_made_since_is_tainted_and_what_came_of_it_is_suspect() -> None:
    story = seed()
    story.lineage.contain("q1", run="bad", since=2)
    assert story.taints() == {"b": "tainted", "c": "suspect", "d": "suspect"}
    assert story.lineage.contaminated("q1") == ["peer", "third"]


def test_the_order_of_events_decides() -> None:
    """Who read it before it was spoilt, or wrote before reading, has nothing to do with it."""
    story = Story()
    story.writes("bad", 1, "a")
    story.reads("early", 1, "a")
    story.writes("peer", 1, "made before")
    story.writes("bad", 2, "a")
    story.reads("peer", 1, "a")
    story.writes("early", 2, "x")
    story.lineage.contain("q1", run="bad", since=2)
    assert story.taints() == {"a": "tainted"}


@pytest.mark.parametrize("is_first", [True, False])
def test_edges_that_come_later_are_followed_too(is_first: bool) -> None:
    story = Story()
    story.writes("bad", 2, "a")
    story.reads("peer", 0, "a")
    if is_first:
        story.lineage.contain("q1", run="bad", since=2)
    story.writes("peer", 1, "b")
    story.writes("bad", 3, "late")  # was in flight when the run was severed
    if not is_first:
        story.lineage.contain("q1", run="bad", since=2)
    assert story.taints() == {"a": "tainted", "b": "suspect", "late": "tainted"}


def test_others_are_kept_away_and_the_writer_of_a_suspect_goes_on() -> None:
    story = seed()
    story.lineage.contain("q1", run="bad", since=2)
    blocked = {one.artifact: one.taint for one in story.lineage.blocked("abcde", "nobody")}
    assert blocked == {"b": Taint.TAINTED, "c": Taint.SUSPECT, "d": Taint.SUSPECT}
    assert [one.artifact for one in story.lineage.blocked("abcde", "peer")] == ["b", "d"]
    assert story.lineage.blocked("b", "nobody")[0].quarantines == ("q1",)


def test_only_looking_at_it_clears_an_artifact() -> None:
    story = seed()
    story.lineage.contain("q1", run="bad", since=2)
    story.lineage.clear("c", "ann")
    assert story.taints() == {"b": "tainted", "c": "cleared", "d": "suspect"}
    story.writes("peer", 3, "c")  # a contaminated run spoils it again
    assert story.taints()["c"] == "suspect"


def test_lifting_takes_back_the_marks_of_that_quarantine_alone() -> None:
    story = seed()
    story.lineage.contain("q1", run="bad", since=2)
    story.lineage.contain("q2", run="peer", since=2)
    story.lineage.lift("q1")
    assert story.taints() == {"c": "tainted", "d": "suspect"}
    story.lineage.lift("q2")
    assert story.taints() == {}


def test_an_agent_taints_all_its_runs() -> None:
    story = Story()
    story.writes("r1", 1, "a", agent="mallory")
    story.writes("r2", 1, "b", agent="alice")
    story.lineage.contain("q1", agent="mallory")
    story.writes("r3", 1, "c", agent="mallory")
    assert story.taints() == {"a": "tainted", "c": "tainted"}


def test_a_touch_is_corrected_by_what_became_of_it() -> None:
    """The step's number is known only once its intent is written, and a write that was refused is none."""
    story = Story()
    order = story.writes("bad", 1, "a", "b")
    story.reads("peer", 0, "a")
    story.writes("peer", 1, "c")
    story.lineage.contain("q1", run="bad", since=2)
    assert story.taints() == {}
    story.lineage.settle(order, "bad", step=2, digest="sha256:x", has_effect=True)
    assert story.taints() == {"a": "tainted", "b": "tainted", "c": "suspect"}
    assert story.lineage.artifacts["a"].producer.digest == "sha256:x"  # type: ignore[union-attr]
    refused = story.writes("bad", 3, "never")
    story.lineage.lift("q1")
    story.lineage.settle(refused, "bad", step=None, digest=None, has_effect=False)
    story.lineage.contain("q2", run="bad", since=3)
    assert story.taints() == {}


def test_memory_is_bounded_and_marks_are_never_forgotten() -> None:
    story = Story(limit=10)
    story.writes("bad", 1, "a")
    story.lineage.contain("q1", run="bad", since=1)
    for number in range(100):
        story.writes(f"r{number}", 1, f"x{number}")
    assert len(story.lineage) <= 12
    assert "x0" not in story.lineage.artifacts
    assert story.taints() == {"a": "tainted"}
    story.reads("late", 1, "a")
    assert story.lineage.contaminated("q1") == ["late"]


def test_the_graph_of_a_run_is_what_it_touched_and_what_came_of_it() -> None:
    story = seed()
    assert [(edge.run, edge.artifact) for edge in story.lineage.around("peer")] == [
        ("peer", "b"), ("peer", "c"), ("third", "c"), ("third", "d"),
    ]  # fmt: skip


class Machine(RuleBasedStateMachine):
    """Against a model that follows the edges from scratch each time."""

    runs = st.sampled_from(["r0", "r1", "r2", "r3"])
    names = st.sampled_from(["a", "b", "c", "d"])

    @initialize()
    def begin(self) -> None:
        self.story = Story()
        self.events: list[tuple[int, str, int, str, bool]] = []
        self.steps: dict[str, int] = {}
        self.since: dict[str, int] = {}
        self.cleared: dict[str, int] = {}

    @rule(run=runs, name=names)
    def write(self, run: str, name: str) -> None:
        self.steps[run] = self.steps.get(run, 0) + 1
        order = self.story.writes(run, self.steps[run], name)
        self.events.append((order, run, self.steps[run], name, True))

    @rule(run=runs, name=names)
    def read(self, run: str, name: str) -> None:
        order = self.story.reads(run, self.steps.get(run, 0), name)
        self.events.append((order, run, self.steps.get(run, 0), name, False))

    @rule(run=runs, since=st.integers(0, 5))
    def contain(self, run: str, since: int) -> None:
        if run not in self.since:
            self.since[run] = since
            self.story.lineage.contain(f"q-{run}", run=run, since=since)

    @rule(run=runs)
    def lift(self, run: str) -> None:
        if self.since.pop(run, None) is not None:
            self.story.lineage.lift(f"q-{run}")

    @invariant()
    def what_is_marked_is_what_the_edges_say(self) -> None:
        if not hasattr(self, "story"):
            return
        expected: dict[str, str] = {}
        for bad, since in self.since.items():
            for name, level in _follow(self.events, bad, since).items():
                if level == "tainted" or name not in expected:
                    expected[name] = level
        assert self.story.taints() == expected

    @invariant()
    def nobody_else_reads_what_is_tainted(self) -> None:
        if hasattr(self, "story"):
            for name, taint in self.story.taints().items():
                if taint == "tainted":
                    assert self.story.lineage.blocked([name], "nobody")


def _follow(events: list[tuple[int, str, int, str, bool]], bad: str, since: int) -> dict[str, str]:
    """The definition, by walking paths: from each bad write along reads and later writes."""
    marks: dict[str, str] = {}
    first: dict[str, int] = {}
    todo: deque[tuple[int, str]] = deque()
    for order, run, step, name, is_write in events:
        if run == bad and step >= since and is_write:
            marks[name] = "tainted"
            first.setdefault(name, order)
            todo.append((order, name))
    seen: set[tuple[str, int]] = set()
    while todo:
        written, name = todo.popleft()
        for read, run, step, other, is_write in events:
            if is_write or other != name or read <= written or (run == bad and step >= since) or (run, read) in seen:
                continue
            seen.add((run, read))
            for order, writer, made, result, writes in events:
                if writes and writer == run and order > read and not (writer == bad and made >= since):
                    marks.setdefault(result, "suspect")
                    todo.append((order, result))
    return marks


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def a_crowd(edges: int, runs: int, artifacts: int, rng: random.Random) -> Lineage:
    lineage = Lineage()
    for order in range(1, edges + 1):
        lineage.touch(
            Edge(
                order=order,
                artifact=f"a{rng.randrange(artifacts)}",
                run=f"r{rng.randrange(runs)}",
                agent=f"agent{rng.randrange(2)}",
                step=order,
                is_write=rng.random() < 0.5,
            )
        )
    return lineage


def by_looking_at_all(lineage: Lineage, run: str, agent: str, since: int) -> tuple[dict[str, Taint], dict[str, int]]:
    """The definition: every edge in order, with what was marked and who was contaminated before it."""
    marked: dict[str, tuple[Taint, int]] = {}
    contaminated: dict[str, int] = {}
    for edge in [*lineage._kept, *lineage._edges]:
        is_own = edge.step >= since if edge.run == run else edge.agent == agent
        if is_own and edge.is_write:
            marked[edge.artifact] = (Taint.TAINTED, marked.get(edge.artifact, (None, edge.order))[1])
        elif not is_own and edge.is_write and contaminated.get(edge.run, edge.order) < edge.order:
            marked.setdefault(edge.artifact, (Taint.SUSPECT, edge.order))
        elif not is_own and not edge.is_write and marked.get(edge.artifact, (None, edge.order))[1] < edge.order:
            contaminated.setdefault(edge.run, edge.order)
    return {name: level for name, (level, _) in marked.items()}, contaminated


@pytest.mark.parametrize("seed", range(200))
def test_following_only_what_is_reached_finds_what_looking_at_all_would(seed: int) -> None:
    rng = random.Random(seed)
    lineage = a_crowd(rng.randrange(1, 80), rng.randrange(1, 8), rng.randrange(1, 10), rng)
    run, agent = rng.choice([("r0", ""), ("", "agent0")])
    since = rng.randrange(40) if run else 0
    lineage.contain("q", run=run, agent=agent, since=since)
    marked, contaminated = by_looking_at_all(lineage, run, agent, since)
    assert {one.name: one.marks["q"].level for one in lineage.marked("q")} == marked
    assert lineage.contaminated("q") == sorted(contaminated)
    assert lineage._spreads["q"].contaminated == contaminated


def test_neither_a_quarantine_nor_a_touch_under_one_costs_more_the_more_edges_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each touch once looked at all edges while any quarantine was in force: 28 ms a call at 100 000 of them."""
    looked: list[int] = []
    follow = Lineage._follow

    def counted(self: Lineage, name: str, spread: Any, edge: Edge) -> Any:
        looked[-1] += 1
        return follow(self, name, spread, edge)

    monkeypatch.setattr(Lineage, "_follow", counted)
    for edges in (1_000, 20_000):
        lineage = a_crowd(edges, runs=edges, artifacts=edges, rng=random.Random(1))
        lineage.touch(Edge(order=edges + 1, artifact="bad", run="bad", agent="x", step=1, is_write=True))
        looked.append(0)
        lineage.contain("q", run="bad")
        for number in range(10):
            order = edges + 2 + number
            lineage.touch(Edge(order=order, artifact=f"b{number}", run="good", agent="y", step=1, is_write=True))
            lineage.settle(order, "good", step=2, digest=None, has_effect=True)
    assert looked[0] == looked[1] < 50
