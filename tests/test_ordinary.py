"""The short way of ordinary calls leaves behind what the stages would have, whatever happens on it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.core.outcome import Success
from gateway.journal import trajectories
from tests.twins import TOOLS, Twin

ENDS = (
    "ok",
    "ok",
    "ok",
    "ok",
    "ok",
    "down",
    "no",
    "broken",
    "doubt",
    "severed",
    "stream",
    "torn",
    "hang",
    "hang",
    "bug",
)


def rarely(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    """Mostly the same: what makes a call stand out is seldom there twice."""
    return st.sampled_from([usual] * (12 * len(others)) + list(others))


def sending(tool: int, operation: str, answer: str, run: str, body: int, **fields: Any) -> tuple[str, Any, Any]:
    return "send", (tool, operation, answer), {"trajectory": run, "body": b"%d" % body, **fields}


SENDS = st.builds(
    sending,
    rarely(3, 0, 1, 2), st.sampled_from(["read", "read", "put", "put", "lazy", "pay"]), st.sampled_from(ENDS),
    st.sampled_from(["", "r1", "r1", "r1", "r2"]), st.integers(0, 30), caller_key=rarely(None, "key"),
    agent=rarely("ann", "bob"), is_agent_proven=rarely(False, True), budget=rarely(None, {"calls": 9.0}),
    timeout_s=rarely(60.0, 0.3, 0.0),
)  # fmt: skip
OTHERS = st.one_of(
    st.tuples(st.just("turn"), st.tuples(st.sampled_from([0.2, 1.0, 11.0])), st.just({})),
    st.tuples(st.just("advance"), st.tuples(st.sampled_from([0.2, 1.0, 5.0])), st.just({})),
    st.tuples(st.sampled_from(["release", "release", "read"]), st.just(()), st.just({})),
    st.tuples(st.just("cancel"), st.tuples(st.integers(0, 2)), st.just({})),
    st.tuples(st.just("disk"), st.tuples(st.sampled_from(["slow", "well", "well", "well", "down"])), st.just({})),
    st.tuples(
        st.sampled_from(["abort", "freeze", "deliver", "deliver"]), st.sampled_from([("r1",), ("r2",)]), st.just({})
    ),
)
PASSES = st.sampled_from([0, 1, 2, 3, 5, None, None])
"""Passes of the event loop before the next command; None: until nobody is ready."""


@pytest.fixture(scope="module", autouse=True)
def _nothing_by_the_real_clock() -> Iterator[None]:
    """Reads are written together after a while of the loop's time, which may come between two twins."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trajectories, "READS_S", 3600.0)
        yield


async def both(
    twins: tuple[Twin, Twin], what: str, told: tuple[Any, ...], more: dict[str, Any], passes: int | None
) -> None:
    """Have both twins do something, and see the same of both after so many passes of the loop."""
    for twin in twins:
        if what == "advance":
            await twin.clock.advance(*told)
        elif what == "read":
            await twin.read()
        elif what == "send":
            tool, operation, answer = told
            known = TOOLS[tool].operations
            twin.do(what, tool, known.get(operation, known["put"]), answer, **more)
        else:
            twin.do(what, *told, **more)
    if passes is None:
        await twins[0].clock.settle()
    for _ in range(passes or 0):
        await asyncio.sleep(0)
    assert twins[0].seen() == twins[1].seen()
    assert twins[0].kept() == twins[1].kept()


async def play(is_watched: bool, commands: Sequence[tuple[tuple[str, Any, Any], int | None]]) -> None:
    """Have twins do the same, in runs that are known, and end with a disk that works."""
    twins = Twin(is_short=True, is_watched=is_watched), Twin(is_short=False, is_watched=is_watched)
    for run in ("", "r1", "r2"):
        await both(twins, "send", (3, "read", "ok"), {"trajectory": run, "agent": "ann"}, None)
    for (what, told, more), passes in commands:
        await both(twins, what, told, more, passes)
    await both(twins, "disk", ("well",), {}, None)
    await both(twins, "advance", (100.0,), {}, None)
    for twin in twins:
        await twin.close()


def sent(operation: str, answer: str = "ok", body: int = 7, run: str = "r1", **fields: Any) -> tuple[str, Any, Any]:
    return sending(3, operation, answer, run, body, **{"agent": "ann", **fields})


STORIES: dict[str, list[tuple[str, Any, Any]]] = {
    "another agent's run": [sent(o, agent="bob", is_agent_proven=True) for o in ("read", "put")],
    "a result that was not collected": [sent("put"), sent("put"), ("deliver", ("r1",), {}), sent("put")],
    "the same again while it is on its way": [sent("put", "hang"), sent("put"), ("release", (), {}), sent("put")],
    "the same again in another run": [sent("put", "hang", run=""), sent("put", run=""), ("release", (), {})],
    "repeats that nobody can afford": [sent(o, "down", n % 2) for n in range(9) for o in ("read", "put")],
    "a repeat in another run": [sent("read", body=20 + n) for n in range(9)]
    + [
        step
        for o in ("read", "put")
        for step in (sent(o, "down", 1), ("advance", (9.0,), {}), sent(o, "ok", 1, "r2"), ("turn", (20.0,), {}))
    ],
    "a budget": [sent(o, body=n, budget={"calls": 2.0}) for n in range(3) for o in ("read", "put")],
    "a key of the agent's own": [sent("put", body=n, caller_key="key") for n in (1, 1, 2)],
    "no time left": [sent(o, timeout_s=0.0) for o in ("read", "put")],
    "a full domain": [sent("read", "hang", n) for n in range(6)] + [("release", (), {}) for _ in range(6)],
    "an answer that streams": [sent("read", "stream", n) for n in range(6)] + [("read", (), {}), sent("read")],
    "answers that break": [sent("read", "torn", n) for n in range(3)] + [("read", (), {}), sent("read")] * 2,
    "a tool that goes down": [sent(o, "down", n) for n in range(4) for o in ("read", "put")],
    "a tool that is slow": [
        step for n in range(6) for step in (sent("read", "hang", n), ("turn", (1.0,), {}), ("release", (), {}))
    ],
    "a run that ends meanwhile": [sent("put", "hang"), ("freeze", ("r1",), {}), ("release", (), {}), sent("read")],
    "a call in circles": [sent("read", body=1) for _ in range(12)],
    "a call that is given up": [
        step for o in ("read", "put") for step in (sent(o, "hang", 3), ("cancel", (0,), {}), sent(o, "ok", 3))
    ],
    "a disk that fails": [("disk", ("slow",), {}), sent("put"), ("disk", ("down",), {}), sent("put", body=8)],
    "a disk that fails behind the tool": [
        sent("put", "hang"),
        ("disk", ("down",), {}),
        ("release", (), {}),
        sent("put"),
    ],
    "given up while the disk is slow": [("disk", ("slow",), {}), sent("put"), ("cancel", (0,), {})],
    "a doubt": [sent("put", "doubt"), sent("put"), sent("pay", body=9)],
    "a bug": [sent("read", "bug"), sent("put", "bug")],
    "a second pivot": [sent("pay"), sent("pay", body=8), sent("put"), sent("lazy"), sent("read")],
}


@pytest.mark.parametrize("is_watched", [True, False])
@pytest.mark.parametrize("story", STORIES)
async def test_what_makes_a_call_stand_out_is_seen_on_both_ways(story: str, is_watched: bool) -> None:
    """One thing at a time, once the call before is through with all that it can do at once."""
    await play(is_watched, [(command, None) for command in STORIES[story]])


@settings(max_examples=40, deadline=None)
@given(is_watched=st.booleans(), commands=st.lists(st.tuples(SENDS | SENDS | OTHERS, PASSES), min_size=15, max_size=40))
@example(True, [(("send", (3, "read", "ok"), {"trajectory": "r1", "body": b"%d" % n}), None) for n in range(9)])
@example(False, [(("send", (3, "put", "hang"), {"trajectory": "r1", "body": b"%d" % n}), None) for n in range(4)])
def test_on_the_short_way_and_on_the_long_one_everybody_sees_the_same(
    is_watched: bool, commands: list[tuple[tuple[str, Any, Any], int | None]]
) -> None:
    """Outcomes, records, events in order, metrics, breakers, queues, budgets, runs and their watchdogs: after each command,
    wherever a call stands just then."""

    asyncio.run(play(is_watched, commands))


@pytest.mark.parametrize("operation", ["read", "put", "lazy", "pay"])
@pytest.mark.parametrize("run", ["", "r1"])
async def test_an_ordinary_call_passes_no_stage(operation: str, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the twins would say that the long way is the long way."""
    twin = Twin(is_short=True)
    known = TOOLS[3].operations
    asked: list[object] = []
    for stage in (twin.admission, twin.breaker, twin.retry):
        monkeypatch.setattr(type(stage), "__call__", lambda stage, call, proceed: asked.append(stage) or proceed(call))
    twin.send(3, known["read"], trajectory=run)
    await twin.clock.settle()
    assert asked
    asked.clear()
    twin.send(3, known[operation], trajectory=run, body=b"9")
    await twin.clock.settle()
    assert isinstance(twin.calls[-1][1].result(), Success)
    assert not asked
    await twin.close()


@pytest.mark.parametrize("operation", ["read", "put"])
async def test_a_call_that_is_cancelled_at_the_tool_gives_back_what_it_took(operation: str) -> None:
    twin = Twin(is_short=True)
    known = TOOLS[3].operations
    twin.send(3, known["read"], trajectory="r1")
    await twin.clock.settle()
    twin.send(3, known[operation], "hang", trajectory="r1", body=b"9")
    await twin.clock.settle()
    assert twin.admission.statistics()["wide"]["in_flight"] == 1
    twin.do("cancel", 0)
    await twin.clock.settle()
    assert twin.admission.statistics()["wide"]["in_flight"] == 0
    assert twin.stages.idempotency.statistics() == {"flights": 0}
    run = twin.runs.get("r1")
    assert run is not None
    assert bool(run.state.in_doubt) is (operation == "put")
    await twin.close()
