"""Runs that go in circles, through the whole gateway, on the tool's own ledger; and what of it survives a kill."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.harness import Answered, Child, Client, Serving, serving
from tests.origin import Answer, Exchange, Origin

JSON = ((b"Content-Type", b"application/json"),)
RUN = "/seawall/v1/trajectories/r1"
MANIFEST = """
version: 1
watchdog: {epoch: 4, polls: 6, MODE}
domains:
  lab:
    timeouts: {connect: 1s, first_byte: 2s, idle: 2s, total: 5s}
    retry: {attempts: 1}
tools:
  lab:
    upstream: http://127.0.0.1:PORT
    domain: lab
    operations:
      hold:
        match: POST /holds
        tier: compensable
        compensator: {request: "POST /holds/${response.json.id}/cancel"}
      cancel: {match: "POST /holds/{id}/cancel", tier: reversible, idempotent: true}
      set: {match: "PUT /lines/{n}", tier: reversible, idempotent: true}
      tests:
        match: POST /tests
        tier: reversible
        watch: {metrics: {passing: response.json.passing, errors: -response.json.errors}}
      job: {match: "GET /jobs/{id}", tier: read, watch: {poll: 4}}
      publish: {match: POST /publish, tier: pivot}
  file:
    upstream: http://127.0.0.1:PORT
    domain: lab
    watch: {state: {request: GET /state, select: response.json.lines}}
    operations:
      set: {match: "PUT /lines/{n}", tier: reversible, idempotent: true}
"""


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    async with Origin() as made:
        made.on("POST /holds", *(Answer(201, b'{"id": "h%d"}' % n, JSON) for n in range(1, 90)))
        made.on("POST /bad", Answer(422, b'{"error": "port must be a number", "request_id": "1"}', JSON))
        yield made


def manifest(mode: str = "mode: enforce") -> str:
    return MANIFEST.replace("MODE", mode)


async def send(client: Client, line: str, body: object = None, run: str | None = "r1") -> Answered:
    method, _, path = line.partition(" ")
    return await client.send(method, path, {} if body is None and method != "GET" else body, run=run)


def sent(origin: Origin, path: str) -> int:
    return sum(request.path == path for request in origin.requests)


async def test_the_fourth_equal_no_is_never_sent_and_the_agent_reads_why(tmp_path: Path, origin: Origin) -> None:
    """NousResearch/hermes-agent#67829: 85 identical failures, a warning printed each time."""
    origin.on("POST /holds", *(
        Answer(422, b'{"error": "port must be a number", "request_id": "%d"}' % n, JSON) for n in range(9)))  # fmt: skip
    async with serving(tmp_path, origin.port, manifest()) as running:
        for _ in range(3):
            assert (await send(running.agent, "POST /lab/holds", {"port": "x"})).status == 422
        refused = await send(running.agent, "POST /lab/holds", {"port": "x"})
        assert (refused.status, refused.code) == (409, "SEMANTIC_WATCHDOG_INTERRUPT")
        told = refused.json
        assert told["dispatched"] == "no"
        assert told["directive"] == "FORWARD_REPAIR"
        assert told["watchdog"] == {
            "pattern": "REPEATED_FAILURE_DETECTED", "done": "interrupt", "since_step": 1, "since_action": 1, "times": 3
        }  # fmt: skip
        for words in ("REPEATED_FAILURE_DETECTED", "3 times since step 1", "Do not repeat it", "another hypothesis"):
            assert words in told["detail"]
        assert sent(origin, "/holds") == 3
        assert (await send(running.agent, "POST /lab/holds", {"port": 8080})).status == 422, "other arguments are sent"


async def test_who_goes_on_is_taken_back_to_before_the_loop_and_the_action_is_masked(
    tmp_path: Path, origin: Origin
) -> None:
    origin.on("POST /tests", Answer(422, b'{"error": "boom"}', JSON))
    async with serving(tmp_path, origin.port, manifest()) as running:
        await send(running.agent, "POST /lab/holds", {"n": 1})
        for _ in range(12):  # each fix is another one, and the tests fail the same way
            await send(running.agent, "POST /lab/tests")
            await send(running.agent, "POST /lab/holds", {"fix": _})
        first = await send(running.agent, "POST /lab/tests")
        assert first.json["watchdog"]["done"] == "interrupt"
        second = await send(running.agent, "POST /lab/tests")
        assert second.json["watchdog"]["done"] == "rewind"
        assert second.json["savepoint"].startswith("watchdog-")
        run = (await running.agent.send("GET", RUN)).json
        assert run["state"] == "preparing"
        states = [step["state"] for step in run["steps"] if step["operation"] == "hold"]
        assert states[0] == "committed", "what was done before the loop stands"
        assert set(states[1:]) == {"compensated"}
        masked = await send(running.agent, "POST /lab/tests")
        assert masked.code == "SEMANTIC_WATCHDOG_INTERRUPT"
        assert masked.json["watchdog"]["pattern"] == "MASKED_ACTION_REPEATED"
        assert sent(origin, "/tests") == 12
        assert (await send(running.agent, "POST /lab/holds", {"n": 99})).status == 201, "the run goes on"


async def test_an_agents_own_savepoint_is_what_a_run_is_taken_back_to(tmp_path: Path, origin: Origin) -> None:
    origin.on("POST /tests", Answer(422, b'{"error": "boom"}', JSON))
    async with serving(tmp_path, origin.port, manifest()) as running:
        await send(running.agent, "POST /lab/holds", {"n": 1})
        await running.agent.send("POST", f"{RUN}/savepoints", {"name": "prepared"})
        await send(running.agent, "POST /lab/holds", {"n": 2})
        for _ in range(4):
            await send(running.agent, "POST /lab/tests")
        back = await send(running.agent, "POST /lab/tests")
        assert (back.json["watchdog"]["done"], back.json["savepoint"]) == ("rewind", "prepared")
        run = (await running.agent.send("GET", RUN)).json
        holds = [step["state"] for step in run["steps"] if step["operation"] == "hold"]
        assert holds == ["committed", "compensated"]


async def deadlock(client: Client, line: str = "POST /lab/tests") -> Answered:
    for _ in range(12):
        answer = await send(client, line)
        if answer.status == 423:
            return answer
    raise AssertionError("the run was never stopped")


async def test_a_run_that_heeds_nothing_is_stopped_for_good_and_undone(tmp_path: Path, origin: Origin) -> None:
    origin.on("POST /tests", Answer(422, b'{"error": "boom"}', JSON))
    async with serving(tmp_path, origin.port, manifest()) as running:
        revoked: list[str] = []
        running.gateway._stages.watchdog.revoke = revoked.append
        await send(running.agent, "POST /lab/holds", {"n": 1})
        stopped = await deadlock(running.agent)
        assert (stopped.code, stopped.json["directive"]) == ("ERR_SEMANTIC_DEADLOCK", "BACKWARD_ROLLBACK")
        assert revoked == ["r1"]
        assert sent(origin, "/tests") == 3
        later = await send(running.agent, "POST /lab/holds", {"n": 2})
        # While the run is being undone, or when that is over already.
        assert later.code in ("ERR_SEMANTIC_DEADLOCK", "ERR_TRAJECTORY_CLOSED")
        await running.agent.send("POST", f"{RUN}/abort")
        assert (await running.agent.send("GET", RUN)).json["state"] == "aborted_clean"
        assert sent(origin, "/holds/h1/cancel") == 1


async def test_past_the_pivot_a_deadlock_freezes_the_run_and_nothing_is_undone(tmp_path: Path, origin: Origin) -> None:
    origin.on("PUT /lines/1", Answer(422, b'{"error": "read only"}', JSON))
    async with serving(tmp_path, origin.port, manifest()) as running:
        await send(running.agent, "POST /lab/holds", {"n": 1})
        assert (await send(running.agent, "POST /lab/publish")).status < 300
        stopped = await deadlock(running.agent, "PUT /lab/lines/1")
        assert stopped.json["directive"] == "OPERATOR_ESCALATE"
        run = (await running.agent.send("GET", RUN)).json
        assert (run["state"], run["incident"]) == ("frozen", "SEMANTIC_DEADLOCK")
        assert sent(origin, "/holds/h1/cancel") == 0
        released = await running.operator.send(
            "POST", "/api/v1/trajectories/r1/release", {"principal": "ann", "reason": "made writable"}
        )
        assert released.status == 200
        origin.on("PUT /lines/1", Answer(200, b"{}", JSON))
        assert (await send(running.agent, "PUT /lab/lines/1")).status == 200, "a released run has a full ladder"


async def test_of_a_run_that_nobody_named_only_actions_are_taken_away(tmp_path: Path, origin: Origin) -> None:
    origin.on("POST /tests", Answer(422, b'{"error": "boom"}', JSON))
    async with serving(tmp_path, origin.port, manifest()) as running:
        await send(running.agent, "POST /lab/holds", {"n": 1}, run=None)
        done = [(await send(running.agent, "POST /lab/tests", run=None)).json.get("watchdog", {}) for _ in range(12)]
        assert [one.get("done") for one in done[3:]] == ["interrupt", *["mask"] * 8]
        assert sent(origin, "/tests") == 3
        assert sent(origin, "/holds/h1/cancel") == 0


async def test_observe_counts_and_holds_nothing_back_and_off_does_not_look(tmp_path: Path, origin: Origin) -> None:
    origin.on("POST /tests", Answer(422, b'{"error": "boom"}', JSON))
    for mode, counted in (("observe", True), ("'off'", False)):
        folder = tmp_path / mode.strip("'")
        folder.mkdir()
        async with serving(folder, origin.port, manifest(f"mode: {mode}")) as running:
            for _ in range(8):
                assert (await send(running.agent, "POST /lab/tests")).status == 422
            metrics = (await running.operator.send("GET", "/metrics")).body.decode()
            assert ('gateway_loops_total{done="observed"' in metrics) is counted


async def test_a_declared_poll_has_its_own_cap(tmp_path: Path, origin: Origin) -> None:
    origin.on("GET /jobs/1", Answer(200, b'{"state": "running"}', JSON))
    async with serving(tmp_path, origin.port, manifest()) as running:
        for _ in range(4):
            assert (await send(running.agent, "GET /lab/jobs/1")).status == 200
        stopped = await send(running.agent, "GET /lab/jobs/1")
        assert stopped.json["watchdog"]["pattern"] == "ENDLESS_POLLING_DETECTED"
        origin.on("GET /jobs/1", *(Answer(200, b'{"state": "%d %%"}' % n, JSON) for n in range(50)))
        await send(running.agent, "GET /lab/jobs/2")
        for _ in range(30):
            assert (await send(running.agent, "GET /lab/jobs/1")).status == 200, "an answer that changes is no loop"


class File:
    """Two lines of a file, and a clock on the side that changes by itself."""

    def __init__(self) -> None:
        self.lines = {"1": "old", "2": "old"}
        self.asked = 0

    async def put(self, exchange: Exchange) -> None:
        await exchange.read_body()
        self.lines[exchange.request.path.rpartition("/")[2]] = json.loads(exchange.request.body)["text"]
        await Answer(200, b"{}", JSON)(exchange)

    async def state(self, exchange: Exchange) -> None:
        self.asked += 1
        await Answer(200, json.dumps({"lines": self.lines, "mtime": self.asked}).encode(), JSON)(exchange)


async def test_a_state_that_goes_round_is_seen_by_the_tools_own_probe(tmp_path: Path, origin: Origin) -> None:
    """The flip-flop of line 42: changed, taken back, changed, taken back - and the fourth time it does not leave."""
    file = File()
    origin.on("PUT /lines/1", file.put)
    origin.on("GET /state", file.state)
    async with serving(tmp_path, origin.port, manifest()) as running:
        answers = [
            await running.agent.send("PUT", "/file/lines/1", {"text": text}, run="r1") for text in ("new", "old") * 3
        ]
        statuses = [answer.status for answer in answers]
        assert statuses[:4] == [200] * 3 + [409]
        refused = next(answer for answer in answers if answer.status == 409)
        assert refused.json["watchdog"]["pattern"] == "STATE_OSCILLATION_DETECTED"
        assert refused.json["watchdog"]["times"] == 2
        assert file.asked >= 5, "before the first change, and after each"


async def test_the_agents_own_reports_of_its_state_show_a_cycle(tmp_path: Path, origin: Origin) -> None:
    async with serving(tmp_path, origin.port, manifest()) as running:
        await send(running.agent, "POST /lab/holds", {"n": 0})
        for turn in range(4):
            state = {"tree": turn % 2, "updated_at": turn, "seen": turn}
            told = await running.agent.send("POST", f"{RUN}/state", {"state": state, "ignore": ["seen"]})
            assert told.status == 200, told.body
            assert told.json["watchdog"]["pending"] == (None if turn < 3 else "STATE_OSCILLATION_DETECTED")
        refused = await send(running.agent, "POST /lab/holds", {"n": 1})
        assert refused.json["watchdog"]["pattern"] == "STATE_OSCILLATION_DETECTED"


async def test_creating_and_cancelling_over_and_over_is_a_cycle_of_two(tmp_path: Path, origin: Origin) -> None:
    """The run's own net effect: nobody told the gateway any state."""
    async with serving(tmp_path, origin.port, manifest()) as running:
        made = await send(running.agent, "POST /lab/holds", {"n": 1})
        while made.status == 201:
            await send(running.agent, f"POST /lab/holds/{made.json['id']}/cancel")
            made = await send(running.agent, "POST /lab/holds", {"n": 1})
        refused = made
        assert sent(origin, "/holds") == 3
        assert refused.json["watchdog"]["pattern"] == "STATE_OSCILLATION_DETECTED"


async def test_changes_that_make_no_metric_better_are_stagnation(tmp_path: Path, origin: Origin) -> None:
    origin.on("POST /tests", *(Answer(200, b'{"passing": %d, "errors": 7}' % (4 - n % 2), JSON) for n in range(20)))
    async with serving(tmp_path, origin.port, manifest()) as running:
        codes = []
        for turn in range(4):
            codes.append((await send(running.agent, "POST /lab/holds", {"turn": turn})).status)
            codes.append((await send(running.agent, "POST /lab/tests", {"turn": turn})).status)
        assert 409 in codes
        refused = await send(running.agent, "POST /lab/holds", {"turn": 99})
        run = (await running.agent.send("GET", RUN)).json
        assert run["watchdog"]["last"]["pattern"] == "METRIC_STAGNATION_DETECTED", refused.body
        assert run["watchdog"]["entropy_bits"] > 0


async def test_calls_that_leave_together_meet_one_interrupt(tmp_path: Path, origin: Origin) -> None:
    """Nobody heeds what he has not heard yet."""
    async with serving(tmp_path, origin.port, manifest()) as running:
        for turn in range(4):
            await running.agent.send("POST", f"{RUN}/state", {"state": turn % 2}) if turn else await send(
                running.agent, "POST /lab/holds", {"n": 0}
            )
        await running.agent.send("POST", f"{RUN}/state", {"state": 0})
        await running.agent.send("POST", f"{RUN}/state", {"state": 1})
        answers = await asyncio.gather(*(send(running.agent, "POST /lab/holds", {"n": n}) for n in range(10, 16)))
        done = [answer.json.get("watchdog", {}).get("done") for answer in answers]
        assert "rewind" not in done
        assert done.count("interrupt") >= 1


@pytest.mark.parametrize("body", [
    {}, {"state": 1, "hash": "x"}, {"hash": ""}, {"metrics": {"a": "b"}}, {"metrics": {"a": True}}, {"state": 1, "x": 2},
    {"state": 1, "ignore": "mtime"}, {"hash": 7},
])  # fmt: skip
async def test_a_report_that_cannot_be_read_changes_nothing(tmp_path: Path, origin: Origin, body: Any) -> None:
    async with serving(tmp_path, origin.port, manifest()) as running:
        await send(running.agent, "POST /lab/holds", {"n": 0})
        refused = await running.agent.send("POST", f"{RUN}/state", body)
        assert (refused.status, refused.code) == (422, "ERR_INVALID_ARGUMENTS")
        assert (await running.agent.send("GET", RUN)).json["watchdog"]["actions"] == 1


async def test_what_was_counted_masked_and_reported_survives_a_kill(
    tmp_path: Path, origin: Origin, make_child: Callable[..., Child]
) -> None:
    origin.on("POST /tests", Answer(422, b'{"error": "boom", "request_id": "1"}', JSON))
    child = make_child(tmp_path, origin.port, manifest())
    client = await child.start()
    await send(client, "POST /lab/holds", {"n": 1})
    for _ in range(2):
        await send(client, "POST /lab/tests")
    for turn in range(3):
        await client.send("POST", f"{RUN}/state", {"state": turn % 2})
    await child.kill()
    client = await child.start()
    assert (await send(client, "POST /lab/tests")).status == 422, "the third"
    assert (await send(client, "POST /lab/tests")).json["watchdog"]["times"] == 3
    assert (await send(client, "POST /lab/tests")).json["watchdog"]["done"] == "rewind"
    await child.kill()
    client = await child.start()
    assert (await send(client, "POST /lab/tests")).json["watchdog"]["pattern"] == "MASKED_ACTION_REPEATED"
    assert sent(origin, "/tests") == 3
    assert (await send(client, "POST /lab/holds", {"n": 2})).status == 201


async def test_a_repeat_that_only_collects_its_answer_is_never_held_back(tmp_path: Path, origin: Origin) -> None:
    """The agent left before its answer came; by then its run goes in circles, and the answer is still its own."""
    async with serving(tmp_path, origin.port, manifest()) as running:
        _, writer = await running.agent.open()
        body = b'{"n": 1}'
        fields = [("Content-Type", "application/json"), ("Seawall-Trajectory", "r1")]
        release = asyncio.Event()

        async def slow(exchange: Exchange) -> None:
            await release.wait()
            await Answer(201, b'{"id": "late"}', JSON)(exchange)

        origin.on("POST /holds", slow, Answer(201, b'{"id": "second"}', JSON))
        writer.write(running.agent.head("POST", "/lab/holds", fields, len(body)) + body)
        await origin.wait(lambda: sent(origin, "/holds") == 1)
        writer.transport.abort()
        for turn in range(4):
            await running.agent.send("POST", f"{RUN}/state", {"state": turn % 2})
        assert (await send(running.agent, "POST /lab/holds", {"n": 2})).status == 409
        collected = asyncio.create_task(send(running.agent, "POST /lab/holds", {"n": 1}))
        release.set()
        assert (await collected).json == {"id": "late"}
        assert sent(origin, "/holds") == 1


async def test_the_run_shows_its_watchdog_to_operators(tmp_path: Path, origin: Origin) -> None:
    origin.on("POST /tests", Answer(422, b'{"error": "boom"}', JSON))
    async with serving(tmp_path, origin.port, manifest()) as running:
        for _ in range(4):
            await send(running.agent, "POST /lab/tests")
        await _refresh(running)
        shown = (await running.operator.send("GET", "/api/v1/trajectories/r1")).json["watchdog"]
        assert shown["interrupts"] == 1
        assert shown["last"] == {
            "pattern": "REPEATED_FAILURE_DETECTED", "done": "interrupt", "operation": "lab.tests", "since_step": 1, "times":
        3 }  # fmt: skip


async def _refresh(running: Serving) -> None:
    await running.agent.send("GET", RUN)


async def test_a_state_that_cannot_be_read_is_no_state(tmp_path: Path, origin: Origin) -> None:
    """And least of all the same one again."""
    origin.on("PUT /lines/1", Answer(200, b"{}", JSON))
    origin.on("GET /state", Answer(200, b"\xff\xfe", ((b"Content-Type", b"application/octet-stream"),)))
    text = manifest().replace("GET /state, select: response.json.lines", "GET /state")
    async with serving(tmp_path, origin.port, text) as running:
        for n in range(6):
            assert (await running.agent.send("PUT", "/file/lines/1", {"text": n}, run="r1")).status == 200
