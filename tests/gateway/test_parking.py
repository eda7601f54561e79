"""The same calls to two gateways, one of which parks its runs after each: answers, records, budgets, loops are the same."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway.core.containment import Trigger
from gateway.core.records import decode
from gateway.core.trajectory import Phase
from gateway.journal import Entry
from tests.gateway.harness import Answered, Serving, serving
from tests.origin import Answer, Origin

JSON = ((b"Content-Type", b"application/json"),)
RUNS = "/seawall/v1/trajectories"
MANIFEST = """
version: 1
watchdog: {epoch: 4, polls: 6, repeats: 2, rewinds: 1}
domains:
  lab:
    timeouts: {connect: 1s, first_byte: 2s, idle: 2s, total: 5s}
    retry: {attempts: 1}
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
        usage: {price: 0.04}
      cancel: {match: "POST /holds/{id}/cancel", tier: reversible, idempotent: true}
      bad: {match: POST /bad, tier: reversible}
      tests: {match: POST /tests, tier: reversible, watch: {metrics: {passing: response.json.passing}}}
      job: {match: "GET /jobs/{id}", tier: read, watch: {poll: 4}}
      look: {match: GET /rows, tier: read, usage: {tokens: response.json.tokens}}
      publish: {match: POST /publish, tier: pivot}
"""
CALLS = 60
_CHANGING = re.compile(r'"[^"]*(?:_at|key|at|_ms|seconds|age_s)": ?[^,}]*|1[0-9]{12}')
"""What no two gateways have alike: times, and keys, which come from a salt of their own."""


def answers(origin: Origin) -> None:
    origin.on("POST /holds", *(Answer(201, b'{"id": "h%d"}' % n, JSON) for n in range(1, 200)))
    origin.on("POST /bad", Answer(422, b'{"error": "no"}', JSON))
    origin.on("POST /tests", Answer(200, b'{"passing": 3}', JSON))
    origin.on("GET /rows", Answer(200, b'{"tokens": 25}', JSON))


def drawn(rng: random.Random) -> Iterator[tuple[str, str, object]]:
    """Calls of an agent that loses its way now and then, and of the people who look on."""
    for _ in range(CALLS):
        number = rng.randrange(4)
        yield rng.choice([
            ("POST", "/lab/holds", {"n": number}),
            ("POST", "/lab/holds", {"n": rng.randrange(1000)}),
            ("POST", f"/lab/holds/h{number}/cancel", {}),
            ("POST", "/lab/bad", {"n": number % 2}),
            ("POST", "/lab/tests", {"n": rng.randrange(1000)}),
            ("GET", f"/lab/jobs/{number % 2}", None),
            ("GET", "/lab/rows", None),
            ("GET", f"{RUNS}/r1", None),
            ("POST", f"{RUNS}/r1/usage", {"tokens": 7}),
            ("POST", f"{RUNS}/r1/savepoints", {"name": f"s{number}"}),
        ])  # fmt: skip


def told(answer: Answered) -> tuple[object, ...]:
    """What an agent can tell an answer by, but for the advice on failures, which weighs how long everything took."""
    fields = {name.lower(): value for name, value in answer.headers if name.lower().startswith("seawall")}
    body = json.loads(answer.body) if answer.body.startswith(b"{") else answer.body.decode()
    for advice in ("seawall-directive", "seawall-explain"):
        fields.pop(advice, None)
    if isinstance(body, dict):
        body = {name: value for name, value in body.items() if name not in ("directive", "explain", "recovery")}
    return answer.status, _CHANGING.sub("", json.dumps(body)), tuple(sorted(fields.items()))


def record(entry: Entry) -> tuple[str, str]:
    decode(entry.kind, entry.data)
    return entry.kind, _CHANGING.sub("", entry.data.decode())


async def life(one: Serving, seed: int, ending: tuple[str, str, object], *, parks: bool) -> dict[str, Any]:
    """Return all that is seen of a run from its opening to its end."""
    trajectories, parked, seen = one.gateway._trajectories, 0, []
    opening = {"id": "r1", "budget": {"usd": 1.2, "calls": 45, "tokens": 10_000}, "ttl": 600, "labels": {"x": "y"}}
    for method, path, body in [
        ("POST", RUNS, opening),
        *drawn(random.Random(seed)),
        ending,
        ("GET", f"{RUNS}/r1", None),
    ]:
        answer = await one.agent.send(method, path, body, run="r1")
        seen.append((method, path, *told(answer)))
        while (run := trajectories.known("r1")) is not None and run.state.phase is Phase.COMPENSATING:
            await run.changed()
        del run
        trajectories.flush_refusals()
        await trajectories.journal.flush()
        await asyncio.sleep(0)
        if parks:
            parked += trajectories.park("r1")
    assert bool(parked > CALLS / 2) is parks, parked
    entries = await trajectories.journal.read("r1")
    records = [record(entry) for entry in entries if entry.kind != "RefusalsObserved"]  # written by the clock
    return {"seen": seen, "records": records}


@pytest.mark.parametrize(
    ("seed", "ending"),
    [
        (1, ("POST", f"{RUNS}/r1/abort", {"reason": "x"})),
        (2, ("POST", "/lab/publish", {})),
        (3, ("POST", f"{RUNS}/r1/commit", {})),
        (4, ("POST", f"{RUNS}/r1/abort", {"reason": "x"})),
    ],
)
async def test_the_same_calls_lead_to_the_same(tmp_path: Path, seed: int, ending: tuple[str, str, object]) -> None:
    lives = []
    for parks in (False, True):
        folder = tmp_path / str(parks)
        folder.mkdir()
        async with AsyncExitStack() as stack:
            origin = await stack.enter_async_context(Origin())
            answers(origin)
            one = await stack.enter_async_context(serving(folder, origin.port, MANIFEST))
            seen = await life(one, seed, ending, parks=parks)
            lives.append(json.loads(json.dumps(seen).replace(str(origin.port), "PORT")))
    bare, parked = lives
    for first, second in zip(bare["seen"], parked["seen"], strict=True):
        assert second == first
    assert parked["records"] == bare["records"]
    statuses = {answer[2] for answer in bare["seen"]}
    assert {200, 201, 409, 422} <= statuses, statuses


async def test_what_people_do_reaches_a_parked_run(tmp_path: Path) -> None:
    """It is shown, listed, counted, quarantined with its agent, and undone."""
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST) as one:
        answers(origin)
        trajectories = one.gateway._trajectories
        for run in ("r1", "r2", "r3"):
            assert (await one.agent.send("POST", "/lab/holds", {"n": run}, run=run)).status == 201
        await trajectories.journal.flush()
        await asyncio.sleep(0)
        assert all(trajectories.park(run) for run in ("r1", "r2", "r3"))
        assert (await one.operator.send("GET", "/api/v1/status")).json["open_trajectories"] == 3
        metrics = (await one.operator.send("GET", "/metrics")).body
        assert b'gateway_trajectories_open{state="preparing"} 3.0' in metrics, metrics
        assert trajectories.awake == 0, "counting wakes nobody"
        shown = await one.operator.send("GET", "/api/v1/trajectories/r1")
        assert (shown.status, shown.json["state"]) == (200, "preparing")
        trajectories.park("r1")
        aborted = await one.agent.send("POST", f"{RUNS}/r1/abort", {"reason": "enough"})
        assert aborted.json["state"] == "aborted_clean", "its compensator was kept"
        agent = shown.json["agent"]
        done = one.gateway._quarantiner.contain(agent=agent, trigger=Trigger.OPERATOR, by="eve", reason="x")
        assert done is not None
        frozen = [run.state.id for run in trajectories.live() if run.state.phase.value == "frozen"]
        assert sorted(frozen) == ["r2", "r3"]
