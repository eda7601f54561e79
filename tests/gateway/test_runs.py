"""Runs through the whole gateway: committed, undone in reverse, frozen, found again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.gateway.harness import Serving, serving
from tests.origin import Answer, Drop, Hang, Origin

JSON = ((b"Content-Type", b"application/json"),)


def held(name: str) -> Answer:
    return Answer(201, b'{"id": "%b"}' % name.encode(), JSON)


async def three_holds(running: Serving, origin: Origin, tool: str = "pay", run: str = "r1") -> None:
    origin.on("POST /holds", held("h1"), held("h2"), held("h3"))
    for number in range(3):
        answer = await running.agent.send("POST", f"/{tool}/holds", {"n": number}, run=run)
        assert answer.status == 201


def cancels(origin: Origin) -> list[str]:
    return [request.path for request in origin.requests if request.path.endswith("/cancel")]


async def test_a_failed_run_is_undone_in_reverse_order_each_step_once(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        await three_holds(running, origin)
        answer = await running.agent.send("POST", "/seawall/v1/trajectories/r1/abort", {"reason": "step 4 failed"})
        assert (answer.status, answer.json["state"]) == (200, "aborted_clean")
        assert cancels(origin) == ["/holds/h3/cancel", "/holds/h2/cancel", "/holds/h1/cancel"]
        keys = [request.key for request in origin.requests]
        assert len(set(keys)) == 6, "compensators have keys of their own"
        assert all(origin.ledger.effects(key) == 1 for key in keys)
        again = await running.agent.send("POST", "/seawall/v1/trajectories/r1/abort")
        assert (again.status, again.json["state"]) == (200, "aborted_clean")
        assert len(cancels(origin)) == 3


async def test_a_committed_run_takes_no_more_steps_and_is_not_undone(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        await three_holds(running, origin)
        assert (await running.agent.send("POST", "/seawall/v1/trajectories/r1/commit")).json["state"] == "succeeded"
        step = await running.agent.send("POST", "/pay/holds", {"n": 9}, run="r1")
        assert step.code == "ERR_TRAJECTORY_CLOSED"
        abort = await running.agent.send("POST", "/seawall/v1/trajectories/r1/abort")
        assert (abort.status, abort.code) == (409, "ERR_TRAJECTORY_CLOSED")
        assert cancels(origin) == []


async def test_abort_is_refused_past_the_pivot(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        await three_holds(running, origin)
        await running.agent.send("POST", "/pay/payouts", {"n": 1}, run="r1")
        abort = await running.agent.send("POST", "/seawall/v1/trajectories/r1/abort")
        assert (abort.status, abort.code) == (409, "ERR_PIVOT_ORDER")
        assert cancels(origin) == []
        undoable = await running.agent.send("POST", "/pay/holds", {"n": 7}, run="r1")
        assert undoable.code == "ERR_PIVOT_ORDER"
        assert (await running.agent.send("DELETE", "/pay/holds/h1", run="r1")).status == 200, (
            "idempotent steps may follow"
        )
        assert (await running.agent.send("POST", "/seawall/v1/trajectories/r1/commit")).json["state"] == "succeeded"


async def test_a_compensator_is_repeated_until_it_is_answered(tmp_path: Path) -> None:
    async with Origin(honours_keys=True) as origin, serving(tmp_path, origin.port) as running:
        await three_holds(running, origin)
        origin.on("POST /holds/h2/cancel", Drop(applies=True), Answer(500), Answer(200))
        answer = await running.agent.send("POST", "/seawall/v1/trajectories/r1/abort")
        assert answer.json["state"] == "aborted_clean"
        tries = [request for request in origin.requests if request.path == "/holds/h2/cancel"]
        assert len({request.key for request in tries}) == 1
        assert origin.ledger.effects(tries[0].key) == 1
        order = list(dict.fromkeys(cancels(origin)))
        assert order == ["/holds/h3/cancel", "/holds/h2/cancel", "/holds/h1/cancel"]


async def test_a_compensator_refused_for_good_freezes_the_run(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        await three_holds(running, origin)
        origin.on("POST /holds/h2/cancel", Answer(403, b"not yours"))
        answer = await running.agent.send("POST", "/seawall/v1/trajectories/r1/abort")
        assert (answer.status, answer.code) == (423, "ERR_TRAJECTORY_FROZEN")
        assert "not yours" in answer.json["detail"]
        assert cancels(origin) == ["/holds/h3/cancel", "/holds/h2/cancel"], "earlier steps are left alone"
        shown = (await running.agent.send("GET", "/seawall/v1/trajectories/r1")).json
        assert shown["state"] == "frozen"
        assert shown["incident"] == "COMPENSATION_CORRUPTED"
        assert [step["state"] for step in shown["steps"]] == ["committed", "compensation_failed", "compensated"]


async def test_an_open_breaker_delays_a_compensator_and_never_fails_it(tmp_path: Path) -> None:
    async with Origin(honours_keys=True) as origin, serving(tmp_path, origin.port) as running:
        await three_holds(running, origin)
        origin.on("GET /x", Drop(), Drop(), Drop(), Drop(), Drop(), Drop())
        for _ in range(2):
            await running.agent.send("GET", "/pay/x")
        assert (await running.agent.send("GET", "/pay/y")).code == "ERR_CIRCUIT_OPEN"
        answer = await running.agent.send("POST", "/seawall/v1/trajectories/r1/abort")
        assert answer.json["state"] == "aborted_clean"
        assert len(cancels(origin)) == 3


async def test_what_cannot_be_undone_is_said_at_once_bars_the_pivot_and_is_named_on_abort(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        origin.on("POST /holds", Answer(201, b'{"no": "id"}', JSON))
        answer = await running.agent.send("POST", "/pay/holds", {"n": 1}, run="r1")
        assert answer["Seawall-Warning"].startswith("cannot be undone: ")
        pivot = await running.agent.send("POST", "/pay/payouts", {"n": 1}, run="r1")
        assert pivot.code == "ERR_PIVOT_GATE"
        await running.agent.send("POST", "/plain/anything", b"x", run="r1")
        aborted = (await running.agent.send("POST", "/seawall/v1/trajectories/r1/abort")).json
        assert aborted["state"] == "aborted_clean"
        assert [left["step"] for left in aborted["residue"]] == [1, 2]


async def test_an_abort_waits_for_the_step_in_flight_and_undoes_it_too(tmp_path: Path) -> None:
    """apache/servicecomb-pack#346: compensation ran, then the forward call landed."""
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        hold = asyncio.Event()
        origin.on("POST /holds", Answer(201, b'{"id": "late"}', JSON, hold=hold))
        step = asyncio.create_task(running.agent.send("POST", "/pay/holds", {"n": 1}, run="r1"))
        await origin.completed()
        abort = asyncio.create_task(running.agent.send("POST", "/seawall/v1/trajectories/r1/abort"))
        await _state(running, "compensating")
        refused = await running.agent.send("POST", "/pay/holds", {"n": 2}, run="r1")
        assert refused.code == "ERR_TRAJECTORY_CLOSED"
        hold.set()
        assert (await abort).json["state"] == "aborted_clean"
        assert (await step).status == 201
        assert cancels(origin) == ["/holds/late/cancel"]


async def test_a_step_in_doubt_freezes_the_unwinding_instead_of_guessing(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        origin.on("POST /holds", held("h1"), Drop(applies=True))
        await running.agent.send("POST", "/keyless/holds", {"n": 1}, run="r1")
        doubtful = await running.agent.send("POST", "/keyless/holds", {"n": 2}, run="r1")
        assert doubtful.code == "ERR_OUTCOME_UNKNOWN"
        answer = await running.agent.send("POST", "/seawall/v1/trajectories/r1/abort")
        assert answer.code == "ERR_TRAJECTORY_FROZEN"
        assert cancels(origin) == []


async def test_the_runs_api_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        base = "/seawall/v1/trajectories"
        assert (await running.agent.send("GET", f"{base}/nope")).code == "ERR_UNKNOWN_TRAJECTORY"
        for body in (
            {"idd": "x"},
            {"id": "a b"},
            {"ttl": -1},
            {"on_abandon": "never"},
            {"labels": [1]},
            {"budget": {"call": 1}},
            [1],
        ):
            answer = await running.agent.send("POST", base, body)
            assert answer.code == "ERR_INVALID_ARGUMENTS"
        opened = await running.agent.send("POST", base, {"id": "mine", "labels": {"team": "a"}, "ttl": 60})
        assert (opened.status, opened.json["state"]) == (201, "preparing")
        assert (await running.agent.send("POST", base, {"id": "mine"})).status == 200
        assert (await running.agent.send("POST", base, b"{")).status == 422
        assert (await running.agent.send("PUT", base, b"")).status == 422
        assert (await running.agent.send("POST", base)).json["id"].startswith("run-")
        assert origin.requests == []


async def test_an_agent_that_knows_nothing_of_runs_is_never_stuck(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        first = await running.agent.send("POST", "/pay/payouts", {"n": 1})
        second = await running.agent.send("POST", "/pay/payouts", {"n": 2})
        assert (first.status, second.status) == (200, 200)
        assert first["Seawall-Trajectory"] != second["Seawall-Trajectory"]
        for answer in (first, second):
            shown = await running.agent.send("GET", f"/seawall/v1/trajectories/{answer['Seawall-Trajectory']}")
            assert shown.json["state"] == "succeeded"


async def test_a_trace_names_a_run(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        answer = await running.agent.send("POST", "/pay/holds", {"n": 1}, headers=[("traceparent", trace)])
        assert answer["Seawall-Trajectory"] == "trace-0af7651916cd43dd8448eb211c80319c"
        assert origin.requests[0].values(b"traceparent")[0].startswith(b"00-0af7651916cd43dd8448eb211c80319c-")


async def test_everything_is_found_again_after_a_restart(tmp_path: Path) -> None:
    async with Origin() as origin:
        async with serving(tmp_path, origin.port) as running:
            await three_holds(running, origin)
        async with serving(tmp_path, origin.port) as running:
            shown = (await running.agent.send("GET", "/seawall/v1/trajectories/r1")).json
            assert [step["state"] for step in shown["steps"]] == ["committed"] * 3
            answer = await running.agent.send("POST", "/seawall/v1/trajectories/r1/abort")
            assert answer.json["state"] == "aborted_clean"
            assert cancels(origin) == ["/holds/h3/cancel", "/holds/h2/cancel", "/holds/h1/cancel"]


async def test_an_unwinding_cut_short_by_a_stop_goes_on_after_the_start_without_new_traffic(tmp_path: Path) -> None:
    """eventuate-tram-sagas#40: managers started lazily, so replies rotted after a restart."""
    async with Origin(honours_keys=True) as origin:
        async with serving(tmp_path, origin.port, drain=0.0) as running:
            await three_holds(running, origin)
            origin.on("POST /holds/h2/cancel", Hang(applies=True), Answer(200))
            abort = asyncio.create_task(running.agent.send("POST", "/seawall/v1/trajectories/r1/abort"))
            await origin.wait(lambda: "/holds/h2/cancel" in cancels(origin))
            abort.cancel()
        async with serving(tmp_path, origin.port) as running:
            await _state(running, "aborted_clean")
            tries = [request.key for request in origin.requests if request.path == "/holds/h2/cancel"]
            assert len(tries) == 2
            assert len(set(tries)) == 1
            assert origin.ledger.effects(tries[0]) == 1


async def _state(running: Serving, state: str) -> None:
    async with asyncio.timeout(10):
        while (await running.agent.send("GET", "/seawall/v1/trajectories/r1")).json["state"] != state:
            pass


pytestmark = pytest.mark.timeout(60)
