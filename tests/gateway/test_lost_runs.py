"""Runs whose writes fail, through the whole gateway: budgets stay exact, what was taken away stays away."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.harness import Answered, Client
from tests.gateway.test_faulty_store import FaultyGateway, healed
from tests.gateway.test_faulty_store import faulty as faulty_with
from tests.journal.injector import Mode
from tests.origin import Answer, Exchange, Origin

JSON = ((b"Content-Type", b"application/json"),)
RUNS = "/seawall/v1/trajectories"
MANIFEST = """
version: 1
domains:
  lab:
    timeouts: {connect: 1s, first_byte: 3s, idle: 3s, total: 4s}
    concurrency: 64
    retry: {attempts: 1, budget_floor: 1000}
    breaker: {consecutive: 1000, window: 1000}
tools:
  lab:
    upstream: http://127.0.0.1:PORT
    domain: lab
    operations:
      hold:
        match: POST /holds
        tier: compensable
        compensator: {request: "POST /holds/${response.json.id}/cancel"}
        usage: {price: 0.25}
      bad: {match: POST /bad, tier: reversible}
      look: {match: "GET /rows/{n}", tier: read, usage: {tokens: response.json.tokens}}
"""


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    async with Origin() as made:
        made.on("POST /holds", Answer(201, b'{"id": "h1"}', JSON))
        made.on("POST /bad", Answer(422, b'{"error": "port must be a number"}', JSON))
        yield made


def faulty(folder: Path, port: int) -> AbstractAsyncContextManager[tuple[FaultyGateway, Client, Client]]:
    return faulty_with(folder, port, MANIFEST)


async def used(client: Client, run: str = "r1") -> dict[str, float]:
    shown: dict[str, Any] = (await client.send("GET", f"{RUNS}/{run}")).json["budget"]
    return {name: amount for name, amount in shown["used"].items() if name in ("calls", "steps", "usd", "tokens")}


def spent(origin: Origin) -> dict[str, float]:
    """What the tool itself says the run has spent: each read costs five tokens, each hold a quarter."""
    holds = sum(request.path == "/holds" for request in origin.requests)
    looks = sum(request.path.startswith("/rows/") for request in origin.requests)
    return {"calls": holds + looks, "steps": holds, "usd": holds * 0.25, "tokens": looks * 5.0}


@pytest.mark.parametrize("mode", [Mode.FAIL, Mode.EXECUTE_THEN_FAIL, Mode.STALL])
@pytest.mark.parametrize("skip", range(0, 30, 3))
async def test_a_budget_is_exact_whenever_the_disk_fails(tmp_path: Path, origin: Origin, mode: Mode, skip: int) -> None:
    """Reads and holds at once, some on their way while the run is lost; each is counted once, also after a restart."""
    for n in range(12):
        origin.on(f"GET /rows/{n}", Answer(200, b'{"tokens": 5}', JSON))
    rng = random.Random(skip)
    async with faulty(tmp_path, origin.port) as (gateway, client, operator):
        await client.send("POST", RUNS, {"id": "r1", "budget": {"calls": 1000, "usd": 1000, "tokens": 100_000}})
        gateway.injector.inject("append", mode, skip=skip, count=2)

        async def act(n: int) -> Answered:
            await asyncio.sleep(rng.random() * 0.05)
            if n % 2:
                return await client.send("GET", f"/lab/rows/{n}", run="r1")
            return await client.send("POST", "/lab/holds", {"n": n}, run="r1")

        for _ in range(2):
            await asyncio.gather(*(act(n) for n in range(12)))
        await healed(gateway, operator)
        assert await used(client) == spent(origin)
        before = spent(origin)
    async with faulty(tmp_path, origin.port) as (_, client, _):
        assert await used(client) == before


async def test_calls_on_their_way_while_the_run_is_read_anew_are_counted(tmp_path: Path, origin: Origin) -> None:
    """Their caps would be open to as many calls more."""
    release, waiting = asyncio.Event(), asyncio.Semaphore(0)

    async def slow(exchange: Exchange) -> None:
        waiting.release()
        await release.wait()
        await Answer(200, b'{"tokens": 5}', JSON)(exchange)

    for n in range(4):
        origin.on(f"GET /rows/{n}", slow)
    async with faulty(tmp_path, origin.port) as (gateway, client, operator):
        await client.send("POST", RUNS, {"id": "r1", "budget": {"calls": 5}})
        flying = [asyncio.ensure_future(client.send("GET", f"/lab/rows/{n}", run="r1")) for n in range(4)]
        for _ in flying:
            await waiting.acquire()
        gateway.injector.inject("append", Mode.FAIL)
        assert (await client.send("POST", "/lab/holds", {"n": 1}, run="r1")).code == "ERR_JOURNAL_UNAVAILABLE"
        await healed(gateway, operator)
        assert (await client.send("POST", "/lab/holds", {"n": 2}, run="r1")).status == 201, "one call is left"
        assert (await client.send("POST", "/lab/holds", {"n": 3}, run="r1")).code == "ERR_BUDGET_EXHAUSTED"
        release.set()
        assert [(await one).status for one in flying] == [200] * 4
        assert (await used(client))["calls"] == 5
    async with faulty(tmp_path, origin.port) as (_, client, _):
        assert (await used(client))["calls"] == 5


@pytest.mark.parametrize("mode", [Mode.FAIL, Mode.EXECUTE_THEN_FAIL])
async def test_a_step_that_never_left_costs_nothing_and_is_no_retry(tmp_path: Path, origin: Origin, mode: Mode) -> None:
    async with faulty(tmp_path, origin.port) as (gateway, client, operator):
        await client.send("POST", RUNS, {"id": "r1", "budget": {"calls": 1, "steps": 1, "retries": 0, "usd": 0.25}})
        await client.send("GET", "/seawall/v1/trajectories/r1")
        for _ in range(3):
            gateway.injector.inject("append", mode)
            assert (await client.send("POST", "/lab/holds", {"n": 1}, run="r1")).code == "ERR_JOURNAL_UNAVAILABLE"
            await healed(gateway, operator)
        assert await used(client) == {"calls": 0, "steps": 0, "usd": 0, "tokens": 0}
        assert (await client.send("POST", "/lab/holds", {"n": 1}, run="r1")).status == 201
        assert (await client.send("POST", "/lab/holds", {"n": 2}, run="r1")).code == "ERR_BUDGET_EXHAUSTED"
    async with faulty(tmp_path, origin.port) as (_, client, _):
        assert await used(client) == {"calls": 1, "steps": 1, "usd": 0.25, "tokens": 0}
    assert len(origin.requests) == 1


@pytest.mark.parametrize("mode", [Mode.FAIL, Mode.EXECUTE_THEN_FAIL, Mode.STALL])
async def test_an_interrupt_that_could_not_be_written_still_holds(tmp_path: Path, origin: Origin, mode: Mode) -> None:
    """An action that was taken away is not sent again because the disk was full when that was written down."""
    async with faulty(tmp_path, origin.port) as (gateway, client, operator):
        for _ in range(3):
            assert (await client.send("POST", "/lab/bad", {"n": 1})).status == 422
        gateway.injector.inject("append", mode)
        told = [(await client.send("POST", "/lab/bad", {"n": 1})).code for _ in range(3)]
        assert told[0] == "SEMANTIC_WATCHDOG_INTERRUPT"
        assert all(code in ("SEMANTIC_WATCHDOG_INTERRUPT", "ERR_JOURNAL_UNAVAILABLE") for code in told), told
        await healed(gateway, operator)
        for _ in range(3):
            assert (await client.send("POST", "/lab/bad", {"n": 1})).code == "SEMANTIC_WATCHDOG_INTERRUPT"
    async with faulty(tmp_path, origin.port) as (_, client, _):
        assert (await client.send("POST", "/lab/bad", {"n": 1})).code == "SEMANTIC_WATCHDOG_INTERRUPT"
    assert sum(request.path == "/bad" for request in origin.requests) == 3


async def test_what_the_watchdog_of_a_lost_run_objects_to_is_refused_reads_too(tmp_path: Path, origin: Origin) -> None:
    """It could not be kept what it decides, and neither may leave what it objects to."""
    origin.on("GET /rows/1", Answer(422, b'{"error": "no such table"}', JSON))
    async with faulty(tmp_path, origin.port) as (gateway, client, operator):
        await client.send("POST", "/lab/holds", {"n": 1}, run="r1")
        for _ in range(3):
            assert (await client.send("GET", "/lab/rows/1", run="r1")).status == 422
        gateway.injector.inject("append", Mode.FAIL)
        assert (await client.send("POST", "/lab/holds", {"n": 2}, run="r1")).code == "ERR_JOURNAL_UNAVAILABLE"
        assert (await client.send("GET", "/lab/rows/1", run="r1")).code == "ERR_JOURNAL_UNAVAILABLE"
        await healed(gateway, operator)
    assert sum(request.path == "/rows/1" for request in origin.requests) == 3


@pytest.mark.parametrize("mode", [Mode.FAIL, Mode.EXECUTE_THEN_FAIL])
async def test_a_deadlock_that_cannot_be_recorded_revokes_all_the_same(
    tmp_path: Path, origin: Origin, mode: Mode
) -> None:
    """Whether it is on disk nobody knows; a lease that is taken away for nothing is only taken anew."""
    async with faulty(tmp_path, origin.port) as (gateway, client, operator):
        revoked: list[str] = []
        gateway._stages.watchdog.revoke = revoked.append
        await client.send("POST", "/lab/holds", {"n": 1}, run="r1")
        told = None
        for turn in range(12):
            if turn == 6:  # three noes, an interrupt, two rewinds; the next is the end
                gateway.injector.inject("append", mode)
            told = await client.send("POST", "/lab/bad", {"n": 1}, run="r1")
            if told.status in (423, 503):
                break
        assert told is not None
        assert told.code == "ERR_JOURNAL_UNAVAILABLE"
        assert revoked == ["r1"]
        await healed(gateway, operator)
        # One that is not on the disk is decided anew, after one more interrupt.
        codes = [(await client.send("POST", "/lab/bad", {"n": 1}, run="r1")).code for _ in range(2)]
        assert codes[-1] == "ERR_SEMANTIC_DEADLOCK", codes
    assert sum(request.path == "/bad" for request in origin.requests) == 3


@pytest.mark.parametrize("mode", [Mode.FAIL, Mode.EXECUTE_THEN_FAIL])
async def test_a_quarantine_that_meets_a_bad_disk_freezes_its_run_once_it_can(
    tmp_path: Path, origin: Origin, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds at once; that the run was lost to the write that should freeze it must not leave it without an incident,
    and whoever asked for it is not kept waiting for a disk that does not come back."""
    monkeypatch.setattr("gateway.ingress.containment.PATIENCE_S", 0.05)
    monkeypatch.setattr("gateway.workers.quarantine.PATIENCE_S", 0.05)
    async with faulty(tmp_path, origin.port) as (gateway, client, operator):
        await client.send("POST", "/lab/holds", {"n": 1}, run="r1")
        gateway.injector.inject("append", mode)
        body = {"trajectory": "r1", "trigger": "operator", "principal": "ann", "reason": "found out"}
        assert (await client.send("POST", "/lab/holds", {"n": 2}, run="r1")).code == "ERR_JOURNAL_UNAVAILABLE"
        told = await operator.send("POST", "/api/v1/quarantine", body)
        assert told.status == 202, "a run that is lost to the disk can be contained all the same"
        assert (await client.send("POST", "/lab/holds", {"n": 2}, run="r1")).status in (423, 503)
        await healed(gateway, operator)
        assert (await client.send("POST", "/lab/holds", {"n": 3}, run="r1")).code == "ERR_QUARANTINED"
        shown = (await client.send("GET", f"{RUNS}/r1")).json
        assert (shown["state"], shown["incident"]) == ("frozen", "QUARANTINED")
        lift = f"/api/v1/quarantine/{told.json['id']}/lift"
        gateway.injector.inject("append", mode)
        said = {"principal": "ann", "reason": "false alarm"}
        assert (await operator.send("POST", lift, said)).status == 503
        await healed(gateway, operator)
        assert (await operator.send("POST", lift, said)).json["state"] == "lifted"
    assert len(origin.requests) == 1


async def test_a_child_whose_end_seemed_to_fail_is_settled_with_its_parent(tmp_path: Path, origin: Origin) -> None:
    tasks = "/seawall/v1/tasks"
    async with faulty(tmp_path, origin.port) as (gateway, client, operator):
        await client.send("POST", tasks, {"task_id": "p", "budget_caps": {"max_usd": 10}})
        await client.send("POST", tasks, {"task_id": "c", "parent_task_id": "p"})
        assert (await client.send("POST", "/lab/holds", {"n": 1}, run="c")).status == 201
        gateway.injector.inject("append", Mode.EXECUTE_THEN_FAIL)
        assert (await client.send("POST", f"{tasks}/c/result", {"status": "done"})).status == 503
        await healed(gateway, operator)
        assert (await client.send("GET", f"{tasks}/c")).json["status"] == "done"
        gateway.injector.inject("append", Mode.FAIL)
        assert (await client.send("POST", "/lab/holds", {"n": 2}, run="p")).code == "ERR_JOURNAL_UNAVAILABLE"
        await healed(gateway, operator)
        assert await used(client, "p") == {"calls": 1, "steps": 1, "usd": 0.25, "tokens": 0}
    async with faulty(tmp_path, origin.port) as (_, client, _):
        assert await used(client, "p") == {"calls": 1, "steps": 1, "usd": 0.25, "tokens": 0}
