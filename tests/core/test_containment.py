"""What is contained, as the fold of its records."""

from __future__ import annotations

import pytest

from gateway.core.codes import Code
from gateway.core.containment import (
    ArtifactCleared,
    ArtifactsTouched,
    BadRecord,
    Containment,
    ContainmentRecord,
    Measure,
    QuarantineLifted,
    QuarantineMeasured,
    QuarantineSet,
    TouchSettled,
    Trigger,
    apply,
    clear,
    contain,
    decode,
    encode,
    lift,
    quarantine_view,
    task_artifact,
)
from gateway.core.outcome import Refusal

RECORDS: list[ContainmentRecord] = [
    ArtifactsTouched(run="bad", agent="m", step=1, operation="files.put", writes=["a"], digest="sha256:1", epoch=1),
    TouchSettled(touch=1, run="bad", step=2),
    ArtifactsTouched(run="peer", agent="p", step=0, operation="files.get", reads=["a"]),
    QuarantineSet(quarantine="q4", trigger="rule", by="rule x", reason="no", run="bad", since=2),
    QuarantineMeasured(quarantine="q4", measure="sever", us=250, detail="2 cut"),
    ArtifactsTouched(run="peer", agent="p", step=1, operation="files.put", writes=["b"]),
    ArtifactCleared(artifact="a", by="ann", reason="read it"),
]


def folded(*records: ContainmentRecord) -> Containment:
    state = Containment()
    for at, record in enumerate(records):
        apply(state, record, at)
    return state


@pytest.mark.parametrize("record", [*RECORDS, QuarantineLifted(quarantine="q4", by="ann", reason="fine")])
def test_records_are_read_back_as_they_were_written(record: ContainmentRecord) -> None:
    assert decode(*encode(record)) == record


@pytest.mark.parametrize(("kind", "data"), [("Unheard", b"{}"), ("QuarantineSet", b"{}"), ("TouchSettled", b"[")])
def test_what_cannot_be_read_is_named(kind: str, data: bytes) -> None:
    with pytest.raises(BadRecord, match=kind):
        decode(kind, data)


def test_a_later_release_may_have_added_fields() -> None:
    assert decode("ArtifactCleared", b'{"artifact": "a", "by": "x", "reason": "", "more": 1}') == ArtifactCleared(
        artifact="a", by="x", reason=""
    )


def test_the_view_tells_why_how_fast_and_how_far() -> None:
    state = folded(*RECORDS)
    view = quarantine_view(state, state.quarantines["q4"])
    assert view["stages"] == {
        "suspend": None, "revoke": None, "sever": {"ms": 0.25, "detail": "2 cut", "problem": None}, "taint": None,
    }  # fmt: skip
    assert view["artifacts"] == {"tainted": [], "suspect": ["b"], "cleared": ["a"]}
    assert view["contaminated"] == ["peer"]
    assert (state.holds("bad", "m"), state.holds("other", "m"), state.holds("peer", "p")) == ("q4", None, None)
    assert [measure.value for measure in Measure] == list(view["stages"])


def test_a_run_that_nobody_named_keeps_its_agent_out_without_tainting_its_other_runs() -> None:
    other = ArtifactsTouched(run="r0", agent="m", step=1, operation="files.put", writes=["old"])
    state = folded(
        other,
        QuarantineSet(quarantine="q2", trigger="rule", by="x", reason="", run="auto", agent="m"),
    )
    assert state.holds("another", "m") == "q2"
    assert state.lineage.artifacts["old"].marks == {}
    apply(state, QuarantineLifted(quarantine="q2", by="ann", reason=""), 9)
    assert state.holds("another", "m") is None
    assert not state.runs
    assert not state.agents


def test_containing_again_changes_nothing_unless_it_reaches_further_back() -> None:
    state = folded(*RECORDS)

    def again(since: int, agent: str = "") -> object:
        return contain(state, run="bad", agent=agent, since=since, trigger=Trigger.OPERATOR, by="ann", reason="")

    assert again(2) == again(3) == []
    assert again(1) != []
    assert again(2, "m") != []
    refusal = contain(state, run="", agent="", since=0, trigger=Trigger.OPERATOR, by="ann", reason="")
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.INVALID_ARGUMENTS


def test_lifting_and_clearing_twice_change_nothing_and_the_unknown_is_refused() -> None:
    state = folded(*RECORDS)
    assert clear(state, "a", "ann", "") == []
    assert isinstance(clear(state, "zzz", "ann", ""), Refusal)
    (lifted,) = _records(lift(state, "q4", "ann", "fine"))
    apply(state, lifted, 20)
    apply(state, lifted, 21)
    assert lift(state, "q4", "ann", "fine") == []
    assert isinstance(lift(state, "q9", "ann", ""), Refusal)


def _records(verdict: list[ContainmentRecord] | Refusal) -> list[ContainmentRecord]:
    assert not isinstance(verdict, Refusal)
    return verdict


def test_what_refers_to_nothing_changes_nothing() -> None:
    """A stream that was cut off in the middle still folds."""
    folded(
        TouchSettled(touch=7, run="r"), QuarantineMeasured(quarantine="q", measure="sever", us=1),
        QuarantineLifted(quarantine="q", by="", reason=""), ArtifactCleared(artifact="a", by="", reason=""),
    )  # fmt: skip


def handed_on(parent: str, child: str, step: int = 0) -> tuple[ContainmentRecord, ContainmentRecord]:
    return (
        ArtifactsTouched(run=parent, agent="m", step=step, operation="task packet", writes=[task_artifact(child)]),
        ArtifactsTouched(run=child, agent="m", step=0, operation="task packet", reads=[task_artifact(child)]),
    )


def test_a_quarantine_holds_the_tasks_that_its_run_has_handed_on_since() -> None:
    """And theirs; not those from before, nor those of a run that has merely read something bad."""
    file = {"agent": "m", "step": 6, "operation": "files"}
    state = folded(
        *handed_on("bad", "early", step=1),
        *handed_on("bad", "late", step=5),
        *handed_on("late", "latest"),
        ArtifactsTouched(run="bad", writes=["file"], **file),
        ArtifactsTouched(run="peer", reads=["file"], **file),
        *handed_on("peer", "theirs", step=7),
        QuarantineSet(quarantine="q1", trigger="operator", by="ann", reason="r", run="bad", since=5),
    )
    held = {run: state.holds(run, "m") for run in ("bad", "early", "late", "latest", "peer", "theirs")}
    assert held == {"bad": "q1", "early": None, "late": "q1", "latest": "q1", "peer": None, "theirs": None}
    assert state.held_tasks("q1") == quarantine_view(state, state.quarantines["q1"])["held_tasks"] == ["late", "latest"]
    assert state.lineage.contaminated("q1") == ["late", "latest", "peer", "theirs"]


def test_a_task_that_was_looked_at_is_let_go_and_so_is_one_whose_quarantine_is_lifted() -> None:
    first = (*handed_on("bad", "a"), *handed_on("bad", "b"), *handed_on("a", "c"))
    state = folded(
        *first,
        QuarantineSet(quarantine="q1", trigger="operator", by="ann", reason="r", run="bad"),
        ArtifactCleared(artifact=task_artifact("a"), by="ann", reason="r"),
    )
    assert [state.holds(run, "m") for run in ("a", "b", "c")] == [None, "q1", None]
    apply(state, QuarantineLifted(quarantine="q1", by="ann", reason="r"), 9)
    assert state.holds("b", "m") is None
    assert state.held_tasks("q1") == []


def test_tasks_that_go_in_circles_end() -> None:
    """Names are agents' own: a chain without an end must not be followed for ever."""
    state = folded(
        ArtifactsTouched(run="x", agent="m", step=1, operation="files", writes=["file"]),
        QuarantineSet(quarantine="q1", trigger="operator", by="ann", reason="r", run="x"),
        ArtifactsTouched(run="a", agent="m", step=0, operation="files", reads=["file"]),
        *handed_on("a", "b", step=1),
        *handed_on("b", "a", step=1),
    )
    assert state.holds("a", "m") is None
