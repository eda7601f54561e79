"""A task packet opens a run, the run is used like any other, and its end yields the result packet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gateway.core.packet import read_packet
from tests.core.test_packet import SEED
from tests.gateway.harness import Child, serving
from tests.origin import Answer, Origin

JSON = ((b"Content-Type", b"application/json"),)
TASKS = "/seawall/v1/tasks"
ID = SEED["task_id"]


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    async with Origin() as made:
        made.on("POST /holds", *(Answer(201, b'{"id": "h%d"}' % n, JSON) for n in range(1, 9)))
        yield made


async def schema(running: Any, name: str) -> Any:
    answer = await running.agent.send("GET", f"/seawall/v1/schemas/{name}")
    assert answer.status == 200
    return answer.json


async def test_a_task_runs_from_packet_to_packet(tmp_path: Path, origin: Origin) -> None:
    async with serving(tmp_path, origin.port) as running:
        jsonschema.validate(SEED, await schema(running, "task_packet"))
        opened = await running.agent.send("POST", TASKS, SEED)
        assert (opened.status, opened.json["status"], opened.json["trajectory"]) == (201, "running", ID)
        assert opened.json["budget"]["caps"] == {"usd": 0.5, "tokens": 250000, "seconds": 600, "retries": 3}
        assert opened.json["task"]["inputs"] == SEED["inputs"]
        held = await running.agent.send("POST", "/pay/holds", {"n": 1}, run=ID)
        assert held["seawall-trajectory"] == ID
        await running.agent.send("POST", f"/seawall/v1/trajectories/{ID}/usage", {"usd": 0.1, "tokens": 1000})
        done = {
            "status": "done",
            "artifact_ref": "projects/x.md",
            "next_stage_hint": "stage_script_qc",
            "cost_usd": 0.01,
        }
        ended = await running.agent.send("POST", f"{TASKS}/{ID}/result", done)
        assert ended.status == 200
        packet = {key: ended.json[key] for key in (await schema(running, "result_packet"))["properties"]}
        jsonschema.validate(packet, await schema(running, "result_packet"))
        assert packet["status"] == "done"
        assert packet["cost_usd"] == pytest.approx(0.11)
        assert (packet["artifact_ref"], packet["next_stage_hint"], packet["error"]) == (
            "projects/x.md", "stage_script_qc", None)  # fmt: skip
        assert packet["duration_ms"] >= 0
        again = await running.agent.send("POST", f"{TASKS}/{ID}/result", done)
        assert {key: again.json[key] for key in packet} == packet, (
            "asked again it is the same, and nothing is counted twice"
        )
        other = await running.agent.send("POST", f"{TASKS}/{ID}/result", {"status": "failed"})
        assert other.code == "ERR_ALREADY_DECIDED"


async def test_the_same_packet_is_the_same_task_and_another_under_its_key_is_refused(
    tmp_path: Path, origin: Origin, make_child: Callable[..., Child]
) -> None:
    child = make_child(tmp_path, origin.port)
    client = await child.start()
    packet = {**SEED, "idempotency_key": "k-1"}
    answers = await asyncio.gather(*(client.send("POST", TASKS, packet) for _ in range(6)))
    assert sorted(answer.status for answer in answers) == [200] * 5 + [201]
    await child.kill()
    client = await child.start()
    assert (await client.send("POST", TASKS, packet)).status == 200
    for other in ({**packet, "inputs": {}}, {**packet, "task_id": "another"}, {**SEED, "stage": "other"}):
        refused = await client.send("POST", TASKS, other)
        assert (refused.status, refused.code) == (422, "ERR_IDEMPOTENCY_MISMATCH")
    assert (await client.send("GET", f"{TASKS}/another")).status == 404
    await client.send("POST", "/seawall/v1/trajectories", {"id": "plain"})
    taken = await client.send("POST", TASKS, {**SEED, "task_id": "plain", "idempotency_key": "k-2"})
    assert taken.code == "ERR_IDEMPOTENCY_MISMATCH"


async def test_a_task_that_failed_is_undone_and_says_why(tmp_path: Path, origin: Origin) -> None:
    async with serving(tmp_path, origin.port) as running:
        await running.agent.send("POST", TASKS, {**SEED, "retry_count": 1})
        await running.agent.send("POST", "/pay/holds", {"n": 1}, run=ID)
        said = {"status": "needs_retry", "error": "the model gave up"}
        ended = await running.agent.send("POST", f"{TASKS}/{ID}/result", said)
        assert ended.json["status"] == "needs_retry"
        await running.agent.send("POST", f"/seawall/v1/trajectories/{ID}/abort")
        stands = (await running.agent.send("GET", f"{TASKS}/{ID}")).json
        assert (stands["status"], stands["trajectory_state"], stands["error"]) == (
            "needs_retry", "aborted_clean", "the model gave up")  # fmt: skip
        assert stands["retries_left"] == 2
        assert [request.path for request in origin.requests] == ["/holds", "/holds/h1/cancel"]


async def test_a_task_that_escalates_is_frozen_for_a_person(tmp_path: Path, origin: Origin) -> None:
    async with serving(tmp_path, origin.port) as running:
        await running.agent.send("POST", TASKS, SEED)
        ended = await running.agent.send(
            "POST", f"{TASKS}/{ID}/result", {"status": "escalate", "error": "which account?"}
        )
        assert (ended.status, ended.json["status"], ended.json["trajectory_state"]) == (200, "escalate", "frozen")
        assert len((await running.operator.send("GET", "/api/v1/incidents")).json["incidents"]) == 1


async def test_past_its_pivot_a_failed_task_goes_to_a_person(tmp_path: Path, origin: Origin) -> None:
    async with serving(tmp_path, origin.port) as running:
        await running.agent.send("POST", TASKS, SEED)
        await running.agent.send("POST", "/pay/payouts", {"n": 1}, run=ID)
        ended = await running.agent.send("POST", f"{TASKS}/{ID}/result", {"status": "failed", "error": "x"})
        assert (ended.json["status"], ended.json["trajectory_state"]) == ("escalate", "frozen")


async def test_caps_and_retries_travel_with_the_task(tmp_path: Path, origin: Origin) -> None:
    async with serving(tmp_path, origin.port) as running:
        spent = await running.agent.send("POST", TASKS, {**SEED, "retry_count": 4})
        assert spent.code == "ERR_BUDGET_EXHAUSTED"
        assert (await running.agent.send("GET", f"{TASKS}/{ID}")).status == 404
        await running.agent.send("POST", TASKS, {**SEED, "budget_caps": {"max_steps": 1}})
        await running.agent.send("POST", "/pay/holds", {"n": 1}, run=ID)
        refused = await running.agent.send("POST", "/pay/holds", {"n": 2}, run=ID)
        assert refused.code == "ERR_BUDGET_EXHAUSTED"


@pytest.mark.parametrize("on_abandon", ["escalate", "unwind"])
async def test_a_task_that_runs_for_twice_its_deadline_is_not_waited_for(
    tmp_path: Path, origin: Origin, on_abandon: str
) -> None:
    async with serving(tmp_path, origin.port) as running:
        await running.agent.send("POST", TASKS, {**SEED, "deadline_ms": 1, "on_abandon": on_abandon, "task_id": "late"})
        await running.gateway._janitor.run_once(running.gateway._clock.now())
        stands = (await running.agent.send("GET", f"{TASKS}/late")).json
        while stands["trajectory_state"] in ("preparing", "compensating"):
            await running.gateway._janitor.run_once(running.gateway._clock.now())
            stands = (await running.agent.send("GET", f"{TASKS}/late")).json
        expected = ("frozen", "escalate") if on_abandon == "escalate" else ("aborted_clean", "failed")
        assert (stands["trajectory_state"], stands["status"]) == expected
        assert "needs recovery" in stands["error"]


async def test_what_cannot_be_read_opens_and_ends_nothing(tmp_path: Path, origin: Origin) -> None:
    async with serving(tmp_path, origin.port) as running:
        wrong = {**SEED, "deadline_ms": -1, "x": 1}
        refused = await running.agent.send("POST", TASKS, wrong)
        assert (refused.status, len(refused.json["problems"])) == (422, len(list(read_packet(wrong))))  # type: ignore[arg-type]
        assert (await running.agent.send("GET", f"{TASKS}/{ID}")).code == "ERR_UNKNOWN_TRAJECTORY"
        await running.agent.send("POST", TASKS, SEED)
        assert (
            await running.agent.send("POST", f"{TASKS}/{ID}/result", {"status": "ok"})
        ).code == "ERR_INVALID_ARGUMENTS"
        assert (await running.agent.send("GET", f"{TASKS}/{ID}")).json["status"] == "running"
        assert (await running.agent.send("DELETE", f"{TASKS}/{ID}")).code == "ERR_INVALID_ARGUMENTS"
        assert (await running.agent.send("GET", "/seawall/v1/schemas/other")).code == "ERR_INVALID_ARGUMENTS"


CHILD_BUDGET = {"max_calls": 4, "max_usd": 1.0}


async def used(client: Any, task: str) -> dict[str, float]:
    shown: dict[str, Any] = (await client.send("GET", f"{TASKS}/{task}")).json["budget"]["used"]
    return {name: shown[name] for name in ("calls", "steps", "usd", "tokens")}


def child_of(parent: str, name: str, **caps: float) -> dict[str, Any]:
    return {"task_id": name, "parent_task_id": parent, "budget_caps": caps}


async def test_what_a_child_spends_counts_against_its_parent_too(
    tmp_path: Path, origin: Origin, make_child: Callable[..., Child]
) -> None:
    """A task would get round its caps by handing its work to tasks of its own; nor does a restart make it forget."""
    child = make_child(tmp_path, origin.port)
    client = await child.start()
    await client.send("POST", TASKS, {"task_id": "p", "budget_caps": CHILD_BUDGET})
    await client.send("POST", TASKS, child_of("p", "c"))
    await client.send("POST", TASKS, child_of("c", "g", max_calls=1))
    assert (await client.send("POST", "/pay/holds", {"n": 1}, run="p")).status == 201
    assert (await client.send("POST", "/pay/holds", {"n": 2}, run="c")).status == 201
    assert (await client.send("POST", "/pay/holds", {"n": 3}, run="g")).status == 201
    own = await client.send("POST", "/pay/holds", {"n": 4}, run="g")
    assert (own.code, own.json["budget"]["trajectory"]) == ("ERR_BUDGET_EXHAUSTED", "g")
    await client.send("POST", "/seawall/v1/trajectories/g/usage", {"usd": 0.25, "tokens": 10})
    expected = {
        "p": {"calls": 3, "steps": 3, "usd": 0.25, "tokens": 10},
        "c": {"calls": 2, "steps": 2, "usd": 0.25, "tokens": 10},
        "g": {"calls": 1, "steps": 1, "usd": 0.25, "tokens": 10},
    }
    for _ in range(2):
        assert {task: await used(client, task) for task in expected} == expected
        await child.kill()
        client = await child.start()
    ended = await client.send("POST", f"{TASKS}/g/result", {"status": "done", "cost_usd": 0.5})
    assert ended.status == 200
    for task in expected:
        expected[task]["usd"] += 0.5
    for _ in range(2):
        assert {task: await used(client, task) for task in expected} == expected
        await child.kill()
        client = await child.start()
    assert (await client.send("POST", "/pay/holds", {"n": 5}, run="c")).status == 201
    refused = await client.send("POST", "/pay/holds", {"n": 6}, run="c")
    assert (refused.code, refused.json["budget"]["trajectory"]) == ("ERR_BUDGET_EXHAUSTED", "p")
    assert "run p has spent 4 of 4 calls" in refused.json["detail"]


async def test_what_outlives_a_child_still_counts_against_its_parent(
    tmp_path: Path, origin: Origin, make_child: Callable[..., Child]
) -> None:
    """A task would get round its caps by having a task between that ends at once, be it before or after it hands on."""
    child = make_child(tmp_path, origin.port)
    client = await child.start()
    await client.send("POST", TASKS, {"task_id": "p", "budget_caps": {"max_calls": 4}})
    await client.send("POST", TASKS, child_of("p", "c"))
    await client.send("POST", TASKS, child_of("c", "before"))
    assert (await client.send("POST", "/pay/holds", {"n": 1}, run="c")).status == 201
    assert (await client.send("POST", "/pay/holds", {"n": 2}, run="before")).status == 201
    assert (await client.send("POST", f"{TASKS}/c/result", {"status": "done"})).status == 200
    await client.send("POST", TASKS, child_of("c", "after"))
    assert (await client.send("POST", "/pay/holds", {"n": 3}, run="after")).status == 201
    for _ in range(2):
        spent = [(await used(client, task))["calls"] for task in ("p", "c", "before", "after")]
        assert spent == [3, 2, 1, 1]
        await child.kill()
        client = await child.start()
    assert (await client.send("POST", "/pay/holds", {"n": 4}, run="before")).status == 201
    for name in ("before", "after"):
        refused = await client.send("POST", "/pay/holds", {"n": 5}, run=name)
        assert (refused.code, refused.json["budget"]["trajectory"]) == ("ERR_BUDGET_EXHAUSTED", "p")
    for name in ("before", "after"):
        assert (await client.send("POST", f"{TASKS}/{name}/result", {"status": "done"})).status == 200
    for _ in range(2):
        assert (await used(client, "p"))["calls"] == 4
        await child.kill()
        client = await child.start()


async def test_children_at_once_never_exceed_their_parents_cap(tmp_path: Path, origin: Origin) -> None:
    origin.on("POST /holds", Answer(201, b'{"id": "h1"}', JSON))
    async with serving(tmp_path, origin.port) as running:
        await running.agent.send("POST", TASKS, {"task_id": "p", "budget_caps": {"max_calls": 7}})
        for name in ("a", "b", "c"):
            await running.agent.send("POST", TASKS, child_of("p", name))
        answers = await asyncio.gather(
            *(running.agent.send("POST", "/pay/holds", {"n": n}, run="abc"[n % 3]) for n in range(24))
        )
        assert sorted(answer.status for answer in answers) == [201] * 7 + [429] * 17
        assert len(origin.requests) == 7
        assert (await used(running.agent, "p"))["calls"] == 7


async def test_a_parent_that_is_not_there_is_a_name(tmp_path: Path, origin: Origin) -> None:
    async with serving(tmp_path, origin.port) as running:
        opened = await running.agent.send("POST", TASKS, child_of("nobody", "c", max_calls=2))
        assert opened.status == 201
        assert (await running.agent.send("POST", "/pay/holds", {"n": 1}, run="c")).status == 201
        assert (await used(running.agent, "c"))["calls"] == 1
