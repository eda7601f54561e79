"""The recovery policy through the whole gateway: the seed's worked examples, its trace, and classes of a manifest's own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.core.test_antispin import TRACE
from tests.gateway.harness import Answered, Child, serving
from tests.origin import Answer, Origin

JSON = ((b"Content-Type", b"application/json"),)
RUN = "/seawall/v1/trajectories/r1"
MIGRATION = """
version: 1
domains:
  cloud:
    timeouts: {connect: 1s, first_byte: 2s, idle: 2s, total: 5s}
    retry: {attempts: 1}
    breaker: {consecutive: 1000, window: 1000}
tools:
  cloud:
    upstream: http://127.0.0.1:PORT
    domain: cloud
    watch: {mode: 'off'}
    recovery: {mode: MODE, repair_cost: 4100ms, repair_usd: 0.00987, repair_tokens: 2570}
    operations:
      network:
        match: POST /network
        tier: compensable
        compensator: {request: "DELETE /network/${response.json.id}", duration: 8s}
        duration: 10s
      replica:
        match: POST /replica
        tier: compensable
        compensator: {request: "DELETE /replica/${response.json.id}", duration: 20600ms}
        duration: 20s
      dns:
        match: POST /dns
        tier: compensable
        compensator: {request: "DELETE /dns/${response.json.id}", duration: 4s}
        duration: 5s
      routes: {match: POST /routes, tier: reversible}
"""
CLASSES = """
version: 1
domains:
  d:
    timeouts: {connect: 1s, first_byte: 2s, idle: 2s, total: 5s}
    retry: {attempts: 1}
tools:
  studio:
    upstream: http://127.0.0.1:PORT
    domain: d
    recovery:
      transient: response.status == 409 && response.json.reason == 'lock'
      fatal: response.json.reason == 'disk is gone'
      content_block: response.json.error == 'dangerous content'
      semantic: response.status == 403 && response.json.reason == 'schema'
    operations:
      image: {match: POST /images, tier: reversible}
      other: {match: POST /other, tier: reversible}
"""


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    async with Origin() as made:
        for path in ("network", "replica", "dns"):
            made.on(f"POST /{path}", *(Answer(201, b'{"id": "%d"}' % n, JSON) for n in range(9)))
        yield made


def explained(answer: Answered) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer["seawall-explain"])
    assert found["directive"] == answer["seawall-directive"]
    return found


async def migrate(running: Any) -> None:
    """Steps 1 to 5: 46 s forward and 40.6 s back, and 0.162 USD of tokens."""
    for path in ("network", "replica", "dns", "dns"):
        assert (await running.agent.send("POST", f"/cloud/{path}", {"n": path}, run="r1")).status == 201
    assert (await running.agent.send("POST", "/cloud/dns", {"n": 2}, run="r1")).status == 201
    usage = {"usd": 38_500 * 3e-6 + 3_100 * 15e-6, "tokens": 41_600}
    await running.agent.send("POST", f"{RUN}/usage", usage)


async def test_the_seeds_migration_by_declared_durations_and_prices(tmp_path: Path, origin: Origin) -> None:
    """Break-even at 5 percent by time and 6 percent by money, so an unknown chance of one half is worth a repair."""
    origin.on("POST /routes", Answer(422, b'{"error": "port must be a number"}', JSON))
    text = MIGRATION.replace("MODE", "advise").replace("duration: 5s", "duration: 5333ms").replace("4s}", "4s}")
    async with serving(tmp_path, origin.port, text) as running:
        await migrate(running)
        told = explained(await running.agent.send("POST", "/cloud/routes", {"port": "5432"}, run="r1"))
        assert (told["directive"], told["gate"], told["class"], told["p"]) == ("FORWARD_REPAIR", 3, "semantic", 0.5)
        assert told["p_star_s"] == pytest.approx(4.1 / (40.6 + 46.0), abs=0.0005)
        assert told["p_star_usd"] == pytest.approx(0.061, abs=0.001)


async def test_the_seeds_trace_ends_at_its_fourth_error_and_the_run_is_undone(tmp_path: Path, origin: Origin) -> None:
    origin.on("POST /routes", *(
        Answer(422, json.dumps({"type": kind, "error": text}).encode(), JSON) for kind, text in TRACE))  # fmt: skip
    async with serving(tmp_path, origin.port, MIGRATION.replace("MODE", "enforce")) as running:
        await migrate(running)
        said = []
        for patch in range(4):
            said.append(explained(await running.agent.send("POST", "/cloud/routes", {"patch": patch}, run="r1")))
        assert [one["directive"] for one in said] == ["FORWARD_REPAIR"] * 3 + ["BACKWARD_ROLLBACK"]
        assert "circles" in said[-1]["why"]
        await running.agent.send("POST", f"{RUN}/abort")
        assert (await running.agent.send("GET", RUN)).json["state"] == "aborted_clean"
        undone = [request.path for request in origin.requests if request.method == "DELETE"]
        assert undone[-2:] == ["/replica/0", "/network/0"]
        late = await running.agent.send("POST", "/cloud/routes", {"patch": 9}, run="r1")
        assert late.code == "ERR_TRAJECTORY_CLOSED"


async def test_three_repairs_are_all_there_are_whatever_they_say(tmp_path: Path, origin: Origin) -> None:
    texts = ("no such port", "no such host", "no such route", "no such table")
    origin.on("POST /routes", *(Answer(422, json.dumps({"error": text}).encode(), JSON) for text in texts))
    async with serving(tmp_path, origin.port, MIGRATION.replace("MODE", "advise")) as running:
        await migrate(running)
        said = [
            explained(await running.agent.send("POST", "/cloud/routes", {"patch": patch}, run="r1"))
            for patch in range(4)
        ]
        assert [one["directive"] for one in said] == ["FORWARD_REPAIR"] * 3 + ["BACKWARD_ROLLBACK"]
        assert "as often as it may be" in said[-1]["why"]


async def test_what_became_of_repairs_is_measured_and_survives_a_kill(
    tmp_path: Path, origin: Origin, make_child: Callable[..., Child]
) -> None:
    """p is a posterior over what later happened, never an assumption."""
    child = make_child(tmp_path, origin.port, MIGRATION.replace("MODE", "advise"))
    client = await child.start()
    for number in range(3):
        origin.on("POST /routes", Answer(422, b'{"error": "port"}', JSON), Answer(200, b"{}", JSON))
        for patch in range(2):
            await client.send("POST", "/cloud/routes", {"n": number, "patch": patch}, run=f"run-{number}")
    origin.on("POST /routes", Answer(422, b'{"error": "port"}', JSON), Answer(422, b'{"error": "table"}', JSON))
    for patch in range(2):
        await client.send("POST", "/cloud/routes", {"patch": patch}, run="run-9")
    await client.send("POST", "/seawall/v1/trajectories", {"id": "durable"})
    await child.kill()
    await child.start()
    known = (await child.operator.send("GET", "/api/v1/repairs")).json
    text = json.dumps(known)
    assert '"worked": 3, "failed": 1' in text
    assert '"chance": 0.6667' in text


@pytest.mark.parametrize(
    ("status", "body", "expected", "directive"),
    [
        (409, {"reason": "lock"}, "transient", "TRANSIENT_RETRY"),
        (409, {"reason": "taken"}, "semantic", "FORWARD_REPAIR"),
        (400, {"reason": "disk is gone"}, "fatal", "BACKWARD_ROLLBACK"),
        (403, {"reason": "schema"}, "semantic", "FORWARD_REPAIR"),
        (403, {"reason": "revoked"}, "fatal", "BACKWARD_ROLLBACK"),
        (400, {"error": "dangerous content"}, "content_block", "FORWARD_REPAIR"),
    ],
)
async def test_a_manifests_own_rules_go_before_the_table(
    tmp_path: Path, origin: Origin, status: int, body: dict[str, str], expected: str, directive: str
) -> None:
    origin.on("POST /images", Answer(status, json.dumps(body).encode(), JSON))
    async with serving(tmp_path, origin.port, CLASSES) as running:
        told = explained(await running.agent.send("POST", "/studio/images", {"prompt": "a"}, run="r1"))
        assert (told["class"], told["directive"], told["gate"]) == (
            expected,
            directive,
            1 if directive[0] != "F" else 3,
        )


async def test_blocked_content_is_never_sent_again_and_reworded_six_times_at_most(
    tmp_path: Path, origin: Origin, make_child: Callable[..., Child]
) -> None:
    """Seed 003, section 4: no retry of the same prompt, up to six rewordings, then the scene is blocked."""
    origin.on("POST /images", Answer(400, b'{"error": "dangerous content"}', JSON))
    origin.on("POST /other", Answer(200, b"{}", JSON))
    child = make_child(tmp_path, origin.port, CLASSES)
    client = await child.start()

    async def ask(prompt: str) -> Answered:
        return await client.send("POST", "/studio/images", {"prompt": prompt}, run="r1")

    assert (await ask("a")).status == 400
    refused = await ask("a")
    assert (refused.status, refused.code, refused.json["rewordings_left"]) == (422, "ERR_CONTENT_BLOCKED", 6)
    for number in range(3):
        assert (await ask(f"a{number}")).status == 400
    await child.kill()
    client = await child.start()
    assert (await ask("a")).code == "ERR_CONTENT_BLOCKED", "a restart forgets nothing"
    said = [explained(await ask(f"b{number}"))["directive"] for number in range(3)]
    assert said == ["FORWARD_REPAIR"] * 2 + ["BACKWARD_ROLLBACK"]
    blocked = await ask("c")
    assert (blocked.code, blocked.json["rewordings_left"]) == ("ERR_CONTENT_BLOCKED", 0)
    assert "the step is blocked" in blocked.json["detail"]
    assert len([request for request in origin.requests if request.path == "/images"]) == 7
    assert (await client.send("POST", "/studio/other", {}, run="r1")).status == 200, "other steps go on"
    assert (await client.send("POST", "/studio/images", {"prompt": "a"}, run="r2")).status == 400, "it is this run's"


async def test_a_rewording_that_works_starts_anew(tmp_path: Path, origin: Origin) -> None:
    no, yes = Answer(400, b'{"error": "dangerous content"}', JSON), Answer(200, b"{}", JSON)
    origin.on("POST /images", *[no] * 5, yes, *[no] * 6, yes)
    async with serving(tmp_path, origin.port, CLASSES) as running:
        statuses = [
            (await running.agent.send("POST", "/studio/images", {"prompt": n}, run="r1")).status for n in range(13)
        ]
        assert statuses == [400] * 5 + [200] + [400] * 6 + [200]
        again = await running.agent.send("POST", "/studio/images", {"prompt": 0}, run="r1")
        assert again.code == "ERR_CONTENT_BLOCKED", "what was blocked stays so"
