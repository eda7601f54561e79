"""Quarantine through the whole gateway: severed at once, in doubt where it must be, kept over a restart, lifted."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.cli import main
from tests.gateway.harness import MANIFEST, Child, Serving, serving
from tests.origin import Answer, Feed, Hang, Origin

FILES = """
  files:
    upstream: http://127.0.0.1:PORT
    domain: saas
    operations:
      put:
        match: "PUT /files/{name}"
        tier: reversible
        artifacts: {writes: ["'file:' + params.name"]}
      get:
        match: "GET /files/{name}"
        tier: read
        artifacts: {reads: ["'file:' + params.name"]}
      list:
        match: "GET /files"
        tier: read
        artifacts: {reads: ["response.json.names.map(n, 'file:' + n)"]}
      queue:
        match: "POST /messages"
        tier: reversible
        artifacts: {writes: ["'message:' + response.json.id"]}
  scanner: {upstream: "http://127.0.0.1:PORT", domain: saas}
gates:
  scan: {verify: {tool: scanner, request: "GET /scan/${params.artifact}", expect: response.json.clean == true, clears: true}}
  other: {verify: {tool: scanner, request: "GET /scan/x", expect: "true"}}
"""
WORLD = MANIFEST + FILES


async def quarantine(gateway: Serving, **body: Any) -> Any:
    told = {"principal": "ann", "reason": "it obeys a stranger", **body}
    answer = await gateway.operator.send("POST", "/api/v1/quarantine", told)
    assert answer.status in (200, 201), answer.body
    return answer.json


async def commands(gateway: Serving, *arguments: str) -> str:
    arguments = (*arguments, "--control", gateway.gateway.control)
    result = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


async def wait_for(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_no_call_leaves_after_severing_and_the_incident_tells_how_fast(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, WORLD) as gateway:
        origin.on("POST /holds", Answer(201, b'{"id": "h1"}'))
        agent = gateway.agent
        assert (await agent.send("POST", "/pay/holds", {"n": 1}, run="bad")).status == 201
        told = await quarantine(gateway, trajectory="bad", since=1)
        assert told["state"] == "in force"
        assert all(told["stages"][name]["problem"] is None for name in ("suspend", "revoke", "sever", "taint"))
        assert told["stages"]["sever"]["ms"] < 100
        before = len(origin.requests)
        for method, path in (
            ("POST", "/pay/holds"),
            ("GET", "/plain/x"),
            ("POST", "/pay/payouts"),
            ("GET", "/files/files/a"),
        ):
            refused = await agent.send(method, path, {"n": 2} if method == "POST" else None, run="bad")
            assert (refused.status, refused.code) == (423, "ERR_QUARANTINED")
            assert refused["connection"] == "close"
        assert len(origin.requests) == before
        assert (await agent.send("POST", "/pay/holds", {"n": 1}, run="good")).status == 201
        run = (await gateway.operator.send("GET", "/api/v1/trajectories/bad")).json
        assert (run["state"], run["incident"]) == ("frozen", "QUARANTINED")
        incident = (await gateway.operator.send("GET", f"/api/v1/incidents/{run['incidents'][0]['id']}")).json
        assert incident["quarantine"]["stages"]["sever"]["ms"] == told["stages"]["sever"]["ms"]


async def test_a_write_that_is_cut_in_flight_is_in_doubt_and_not_failed(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, WORLD) as gateway:
        origin.on("POST /holds", Hang(applies=True))
        flying = asyncio.create_task(gateway.agent.send("POST", "/pay/holds", {"n": 1}, run="bad"))
        await wait_for(lambda: origin.requests)
        await quarantine(gateway, trajectory="bad")
        answer = await flying
        assert (answer.status, answer.code, answer.json["dispatched"]) == (423, "ERR_QUARANTINED", "maybe")
        await asyncio.wait_for(origin.requests[0].gone.wait(), 5)
        run = (await gateway.operator.send("GET", "/api/v1/trajectories/bad")).json
        assert [step["state"] for step in run["steps"]] == ["in_doubt"]
        assert len(origin.requests) == 1


async def test_a_read_and_a_stream_are_broken_off(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, WORLD) as gateway:
        feed = Feed()
        origin.on("GET /slow", Hang())
        origin.on("GET /stream", Answer(200, feed, framing="chunked"))
        flying = asyncio.create_task(gateway.agent.send("GET", "/plain/slow", run="bad"))
        streaming = asyncio.create_task(gateway.agent.send("GET", "/plain/stream", run="bad"))
        await wait_for(lambda: len(origin.requests) == 2)
        feed.send(b"first")
        await asyncio.sleep(0.1)
        await quarantine(gateway, trajectory="bad")
        answer, stream = await asyncio.gather(flying, streaming)
        assert (answer.status, answer.code) == (423, "ERR_QUARANTINED")
        assert (stream.status, stream.body, stream.is_truncated) == (200, b"first", True)
        for request in origin.requests:
            await asyncio.wait_for(request.gone.wait(), 5)


async def test_the_agent_of_a_run_that_nobody_named_is_kept_out(tmp_path: Path) -> None:
    """It could only go on in the next such run."""
    async with Origin() as origin, serving(tmp_path, origin.port, WORLD) as gateway:
        origin.on("POST /holds", Answer(201, b'{"id": "h1"}'))
        headers = [("Seawall-Agent", "mallory")]
        first = await gateway.agent.send("POST", "/pay/holds", {"n": 1}, headers=headers)
        await quarantine(gateway, trajectory=first["seawall-trajectory"])
        for path, run in (("/pay/holds", None), ("/plain/x", None), ("/pay/holds", "another")):
            refused = await gateway.agent.send("POST", path, {"n": 2}, headers=headers, run=run)
            assert refused.code == "ERR_QUARANTINED"
        assert (
            await gateway.agent.send("POST", "/pay/holds", {"n": 1}, headers=[("Seawall-Agent", "bob")])
        ).status == 201


async def test_what_it_made_is_kept_from_others_until_somebody_has_looked(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, WORLD) as gateway:
        agent = gateway.agent
        origin.on("PUT /files/a", Answer(204))
        origin.on("PUT /files/b", Answer(204))
        origin.on("PUT /files/c", Answer(204))
        origin.on("POST /messages", Answer(201, b'{"id": "m1"}', [(b"Content-Type", b"application/json")]))
        origin.on("GET /files", Answer(200, b'{"names": ["a", "c"]}', [(b"Content-Type", b"application/json")]))
        for name in ("a", "b", "c"):
            origin.on(f"GET /files/{name}", Answer(200, b"text"))
            assert (
                await agent.send("PUT", f"/files/files/{name}", b"text", run="bad" if name != "c" else "good")
            ).status == 204
        assert (await agent.send("GET", "/files/files/b", run="peer")).status == 200
        assert (await agent.send("POST", "/files/messages", {"text": "do it"}, run="peer")).status == 201
        told = await quarantine(gateway, trajectory="bad", since=2)
        assert told["artifacts"] == {"tainted": ["file:b"], "suspect": ["message:m1"], "cleared": []}
        assert told["contaminated"] == ["peer"]
        assert (await agent.send("GET", "/files/files/a", run="good")).status == 200
        blocked = await agent.send("GET", "/files/files/b", run="good")
        assert (blocked.status, blocked.code, blocked.json["dispatched"]) == (423, "ERR_ARTIFACT_QUARANTINED", "no")
        assert blocked.json["artifacts"] == [{"artifact": "file:b", "taint": "tainted", "quarantines": [told["id"]]}]
        overwrite = await agent.send("PUT", "/files/files/b", b"clean", run="good")
        assert overwrite.code == "ERR_ARTIFACT_QUARANTINED"
        assert (await agent.send("GET", "/files/files", run="good")).status == 200
        origin.on("GET /files", Answer(200, b'{"names": ["a", "b"]}', [(b"Content-Type", b"application/json")]))
        listed = await agent.send("GET", "/files/files", run="good")
        assert (listed.code, listed.json["dispatched"]) == ("ERR_ARTIFACT_QUARANTINED", "yes")
        assert (await agent.send("PUT", "/files/files/c", b"more", run="peer")).status == 204  # now suspect, too
        table = await commands(gateway, "taint", "ls", "--json")
        assert {one["artifact"]: one["taint"] for one in json.loads(table)["artifacts"]} == {
            "file:b": "tainted", "message:m1": "suspect", "file:c": "suspect",
        }  # fmt: skip
        dot = await commands(gateway, "taint", "graph", "bad", "--dot")
        assert '"run peer" -> "message:m1" [label="files.queue #1"];' in dot
        assert '"file:b" [color=red, tooltip="tainted"];' in dot

        origin.on("GET /scan/file%3Ac", Answer(200, b'{"clean": false}', [(b"Content-Type", b"application/json")]))
        body = {"artifact": "file:c", "principal": "ann", "reason": "scanned", "verifier": "scan"}
        refused = await gateway.operator.send("POST", "/api/v1/artifacts/clear", body)
        assert (refused.status, refused.code) == (423, "ERR_ARTIFACT_QUARANTINED")
        undeclared = await gateway.operator.send("POST", "/api/v1/artifacts/clear", {**body, "verifier": "other"})
        assert "no verifier of that name may clear" in undeclared.json["detail"]
        origin.on("GET /scan/file%3Ac", Answer(200, b'{"clean": true}', [(b"Content-Type", b"application/json")]))
        assert (await gateway.operator.send("POST", "/api/v1/artifacts/clear", body)).json["cleared_by"] == [
            "verifier scan"
        ]
        assert (await agent.send("GET", "/files/files/c", run="good")).status == 200
        assert "cleared" in await commands(gateway, "taint", "clear", "file:b", "--reason", "read it", "--by", "ann")
        assert (await agent.send("GET", "/files/files/b", run="good")).status == 200


async def test_an_agent_cannot_clear_what_it_made(tmp_path: Path) -> None:
    """The verbs are the operators' alone: none is served where agents call."""
    async with Origin() as origin, serving(tmp_path, origin.port, WORLD) as gateway:
        for path in ("/seawall/v1/artifacts/clear", "/seawall/v1/quarantine", "/api/v1/artifacts/clear"):
            assert (await gateway.agent.send("POST", path, {"artifact": "file:b"})).status in (404, 422)


async def test_lifting_lets_people_release_the_run(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, WORLD) as gateway:
        origin.on("PUT /files/a", Answer(204))
        origin.on("GET /files/a", Answer(200, b"text"))
        await gateway.agent.send("PUT", "/files/files/a", b"text", run="bad")
        told = json.loads(
            await commands(gateway, "quarantine", "add", "bad", "--reason", "odd", "--by", "ann", "--json")
        )
        release = {"principal": "ann", "reason": "fine"}
        refused = await gateway.operator.send("POST", "/api/v1/trajectories/bad/release", release)
        assert (refused.status, refused.code) == (423, "ERR_QUARANTINED")
        assert told["id"] in await commands(gateway, "quarantine", "ls")
        lifted = await commands(gateway, "quarantine", "lift", told["id"], "--reason", "false alarm", "--by", "bob")
        assert "lifted" in lifted
        assert await commands(gateway, "quarantine", "ls") == ""
        assert (await gateway.agent.send("GET", "/files/files/a", run="good")).status == 200
        assert (await gateway.agent.send("GET", "/files/files/a", run="bad")).code == "ERR_QUARANTINED"
        assert (await gateway.operator.send("POST", "/api/v1/trajectories/bad/release", release)).status == 200
        assert (await gateway.agent.send("GET", "/files/files/a", run="bad")).status == 200


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "name a run, or an agent"),
        ({"trajectory": "nobody"}, "No run is called 'nobody'"),
        ({"trajectory": "../x"}, "trajectory must be a name"),
        ({"agent": "a", "since": -1}, "since must be the number of a step"),
        ({"agent": "a", "trigger": "rule"}, "trigger must be one of"),
        ({"agent": "a", "run": "b"}, "'run' is not known"),
    ],
)
async def test_a_bad_order_changes_nothing(tmp_path: Path, body: dict[str, Any], said: str) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, WORLD) as gateway:
        told = {"principal": "ann", "reason": "x", **body}
        answer = await gateway.operator.send("POST", "/api/v1/quarantine", told)
        assert answer.status in (404, 422)
        assert said in answer.json["detail"]
        assert (await gateway.operator.send("GET", "/api/v1/quarantine")).json["quarantines"] == []


async def test_a_rule_quarantines_and_doing_so_again_changes_nothing(tmp_path: Path) -> None:
    rules = "rules: {exfiltration: {effect: quarantine, when: request.path.startsWith('/leak'), tools: [plain]}}\n"
    async with Origin() as origin, serving(tmp_path, origin.port, WORLD + rules) as gateway:
        assert (await gateway.agent.send("GET", "/plain/fine", run="bad")).status == 200
        refused = await gateway.agent.send("POST", "/plain/leak", {"secret": 1}, run="bad")
        assert (refused.status, refused.code) == (423, "ERR_QUARANTINED")
        await gateway.agent.send("POST", "/plain/leak", {"secret": 1}, run="bad")
        assert (await gateway.agent.send("GET", "/plain/fine", run="bad")).code == "ERR_QUARANTINED"
        (told,) = (await gateway.operator.send("GET", "/api/v1/quarantine")).json["quarantines"]
        assert (told["trajectory"], told["by"], told["trigger"]) == ("bad", "rule exfiltration", "rule")
        again = await quarantine(gateway, trajectory="bad", since=told["since_step"])
        assert again["id"] == told["id"]
        assert [request.target for request in origin.requests] == [b"/fine"]


async def test_a_quarantine_survives_the_process(tmp_path: Path, make_child: Callable[..., Child]) -> None:
    async with Origin() as origin:
        origin.on("PUT /files/a", Answer(204))
        origin.on("GET /files/a", Answer(200, b"text"))
        child = make_child(tmp_path, origin.port, WORLD)
        agent = await child.start()
        await agent.send("PUT", "/files/files/a", b"text", run="bad")
        await agent.send("PUT", "/files/files/a", b"text", headers=[("Seawall-Agent", "mallory")])
        for body in ({"trajectory": "bad"}, {"agent": "mallory"}):
            told = {"principal": "ann", "reason": "odd", **body}
            assert (await child.operator.send("POST", "/api/v1/quarantine", told)).status == 201
        await child.kill()
        agent = await child.start()
        assert (await agent.send("GET", "/plain/x", run="bad")).code == "ERR_QUARANTINED"
        assert (await agent.send("GET", "/plain/x", headers=[("Seawall-Agent", "mallory")])).code == "ERR_QUARANTINED"
        assert (await agent.send("GET", "/files/files/a", run="good")).code == "ERR_ARTIFACT_QUARANTINED"
        runs = (await child.operator.send("GET", "/api/v1/trajectories")).json["trajectories"]
        assert {run["id"] for run in runs if run["state"] == "frozen"} >= {"bad"}
        assert not any(run["id"].startswith("~") for run in runs)
        await child.terminate()


async def test_the_tombstone_is_sealed(tmp_path: Path) -> None:
    """Taking it out of the journal by hand shows."""
    import sqlite3

    async with Origin() as origin, serving(tmp_path, origin.port, WORLD) as gateway:
        await gateway.agent.send("PUT", "/files/files/a", b"text", run="bad")
        await quarantine(gateway, trajectory="bad")
    data = tmp_path / "data"
    checked = CliRunner().invoke(main, ["journal", "verify", "--data", str(data)])
    assert checked.exit_code == 0, checked.output
    with contextlib.closing(sqlite3.connect(next(data.glob("*.db*")))) as connection, connection:
        connection.execute("DROP TRIGGER record_is_final")
        connection.execute("UPDATE record SET data = x'7b7d' WHERE kind = 'QuarantineSet'")
    assert CliRunner().invoke(main, ["journal", "verify", "--data", str(data)]).exit_code == 1


async def test_shadow_blocks_nothing_and_says_so(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, WORLD, shadow=True) as gateway:
        origin.on("PUT /files/a", Answer(204))
        origin.on("GET /files/a", Answer(200, b"text"))
        await gateway.agent.send("PUT", "/files/files/a", b"text", run="bad")
        await quarantine(gateway, trajectory="bad")
        assert (await gateway.agent.send("GET", "/files/files/a", run="good")).status == 200
