"""Servers that make tasks of calls: the step is done when the task is, and a task that is lost is a write in doubt."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.gateway.harness import serving
from tests.mcp.rig import Raw, message_of, problem_of, result_of
from tests.mcp.test_gateway import MODERN, modern_headers
from tests.mcp.test_streams import stream

EXTENSION = "io.modelcontextprotocol/tasks"
RUN = [("Seawall-Trajectory", "r1")]
QUESTION = {
    "method": "elicitation/create",
    "params": {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}},
}


class Tasking:
    """Answers every call with a task, in one era.

    Attributes:
        ending: how the tasks end: `completed`, `failed`, `forgotten`, `refused` (503), or `asking` once before the end.
        polls: how often a task is looked at before it ends.
    """

    def __init__(self, *, is_modern: bool, ending: str = "completed", polls: int = 2) -> None:
        self.is_modern, self.ending, self.polls = is_modern, ending, polls
        self.effects: list[dict[str, Any]] = []
        self.answers: dict[str, Any] = {}
        self.calls: list[str] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        if request.method != "POST":
            return web.Response(status=405)
        body = await request.json()
        method, params = body["method"], body.get("params") or {}
        self.calls.append(method)
        if "id" not in body:
            return web.Response(status=202)
        if method.startswith("tasks/") and self.ending == "refused":
            return web.Response(status=503, headers={"Retry-After": "1"})
        said = self.modern(method, params) if self.is_modern else self.legacy(method, params)
        return web.json_response({"jsonrpc": "2.0", "id": body["id"], **said})

    def legacy(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        match method:
            case "initialize":
                able = {"tools": {}, "tasks": {"requests": {"tools": {"call": {}}}}}
                info = {"name": "tasking", "version": "1"}
                return {"result": {"protocolVersion": "2025-11-25", "capabilities": able, "serverInfo": info}}
            case "tools/list":
                tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("buy", "sell")]
                return {"result": {"tools": tools}}
            case "tools/call" if "task" not in params:
                return {"error": {"code": -32601, "message": "this tool is a task"}}
            case "tools/call":
                self.effects.append({"tool": params["name"], **params["arguments"]})
                return {"result": {"task": self.task("working")}}
            case "tasks/result" if self.ending == "forgotten":
                return {"error": {"code": -32602, "message": "Task not found"}}
            case "tasks/result":
                return {"result": self.done()}
        return {"error": {"code": -32601, "message": "Method not found"}}

    def modern(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        meta = params.get("_meta", {})
        if meta.get("io.modelcontextprotocol/protocolVersion") != "2026-07-28":
            return {"error": {"code": -32022, "message": "no", "data": {"supported": ["2026-07-28"]}}}
        extensions = meta["io.modelcontextprotocol/clientCapabilities"].get("extensions", {})
        match method:
            case "server/discover":
                able = {"tools": {}, "extensions": {EXTENSION: {}}}
                return {"result": {"supportedVersions": ["2026-07-28"], "capabilities": able}}
            case "tools/list":
                return {
                    "result": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("buy", "sell")]}
                }
            case "tools/call" if EXTENSION not in extensions:
                return {"error": {"code": -32021, "message": "this tool is a task"}}
            case "tools/call":
                self.effects.append({"tool": params["name"], **params["arguments"]})
                return {"result": {"resultType": "task", **self.task("working")}}
            case "tasks/update":
                self.answers |= params["inputResponses"]
                return {"result": {"resultType": "complete"}}
            case "tasks/get":
                return self.got()
        return {"error": {"code": -32601, "message": "Method not found"}}

    def got(self) -> dict[str, Any]:
        self.polls -= 1
        if self.polls > 0:
            return {"result": self.task("working")}
        if self.ending == "forgotten":
            return {"error": {"code": -32602, "message": "Task not found"}}
        if self.ending == "failed":
            error = {"code": -32603, "message": "it fell over"}
            return {"result": {**self.task("failed"), "error": error}}
        if self.ending == "asking" and not self.answers:
            return {"result": {**self.task("input_required"), "inputRequests": {"sure": QUESTION}}}
        return {"result": {**self.task("completed"), "result": self.done()}}

    def done(self) -> dict[str, Any]:
        number = len(self.effects)
        text = [{"type": "text", "text": f"done {number} {self.answers.get('sure', {}).get('action', '')}".strip()}]
        return {"content": text, "structuredContent": {"id": number}}

    def task(self, status: str) -> dict[str, Any]:
        at = "2026-01-01T00:00:00Z"
        return {"taskId": "t1", "status": status, "createdAt": at, "lastUpdatedAt": at, "ttlMs": 60_000, "ttl": 60_000,
                "pollIntervalMs": 50}  # fmt: skip


@contextlib.asynccontextmanager
async def tasking(**settings: Any) -> AsyncIterator[Tasking]:
    server = Tasking(**settings)
    app = web.Application()
    app.router.add_route("*", "/mcp", server.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    try:
        yield server
    finally:
        await runner.cleanup()


def manifest(url: str) -> str:
    return f"""
version: 1
domains:
  d: {{retry: {{attempts: 3, base: 1ms, cap: 5ms}}, timeouts: {{connect: 1s, first_byte: 5s, idle: 5s, total: 10s}}}}
tools:
  pay:
    domain: d
    mcp: {{url: "{url}"}}
    operations:
      buy:
        match: CALL buy
        tier: compensable
        compensator: {{request: CALL sell, json: {{id: "${{response.json.structuredContent.id}}"}}}}
      sell: {{match: CALL sell, tier: reversible, idempotent: true}}
"""


ERAS = pytest.mark.parametrize("is_modern", [False, True], ids=["2025-11-25", "2026-07-28"])


@ERAS
async def test_the_step_is_what_the_task_came_to_and_so_is_its_compensator(tmp_path: Path, is_modern: bool) -> None:
    """A client of either era sees a plain result; the undoing is bound from it, and is a task as well."""
    async with tasking(is_modern=is_modern) as server, serving(tmp_path, 0, manifest(server.url)) as on:
        client = Raw(on.agent)
        await client.initialize()
        result = await client.call("buy", {"n": 1}, headers=RUN)
        assert (result["structuredContent"], result["content"][0]["text"]) == ({"id": 1}, "done 1")
        aborted = await on.agent.send("POST", "/seawall/v1/trajectories/r1/abort", {})
        assert aborted.json["state"] == "aborted_clean"
        assert server.effects == [{"tool": "buy", "n": 1}, {"tool": "sell", "id": 1}]
        server.polls = 2
        stateless = Raw(on.agent)
        params = {"name": "buy", "arguments": {"n": 2}, "_meta": MODERN}
        answer = await stateless.post("tools/call", params, modern_headers("tools/call", "buy"))
        assert result_of(answer)["structuredContent"] == {"id": 3}


@pytest.mark.parametrize(
    ("is_modern", "ending"),
    [(False, "forgotten"), (False, "refused"), (True, "failed"), (True, "forgotten"), (True, "refused")],
)
async def test_an_accepted_task_that_cannot_be_had_is_never_a_second_effect(
    tmp_path: Path, is_modern: bool, ending: str
) -> None:
    """Whatever the words say that come back: the server had begun."""
    async with (
        tasking(is_modern=is_modern, ending=ending) as server,
        serving(tmp_path, 0, manifest(server.url)) as on,
    ):
        client = Raw(on.agent)
        await client.initialize()
        told = problem_of(await client.call("buy", {"n": 1}, headers=RUN))
        assert (told["code"], told["dispatched"] != "no") == ("ERR_OUTCOME_UNKNOWN", True)
        assert "its task" in told["detail"]
        assert server.effects == [{"tool": "buy", "n": 1}]


async def test_what_a_task_asks_reaches_the_client_that_can_answer(tmp_path: Path) -> None:
    """On the stream of a client of the other era; who cannot be asked has said no."""
    async with tasking(is_modern=True, ending="asking") as server, serving(tmp_path, 0, manifest(server.url)) as on:
        client = Raw(on.agent)
        await client.initialize(capabilities={"elicitation": {}})
        params = {"name": "buy", "arguments": {"n": 1}}
        body = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params}
        async with stream(on, "POST", client, body) as lines:
            question = message_of_line(await anext(lines))
            assert question["params"]["message"] == "Sure?"
            answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {}}}
            assert (await on.agent.send("POST", client.path, answer, headers=client.headers)).status == 202
            result = message_of_line(await anext(lines))["result"]
        assert result["content"][0]["text"] == "done 1 accept"
        server.answers, server.polls = {}, 2
        params = {"name": "buy", "arguments": {"n": 2}, "_meta": MODERN}
        answer = await Raw(on.agent).post("tools/call", params, modern_headers("tools/call", "buy"))
        assert message_of(answer)["result"]["content"][0]["text"] == "done 2 cancel"


def message_of_line(line: str) -> dict[str, Any]:
    return dict(json.loads(line[5:]))


async def test_the_tools_time_bounds_a_task_as_a_whole(tmp_path: Path) -> None:
    """And the server is told that nobody waits any more."""
    text = manifest("URL").replace("total: 10s", "total: 300ms").replace("first_byte: 5s", "first_byte: 300ms")
    async with (
        tasking(is_modern=True, polls=10_000) as server,
        serving(tmp_path, 0, text.replace("URL", server.url)) as on,
    ):
        client = Raw(on.agent)
        await client.initialize()
        told = problem_of(await client.call("buy", {"n": 1}, headers=RUN))
        assert (told["code"], told["dispatched"] != "no") == ("ERR_OUTCOME_UNKNOWN", True)
        assert "tasks/cancel" in server.calls
        assert len(server.effects) == 1
