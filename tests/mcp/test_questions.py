"""A stateless server that asks before it acts: passed through to its own era, put as a question to the other."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.gateway.harness import serving
from tests.mcp.rig import EVERYTHING, Raw, message_of
from tests.mcp.test_gateway import MODERN, modern_headers
from tests.mcp.test_streams import stream

ELICITATION = {
    "method": "elicitation/create",
    "params": {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}},
}


class Asking:
    """Speaks 2026-07-28 alone, and wants to be told "yes" before it deletes."""

    def __init__(self) -> None:
        self.deleted = 0
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self.pause: asyncio.Event | None = None

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["method"] == "tools/call" and self.pause is not None:
            await self.pause.wait()
        self.headers.append(dict(request.headers))
        meta = body.get("params", {}).get("_meta", {})
        if meta.get("io.modelcontextprotocol/protocolVersion") != "2026-07-28":
            error = {"code": -32022, "message": "no", "data": {"supported": ["2026-07-28"]}}
            return web.json_response({"jsonrpc": "2.0", "id": body["id"], "error": error}, status=400)
        result = self.result(body["method"], body["params"])
        return web.json_response({"jsonrpc": "2.0", "id": body["id"], "result": result})

    def result(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        cached = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        if method == "server/discover":
            return {**cached, "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        if method == "tools/list":
            return {**cached, "tools": [{"name": "delete", "inputSchema": {"type": "object"}}]}
        if params.get("requestState") != "state-1":
            return {"resultType": "input_required", "requestState": "state-1", "inputRequests": {"sure": ELICITATION}}
        said = params["inputResponses"]["sure"]["action"]
        self.deleted += said == "accept"
        return {"resultType": "complete", "content": [{"type": "text", "text": said}]}


@contextlib.asynccontextmanager
async def asking() -> AsyncIterator[Asking]:
    server = Asking()
    app = web.Application()
    app.router.add_post("/mcp", server.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    try:
        yield server
    finally:
        await runner.cleanup()


def manifest(url: str) -> str:
    return f'version: 1\ntools:\n  pay: {{mcp: {{url: "{url}"}}}}\n'


async def test_a_client_of_its_era_answers_itself(tmp_path: Path) -> None:
    """The question is no effect: the step that asked has failed, and the one that answers is another."""
    async with asking() as server, serving(tmp_path, 0, manifest(server.url)) as on:
        client = Raw(on.agent)
        params: dict[str, Any] = {"name": "delete", "arguments": {}, "_meta": MODERN}
        headers = modern_headers("tools/call", "delete")
        asked = message_of(await client.post("tools/call", params, headers))["result"]
        assert (asked["resultType"], asked["requestState"]) == ("input_required", "state-1")
        assert asked["inputRequests"] == {"sure": ELICITATION}
        params |= {"requestState": "state-1", "inputResponses": {"sure": {"action": "accept", "content": {}}}}
        done = message_of(await client.post("tools/call", params, headers))["result"]
        assert (done["resultType"], done["content"][0]["text"]) == ("complete", "accept")
        assert server.deleted == 1
        assert server.headers[-1]["Mcp-Method"] == "tools/call"
        assert server.headers[-1]["Mcp-Name"] == "delete"


async def test_a_client_of_the_other_era_is_asked_on_its_stream(tmp_path: Path) -> None:
    """`elicitation/create` to the client, its answer into the repeated call, one result in the end."""
    async with asking() as server, serving(tmp_path, 0, manifest(server.url)) as on:
        client = Raw(on.agent)
        greeted = await client.initialize(capabilities={"elicitation": {}})
        assert message_of(greeted)["result"]["protocolVersion"] == "2025-11-25"
        body = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "delete", "arguments": {}}}
        async with stream(on, "POST", client, body) as lines:
            question = json.loads((await anext(lines))[5:])
            assert (question["method"], question["params"]) == ("elicitation/create", ELICITATION["params"])
            answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {}}}
            assert (await on.agent.send("POST", client.path, answer, headers=client.headers)).status == 202
            result = json.loads((await anext(lines))[5:])["result"]
        assert result["content"][0]["text"] == "accept"
        assert "resultType" not in result
        assert server.deleted == 1


async def test_what_a_child_asks_for_one_client_is_never_put_to_another(tmp_path: Path) -> None:
    """Nobody can say whose question it is while calls of several are in flight, be they able to answer or not."""
    text = f"version: 1\ntools:\n  pay: {{mcp: {{command: {EVERYTHING}}}}}\n"
    async with serving(tmp_path, 0, text) as on:
        ana, bob = Raw(on.agent), Raw(on.agent)
        await ana.initialize(capabilities={"elicitation": {}})
        await bob.initialize()
        bob.headers[0] = ("Accept", "application/json")
        params = {"name": "test_elicitation", "arguments": {"message": "For Ana."}}
        body = {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params}
        async with stream(on, "POST", ana, body) as lines:
            question = json.loads((await anext(lines))[5:])
            assert question["params"]["message"] == "For Ana."
            asked = message_of(await bob.post("tools/call", {**params, "arguments": {"message": "For Bob."}}))
            assert "no client can be asked" in json.dumps(asked)
            answer = {
                "jsonrpc": "2.0",
                "id": question["id"],
                "result": {"action": "accept", "content": {"response": "x"}},
            }
            assert (await on.agent.send("POST", ana.path, answer, headers=ana.headers)).status == 202
            assert "error" not in json.loads((await anext(lines))[5:])
