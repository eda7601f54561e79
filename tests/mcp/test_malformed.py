"""Servers that say too much, or what is no message: bounded, said clearly, and nobody else's concern."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.egress import mcp_http, mcp_stdio
from tests.gateway.harness import serving
from tests.mcp.rig import SERVERS, Ledger, Raw, ledger, message_of, problem_of, result_of
from tests.mcp.test_gateway import DECLARED, manifest

LIMIT = 1 << 20
ONCE = "    retry: {attempts: 1}\n"
PIPED = f"  bad:\n    mcp: {{command: [{sys.executable}, {SERVERS / 'misbehaving.py'}]}}\n{ONCE}"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds are 64 MiB; what is beyond them is the same at 1 MiB."""
    monkeypatch.setattr(mcp_http, "ANSWER_LIMIT", LIMIT)
    monkeypatch.setattr(mcp_stdio, "LINE_LIMIT", LIMIT)


@contextlib.asynccontextmanager
async def beside(tmp_path: Path, bad: str) -> AsyncIterator[tuple[Ledger, Raw]]:
    """A server that behaves beside one that does not, and a client of both."""
    async with ledger() as good, serving(tmp_path, 0, manifest(good.url, DECLARED) + bad) as on:
        client = Raw(on.agent, "/seawall/mcp")
        await client.initialize()
        yield good, client


async def others_are_well(client: Raw) -> None:
    assert (await client.call("pay__balance", {}))["content"][0]["text"] == "0"
    listed = {tool["name"] for tool in result_of(await client.post("tools/list"))["tools"]}
    assert {"pay__charge", "pay__refund", "pay__payout", "pay__balance"} <= listed


async def test_a_child_that_writes_a_giant_line_is_started_again(tmp_path: Path) -> None:
    """What follows in its pipe cannot be told from the rest of that line."""
    async with beside(tmp_path, PIPED) as (_, client):
        problem = problem_of(await client.call("bad__huge", {}))
        assert (problem["code"], problem["dispatched"]) == ("ERR_UPSTREAM_PROTOCOL", "yes")
        assert f"more than {LIMIT} bytes" in problem["detail"]
        await others_are_well(client)
        again = await client.call("bad__well", {})
        while again.get("isError"):
            assert problem_of(again)["dispatched"] == "no"
            again = await client.call("bad__well", {})
        assert again["content"][0]["text"] == "well done"


async def test_a_childs_answer_that_is_no_answer_ends_its_own_call(tmp_path: Path) -> None:
    """At once, and not when its time is up; the child goes on."""
    async with beside(tmp_path, PIPED) as (_, client):
        problem = problem_of(await client.call("bad__twisted", {}))
        assert (problem["code"], problem["dispatched"]) == ("ERR_UPSTREAM_PROTOCOL", "yes")
        assert "`result` must be an object" in problem["detail"]
        await others_are_well(client)
        assert (await client.call("bad__well", {}))["content"][0]["text"] == "well done"


@pytest.mark.parametrize("name", ["noisy", "loud"])
async def test_what_a_child_writes_beside_its_messages_is_passed_over(tmp_path: Path, name: str) -> None:
    """Text for people, broken UTF-8, bottomless nesting, answers to nobody; a line without an end on stderr."""
    async with beside(tmp_path, PIPED) as (_, client):
        assert (await client.call(f"bad__{name}", {}))["content"][0]["text"] == f"{name} done"
        await others_are_well(client)


def json_answer(data: bytes) -> web.Response:
    return web.Response(body=data, content_type="application/json")


def stream_answer(data: bytes) -> web.Response:
    return web.Response(body=data, content_type="text/event-stream")


def page(data: bytes) -> web.Response:
    return web.Response(body=data, content_type="text/html")


GIANT = json.dumps(
    {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "x" * 2 * LIMIT}]}}
).encode()
BROKEN = {
    "a giant answer": (json_answer, GIANT, "larger than"),
    "a giant event": (stream_answer, b"data: " + GIANT + b"\n\n", "larger than"),
    "an event without an end": (stream_answer, b"data: " + b"x" * 2 * LIMIT, "larger than"),
    "half a message": (json_answer, GIANT[:1000], "without a JSON-RPC response"),
    "no object": (json_answer, b'"yes"', "without a JSON-RPC response"),
    "neither result nor error": (json_answer, b'{"jsonrpc":"2.0","id":1}', "without a JSON-RPC response"),
    "bottomless nesting": (json_answer, b"[" * 100_000, "without a JSON-RPC response"),
    "an event that is no message": (stream_answer, b"data: {not json}\n\n", "not MCP"),
    "a stream that says nothing": (stream_answer, b": hello\n\n", "without an answer"),
    "a page for people": (page, b"<h1>Hi</h1>", "without a JSON-RPC response"),
}  # fmt: skip


@contextlib.asynccontextmanager
async def answering(answer: web.Response, *, to: str) -> AsyncIterator[str]:
    """A server over HTTP that gives one answer to one method."""
    tools = {"tools": [{"name": "odd", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}]}

    async def handle(request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json() if request.method == "POST" else {}
        method = body.get("method")
        if "id" not in body:
            return web.Response(status=405 if method is None else 202)
        if method == to:
            return web.Response(body=answer.body, content_type=answer.content_type)
        result: dict[str, Any] = tools
        if method == "initialize":
            greeting = {"protocolVersion": body["params"]["protocolVersion"], "capabilities": {"tools": {}}}
            result = {**greeting, "serverInfo": {"name": "odd", "version": "1"}}
        return web.json_response({"jsonrpc": "2.0", "id": body["id"], "result": result})

    app = web.Application()
    app.router.add_route("*", "/mcp", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"  bad:\n    mcp: {{url: 'http://127.0.0.1:{runner.addresses[0][1]}/mcp'}}\n"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("case", BROKEN)
async def test_an_answer_over_http_that_is_none_is_bounded_and_named(tmp_path: Path, case: str) -> None:
    """The refusal says what was wrong with it, and that the call had left."""
    made, data, why = BROKEN[case]
    async with answering(made(data), to="tools/call") as bad, beside(tmp_path, bad) as (_, client):
        problem = problem_of(await client.call("bad__odd", {}))
        assert (problem["code"], problem["dispatched"]) == ("ERR_UPSTREAM_PROTOCOL", "yes")
        assert why in problem["detail"]
        await others_are_well(client)


@pytest.mark.parametrize("result", ['{"tools":"none"}', "{}", '{"tools":[5,{"name":7}]}'])
async def test_a_list_of_tools_that_is_none_takes_away_no_others(tmp_path: Path, result: str) -> None:
    """Behind the common endpoint; the server's own endpoint says what is wrong."""
    listing = json_answer(f'{{"jsonrpc":"2.0","id":1,"result":{result}}}'.encode())
    async with answering(listing, to="tools/list") as bad, beside(tmp_path, bad) as (_, client):
        await others_are_well(client)
        own = Raw(client.client, "/seawall/mcp/bad")
        await own.initialize()
        said = message_of(await own.post("tools/list"))
        assert "is no list of tools" in said["error"]["message"] if "5" not in result else said["result"]["tools"]
