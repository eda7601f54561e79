"""Steps whose answer never came, through the whole gateway: asked about, rebuilt, repeated, gone on with, given up."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.harness import Child, Serving, serving
from tests.origin import Answer, Drop, Exchange, Hang, Origin

JSON = ((b"Content-Type", b"application/json"),)

MANIFEST = """
version: 1
domains:
  saas:
    concurrency: 8
    timeouts: {connect: 1s, first_byte: 300ms, idle: 1s, total: 5s}
    retry: {attempts: 3, base: 1ms, cap: 5ms}
    breaker: {consecutive: 100, cooldown: 200ms, max_cooldown: 1s}
tools:
  pay:
    upstream: http://127.0.0.1:PORT
    domain: saas
    operations:
      hold:
        match: POST /holds
        tier: compensable
        compensator: {request: "POST /holds/${response.json.id}/cancel"}
        probe:
          request: "GET /holds?ref=${request.json.ref}"
          landed: response.json.data.exists(h, h.ref == request.json.ref)
          not_landed: "!response.json.data.exists(h, h.ref == request.json.ref)"
          result: response.json.data.filter(h, h.ref == request.json.ref)[0]
          gone: "!response.json.data.exists(h, h.ref == request.json.ref && h.status == 'held')"
          delay: 100ms
          again: 50ms
      charge:
        match: POST /charges
        tier: compensable
        compensator: {request: "DELETE /charges/${request.json.ref}", partial: true, safe_if_absent: true}
      payout: {match: POST /payouts, tier: pivot}
"""


def listing(*found: dict[str, str]) -> Answer:
    return Answer(200, json.dumps({"data": list(found)}).encode(), JSON)


HELD = {"ref": "a", "id": "h1", "status": "held"}
GONE = {"ref": "a", "id": "h1", "status": "cancelled"}


def paths(origin: Origin, method: str) -> list[str]:
    return [request.path for request in origin.requests if request.method == method]


async def hold(running: Serving, run: str = "r1") -> Any:
    return await running.agent.send("POST", "/pay/holds", {"ref": "a", "n": 1}, run=run)


async def show(running: Serving, run: str = "r1") -> Any:
    return (await running.agent.send("GET", f"/seawall/v1/trajectories/{run}")).json


async def until(running: Serving, state: str, step: int = 1) -> Any:
    async with asyncio.timeout(20):
        while True:
            run = await show(running)
            if run["state"] == state or run["steps"][step - 1]["state"] == state:
                return run
            await asyncio.sleep(0.02)


@pytest.fixture
async def origin() -> Any:
    async with Origin() as made:
        yield made


async def test_a_lost_answer_is_rebuilt_from_the_probe_and_the_step_can_be_undone(
    tmp_path: Path, origin: Origin
) -> None:
    """NousResearch/hermes-agent#88821, Abilityai/trinity#914: the write landed, its answer did not, the retry doubled it."""
    origin.on("POST /holds", Hang())
    origin.on("GET /holds", listing(HELD), listing(GONE))
    async with serving(tmp_path, origin.port, MANIFEST) as running:
        answer = await hold(running)
        assert (answer.status, answer.json) == (200, HELD)
        assert answer["Seawall-Settled"] == "landed"
        assert paths(origin, "POST") == ["/holds"]
        undone = await running.agent.send("POST", "/seawall/v1/trajectories/r1/abort")
        assert (undone.status, undone.json["state"]) == (200, "aborted_clean")
        assert paths(origin, "POST") == ["/holds", "/holds/h1/cancel"]


async def test_what_did_not_land_is_done_once_it_is_known_for_certain(tmp_path: Path, origin: Origin) -> None:
    origin.on("POST /holds", Drop(), Answer(201, b'{"id": "h2"}', JSON))
    origin.on("GET /holds", listing())
    async with serving(tmp_path, origin.port, MANIFEST) as running:
        answer = await hold(running)
        assert (answer.status, answer.json) == (201, {"id": "h2"})
        order = [request.method for request in origin.requests]
        assert order[0] == "POST"
        assert order[-1] == "POST"
        assert order[1:-1].count("GET") >= 2, "one empty listing is no proof"


async def test_unknown_is_told_and_settled_behind_the_agents_back(tmp_path: Path, origin: Origin) -> None:
    """The pivot waits for it; the next identical call gets the answer; nothing is sent twice."""
    origin.on("POST /holds", Hang())
    origin.on("GET /holds", Answer(500), Answer(500), listing(HELD))
    async with serving(tmp_path, origin.port, MANIFEST) as running:
        answer = await hold(running)
        assert (answer.status, answer.code) == (409, "ERR_OUTCOME_UNKNOWN")
        run = await until(running, "committed")
        assert run["steps"][0]["compensator"]["target"] == "/holds/h1/cancel"
        again = await hold(running)
        assert (again.status, again.json) == (200, HELD)
        assert again["Seawall-Replayed"] == "true"
        assert paths(origin, "POST") == ["/holds"]


async def test_a_step_in_doubt_holds_the_pivot_back(tmp_path: Path, origin: Origin) -> None:
    origin.on("POST /charges", Hang())
    async with serving(tmp_path, origin.port, MANIFEST) as running:
        await running.agent.send("POST", "/pay/charges", {"ref": "a"}, run="r1")
        pivot = await running.agent.send("POST", "/pay/payouts", {"n": 1}, run="r1")
        assert (pivot.status, pivot.code) == (403, "ERR_PIVOT_GATE")
        assert paths(origin, "POST") == ["/charges"]


async def test_the_request_of_a_step_in_doubt_survives_kill_9(tmp_path: Path, origin: Origin) -> None:
    """The agent is gone and nothing is in memory: the probe is bound from the recorded request, without credentials."""
    origin.on("POST /holds", Hang())
    origin.on("GET /holds", Answer(500))
    child = Child(tmp_path, origin.port, MANIFEST)
    client = await child.start()
    secret = ("Authorization", "Bearer canary-9f3c")
    answer = await client.send("POST", "/pay/holds", {"ref": "a"}, run="r1", headers=[secret])
    assert answer.code == "ERR_OUTCOME_UNKNOWN"
    await child.kill()
    for file in (tmp_path / "data").rglob("*"):
        assert not file.is_file() or b"canary-9f3c" not in file.read_bytes(), file
    origin.on("GET /holds", listing(HELD))
    client = await child.start()
    try:
        async with asyncio.timeout(20):
            while (await client.send("GET", "/seawall/v1/trajectories/r1")).json["steps"][0]["state"] != "committed":
                await asyncio.sleep(0.02)
        assert paths(origin, "POST") == ["/holds"]
    finally:
        await child.terminate()


async def test_an_abort_settles_what_is_in_doubt_before_it_undoes_it(tmp_path: Path, origin: Origin) -> None:
    origin.on("POST /holds", Hang())
    origin.on("GET /holds", Answer(500), Answer(500), listing(HELD), listing(GONE))
    async with serving(tmp_path, origin.port, MANIFEST) as running:
        assert (await hold(running)).code == "ERR_OUTCOME_UNKNOWN"
        undone = await running.agent.send("POST", "/seawall/v1/trajectories/r1/abort")
        assert undone.json["state"] == "aborted_clean"
        assert paths(origin, "POST") == ["/holds", "/holds/h1/cancel"]


async def test_an_abort_of_what_never_landed_sends_nothing_and_says_so(tmp_path: Path, origin: Origin) -> None:
    """Empty compensation: an event with its reason, never silence and never a call."""
    origin.on("POST /holds", Hang())
    origin.on("GET /holds", Answer(500), Answer(500), listing())
    async with serving(tmp_path, origin.port, MANIFEST) as running:
        assert (await hold(running)).code == "ERR_OUTCOME_UNKNOWN"
        undone = (await running.agent.send("POST", "/seawall/v1/trajectories/r1/abort")).json
        assert undone["state"] == "aborted_clean"
        (step,) = undone["steps"]
        assert step["state"] == "failed"
        assert "did not land" in step["skipped"]
        assert paths(origin, "POST") == ["/holds"]


async def test_a_failure_that_may_be_partial_is_undone(tmp_path: Path, origin: Origin) -> None:
    """Seed 000: where T_k left partial effects before it failed, its own C_k comes first."""
    origin.on("POST /charges", Answer(409, b'{"error": "half done"}', JSON))
    async with serving(tmp_path, origin.port, MANIFEST) as running:
        assert (await running.agent.send("POST", "/pay/charges", {"ref": "a"}, run="r1")).status == 409
        undone = (await running.agent.send("POST", "/seawall/v1/trajectories/r1/abort")).json
        assert (undone["state"], undone["steps"][0]["state"]) == ("aborted_clean", "compensated")
        assert paths(origin, "DELETE") == ["/charges/a"]


async def test_what_cannot_be_settled_is_undone_all_the_same_where_that_is_safe(tmp_path: Path, origin: Origin) -> None:
    origin.on("POST /charges", Hang())
    async with serving(tmp_path, origin.port, MANIFEST) as running:
        assert (await running.agent.send("POST", "/pay/charges", {"ref": "a"}, run="r1")).code == "ERR_OUTCOME_UNKNOWN"
        undone = (await running.agent.send("POST", "/seawall/v1/trajectories/r1/abort")).json
        assert (undone["state"], undone["steps"][0]["state"]) == ("aborted_clean", "compensated")
        assert paths(origin, "DELETE") == ["/charges/a"]


async def test_an_effect_that_comes_back_is_undone_once_more_and_then_frozen(tmp_path: Path, origin: Origin) -> None:
    """apache/servicecomb-pack#346: the forward call landed after its compensation."""
    origin.on("POST /holds", Answer(201, b'{"id": "h1"}', JSON))
    origin.on("GET /holds", listing(HELD))
    async with serving(tmp_path, origin.port, MANIFEST) as running:
        await hold(running)
        answer = await running.agent.send("POST", "/seawall/v1/trajectories/r1/abort")
        run = await show(running)
        assert (answer.status, run["state"], run["incident"]) == (423, "frozen", "COMPENSATION_CORRUPTED")
        assert "its effect is back" in run["reason"]
        sent = [request for request in origin.requests if request.path == "/holds/h1/cancel"]
        assert len(sent) == 2


async def test_the_answer_of_a_probe_that_is_late_is_waited_for(tmp_path: Path, origin: Origin) -> None:
    async def slowly(exchange: Exchange) -> None:
        await asyncio.sleep(0.1)
        await listing(HELD)(exchange)

    origin.on("POST /holds", Hang())
    origin.on("GET /holds", slowly)
    async with serving(tmp_path, origin.port, MANIFEST) as running:
        assert (await hold(running)).json == HELD


KEYED = """
version: 1
domains:
  saas:
    timeouts: {connect: 1s, first_byte: 200ms, idle: 1s, total: 2s}
    retry: {attempts: 1}
    breaker: {consecutive: 1, cooldown: 40s}
tools:
  pay:
    upstream: http://127.0.0.1:PORT
    domain: saas
    idempotency: {header: Idempotency-Key, window: 1h}
    operations:
      hold: {match: POST /holds, tier: reversible}
"""


async def test_a_doubt_that_may_not_be_settled_just_now_says_when(tmp_path: Path, origin: Origin) -> None:
    """The identical call would find out what became of it, but the tool's breaker is open: not now, and not "retry"."""
    origin.on("POST /holds", Hang())
    async with serving(tmp_path, origin.port, KEYED) as running:
        first = await hold(running)
        assert first.code == "ERR_OUTCOME_UNKNOWN"
        again = await hold(running)
        assert again.code == "ERR_OUTCOME_UNKNOWN"
        assert again.json["dispatched"] == "maybe"
        assert 1000 < again.json["retry_after_ms"] <= 40_000
        assert again.json["retryable"] is False
        assert (again.get("x-should-retry"), again.get("retry-after")) == ("false", None)
        assert len(origin.requests) == 1


async def test_a_step_that_landed_without_an_answer_to_undo_it_by_is_reported_as_residue(
    tmp_path: Path, origin: Origin
) -> None:
    """The probe tells that it landed, and rebuilds no answer; the compensator needs one. Nothing is invented."""
    text = MANIFEST.replace("          result: response.json.data.filter(h, h.ref == request.json.ref)[0]\n", "")
    origin.on("POST /holds", Drop())
    origin.on("GET /holds", listing(HELD))
    async with serving(tmp_path, origin.port, text) as running:
        warned = (await running.operator.send("GET", "/api/v1/manifest")).json["warnings"]
        assert [line for line in warned if "it reads `response`" in line]
        answer = await hold(running)
        assert (answer.status, answer.get("seawall-settled")) == (200, "landed")
        assert "`response` is not known here" in (answer.get("seawall-warning") or "")
        pivot = await running.agent.send("POST", "/pay/payouts", {}, run="r1")
        assert pivot.code == "ERR_PIVOT_GATE"
        assert "cannot be undone" in pivot.json["detail"]
        await running.agent.send("POST", "/seawall/v1/trajectories/r1/abort", {"reason": "enough"})
        run = await until(running, "aborted_clean")
        (left,) = run["residue"]
        assert (left["step"], run["steps"][0]["state"]) == (1, "skipped")
        assert "its compensator could not be bound" in left["reason"]
        assert not [request for request in origin.requests if "cancel" in request.path]
