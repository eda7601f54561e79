"""Agents are kept apart: who has no token gets nowhere, and nobody sees, uses or aborts another agent's run."""

from __future__ import annotations

import asyncio
import contextlib
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.app import Gateway, StartError
from gateway.config.tokens import TokenFile
from gateway.core.server import ServerSettings
from gateway.core.tokens import Scope
from tests.gateway.harness import Answered, Child, Serving, serving, write_manifest
from tests.origin import Answer, Hang, Origin

JSON = ((b"Content-Type", b"application/json"),)


class Agents:
    """A gateway with two agents, who each have a token, an operator and a viewer."""

    def __init__(self, running: Serving, origin: Origin, path: Path, texts: dict[str, str]) -> None:
        self.running, self.origin, self.path, self.texts = running, origin, path, texts

    async def send(
        self,
        who: str,
        method: str,
        target: str,
        body: object | None = None,
        *,
        run: str | None = None,
        key: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> Answered:
        fields = [("Seawall-Agent-Token", self.texts[who]), *headers]
        return await self.running.agent.send(method, target, body, run=run, key=key, headers=fields)

    async def control(self, who: str | None, method: str, target: str, body: object | None = None) -> Answered:
        fields = [] if who is None else [("Authorization", f"Bearer {self.texts[who]}")]
        return await self.running.operator.send(method, target, body, headers=fields)


@contextlib.asynccontextmanager
async def agents(folder: Path) -> AsyncIterator[Agents]:
    path = folder / "tokens.json"
    file = TokenFile(path)
    scopes = {"ana": Scope.AGENT, "bob": Scope.AGENT, "eve": Scope.VIEWER, "root": Scope.OPERATOR}
    texts = {name: file.issue(scope, name, 0)[0] for name, scope in scopes.items()}
    async with Origin(honours_keys=True) as origin, serving(folder, origin.port, tokens=str(path)) as running:
        origin.on("POST /holds", Answer(201, b'{"id": "h1"}', JSON))
        yield Agents(running, origin, path, texts)


@pytest.mark.parametrize("target", ["/pay/x", "/seawall/v1/trajectories/r1", "/nothing", "/seawall/mcp"])
async def test_without_a_token_nothing_is_served(tmp_path: Path, target: str) -> None:
    async with agents(tmp_path) as world:
        for headers in ([], [("Seawall-Agent-Token", "swt_x")], [("Seawall-Agent", "ana")]):
            answer = await world.running.agent.send("GET", target, headers=headers)
            assert (answer.status, answer.code) == (401, "ERR_UNAUTHENTICATED")
            assert answer["WWW-Authenticate"].startswith("Seawall-Agent-Token")
            assert answer["x-should-retry"] == "false"
            assert answer.json["dispatched"] == "no"
        assert world.origin.requests == []


async def test_an_operators_token_is_no_agents(tmp_path: Path) -> None:
    async with agents(tmp_path) as world:
        assert (await world.send("root", "GET", "/pay/x")).status == 401


async def test_a_run_belongs_to_the_agent_that_opened_it(tmp_path: Path) -> None:
    async with agents(tmp_path) as world:
        assert (await world.send("ana", "POST", "/pay/holds", {"n": 1}, run="r1")).status == 201
        mine = await world.send("ana", "GET", "/seawall/v1/trajectories/r1")
        assert (mine.status, mine.json["agent"]) == (200, "ana")
        unknown = await world.send("bob", "GET", "/seawall/v1/trajectories/r2")
        for method, verb in (
            ("GET", ""), ("POST", "/abort"), ("POST", "/commit"), ("POST", "/savepoints"), ("POST", "/rewind"),
        ):  # fmt: skip
            theirs = await world.send("bob", method, f"/seawall/v1/trajectories/r1{verb}")
            assert (theirs.status, theirs.code) == (404, "ERR_UNKNOWN_TRAJECTORY")
            expected = unknown.json["detail"].replace("r2", "r1")
            assert theirs.json["detail"] == expected, "nothing tells it from one that does not exist"
        assert (await world.send("ana", "GET", "/seawall/v1/trajectories/r1")).json["state"] == "preparing"
        assert (await world.send("ana", "POST", "/seawall/v1/trajectories/r1/abort")).json["state"] == "aborted_clean"


@pytest.mark.parametrize(("method", "target"), [("POST", "/pay/holds"), ("GET", "/pay/x"), ("POST", "/plain/x")])
async def test_nobody_puts_a_step_into_another_agents_run(tmp_path: Path, method: str, target: str) -> None:
    async with agents(tmp_path) as world:
        await world.send("ana", "POST", "/pay/holds", {"n": 1}, run="r1")
        body = {"n": 2} if method == "POST" else None
        refused = await world.send("bob", method, target, body, run="r1")
        assert (refused.status, refused.code) == (403, "ERR_FOREIGN_TRAJECTORY")
        assert refused.json["dispatched"] == "no"
        assert len(world.origin.requests) == 1
        shown = (await world.send("ana", "GET", "/seawall/v1/trajectories/r1")).json
        assert (len(shown["steps"]), shown["refusals"]) == (1, 0), "the run does not notice"


async def test_nobody_gets_another_agents_answer_by_its_key_or_its_content(tmp_path: Path) -> None:
    """The answer of an identical call would tell what the other has done."""
    async with agents(tmp_path) as world:
        world.origin.on("POST /holds", Answer(201, b'{"id": "anas"}', JSON), Answer(201, b'{"id": "bobs"}', JSON))
        await world.send("ana", "POST", "/pay/holds", {"n": 1}, key="k1")
        mine = await world.send("bob", "POST", "/pay/holds", {"n": 1}, key="k1")
        assert mine.json == {"id": "bobs"}
        assert mine.get("Seawall-Replayed") is None
        assert world.origin.ledger.total == 2
        again = await world.send("ana", "POST", "/pay/holds", {"n": 1}, key="k1")
        assert (again.json, again["Seawall-Replayed"]) == ({"id": "anas"}, "true")


async def test_a_name_that_is_taken_cannot_be_opened(tmp_path: Path) -> None:
    async with agents(tmp_path) as world:
        assert (await world.send("ana", "POST", "/seawall/v1/trajectories", {"id": "r1"})).status == 201
        taken = await world.send("bob", "POST", "/seawall/v1/trajectories", {"id": "r1"})
        assert (taken.status, taken.code) == (403, "ERR_FOREIGN_TRAJECTORY")
        assert (await world.send("ana", "POST", "/seawall/v1/trajectories", {"id": "r1"})).status == 200


async def test_the_token_says_who_it_is_and_not_the_header(tmp_path: Path) -> None:
    async with agents(tmp_path) as world:
        fields = (("Seawall-Agent", "ana"),)
        answer = await world.send("bob", "POST", "/pay/holds", {"n": 1}, headers=fields)
        run = answer["Seawall-Trajectory"]
        assert (await world.send("bob", "GET", f"/seawall/v1/trajectories/{run}")).json["agent"] == "bob"
        assert (await world.send("ana", "GET", f"/seawall/v1/trajectories/{run}")).status == 404


async def test_agents_of_one_trace_have_a_run_each(tmp_path: Path) -> None:
    """A trace spans agents; a run does not."""
    async with agents(tmp_path) as world:
        fields = (("traceparent", f"00-{'ab' * 16}-{'cd' * 8}-01"),)
        runs = [
            (await world.send(who, "POST", "/pay/holds", {"n": 1}, headers=fields))["Seawall-Trajectory"]
            for who in ("ana", "bob", "ana")
        ]
        assert runs[0] == runs[2] != runs[1]


async def test_runs_stay_their_agents_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    texts = {name: TokenFile(path).issue(Scope.AGENT, name, 0)[0] for name in ("ana", "bob")}
    async with Origin() as origin:
        origin.on("POST /holds", Answer(201, b'{"id": "h1"}', JSON))
        child = Child(tmp_path, origin.port)
        headers = {name: [("Seawall-Agent-Token", text)] for name, text in texts.items()}
        try:
            agent = await child.start(SEAWALL_TOKENS=str(path))
            await agent.send("POST", "/pay/holds", {"n": 1}, run="r1", headers=headers["ana"])
            await child.kill()
            agent = await child.start(SEAWALL_TOKENS=str(path))
            assert (await agent.send("GET", "/seawall/v1/trajectories/r1", headers=headers["bob"])).status == 404
            refused = await agent.send("POST", "/pay/holds", {"n": 2}, run="r1", headers=headers["bob"])
            assert refused.code == "ERR_FOREIGN_TRAJECTORY"
            assert (await agent.send("GET", "/seawall/v1/trajectories/r1", headers=headers["ana"])).status == 200
        finally:
            await child.kill()


async def test_no_token_reaches_a_tool_or_the_disk(tmp_path: Path) -> None:
    async with agents(tmp_path) as world:
        text = world.texts["ana"]
        basic = b64encode(f"agent:{text}".encode()).decode()
        for fields in (
            [("Seawall-Agent-Token", text)],
            [("Authorization", f"Basic {basic}")],
            [("Authorization", f"Bearer {text}")],
            [("Proxy-Authorization", f"Basic {basic}"), ("Authorization", "Bearer tools-own")],
        ):
            answer = await world.running.agent.send("POST", "/pay/holds", {"n": 1}, headers=fields)
            assert answer.status == 201
        assert [request.values(b"authorization") for request in world.origin.requests] == [
            [],
            [],
            [],
            [b"Bearer tools-own"],
        ]
        heads = b"".join(request.head for request in world.origin.requests)
        await world.running.gateway.stop()
        stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        for needle in (text, text[15:], basic):
            assert needle.encode() not in heads
            assert needle.encode() not in stored


async def test_an_mcp_session_is_its_agents_alone_and_so_are_the_runs_it_names(tmp_path: Path) -> None:
    """A session id is no secret between agents of one host: it does not stand for the token."""
    async with agents(tmp_path) as world:
        await world.send("ana", "POST", "/pay/holds", {"n": 1}, run="r1")
        accept = ("Accept", "application/json, text/event-stream")
        greeting = {
            "jsonrpc": "2.0", "id": 1, "method": "initialize",
            "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
        }  # fmt: skip
        greeted = await world.send("ana", "POST", "/seawall/mcp", greeting, headers=(accept,))
        session = ("Mcp-Session-Id", greeted["Mcp-Session-Id"])
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        assert (await world.send("ana", "POST", "/seawall/mcp", listing, headers=(accept, session))).status == 200
        assert (await world.send("bob", "POST", "/seawall/mcp", listing, headers=(accept, session))).status == 404
        assert (
            await world.running.agent.send("POST", "/seawall/mcp", listing, headers=(accept, session))
        ).status == 401
        own = (
            "Mcp-Session-Id",
            (await world.send("bob", "POST", "/seawall/mcp", greeting, headers=(accept,)))["Mcp-Session-Id"],
        )
        call = {
            "jsonrpc": "2.0", "id": 3, "method": "tools/call",
            "params": {"name": "pay__hold", "arguments": {"body": {"n": 2}}},
        }  # fmt: skip
        refused = await world.send("bob", "POST", "/seawall/mcp", call, run="r1", headers=(accept, own))
        assert b"ERR_FOREIGN_TRAJECTORY" in refused.body, refused.body
        assert len(world.origin.requests) == 1


async def test_a_revoked_token_is_refused_within_moments_and_a_new_one_taken(tmp_path: Path) -> None:
    async with agents(tmp_path) as world:
        assert (await world.send("ana", "GET", "/pay/x")).status == 200
        file = TokenFile(world.path)
        file.revoke("ana", 1)
        world.texts["new"] = file.issue(Scope.AGENT, "ana", 2)[0]
        async with asyncio.timeout(10):
            while (await world.send("ana", "GET", "/pay/x")).status != 401:
                await asyncio.sleep(0.05)
        assert (await world.send("new", "GET", "/pay/x")).status == 200, "the old one was exchanged for it"
        assert (await world.send("bob", "GET", "/pay/x")).status == 200


async def test_a_revoked_token_cuts_streams_and_reads_and_lets_writes_finish(tmp_path: Path) -> None:
    """Nothing that was opened under it stays open: an MCP session's stream, a read in flight. A write that was sent is
    finished and recorded."""
    async with agents(tmp_path) as world:
        release = asyncio.Event()
        world.origin.on("GET /slow", Hang())
        world.origin.on("POST /holds", Answer(201, b'{"id": "h1"}', JSON, hold=release))
        accept = ("Accept", "application/json, text/event-stream")
        greeting = {
            "jsonrpc": "2.0", "id": 1, "method": "initialize",
            "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
        }  # fmt: skip
        streams = {}
        for who in ("ana", "bob"):
            greeted = await world.send(who, "POST", "/seawall/mcp", greeting, headers=(accept,))
            session = ("Mcp-Session-Id", greeted["Mcp-Session-Id"])
            fields = [("Seawall-Agent-Token", world.texts[who]), accept, session]
            reader, writer = await world.running.agent.open()
            writer.write(world.running.agent.head("GET", "/seawall/mcp", fields, None))
            await reader.readuntil(b": listening")
            streams[who] = (reader, writer)
        read = asyncio.ensure_future(world.send("ana", "GET", "/pay/slow"))
        write = asyncio.ensure_future(world.send("ana", "POST", "/pay/holds", {"n": 1}, run="r1"))
        await world.origin.received(2)
        TokenFile(world.path).revoke("ana", 1)
        async with asyncio.timeout(20):
            with contextlib.suppress(OSError):
                await streams["ana"][0].read()
            await asyncio.wait((read, write))
            hanging = next(one for one in world.origin.requests if b"/slow" in one.head)
            await hanging.gone.wait()
        assert all(isinstance(one.exception(), OSError | EOFError) for one in (read, write))
        release.set()
        async with asyncio.timeout(20):
            while (await steps_of(world, "r1"))[0]["state"] != "committed":
                pass
        assert (await world.send("bob", "GET", "/pay/x")).status == 200
        assert not streams["bob"][0].at_eof()
        for _, writer in streams.values():
            writer.close()


async def steps_of(world: Agents, run: str) -> list[dict[str, object]]:
    return list((await world.control("root", "GET", f"/api/v1/trajectories/{run}")).json["steps"])


async def test_nobody_plans_anothers_run_or_asks_about_its_approvals(tmp_path: Path) -> None:
    """An approval's name holds the run's, which is no secret."""
    path = tmp_path / "tokens.json"
    texts = {name: TokenFile(path).issue(Scope.AGENT, name, 0)[0] for name in ("ana", "bob")}
    text = """
version: 1
tools:
  pay:
    upstream: http://127.0.0.1:PORT
    operations: {payout: {match: POST /payouts, tier: pivot, approval: required}}
"""
    async with Origin() as origin, serving(tmp_path, origin.port, text, tokens=str(path)) as running:

        async def send(who: str, method: str, target: str, body: object = None) -> Answered:
            fields = [("Seawall-Agent-Token", texts[who])]
            return await running.agent.send(method, target, body, run="r1", headers=fields)

        held = await send("ana", "POST", "/pay/payouts", {"n": 1})
        assert (held.status, held.code) == (202, "HELD_FOR_APPROVAL")
        assert (await send("ana", "GET", held["Location"])).status == 202
        theirs = await send("bob", "GET", held["Location"])
        assert (theirs.status, theirs.code) == (404, "ERR_UNKNOWN_APPROVAL")
        plan = {"enforce": True, "steps": [{"id": "a", "operation": "pay.payout"}]}
        refused = await send("bob", "POST", "/seawall/v1/trajectories/r1/plan", plan)
        assert (refused.status, refused.code) == (403, "ERR_FOREIGN_TRAJECTORY")
        assert (await send("bob", "POST", "/pay/payouts", {"n": 1})).code == "ERR_FOREIGN_TRAJECTORY"
        assert origin.requests == []


async def test_operators_act_viewers_look_and_agents_do_neither(tmp_path: Path) -> None:
    async with agents(tmp_path) as world:
        await world.send("ana", "POST", "/pay/holds", {"n": 1}, run="r1")
        for who, look, act in ((None, 401, 401), ("ana", 401, 401), ("eve", 200, 403), ("root", 200, 200)):
            assert (await world.control(who, "GET", "/api/v1/trajectories/r1")).status == look
            answer = await world.control(who, "POST", "/api/v1/trajectories/r1/abort", {"reason": "x"})
            assert answer.status == act
        assert (await world.control(None, "GET", "/healthz")).status == 200
        assert (await world.control(None, "GET", "/readyz")).status == 200


def test_nobody_listens_beyond_loopback_without_tokens(tmp_path: Path) -> None:
    from gateway.config.errors import ConfigError
    from gateway.config.server import load_server

    for key in ("listen", "control"):
        with pytest.raises(ConfigError, match="tokens"):
            load_server(environ={}, options={(key,): "0.0.0.0:8080"})
        settings = load_server(environ={}, options={(key,): "0.0.0.0:8080", ("tokens",): "tokens.json"})
        assert settings.tokens == "tokens.json"


async def test_a_broken_file_of_tokens_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text("{")
    manifest = write_manifest(tmp_path, 9)
    settings = ServerSettings(manifest=str(manifest), data=str(tmp_path / "data"), tokens=str(path))
    with pytest.raises(StartError, match="no file of tokens"):
        await Gateway(settings, environ={}).start()
