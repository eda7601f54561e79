"""Long calls, streams that stay open, and what servers say unasked."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.egress import mcp_http
from gateway.ingress import mcp as front
from tests.gateway.harness import Client, Serving, serving
from tests.mcp.rig import EVERYTHING, SERVERS, Raw, ledger, message_of
from tests.mcp.test_gateway import DECLARED, MODERN, manifest, modern_headers


@asynccontextmanager
async def stream(
    on: Serving, method: str, client: Raw, body: Any, headers: Any = (), *, kinds: tuple[str, ...] = (":", "data:")
) -> AsyncIterator[AsyncIterator[str]]:
    """Send a request and read the lines of its answer, of these kinds, as they come."""
    async with streaming(on.agent, method, client, body, headers, kinds=kinds) as lines:
        yield lines


@asynccontextmanager
async def streaming(
    agent: Client, method: str, client: Raw, body: Any, headers: Any = (), *, kinds: tuple[str, ...] = (":", "data:")
) -> AsyncIterator[AsyncIterator[str]]:
    """The same, of a gateway in a process of its own."""
    reader, writer = await agent.open()
    data = b"" if body is None else json.dumps(body).encode()
    fields = [*client.headers, *headers, ("Content-Type", "application/json")]
    writer.write(agent.head(method, client.path, fields, len(data) if body is not None else None) + data)
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert " 200 " in head, head
    assert "text/event-stream" in head
    assert "X-Accel-Buffering: no" in head

    async def lines() -> AsyncIterator[str]:
        while line := await reader.readline():
            text = line.decode().strip()
            if text.startswith(kinds):
                yield text

    try:
        yield lines()
    finally:
        writer.close()


async def test_a_long_call_is_kept_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle streams are reaped by what stands between (agentgateway#3393); a comment is not silence."""
    monkeypatch.setattr(front, "STREAM_AFTER_S", 0.05)
    monkeypatch.setattr(front, "KEEP_ALIVE_S", 0.05)
    async with ledger(hold=asyncio.Event()) as server, serving(tmp_path, 0, manifest(server.url, DECLARED)) as on:
        assert server.hold is not None
        client = Raw(on.agent)
        await client.initialize()
        params = {"name": "charge", "arguments": {"amount": 1}}
        body = {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params}
        async with stream(on, "POST", client, body) as lines:
            for _ in range(3):
                assert (await anext(lines)).startswith(":")
            server.hold.set()
            while not (line := await anext(lines)).startswith("data:"):
                pass
        assert json.loads(line[5:])["result"]["structuredContent"] == {"id": 1}


async def test_leaving_a_streamed_write_detaches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the stateless era a closed stream means "cancel"; a write that left is finished all the same."""
    monkeypatch.setattr(front, "STREAM_AFTER_S", 0.05)
    monkeypatch.setattr(front, "KEEP_ALIVE_S", 0.05)
    async with ledger(hold=asyncio.Event()) as server, serving(tmp_path, 0, manifest(server.url, DECLARED)) as on:
        assert server.hold is not None
        client = Raw(on.agent)
        params = {"name": "charge", "arguments": {"amount": 1}, "_meta": MODERN}
        body = {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params}
        async with stream(on, "POST", client, body, modern_headers("tools/call", "charge")) as lines:
            await anext(lines)
        server.hold.set()
        again = message_of(await client.post("tools/call", params, modern_headers("tools/call", "charge")))["result"]
        assert again["structuredContent"] == {"id": 1}
        assert again["_meta"]["dev.seawall/call"]["replayed"] is True
        assert len(server.effects) == 1


async def test_a_cancelled_read_is_cancelled_at_the_server(tmp_path: Path) -> None:
    """`notifications/cancelled` of the client becomes one of ours, under our id."""
    text = f"version: 1\ntools:\n  pay: {{mcp: {{command: [{sys.executable}, {SERVERS}/slow.py, {tmp_path}/seen]}}}}\n"
    async with serving(tmp_path, 0, text) as on:
        client = Raw(on.agent)
        await client.initialize()
        looking = asyncio.ensure_future(client.post("tools/call", {"name": "look"}))
        seen = tmp_path / "seen"
        while not seen.exists() or "tools/call" not in seen.read_text():
            await asyncio.sleep(0.02)
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": client.next}}
        assert (await on.agent.send("POST", client.path, cancel, headers=client.headers)).status == 202
        await looking
        while "notifications/cancelled" not in seen.read_text():
            await asyncio.sleep(0.02)
        told = [json.loads(line) for line in seen.read_text().splitlines()]
        call = next(one for one in told if one["method"] == "tools/call")
        cancelled = next(one for one in told if one["method"] == "notifications/cancelled")
        assert cancelled["params"]["requestId"] == call["id"]


async def test_a_client_that_listens_hears_of_changed_lists(tmp_path: Path) -> None:
    """In both eras: on the session's stream, and on a subscription."""
    text = f"version: 1\ntools:\n  pay: {{mcp: {{command: {EVERYTHING}}}}}\n"
    async with serving(tmp_path, 0, text) as on:
        client = Raw(on.agent)
        await client.initialize()
        wanted = {"notifications": {"toolsListChanged": True}, "_meta": MODERN}
        body = {"jsonrpc": "2.0", "id": "sub", "method": "subscriptions/listen", "params": wanted}
        stateless = Raw(on.agent)
        headers = modern_headers("subscriptions/listen")
        async with (
            stream(on, "GET", client, None) as session,
            stream(on, "POST", stateless, body, headers) as listening,
        ):
            await anext(session)
            acknowledged = json.loads((await anext(listening))[5:])
            assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
            on.gateway._egress.on_event("pay", None, "notifications/tools/list_changed", None, None)
            heard = json.loads((await anext(session))[5:])
            assert heard == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
            told = json.loads((await anext(listening))[5:])
            assert told["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": "sub"}


async def test_a_session_has_one_stream(tmp_path: Path) -> None:
    """A second one would halve what each hears."""
    async with ledger() as server, serving(tmp_path, 0, manifest(server.url)) as on:
        client = Raw(on.agent)
        await client.initialize()
        async with stream(on, "GET", client, None) as lines:
            await anext(lines)
            assert (await on.agent.send("GET", client.path, headers=client.headers)).status == 409


async def test_a_list_that_changes_in_the_middle_of_a_call_is_asked_for_again(tmp_path: Path) -> None:
    """Servers say so on the stream of the call as well; what was listed before is old then, for all clients."""
    script = tmp_path / "growing.py"
    script.write_text(
        "from mcp.server.mcpserver import Context, MCPServer\n"
        "server = MCPServer('growing')\n"
        "async def born() -> str:\n    return 'new'\n"
        "@server.tool()\n"
        "async def grow(ctx: Context) -> str:\n"
        "    server.add_tool(born)\n"
        "    await ctx.session.send_tool_list_changed()\n"
        "    return 'grown'\n"
        "server.run('stdio')\n"
    )
    text = f"version: 1\ntools:\n  pay: {{mcp: {{command: [{sys.executable}, {script}]}}}}\n"
    async with serving(tmp_path, 0, text) as on:
        client = Raw(on.agent, "/seawall/mcp")
        await client.initialize()
        before = [tool["name"] for tool in message_of(await client.post("tools/list"))["result"]["tools"]]
        await client.call("pay__grow")
        after = [tool["name"] for tool in message_of(await client.post("tools/list"))["result"]["tools"]]
        assert (before, after) == (["pay__grow"], ["pay__born", "pay__grow"])


async def test_a_changed_list_on_the_stream_of_a_call_counts(tmp_path: Path) -> None:
    """Over HTTP the notification comes with the answer."""
    async with ledger() as server, serving(tmp_path, 0, manifest(server.url, DECLARED)) as on:
        client = Raw(on.agent, "/seawall/mcp")
        await client.initialize()
        await client.post("tools/list")
        server.description = "Another one."
        server.announce = True
        await client.call("pay__charge", {"amount": 1})
        tools = message_of(await client.post("tools/list"))["result"]["tools"]
        assert "pay__charge" not in [tool["name"] for tool in tools], "its definition has changed, so it is held"


async def test_what_one_client_is_told_no_other_hears(tmp_path: Path) -> None:
    """A server's words in one session are its client's; those of a shared child go to whom they concern."""
    async with ledger() as server, serving(tmp_path, 0, manifest(server.url)) as on:
        ana, bob = Raw(on.agent), Raw(on.agent)
        await ana.initialize()
        await bob.initialize()
        params = {"uri": "a:b"}
        await ana.post("resources/subscribe", params)
        async with stream(on, "GET", ana, None) as hers, stream(on, "GET", bob, None) as his:
            await anext(hers)
            await anext(his)
            anas = next(one.client for one in on.gateway._mcp._conversations.all())
            tell = on.gateway._egress.on_event
            tell("pay", anas, "notifications/message", '{"data":"hers"}', None)
            tell("pay", None, "notifications/resources/updated", json.dumps(params), None)
            tell("pay", None, "notifications/tools/list_changed", None, None)
            heard = [json.loads((await anext(hers))[5:])["method"] for _ in range(3)]
            assert heard == [
                "notifications/message",
                "notifications/resources/updated",
                "notifications/tools/list_changed",
            ]
            assert json.loads((await anext(his))[5:])["method"] == "notifications/tools/list_changed"


async def test_a_session_that_ends_while_it_listens_stays_ended(tmp_path: Path) -> None:
    """Clients say goodbye with their stream still open; what listens for them must not open the session again."""
    async with ledger(has_streams=True) as server, serving(tmp_path, 0, manifest(server.url)) as on:
        client = Raw(on.agent)
        await client.initialize()
        async with stream(on, "GET", client, None) as lines:
            await server.tell("notifications/tools/list_changed")
            await anext(lines)
            assert json.loads((await anext(lines))[5:])["method"] == "notifications/tools/list_changed"
            assert (await on.agent.send("DELETE", client.path, headers=client.headers)).status == 204
            async with asyncio.timeout(10):
                while on.gateway._mcp._tasks:
                    await asyncio.sleep(0.02)
        assert (server.sessions, server.ended) == (1, ["s1"])
        assert not list(on.gateway._egress.memory.table)


async def test_a_stateless_client_hears_what_is_said_in_the_session_of_its_credential(tmp_path: Path) -> None:
    """A server of the handshake era has a session for each credential; nobody else's subscription is told."""
    async with (
        ledger(has_streams=True, demands=True) as server,
        serving(tmp_path, 0, manifest(server.url)) as on,
    ):
        wanted = {"toolsListChanged": True, "resourceSubscriptions": ["a:b"]}
        params = {"notifications": wanted, "_meta": MODERN}
        body = {"jsonrpc": "2.0", "id": "sub", "method": "subscriptions/listen", "params": params}
        headers = modern_headers("subscriptions/listen")
        async with stream(on, "POST", Raw(on.agent, Authorization="Bearer ana"), body, headers) as lines:
            await anext(lines)
            await server.tell("notifications/tools/list_changed")
            async with asyncio.timeout(10):
                told = json.loads((await anext(lines))[5:])
        assert told["method"] == "notifications/tools/list_changed"
        assert "resources/subscribe" in server.calls
        assert set(server.authorizations) == {"Bearer ana"}


async def test_a_server_that_knows_no_session_where_it_has_no_stream_is_not_greeted_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some answer 404 for 405: each greeting would leave a session behind, and take the client's state away."""
    monkeypatch.setattr(mcp_http, "FIRST_PAUSE_S", 0.01)
    async with ledger(lost=True) as server, serving(tmp_path, 0, manifest(server.url)) as on:
        client = Raw(on.agent)
        await client.initialize()
        async with stream(on, "GET", client, None) as lines:
            await anext(lines)
            async with asyncio.timeout(10):
                while on.gateway._mcp._tasks:
                    await asyncio.sleep(0.02)
            assert server.sessions == 1 + mcp_http.RENEWALS_MAX


async def test_clients_without_an_id_share_no_session_if_their_credentials_differ(tmp_path: Path) -> None:
    """Nor a subscription: each is remembered with the session that it was made in, to be made there again."""
    async with ledger(demands=True) as server, serving(tmp_path, 0, manifest(server.url)) as on:
        for name in ("ana", "bob", "ana"):
            client = Raw(on.agent, Authorization=f"Bearer {name}")
            await client.call("balance")
            await client.post("resources/subscribe", {"uri": f"of:{name}"})
        assert server.used == ["s1", "s2", "s1"]
        assert set(server.authorizations) == {"Bearer ana", "Bearer bob"}
        kept = [(entry.id, list(entry.subscriptions)) for entry in on.gateway._egress.memory.table]
        assert sorted(kept) == [("s1", ["of:ana"]), ("s2", ["of:bob"])]
