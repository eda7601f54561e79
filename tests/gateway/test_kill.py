"""kill -9 at the named points of a step and of an unwinding: the tool's own ledger is the judge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gateway.harness import Child, Client
from tests.origin import Answer, Hang, Origin

MakeChild = Callable[..., Child]
JSON = ((b"Content-Type", b"application/json"),)
HELD = Answer(201, b'{"id": "h1"}', JSON)


@pytest.mark.parametrize("tool", ["pay", "keyless"])
async def test_killed_between_intent_and_outcome(tmp_path: Path, make_child: MakeChild, tool: str) -> None:
    """The effect is done, the answer is lost with the process."""
    async with Origin(honours_keys=True) as origin:
        origin.on("POST /holds", Hang(applies=True), HELD)
        child = make_child(tmp_path, origin.port)
        agent = await child.start()
        call = asyncio.create_task(agent.send("POST", f"/{tool}/holds", {"n": 1}, run="r1"))
        await origin.wait(lambda: origin.ledger.total == 1)
        await child.kill()
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await call
        agent = await child.start()
        shown = (await agent.send("GET", "/seawall/v1/trajectories/r1")).json
        assert [step["state"] for step in shown["steps"]] == ["in_doubt"]
        again = await agent.send("POST", f"/{tool}/holds", {"n": 1}, run="r1")
        assert origin.ledger.total == 1
        if tool == "pay":
            assert (again.status, again.body) == (201, b'{"id": "h1"}')
        else:
            assert again.code == "ERR_OUTCOME_UNKNOWN"
        assert await child.terminate() == 0


async def test_killed_after_the_outcome_and_before_the_answer_arrived(tmp_path: Path, make_child: MakeChild) -> None:
    """langchain-ai/langgraph#8039: a node was executed again after kill -9."""
    async with Origin() as origin:
        hold = asyncio.Event()
        origin.on("POST /holds", Answer(201, b'{"id": "h1"}', JSON, hold=hold))
        child = make_child(tmp_path, origin.port)
        agent = await child.start()
        call = asyncio.create_task(agent.send("POST", "/keyless/holds", {"n": 1}, run="r1"))
        await origin.completed()
        call.cancel()
        hold.set()
        async with asyncio.timeout(5):
            while (await agent.send("GET", "/seawall/v1/trajectories/r1")).json["steps"][0]["state"] != "committed":
                pass
        await child.kill()
        agent = await child.start()
        again = await agent.send("POST", "/keyless/holds", {"n": 1}, run="r1")
        assert (again.status, again.body, again["Seawall-Replayed"]) == (201, b'{"id": "h1"}', "true")
        assert origin.ledger.total == 1
        assert await child.terminate() == 0


async def test_killed_in_the_middle_of_an_unwinding(tmp_path: Path, make_child: MakeChild) -> None:
    async with Origin(honours_keys=True) as origin:
        origin.on("POST /holds", *(Answer(201, b'{"id": "h%d"}' % n, JSON) for n in (1, 2, 3)))
        origin.on("POST /holds/h2/cancel", Hang(applies=True), Answer(200))
        child = make_child(tmp_path, origin.port)
        agent = await child.start()
        for number in range(3):
            await agent.send("POST", "/pay/holds", {"n": number}, run="r1")
        abort = asyncio.create_task(agent.send("POST", "/seawall/v1/trajectories/r1/abort"))
        await origin.wait(lambda: any(request.path == "/holds/h2/cancel" for request in origin.requests))
        await child.kill()
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await abort
        agent = await child.start()
        async with asyncio.timeout(10):
            while (await agent.send("GET", "/seawall/v1/trajectories/r1")).json["state"] != "aborted_clean":
                pass
        cancels = [request.path for request in origin.requests if request.path.endswith("/cancel")]
        assert list(dict.fromkeys(cancels)) == ["/holds/h3/cancel", "/holds/h2/cancel", "/holds/h1/cancel"]
        assert all(count == 1 for count in origin.ledger.by_key().values())
        assert await child.terminate() == 0


async def test_killed_under_load_again_and_again(tmp_path: Path, make_child: MakeChild) -> None:
    """Every effect at most once; every acknowledged step is committed; a repeat of every call gets an answer."""
    async with Origin(honours_keys=True) as origin:
        origin.default = Answer(201, b'{"id": "h"}', JSON)
        child = make_child(tmp_path, origin.port)
        acknowledged: set[int] = set()
        for cycle in range(3):
            agent = await child.start(SEAWALL_TELEMETRY_LOG_LEVEL="error")

            async def one(number: int, agent: Client = agent) -> None:
                try:
                    answer = await agent.send(
                        "POST", "/pay/holds", {"n": number}, run=f"r{number % 5}", key=f"k{number}"
                    )
                except (OSError, asyncio.IncompleteReadError):
                    return
                if answer.status == 201:
                    acknowledged.add(number)

            calls = [asyncio.create_task(one(number)) for number in range(cycle * 20, cycle * 20 + 40)]
            await origin.wait(lambda cycle=cycle: origin.ledger.total >= cycle * 20 + 10)  # type: ignore[misc]
            await child.kill()
            await asyncio.gather(*calls)
        agent = await child.start(SEAWALL_TELEMETRY_LOG_LEVEL="error")
        for number in range(80):
            answer = await agent.send("POST", "/pay/holds", {"n": number}, run=f"r{number % 5}", key=f"k{number}")
            assert answer.status == 201
        assert origin.ledger.by_key() == {f"k{number}": 1 for number in range(80)}
        states = {}
        for run in range(5):
            shown = (await agent.send("GET", f"/seawall/v1/trajectories/r{run}")).json
            states.update({step["key"]: step["state"] for step in shown["steps"]})
        assert all(states[f"k{number}"] == "committed" for number in acknowledged)
        assert await child.terminate() == 0
