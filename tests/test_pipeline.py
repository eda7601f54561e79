"""A refusal at once is the refusal that the road would have come to, and leaves the same behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.core.codes import Code
from gateway.core.outcome import Refusal, Rejected, Success
from gateway.core.saga import Freeze
from gateway.core.tool import Operation
from gateway.journal import trajectories
from tests.twins import GATED, PAY, PUT, READ, Twin


@pytest.fixture(scope="module", autouse=True)
def _nothing_by_the_real_clock() -> Iterator[None]:
    """Reads are written together after a while of the loop's time, which may come between two twins."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trajectories, "READS_S", 3600.0)
        yield


SENDS = st.builds(
    lambda tool, operation, answer, run, body, key, agent, proven, budget: (
        "send", (tool, operation, answer),
        {"trajectory": run, "body": body, "caller_key": key, "agent": agent, "is_agent_proven": proven, "budget": budget},
    ),
    st.integers(0, 2), st.sampled_from([READ, PUT, PUT, PAY]),
    st.sampled_from(["down", "down", "ok", "no", "doubt", "hang"]),
    st.sampled_from(["", "r1", "r1", "r2"]), st.sampled_from([b"1", b"1", b"2"]), st.sampled_from([None, None, "key"]),
    st.sampled_from(["ann", "ann", "bob"]), st.booleans(), st.sampled_from([None, None, None, {"calls": 3.0}]),
)  # fmt: skip
OTHERS = st.one_of(
    st.tuples(st.just("turn"), st.tuples(st.sampled_from([0.2, 1.0, 5.0, 11.0])), st.just({})),
    st.tuples(st.just("release"), st.just(()), st.just({})),
    st.tuples(st.sampled_from(["abort", "freeze", "deliver", "deliver"]), st.just(("r2",)), st.just({})),
)


RUNS = ("", "r1")
PRELUDES = {
    "well": (),
    "dead": [("send", (tool, PUT, "down"), {"trajectory": run, "body": body})
             for tool in (0, 2) for body in (b"8", b"9") for run in RUNS],
    "full": [("send", (tool, PUT, "hang"), {"trajectory": run, "body": body})
             for tool in (1, 2) for body in (b"8", b"9") for run in RUNS],
}  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(before=st.sampled_from(list(PRELUDES)), commands=st.lists(SENDS | SENDS | OTHERS, min_size=6, max_size=30))
@example("dead", [("send", (0, PUT, "ok"), {"trajectory": "r1", "body": b"0"})] * 9)
@example("full", [("send", (0, READ, "ok"), {"trajectory": "r1"}), ("turn", (1.0,), {})] * 9)
def test_with_and_without_the_short_cut_everybody_sees_the_same(
    before: str, commands: list[tuple[str, Any, Any]]
) -> None:
    """Outcomes word for word, events in order, metrics, breakers, queues, budgets, runs and their watchdogs."""

    async def play() -> None:
        quick, plain = Twin(is_quick=True), Twin(is_quick=False)
        for what, told, more in [*PRELUDES[before], *commands]:
            for twin in (quick, plain):
                twin.do(what, *told, **more)
                await twin.clock.settle()
            assert quick.seen() == plain.seen()
        await quick.close()
        await plain.close()

    asyncio.run(play())


async def opened(run: str = "", **fields: Any) -> Twin:
    """A twin whose first tool is left alone, and an agent that has heard so once in its run."""
    twin = Twin(is_quick=True, **fields)
    for body in (b"3", b"4"):
        twin.send(0, PUT, "down", trajectory=run, body=body)
        await twin.clock.settle()
    twin.send(0, PUT, trajectory=run, body=b"5")
    await twin.clock.settle()
    return twin


def last(twin: Twin) -> Refusal:
    outcome = twin.calls[-1][1].result()
    assert isinstance(outcome, Rejected)
    return outcome.refusal


@pytest.mark.parametrize("run", ["", "r1"])
@pytest.mark.parametrize("operation", [READ, PUT, PAY])
@pytest.mark.parametrize("body", [b"3", b"9"])
async def test_the_second_call_to_a_dead_tool_is_refused_at_once(run: str, operation: Operation, body: bytes) -> None:
    """The storm's main case: a new call, or the very one that has failed, in a run that is known or in nobody's."""
    twin = await opened(run)
    before = twin.at_once
    twin.clock.turn(1.25)
    twin.send(0, operation, trajectory=run, body=body)
    await twin.clock.settle()
    assert twin.at_once == before + 1
    assert last(twin).code is Code.CIRCUIT_OPEN
    assert last(twin).retry_after_ms == 8750
    await twin.close()


async def test_a_full_domain_refuses_at_once() -> None:
    twin = Twin(is_quick=True)
    twin.send(1, PUT, "hang", trajectory="r1")
    for body in (b"2", b"3"):
        await twin.clock.settle()
        twin.send(0, PUT, trajectory="r1", body=body)
    await twin.clock.settle()
    assert (twin.at_once, last(twin).code) == (1, Code.BULKHEAD_FULL)
    assert twin.admission.statistics()["narrow"]["refusals"] == 2
    await twin.close()


async def test_a_recorded_answer_is_given_though_the_tool_is_dead() -> None:
    """A repeat costs the tool nothing, so an open breaker is no reason to refuse it."""
    twin = Twin(is_quick=True)
    twin.send(0, PUT, "ok", trajectory="r1", body=b"1")
    await twin.clock.settle()
    for body in (b"3", b"4"):
        twin.send(0, PUT, "down", trajectory="r1", body=body)
        await twin.clock.settle()
    twin.send(0, PUT, trajectory="r1", body=b"1")
    await twin.clock.settle()
    outcome = twin.calls[-1][1].result()
    assert isinstance(outcome, Success)
    assert outcome.is_replay
    await twin.close()


async def test_what_a_stage_in_front_would_say_is_left_to_it_to_say() -> None:
    """A repeat that the agent cannot afford, a frozen run, a key whose owner has to be looked up, another agent's run."""
    twin = await opened("r1")
    run = twin.runs.get("r1")
    assert run is not None
    refused = twin.at_once
    twin.send(0, PUT, trajectory="r1", body=b"9", caller_key="k")
    twin.send(0, PUT, trajectory="r1", body=b"9", agent="bob", is_agent_proven=True)
    twin.send(0, PUT, trajectory="unheard-of", body=b"9")
    twin.send(0, PUT, trajectory="r1", body=b"9", budget={"calls": 9.0})
    twin.send(0, GATED, trajectory="r1", body=b"9")
    twin.send(0, PUT, trajectory="r1", body=b"9", timeout_s=0.0)
    await twin.clock.settle()
    twin.runs.decide(run, Freeze(incident="QUARANTINED", detail="said so"))
    twin.send(0, PUT, trajectory="r1", body=b"9")
    await twin.clock.settle()
    assert twin.at_once == refused
    assert last(twin).code is Code.QUARANTINED
    await twin.close()
