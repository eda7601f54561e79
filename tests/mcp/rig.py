"""A gateway in front of MCP servers, and servers that can be told how to behave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

SERVERS = Path(__file__).parent / "servers"
ROOT = SERVERS.parents[2]
NPM = ROOT / "tests/mcp/npm/node_modules"
LANGGRAPH = ROOT / ".clients/langgraph/bin/python"
EVERYTHING_COMMAND = (sys.executable, str(SERVERS / "everything.py"), "stdio")
EVERYTHING = f"[{', '.join(EVERYTHING_COMMAND)}]"


@dataclass
class Ledger:
    """A server of the handshake era with a ledger: what it did, whatever it said of it.

    Attributes:
        effects: the arguments of every write that happened, in order.
        lose: how many answers are lost after the write was done.
        announce: say before a write's answer that the tools have changed.
        refuse: how many calls get an HTTP status instead.
        raw: the latest message as it came.
        ill: fail at greetings.
        paged: list one tool a page.
        demands: refuse whoever has no credential, whatever they want.
        has_streams: let each session listen, until it says goodbye; `tell` is for all that do.
        lost: answer that a session is not known where it wants to listen.
        used, ended: the sessions in which tools were called, and those that said goodbye.
        ids: the sessions and ids of all requests.
        honours_keys: a write under a key that is known is not done again, and gets its first answer.
    """

    effects: list[dict[str, Any]] = field(default_factory=list)
    lose: int = 0
    refuse: int = 0
    refuse_status: int = 503
    refuse_headers: dict[str, str] = field(default_factory=dict)
    honours_keys: bool = False
    description: str = "Charge a card."
    hold: asyncio.Event | None = None
    hold_lists: bool = False
    announce: bool = False
    calls: list[str] = field(default_factory=list)
    keys: dict[str, Any] = field(default_factory=dict)
    metas: list[dict[str, Any]] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    sessions: int = 0
    forget_sessions: bool = False
    demands: bool = False
    has_streams: bool = False
    lost: bool = False
    streams: dict[str | None, asyncio.Queue[str | None]] = field(default_factory=dict)
    raw: str = ""
    paged: bool = False
    ill: bool = False
    used: list[str | None] = field(default_factory=list)
    ended: list[str | None] = field(default_factory=list)
    ids: list[tuple[str | None, Any]] = field(default_factory=list)
    url: str = ""

    def tools(self) -> list[dict[str, Any]]:
        schema = {"type": "object", "properties": {"amount": {"type": "integer"}}}
        return [
            {"name": "charge", "description": self.description, "inputSchema": schema},
            {"name": "payout", "description": "Pay out.", "inputSchema": schema},
            {"name": "refund", "description": "Give it back.", "inputSchema": schema},
            {
                "name": "balance",
                "description": "Look.",
                "inputSchema": {"type": "object"},
                "annotations": {"readOnlyHint": True},
            },
        ]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        session = request.headers.get("Mcp-Session-Id")
        if self.demands and "Authorization" not in request.headers:
            return web.Response(status=401)
        if request.method == "DELETE":
            self.ended.append(session)
            self.hang_up(session)
        if request.method == "GET" and self.lost:
            return web.Response(status=404)
        if request.method == "GET" and self.has_streams:
            return await self.stream(request, session)
        if request.method != "POST":
            return web.Response(status=405)
        self.raw = await request.text()
        body = json.loads(self.raw)
        method = body["method"]
        self.calls.append(method)
        self.authorizations.append(request.headers.get("Authorization"))
        if method == "initialize" and self.ill:
            return web.Response(status=500)
        if method == "initialize":
            self.sessions += 1
            result = {
                "protocolVersion": body["params"]["protocolVersion"],
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "ledger", "version": "1"},
            }
            return self.said(body, result, {"Mcp-Session-Id": f"s{self.sessions}"})
        if method == "server/discover":
            error = {"code": -32601, "message": "Method not found"}
            return web.json_response({"jsonrpc": "2.0", "id": body["id"], "error": error})
        if "id" not in body:
            return web.Response(status=202)
        self.ids.append((session, body["id"]))
        if self.forget_sessions and request.headers.get("Mcp-Session-Id") != f"s{self.sessions}":
            return web.Response(status=404)
        if method == "tools/list":
            if self.hold_lists and self.hold is not None:
                await self.hold.wait()
            if self.paged:
                return self.said(body, self.page(int(body.get("params", {}).get("cursor", "0"))))
            return self.said(body, {"tools": self.tools()})
        if method == "vendor/thing":  # What came, in the very bytes.
            said = self.raw.partition('"params":')[2].removesuffix("}")
            text = f'{{"jsonrpc":"2.0","id":{json.dumps(body["id"])},"result":{said}}}'
            return web.Response(text=text, content_type="application/json")
        if method == "tools/call":
            return await self.call(request, body)
        return self.said(body, {"echo": body.get("params")})

    async def stream(self, request: web.Request, session: str | None) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        told = self.streams[session] = asyncio.Queue()
        while (method := await told.get()) is not None:
            await response.write(f'data: {{"jsonrpc":"2.0","method":"{method}"}}\n\n'.encode())
        return response

    async def tell(self, method: str) -> None:
        """Say something on every stream, once there is one."""
        while not self.streams:
            await asyncio.sleep(0.02)
        for told in self.streams.values():
            told.put_nowait(method)

    def hang_up(self, session: str | None) -> None:
        if session in self.streams:
            self.streams.pop(session).put_nowait(None)

    def page(self, number: int) -> dict[str, Any]:
        tools = self.tools()
        more = {"nextCursor": str(number + 1)} if number + 1 < len(tools) else {}
        return {"tools": tools[number : number + 1], **more}

    async def call(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if self.refuse:
            self.refuse -= 1
            return web.Response(status=self.refuse_status, headers=self.refuse_headers, text="not now")
        self.used.append(request.headers.get("Mcp-Session-Id"))
        name, arguments = body["params"]["name"], body["params"].get("arguments", {})
        meta = body["params"].get("_meta", {})
        self.metas.append(meta)
        key = meta.get("dev.seawall/idempotencyKey")
        if name == "balance":
            return self.said(body, self.text(str(sum(one["amount"] for one in self.effects))))
        if name == "payout":
            return self.said(body, {**self.text("the account is frozen"), "isError": True})
        if self.honours_keys and key in self.keys:
            return self.said(body, self.keys[key])
        self.effects.append({"tool": name, **arguments})
        result = {**self.text(f"{name} {len(self.effects)}"), "structuredContent": {"id": len(self.effects)}}
        if key is not None:
            self.keys[key] = result
        if self.hold is not None:
            await self.hold.wait()
        if self.announce:
            changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
            answer = {"jsonrpc": "2.0", "id": body["id"], "result": result}
            text = "".join(f"data: {json.dumps(one)}\n\n" for one in (changed, answer))
            return web.Response(text=text, content_type="text/event-stream")
        if self.lose:
            self.lose -= 1
            assert request.transport is not None
            request.transport.abort()
        return self.said(body, result)

    def text(self, text: str) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": text}]}

    def said(self, body: dict[str, Any], result: Any, headers: dict[str, str] | None = None) -> web.Response:
        return web.json_response({"jsonrpc": "2.0", "id": body["id"], "result": result}, headers=headers)


@contextlib.asynccontextmanager
async def ledger(**settings: Any) -> AsyncIterator[Ledger]:
    """Run a ledger server."""
    found = Ledger(**settings)
    app = web.Application()
    app.router.add_route("*", "/mcp", found.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    try:
        yield found
    finally:
        if found.hold is not None:
            found.hold.set()
        for session in list(found.streams):
            found.hang_up(session)
        await runner.cleanup()


class Raw:
    """An MCP client that says exactly what it is told to."""

    def __init__(self, client: Any, path: str = "/seawall/mcp/pay", **headers: str) -> None:
        self.client = client
        self.path = path
        self.headers = [("Accept", "application/json, text/event-stream"), *headers.items()]
        self.next = 0

    async def initialize(self, version: str = "2025-11-25", capabilities: Any = None) -> Any:
        params = {
            "protocolVersion": version,
            "capabilities": capabilities or {},
            "clientInfo": {"name": "raw", "version": "1"},
        }
        answer = await self.post("initialize", params)
        self.headers.append(("Mcp-Session-Id", answer["Mcp-Session-Id"]))
        return answer

    async def post(self, method: str, params: Any = None, headers: Any = ()) -> Any:
        self.next += 1
        body = {"jsonrpc": "2.0", "id": self.next, "method": method}
        if params is not None:
            body["params"] = params
        return await self.client.send("POST", self.path, body, headers=[*self.headers, *headers])

    async def call(self, name: str, arguments: Any = None, meta: Any = None, headers: Any = ()) -> dict[str, Any]:
        params = {"name": name, "arguments": arguments or {}}
        if meta is not None:
            params["_meta"] = meta
        return result_of(await self.post("tools/call", params, headers))


def message_of(answer: Any) -> dict[str, Any]:
    """The response in a body, be it JSON or a stream."""
    if (answer.get("content-type") or "").startswith("text/event-stream"):
        lines = [line[6:] for line in answer.body.decode().splitlines() if line.startswith("data: ")]
        return next(one for one in map(json.loads, reversed(lines)) if "method" not in one)
    return dict(json.loads(answer.body))


def result_of(answer: Any) -> dict[str, Any]:
    message = message_of(answer)
    assert "result" in message, message
    return dict(message["result"])


def problem_of(result: dict[str, Any]) -> dict[str, Any]:
    """The refusal that a result carries."""
    assert result["isError"] is True, result
    assert result["structuredContent"] == result["_meta"]["dev.seawall/problem"]
    return dict(result["structuredContent"])
