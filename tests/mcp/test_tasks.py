"""Calls that go on without the request that made them: for people who take their time, for slow tools, over restarts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client

from gateway.config.tokens import TokenFile
from gateway.core.tokens import Scope
from gateway.ingress import mcp as front
from gateway.ingress import mcp_tasks
from tests.gateway.harness import Child, Serving, serving
from tests.mcp.rig import NPM, Raw, ledger, message_of, result_of
from tests.mcp.test_approvals import HELD, RUN, decide
from tests.mcp.test_gateway import DECLARED, MODERN, manifest, modern_headers
from tests.mcp.test_pages import NODE, blocks
from tests.mcp.test_questions import asking
from tests.mcp.test_streams import stream

EXTENSION = "io.modelcontextprotocol/tasks"
TAKES = {**MODERN, "io.modelcontextprotocol/clientCapabilities": {"extensions": {EXTENSION: {}}}}
RELATED = "io.modelcontextprotocol/related-task"


async def begun(client: Raw, amount: int = 1, headers: Any = RUN) -> dict[str, Any]:
    params = {"name": "charge", "arguments": {"amount": amount}, "task": {"ttl": 60_000}}
    return dict(result_of(await client.post("tools/call", params, headers))["task"])


async def asked(client: Raw, method: str, id: str, **more: Any) -> dict[str, Any]:
    return message_of(await client.post(f"tasks/{method}", {"taskId": id, **more}))


async def status(client: Raw, id: str, *wanted: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            view = (await asked(client, "get", id))["result"]
            if view["status"] in wanted:
                return dict(view)


async def modern(client: Raw, method: str, id: str = "", **more: Any) -> dict[str, Any]:
    params = {**({"taskId": id} if id else {}), **more, "_meta": TAKES}
    name = id or str(more.get("name", ""))
    return message_of(await client.post(method, params, [*modern_headers(method, name), *RUN]))


async def modern_status(client: Raw, id: str, *wanted: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            view = (await modern(client, "tasks/get", id))["result"]
            if view["status"] in wanted:
                return dict(view)


async def test_a_call_that_people_approve_is_a_task_until_they_do(tmp_path: Path) -> None:
    """The client asks for a task, the call waits for Ann, and the result is there when she says yes."""
    async with ledger() as server, serving(tmp_path, 0, manifest(server.url, HELD)) as on:
        client = Raw(on.agent)
        greeted = result_of(await client.initialize())
        assert greeted["capabilities"]["tasks"]["requests"] == {"tools": {"call": {}}}
        tools = result_of(await client.post("tools/list"))["tools"]
        assert {tool["execution"]["taskSupport"] for tool in tools} == {"optional"}
        task = await begun(client)
        assert (task["status"], task["ttl"]) == ("working", 60_000)
        waiting = asyncio.ensure_future(asked(client, "result", task["taskId"]))
        async with asyncio.timeout(20):
            while "approve" not in (view := await status(client, task["taskId"], "working")).get("statusMessage", ""):
                pass
        assert server.effects == []
        (approval,) = (await on.operator.send("GET", "/api/v1/approvals")).json["approvals"]
        assert approval["id"] in view["statusMessage"]
        await decide(on, approval["id"], "approve")
        done = (await waiting)["result"]
        assert done["structuredContent"] == {"id": 1}
        assert done["_meta"][RELATED] == {"taskId": task["taskId"]}
        assert done["_meta"]["dev.seawall/call"] == {"trajectory": "r1", "step": 1}
        assert (await status(client, task["taskId"], "completed"))["taskId"] == task["taskId"]
        assert (await asked(client, "result", task["taskId"]))["result"] == done
        assert len(server.effects) == 1
        assert (await begun(client))["taskId"] != task["taskId"]


async def test_a_rejected_task_has_failed_and_says_why(tmp_path: Path) -> None:
    async with ledger() as server, serving(tmp_path, 0, manifest(server.url, HELD)) as on:
        client = Raw(on.agent)
        await client.initialize()
        task = await begun(client)
        async with asyncio.timeout(20):
            while not (waiting := (await on.operator.send("GET", "/api/v1/approvals")).json["approvals"]):
                pass
        await decide(on, waiting[0]["id"], "reject")
        view = await status(client, task["taskId"], "failed")
        assert "rejected" in view["statusMessage"]
        result = (await asked(client, "result", task["taskId"]))["result"]
        assert result["structuredContent"]["code"] == "ERR_PIVOT_GATE"
        assert server.effects == []


async def test_a_task_goes_on_after_a_restart(tmp_path: Path) -> None:
    """Killed while people decide; the task, its approval and the one effect are still there."""
    async with ledger() as server:
        child = Child(tmp_path, 0, manifest(server.url, HELD))
        client = Raw(await child.start())
        await client.initialize()
        task = await begun(client)
        async with asyncio.timeout(20):
            while "approve" not in (await status(client, task["taskId"], "working")).get("statusMessage", ""):
                pass
        await child.kill()
        client.client = await child.start()
        async with asyncio.timeout(20):
            while "approve" not in (await status(client, task["taskId"], "working")).get("statusMessage", ""):
                pass
        (waiting,) = (await child.operator.send("GET", "/api/v1/approvals")).json["approvals"]
        await child.operator.send(
            "POST", f"/api/v1/approvals/{waiting['id']}/approve", {"principal": "ann", "reason": "yes"}
        )
        await status(client, task["taskId"], "completed")
        result = (await asked(client, "result", task["taskId"]))["result"]
        await child.kill()
        client.client = await child.start()
        assert (await asked(client, "result", task["taskId"]))["result"] == result, "a result outlives a restart"
        assert len(server.effects) == 1
        assert await child.terminate() == 0


async def test_a_task_that_was_at_the_server_when_the_gateway_died_is_not_done_twice(tmp_path: Path) -> None:
    """The call is made again and is the same step: in doubt, and never sent again on its own."""
    async with ledger(hold=asyncio.Event()) as server:
        child = Child(tmp_path, 0, manifest(server.url, DECLARED))
        client = Raw(await child.start())
        await client.initialize()
        task = await begun(client)
        async with asyncio.timeout(20):
            while not server.effects:
                await status(client, task["taskId"], "working")
        await child.kill()
        client.client = await child.start()
        view = await status(client, task["taskId"], "failed")
        assert "unknown" in view["statusMessage"]
        assert len(server.effects) == 1
        await child.kill()


async def test_a_cancelled_task_stays_cancelled_and_its_write_is_found_by_the_next_repeat(tmp_path: Path) -> None:
    async with ledger(hold=asyncio.Event()) as server, serving(tmp_path, 0, manifest(server.url, DECLARED)) as on:
        assert server.hold is not None
        client = Raw(on.agent)
        await client.initialize()
        task = await begun(client)
        async with asyncio.timeout(20):
            while not server.effects:
                await status(client, task["taskId"], "working")
        view = (await asked(client, "cancel", task["taskId"]))["result"]
        assert view["status"] == "cancelled"
        server.hold.set()
        assert (await asked(client, "result", task["taskId"]))["error"]["code"] == -32600
        assert (await asked(client, "cancel", task["taskId"]))["error"]["code"] == -32602
        again = await client.call("charge", {"amount": 1}, headers=RUN)
        assert again["_meta"]["dev.seawall/call"]["replayed"] is True
        assert (await asked(client, "get", task["taskId"]))["result"]["status"] == "cancelled"
        assert len(server.effects) == 1


async def test_nobody_sees_or_cancels_another_agents_task(tmp_path: Path) -> None:
    """Not by id, not in the list; what is unknown and what is foreign read the same."""
    file = TokenFile(tmp_path / "tokens.json")
    texts = {name: file.issue(Scope.AGENT, name, 0)[0] for name in ("ana", "bob")}
    tokens = str(tmp_path / "tokens.json")
    async with ledger() as server, serving(tmp_path, 0, manifest(server.url, HELD), tokens=tokens) as on:
        ana, bob = (Raw(on.agent, **{"Seawall-Agent-Token": texts[name]}) for name in ("ana", "bob"))
        await ana.initialize()
        await bob.initialize()
        task = await begun(ana)
        unknown = (await asked(bob, "get", "seawall-task-none"))["error"]
        for method in ("get", "result", "cancel"):
            assert (await asked(bob, method, task["taskId"]))["error"] == unknown
        listed = [message_of(await one.post("tasks/list"))["result"]["tasks"] for one in (ana, bob)]
        assert [[one["taskId"] for one in tasks] for tasks in listed] == [[task["taskId"]], []]
        assert (await asked(ana, "get", task["taskId"]))["result"]["status"] == "working"
        assert message_of(await ana.post("tasks/list", {"cursor": "x"}))["error"]["code"] == -32602


async def test_older_clients_and_unknown_tools_are_no_tasks(tmp_path: Path) -> None:
    """`task` means nothing before 2025-11-25; what cannot be called fails like any call."""
    async with ledger() as server, serving(tmp_path, 0, manifest(server.url, DECLARED)) as on:
        old = Raw(on.agent)
        greeted = result_of(await old.initialize("2025-06-18"))
        assert "tasks" not in greeted["capabilities"]
        params = {"name": "charge", "arguments": {"amount": 1}, "task": {}}
        assert result_of(await old.post("tools/call", params))["structuredContent"] == {"id": 1}
        client = Raw(on.agent)
        await client.initialize()
        params = {"name": "nothing", "arguments": {}, "task": {}}
        task = result_of(await client.post("tools/call", params))["task"]
        view = await status(client, task["taskId"], "failed")
        assert "Unknown tool" in view["statusMessage"]
        assert (await asked(client, "result", task["taskId"]))["error"]["code"] == -32602


async def test_a_stateless_client_that_takes_tasks_gets_one_while_people_decide(tmp_path: Path) -> None:
    """The server decides: a held call is a task at once, and its result stands in it."""
    async with ledger() as server, serving(tmp_path, 0, manifest(server.url, HELD)) as on:
        client = Raw(on.agent)
        discovered = (await modern(client, "server/discover"))["result"]
        assert discovered["capabilities"]["extensions"] == {EXTENSION: {}}
        task = (await modern(client, "tools/call", name="charge", arguments={"amount": 1}))["result"]
        assert (task["resultType"], task["status"]) == ("task", "working")
        assert "approve" in task["statusMessage"]
        listen = {"notifications": {"taskIds": [task["taskId"], "seawall-task-other"]}, "_meta": TAKES}
        body = {"jsonrpc": "2.0", "id": "sub", "method": "subscriptions/listen", "params": listen}
        async with stream(on, "POST", client, body, modern_headers("subscriptions/listen")) as lines:
            agreed = json.loads((await anext(lines))[5:])["params"]["notifications"]
            assert agreed == {"taskIds": [task["taskId"]]}
            (waiting,) = (await on.operator.send("GET", "/api/v1/approvals")).json["approvals"]
            await decide(on, waiting["id"], "approve")
            told = json.loads((await anext(lines))[5:])
            assert told["method"] == "notifications/tasks"
            assert told["params"]["result"]["structuredContent"] == {"id": 1}
        view = await modern_status(client, task["taskId"], "completed")
        assert (view["resultType"], view["result"]["structuredContent"]) == ("complete", {"id": 1})
        assert (await modern(client, "tasks/cancel", task["taskId"]))["result"] == {"resultType": "complete"}
        assert len(server.effects) == 1
        answer = await client.post("tasks/get", {"taskId": task["taskId"], "_meta": MODERN},
                                   modern_headers("tasks/get", task["taskId"]))  # fmt: skip
        assert message_of(answer)["error"]["code"] == -32021
        wrong = {"taskId": task["taskId"], "_meta": TAKES}
        answer = await client.post("tasks/get", wrong, modern_headers("tasks/get", "another"))
        assert (answer.status, message_of(answer)["error"]["code"]) == (400, -32020)


async def test_a_slow_call_of_a_stateless_client_becomes_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fast one does not."""
    monkeypatch.setattr(mcp_tasks, "TASK_AFTER_S", 0.1)
    async with ledger(hold=asyncio.Event()) as server, serving(tmp_path, 0, manifest(server.url, DECLARED)) as on:
        assert server.hold is not None
        client = Raw(on.agent)
        task = (await modern(client, "tools/call", name="charge", arguments={"amount": 1}))["result"]
        assert task["resultType"] == "task"
        server.hold.set()
        view = await modern_status(client, task["taskId"], "completed")
        assert view["result"]["structuredContent"] == {"id": 1}
        fast = (await modern(client, "tools/call", name="charge", arguments={"amount": 2}))["result"]
        assert (fast["resultType"], fast["structuredContent"]) == ("complete", {"id": 2})
        assert fast["_meta"]["dev.seawall/call"]["step"] == 2


async def test_a_client_that_leaves_before_there_is_a_task_cancels_its_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without tasks: nothing goes on that nobody can ask for."""
    monkeypatch.setattr(front, "STREAM_AFTER_S", 60.0)
    async with ledger(hold=asyncio.Event()) as server, serving(tmp_path, 0, manifest(server.url, DECLARED)) as on:
        assert server.hold is not None
        client = Raw(on.agent)
        leaving = asyncio.ensure_future(modern(client, "tools/call", name="charge", arguments={"amount": 1}))
        async with asyncio.timeout(20):
            while not server.effects:
                await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait((leaving,))
        server.hold.set()
        again = (await modern(client, "tools/call", name="charge", arguments={"amount": 1}))["result"]
        assert again["_meta"]["dev.seawall/call"]["replayed"] is True
        assert len(server.effects) == 1


async def test_a_handshake_server_may_ask_a_stateless_client_that_takes_tasks(
    tmp_path: Path, everything_url: str
) -> None:
    """Without tasks nobody could be asked: the question has no request to ride on."""
    text = f'version: 1\ntools:\n  pay: {{mcp: {{url: "{everything_url}", protocol: "2025-11-25"}}}}\n'
    capable = {"extensions": {EXTENSION: {}}, "elicitation": {}, "sampling": {}}
    async with serving(tmp_path, 0, text) as on:
        client = Raw(on.agent)
        meta = {**MODERN, "io.modelcontextprotocol/clientCapabilities": capable}
        params = {"name": "test_elicitation", "arguments": {"message": "Who?"}, "_meta": meta}
        task = result_of(await client.post("tools/call", params, modern_headers("tools/call", "test_elicitation")))
        assert task["resultType"] == "task"
        view = await modern_status(client, task["taskId"], "input_required")
        ((key, question),) = view["inputRequests"].items()
        assert (question["method"], question["params"]["message"]) == ("elicitation/create", "Who?")
        said = {key: {"action": "accept", "content": {"response": "Ann"}}, "other": {}}
        updated = await modern(client, "tasks/update", task["taskId"], inputResponses=said)
        assert updated["result"] == {"resultType": "complete"}
        view = await modern_status(client, task["taskId"], "completed")
        assert '"response":"Ann"' in view["result"]["content"][0]["text"]


async def test_a_question_is_never_put_to_another_client_of_the_same_server(
    tmp_path: Path, everything_url: str
) -> None:
    """Stateless clients share a session with a handshake server; what is asked for one must not reach the other."""
    text = f'version: 1\ntools:\n  pay: {{mcp: {{url: "{everything_url}", protocol: "2025-11-25"}}}}\n'
    async with serving(tmp_path, 0, text) as on:
        ana, bob = Raw(on.agent, **{"Seawall-Agent": "ana"}), Raw(on.agent, **{"Seawall-Agent": "bob"})
        able = {
            **TAKES,
            "io.modelcontextprotocol/clientCapabilities": {"extensions": {EXTENSION: {}}, "elicitation": {}},
        }
        headers = modern_headers("tools/call", "test_elicitation")
        params = {"name": "test_elicitation", "arguments": {"message": "For Ana."}, "_meta": able}
        task = result_of(await ana.post("tools/call", params, headers))
        await modern_status(ana, task["taskId"], "input_required")
        params = {"name": "test_elicitation", "arguments": {"message": "For Bob."}, "_meta": MODERN}
        refused = message_of(await bob.post("tools/call", params, headers))
        assert "cannot be asked" in refused["error"]["message"]
        view = await modern_status(ana, task["taskId"], "input_required")
        assert [one["params"]["message"] for one in view["inputRequests"].values()] == ["For Ana."]


async def test_a_stateless_server_that_asks_late_asks_through_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the call is a task, its answer cannot be another question."""
    monkeypatch.setattr(mcp_tasks, "TASK_AFTER_S", 0.05)
    async with (
        asking() as server,
        serving(tmp_path, 0, f'version: 1\ntools:\n  pay: {{mcp: {{url: "{server.url}"}}}}\n') as on,
    ):
        server.pause = asyncio.Event()
        client = Raw(on.agent)
        task = (await modern(client, "tools/call", name="delete", arguments={}))["result"]
        server.pause.set()
        view = await modern_status(client, task["taskId"], "input_required")
        ((key, _),) = view["inputRequests"].items()
        await modern(client, "tasks/update", task["taskId"], inputResponses={key: {"action": "accept"}})
        view = await modern_status(client, task["taskId"], "completed")
        assert view["result"]["content"][0]["text"] == "accept"
        assert server.deleted == 1


async def test_a_question_of_a_task_reaches_a_client_of_the_handshake_era_at_its_result(
    tmp_path: Path, everything_url: str
) -> None:
    """`input_required`; the stream of `tasks/result` carries the question, also for who comes back to it."""
    text = f'version: 1\ntools:\n  pay: {{mcp: {{url: "{everything_url}"}}}}\n'
    async with serving(tmp_path, 0, text) as on:
        client = Raw(on.agent)
        await client.initialize(capabilities={"elicitation": {}})
        params = {"name": "test_elicitation", "arguments": {"message": "Who?"}, "task": {}}
        task = result_of(await client.post("tools/call", params))["task"]
        await status(client, task["taskId"], "input_required")
        body = {"jsonrpc": "2.0", "id": 90, "method": "tasks/result", "params": {"taskId": task["taskId"]}}
        async with stream(on, "POST", client, body) as lines:
            first = json.loads((await anext(lines))[5:])
        assert first["params"]["_meta"][RELATED] == {"taskId": task["taskId"]}
        async with stream(on, "POST", client, {**body, "id": 91}) as lines:
            question = json.loads((await anext(lines))[5:])
            assert question == first
            answer = {
                "jsonrpc": "2.0",
                "id": question["id"],
                "result": {"action": "accept", "content": {"response": "Ann"}},
            }
            assert (await on.agent.send("POST", client.path, answer, headers=client.headers)).status == 202
            result = json.loads((await anext(lines))[5:])["result"]
        assert '"response":"Ann"' in result["content"][0]["text"]


async def test_the_typescript_sdk_waits_for_a_person_by_task(tmp_path: Path) -> None:
    """A client of other people, its own poll, no code of ours; the person takes longer than a request may."""
    (tmp_path / "node_modules").symlink_to(NPM)
    async with ledger() as server, serving(tmp_path, 0, manifest(server.url, HELD)) as on:
        script = blocks("typescript-sdk.md", "javascript")[2]
        (tmp_path / "client.mjs").write_text(script.replace("http://127.0.0.1:8080", on.gateway.listen))
        process = await asyncio.create_subprocess_exec(
            str(NODE), str(tmp_path / "client.mjs"), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        approval = await first_approval(on)
        assert process.stdout is not None
        async with asyncio.timeout(40):
            while b"waits for people" not in await process.stdout.readline():
                pass
        await decide(on, approval, "approve")
        async with asyncio.timeout(40):
            out, error = await process.communicate()
        assert process.returncode == 0, error.decode()
        assert out.decode().splitlines()[-1] == '{"id":1}'
        assert len(server.effects) == 1


async def first_approval(on: Serving) -> str:
    async with asyncio.timeout(40):
        while not (waiting := (await on.operator.send("GET", "/api/v1/approvals")).json["approvals"]):
            await asyncio.sleep(0.01)
    return str(waiting[0]["id"])


async def test_a_tool_that_its_server_takes_as_a_task_alone_is_called_like_any_other(tmp_path: Path) -> None:
    """server-everything demands a task; the gateway makes one there, and the step is done when the task is."""
    everything = NPM / "@modelcontextprotocol/server-everything/dist/index.js"
    text = f"version: 1\ntools:\n  all: {{mcp: {{command: [{NODE}, {everything}, stdio]}}}}\n"
    async with (
        serving(tmp_path, 0, text) as on,
        Client(f"{on.gateway.listen}/seawall/mcp/all", mode="legacy") as client,
    ):
        result = await client.call_tool("simulate-research-query", {"topic": "tea", "ambiguous": False})
        assert not result.is_error, result
        assert "tea" in result.content[0].text
        assert RELATED not in result.meta
        assert result.meta["dev.seawall/call"]["step"] == 1
