"""A gateway that is killed in the middle of sessions: servers of other people, clients of other people, nobody notices."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp.client import streamable_http
from mcp.client.client import Client

from gateway.core.mcp_session import sealed_places
from tests.gateway.harness import Child, serving
from tests.mcp.conftest import listening
from tests.mcp.rig import NPM, SERVERS, Raw, ledger
from tests.mcp.test_gateway import DECLARED, manifest
from tests.mcp.test_streams import stream, streaming

NODE = NPM / "node/bin/node"
EVERYTHING = NPM / "@modelcontextprotocol/server-everything/dist/index.js"
WATCHED = "demo://resource/static/document/architecture.md"
LISTENER = NPM.parent / "listener.mjs"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Process:
    """A server of somebody else, to be killed."""

    def __init__(self, port: int, *command: object) -> None:
        self.port = port
        self.command = [str(part) for part in command]
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *self.command,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "PORT": str(self.port)},
        )
        await listening(self.port)

    async def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
            await self.process.wait()


@contextlib.asynccontextmanager
async def gateway(folder: Path, text: str) -> AsyncIterator[Child]:
    """A gateway on a port that stays the same."""
    child = Child(folder, 0, text, listen=f"127.0.0.1:{free_port()}")
    await child.start()
    try:
        yield child
    finally:
        await child.terminate()


@contextlib.asynccontextmanager
async def everything() -> AsyncIterator[Process]:
    """The official server with everything, over Streamable HTTP."""
    port = free_port()
    process = Process(port, NODE, EVERYTHING, "streamableHttp")
    await process.start()
    try:
        yield process
    finally:
        await process.kill()


TOGGLE = """
    operations:
      # A read, since two of the same are two here, and not one that is repeated.
      toggle: {match: CALL toggle-subscriber-updates, tier: read}
"""


def over_http(port: int, more: str = "") -> str:
    return f'version: 1\ntools:\n  all:\n    mcp: {{url: "http://127.0.0.1:{port}/mcp"}}\n{more}'


OVER_PIPES = f"version: 1\ntools:\n  all:\n    mcp: {{command: [{NODE}, {EVERYTHING}, stdio]}}\n{TOGGLE}"


async def kill_with_children(child: Child) -> None:
    """Kill a gateway and the servers that it had started: some go on without their pipes."""
    assert child.process is not None
    children = Path(f"/proc/{child.process.pid}/task/{child.process.pid}/children").read_text().split()
    await child.kill()
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


class Listening:
    """What the official Python client is told unasked."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[Any] = asyncio.Queue()

    async def __call__(self, message: Any) -> None:
        self.told.put_nowait(message)

    async def until_updated(self) -> None:
        async with asyncio.timeout(30):
            while True:
                message = await self.told.get()
                root = getattr(message, "root", message)
                if type(root).__name__ == "ResourceUpdatedNotification" and root.params.uri == WATCHED:
                    return

    def forget(self) -> None:
        while not self.told.empty():
            self.told.get_nowait()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python SDK comes back to its stream once, after as long as a restart may take; a busy machine may take longer."""
    monkeypatch.setattr(streamable_http, "MAX_RECONNECTION_ATTEMPTS", 5)


async def watching(client: Client, heard: Listening) -> None:
    """Subscribe, have the server tell of changes, and return once one has been heard of: now the client does listen."""
    await client.session.subscribe_resource(WATCHED)
    assert not (await client.call_tool("toggle-subscriber-updates", {})).is_error
    await heard.until_updated()


async def test_the_servers_session_goes_on_without_a_second_greeting(tmp_path: Path) -> None:
    """Killed or stopped: the same session id, one `initialize`, and no number of a request twice."""
    async with ledger() as server:
        child = Child(tmp_path, 0, manifest(server.url, DECLARED))
        client = Raw(await child.start())
        await client.initialize()
        await client.call("charge", {"amount": 1})
        greeted = server.calls.count("initialize")
        for end in (child.kill, child.terminate):
            await end()
            client.client = await child.start()
            await client.call("charge", {"amount": 2})
        await child.kill()
        assert server.calls.count("initialize") == greeted
        assert set(server.used) == {"s1"}
        assert len(server.ids) == len(set(server.ids))


async def test_a_client_that_says_goodbye_after_a_restart_ends_the_servers_session(tmp_path: Path) -> None:
    """Else what a killed gateway had opened would stay open for ever (prowler#12235)."""
    async with ledger() as server:
        child = Child(tmp_path, 0, manifest(server.url))
        client = Raw(await child.start())
        await client.initialize()
        await child.kill()
        client.client = await child.start()
        assert (await client.client.send("DELETE", client.path, headers=client.headers)).status == 204
        assert server.ended == ["s1"]
        await child.terminate()


async def test_a_session_that_was_ended_stays_ended(tmp_path: Path) -> None:
    """The id that the client has opens its session for ever, else: whoever finds it could go on with it."""
    async with ledger() as server:
        child = Child(tmp_path, 0, manifest(server.url))
        client = Raw(await child.start())
        await client.initialize()
        assert (await client.client.send("DELETE", client.path, headers=client.headers)).status == 204
        assert (await client.post("ping")).status == 404
        await child.kill()
        client.client = await child.start()
        assert (await client.post("ping")).status == 404
        assert (await client.client.send("GET", client.path, headers=client.headers)).status == 404
        await child.terminate()


@pytest.mark.parametrize("named", [True, False])
async def test_what_a_session_did_is_undone_in_it_after_a_kill(tmp_path: Path, named: bool) -> None:
    """The client has its answer, the gateway is killed: whose session it was is known, with the run's own records."""
    async with ledger() as server:
        child = Child(tmp_path, 0, manifest(server.url, DECLARED))
        agent = await child.start()
        other, client = Raw(agent), Raw(agent)
        await other.initialize()
        await client.initialize()
        meta = {"dev.seawall/trajectory": "trip"} if named else None
        result = await client.call("charge", {"amount": 1}, meta)
        await child.kill()
        agent = await child.start()
        run = result["_meta"]["dev.seawall/call"]["trajectory"]
        aborted = await agent.send("POST", f"/seawall/v1/trajectories/{run}/abort", {})
        assert (aborted.status, aborted.json["state"]) == (200, "aborted_clean")
        assert [effect["tool"] for effect in server.effects] == ["charge", "refund"]
        assert server.used == ["s2", "s2"]
        assert server.sessions == 2
        await child.terminate()


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("patient")
async def test_a_subscription_at_the_server_outlives_the_gateway(tmp_path: Path) -> None:
    """The Python SDK listens on, the server knows the session still, and what it was asked to watch it watches."""
    async with everything() as server, gateway(tmp_path, over_http(server.port, TOGGLE)) as child:
        heard = Listening()
        url = f"http://{child.listen}/seawall/mcp/all"
        async with Client(url, mode="legacy", message_handler=heard) as client:
            await watching(client, heard)
            await child.kill()
            await child.start()
            assert not (await client.call_tool("echo", {"message": "still there"})).is_error
            heard.forget()
            await heard.until_updated()


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("served", ["over HTTP", "over pipes"])
async def test_what_was_set_is_set_again_where_the_server_has_forgotten(tmp_path: Path, served: str) -> None:
    """A child dies with its gateway; a server that was restarted too says that it does not know the session."""
    async with everything() as server:
        text = over_http(server.port, TOGGLE) if served == "over HTTP" else OVER_PIPES
        async with gateway(tmp_path, text) as child:
            heard = Listening()
            url = f"http://{child.listen}/seawall/mcp/all"
            async with Client(url, mode="legacy", message_handler=heard) as client:
                await watching(client, heard)
                await kill_with_children(child)
                await server.kill()
                await asyncio.gather(server.start(), child.start())
                heard.forget()
                result = await client.call_tool("toggle-subscriber-updates", {})
                assert not result.is_error
                await heard.until_updated()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("served", ["over HTTP", "over pipes"])
async def test_a_client_of_the_typescript_sdk_notices_nothing(tmp_path: Path, served: str) -> None:
    """It subscribes, the gateway is killed, it calls, and is told of the change."""
    async with everything() as server:
        text = over_http(server.port, TOGGLE) if served == "over HTTP" else OVER_PIPES
        async with gateway(tmp_path, text) as child, asyncio.timeout(60):
            process = await asyncio.create_subprocess_exec(
                str(NODE),
                str(LISTENER),
                f"http://{child.listen}/seawall/mcp/all",
                WATCHED,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            assert process.stdin is not None
            assert process.stdout is not None
            assert await process.stdout.readline() == b"subscribed\n"
            process.stdin.write(b"toggle-subscriber-updates\n")
            updated = f"updated {WATCHED}\n".encode()
            assert {await process.stdout.readline() for _ in range(2)} == {b"called\n", updated}
            await kill_with_children(child)
            await child.start()
            # The child's own switch is off again; the server over HTTP goes on by itself.
            process.stdin.write(b"toggle-subscriber-updates\n" if served == "over pipes" else b"get-tiny-image\n")
            said = [await process.stdout.readline()]
            while updated not in said or b"called\n" not in said:
                said.append(await process.stdout.readline())
                assert said[-1] in (b"called\n", updated), said
            process.stdin.close()
            assert await process.wait() == 0


@pytest.mark.timeout(120)
async def test_what_a_server_said_while_the_gateway_was_away_is_heard(tmp_path: Path) -> None:
    """The client comes back with the id of the last event, which says how far each server's stream had come."""
    port = free_port()
    server = Process(port, sys.executable, SERVERS / "everything.py", port)
    await server.start()
    child = Child(tmp_path, 0, over_http(port))
    client = Raw(await child.start(), "/seawall/mcp/all")
    try:
        await client.initialize()
        async with streaming(client.client, "GET", client, None, kinds=("id:", "data:")) as lines:
            # The server's own stream is open once something comes on it.
            await client.call("announce_later", {"delay_s": 0.3})
            last, told = await anext(lines), await anext(lines)
            assert "resources/list_changed" in told
            # It speaks before the gateway, and with it the client, can be back.
            await client.call("announce_later", {"delay_s": 0.1})
            await child.kill()
        client.client = await child.start()
        since = [("Last-Event-ID", last.removeprefix("id: "))]
        async with streaming(client.client, "GET", client, None, since, kinds=("data:",)) as lines:
            assert "resources/list_changed" in await anext(lines)
    finally:
        await child.kill()
        await server.kill()


async def test_nobody_makes_up_a_place_in_a_servers_stream(tmp_path: Path) -> None:
    """An event's id is sealed, and its client's alone: another one is as good as none."""
    async with ledger() as server, serving(tmp_path, 0, manifest(server.url)) as on:
        client = Raw(on.agent)
        await client.initialize()
        key = on.gateway._mcp._key
        others = sealed_places("somebody else", {"pay": "17"}, key)
        assert others is not None
        for made_up in ("17", others):
            async with stream(on, "GET", client, None, [("Last-Event-ID", made_up)]) as lines:
                assert await anext(lines) == ": listening"
                assert on.gateway._mcp._conversations.all()[0].places == {}
            while on.gateway._mcp._conversations.all()[0].listeners:
                await asyncio.sleep(0.01)


def levels(port: int) -> str:
    script = SERVERS / "levels.py"
    return (
        f'version: 1\ntools:\n  web: {{mcp: {{url: "http://127.0.0.1:{port}/mcp"}}}}\n'
        f"  pipes: {{mcp: {{command: [{sys.executable}, {script}, stdio]}}}}\n"
    )


@pytest.mark.timeout(120)
async def test_a_log_level_for_all_servers_reaches_each_of_them(tmp_path: Path) -> None:
    """Those that are greeted later too, and those that have forgotten it because they, or the gateway, were killed."""
    port = free_port()
    server = Process(port, sys.executable, SERVERS / "levels.py", port)
    await server.start()
    try:
        async with gateway(tmp_path, levels(port)) as child:
            url = f"http://{child.listen}/seawall/mcp"
            async with Client(url, mode="legacy") as early, Client(url, mode="legacy") as late:

                async def told(client: Client) -> list[str]:
                    answers = [await client.call_tool(f"{name}__level", {}) for name in ("web", "pipes")]
                    return [answer.content[0].text for answer in answers]

                await late.session.set_logging_level("error")
                assert await told(early) == ["none", "error"]
                await early.session.set_logging_level("debug")
                assert await told(early) == ["debug", "debug"]
                assert await told(late) == ["error", "debug"]
                await kill_with_children(child)
                await server.kill()
                await asyncio.gather(server.start(), child.start())
                assert await told(early) == ["debug", "debug"]
    finally:
        await server.kill()


async def test_a_killed_gateway_leaves_no_child_behind(tmp_path: Path) -> None:
    """Neither one that goes on without its pipes, nor what such a one has started: their group is ended by the guardian."""
    script = tmp_path / "stubborn.py"
    script.write_text(
        "import os, signal, subprocess, sys, threading\n"
        "from mcp.server.mcpserver import MCPServer\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "wait = 'import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()'\n"
        "helper = subprocess.Popen([sys.executable, '-c', wait], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)\n"
        "server = MCPServer('stubborn')\n"
        "@server.tool()\n"
        "def pids() -> str:\n    return f'{os.getpid()} {helper.pid}'\n"
        "server.run('stdio')\n"
        "threading.Event().wait()\n"
    )
    text = f"version: 1\ntools:\n  pay: {{mcp: {{command: [{sys.executable}, {script}]}}}}\n"
    async with gateway(tmp_path, text) as child:
        async with Client(f"http://{child.listen}/seawall/mcp/pay", mode="legacy") as client:
            said = (await client.call_tool("pids", {})).content[0].text
            await child.kill()
        async with asyncio.timeout(20):
            while any(is_running(int(pid)) for pid in said.split()):
                await asyncio.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether there is such a process that is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
