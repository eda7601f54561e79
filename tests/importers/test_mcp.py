"""Real servers become drafts that `seawall check` accepts, with and without their proposals."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from click.testing import CliRunner

from gateway.cli import main
from gateway.config.source import ManifestSource
from gateway.core.draft import render
from gateway.core.manifest import Tier
from gateway.core.tool import ToolSpec
from gateway.importers.mcp import Server, draft_mcp
from gateway.importers.openapi import ImportProblem
from tests.gateway.harness import serving
from tests.mcp.rig import EVERYTHING_COMMAND, Raw

TOOLS = [
    {"name": f"{verb}_{thing}", "inputSchema": {"type": "object", "properties": {"id": {}}, "required": ["id"]}}
    for thing in ("order", "invoice")
    for verb in ("create", "delete", "get")
]


class Paged:
    """Lists its tools two at a time, and wants a key if it is told to."""

    def __init__(self, key: str | None = None, *, is_endless: bool = False, is_modern: bool = False) -> None:
        self.key, self.is_endless, self.is_modern = key, is_endless, is_modern
        self.asked: list[str] = []

    async def handle(self, request: web.Request) -> web.Response:
        if self.key is not None and request.headers.get("X-Key") != self.key:
            return web.Response(status=401)
        if request.method != "POST":
            return web.Response(status=405)
        body = await request.json()
        self.asked.append(body["method"])
        if "id" not in body:
            return web.Response(status=202)
        return web.json_response({"jsonrpc": "2.0", "id": body["id"], **self.said(body)})

    def said(self, body: dict[str, Any]) -> dict[str, Any]:
        info, able = {"name": "Shop Server", "version": "3"}, {"tools": {}}
        match body["method"]:
            case "initialize" if not self.is_modern:
                return {"result": {"protocolVersion": "2025-06-18", "capabilities": able, "serverInfo": info}}
            case "server/discover" if self.is_modern:
                meta = {"io.modelcontextprotocol/serverInfo": info}
                return {"result": {"supportedVersions": ["2026-07-28"], "capabilities": able, "_meta": meta}}
            case "tools/list":
                at = int((body.get("params") or {}).get("cursor", 0))
                page: dict[str, Any] = {"tools": TOOLS[at : at + 2]}
                if at + 2 < len(TOOLS) or self.is_endless:
                    page["nextCursor"] = str(at + 2 if not self.is_endless else 0)
                return {"result": page}
        return {"error": {"code": -32601, "message": "Method not found"}}


@contextmanager
def running(server: Paged) -> Iterator[str]:
    """Serve in a thread, so that the command may have a loop of its own."""
    import asyncio

    ready, done, port = threading.Event(), asyncio.Event(), 0
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        nonlocal port
        app = web.Application()
        app.router.add_route("*", "/mcp", server.handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        ready.set()
        await done.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(10)
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()


def run(*arguments: str, **environment: str) -> tuple[int, str, str]:
    result = CliRunner(env=environment).invoke(main, ["catalog", "import", "mcp", *arguments])
    return result.exit_code, result.stdout, result.stderr


def checked(folder: Path, text: str, name: str) -> ToolSpec:
    path = folder / f"{len(list(folder.iterdir()))}.yaml"
    path.write_text(text)
    return ManifestSource(path, is_offline=True).load().tools[name]


def confirmed(text: str) -> str:
    """Take every proposal over, as a person would: the commented line instead of the one above it."""
    lines: list[str] = []
    for line in text.splitlines():
        if re.match(r"      # \w+: \{match", line):
            lines[-2:] = [line.replace("# ", "", 1)]
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("is_modern", [False, True], ids=["handshake", "stateless"])
def test_all_pages_of_a_server_become_one_draft(tmp_path: Path, is_modern: bool) -> None:
    """Nothing is called; the name is the server's own."""
    server = Paged(is_modern=is_modern)
    with running(server) as url:
        code, text, told = run(url)
    assert code == 0, told
    assert set(server.asked) <= {"initialize", "notifications/initialized", "tools/list", "server/discover"}
    shop = checked(tmp_path, text, "shop_server")
    declared = {name: one.tier for name, one in shop.operations.items() if one.is_declared}
    assert len(declared) == 6
    assert set(declared.values()) == {Tier.PIVOT}, "a name that sounds like a read proves nothing"
    assert "`get` sounds like a read" in text
    shop = checked(tmp_path, confirmed(text), "shop_server")
    assert shop.operations["create_order"].compensator is not None
    assert "2 proposals" in told


def test_the_draft_goes_to_a_new_file_and_is_good(tmp_path: Path) -> None:
    out = tmp_path / "shop.yaml"
    with running(Paged()) as url:
        assert run("--name", "shop", "--out", str(out), url)[0] == 0
        code, _, told = run("--name", "shop", "--out", str(out), url)
        assert (code, "cannot be written" in told) == (1, True)
    result = CliRunner().invoke(main, ["check", str(out)])
    assert (result.exit_code, "good: 1 tools, 6 operations" in result.stdout) == (0, True)


def test_a_credential_is_used_and_never_shown(tmp_path: Path) -> None:
    """The draft names the secret; its value is nowhere."""
    with running(Paged(key="hunter22")) as url:
        code, _, told = run(url)
        assert (code, "401" in told, "--credential" in told) == (1, True, True)
        code, text, told = run("--credential", "X-Key: ${secret:shop}", url, SEAWALL_SECRET_SHOP="hunter22")
        assert code == 0, told
        assert "hunter22" not in text + told
        assert checked(tmp_path, text, "shop_server").credential == (b"X-Key", b"secret-shop")
        code, _, told = run("--credential", "X-Key: ${secret:none}", url)
        assert (code, "none" in told) == (1, True)


def test_a_started_server_is_drafted_with_its_command(tmp_path: Path) -> None:
    """And the draft works as it stands: the gateway starts the same command."""
    code, text, told = run("--name", "all", "--env", "LEVEL=${secret:level}", "--", *EVERYTHING_COMMAND,
                           SEAWALL_SECRET_LEVEL="low")  # fmt: skip
    assert code == 0, told
    tool = checked(tmp_path, text, "all")
    assert tool.mcp is not None
    assert tool.mcp.command == EVERYTHING_COMMAND
    assert tool.mcp.environment == (("LEVEL", "secret-level"),)
    assert "test_simple_text" in tool.operations


async def test_a_gateway_serves_the_draft(tmp_path: Path) -> None:
    """What was drafted is a step of its declared tier."""
    server = Server(command=EVERYTHING_COMMAND)
    tool, title = await draft_mcp(server, name="all")
    async with serving(tmp_path, 0, render(tool, title)) as on:
        client = Raw(on.agent, "/seawall/mcp/all")
        await client.initialize()
        await client.call("test_simple_text", headers=[("Seawall-Trajectory", "r1")])
        (step,) = (await on.agent.send("GET", "/seawall/v1/trajectories/r1")).json["steps"]
        assert (step["operation"], step["tier"]) == ("test_simple_text", "pivot")


def test_what_cannot_be_drafted_is_refused_with_the_next_step(tmp_path: Path) -> None:
    """And says what it was."""
    for arguments, why in (
        (["--", str(tmp_path / "none")], "cannot be started"),
        (["--", sys.executable, "-c", "pass"], "ended"),
        (["http://127.0.0.1:1/mcp"], "127.0.0.1"),
        (["--credential", "X", "http://127.0.0.1:1/mcp"], "HEADER: VALUE"),
        (["--credential", "X: y", "--", "x"], "leave it out"),
        (["--env", "X=y", "http://127.0.0.1:1/mcp"], "leave it out"),
        (["http://u:p@127.0.0.1:1/mcp"], "user or password"),
    ):
        code, text, told = run(*arguments)
        assert (code, text) == (1, ""), arguments
        assert why in told, (arguments, told)
        assert "server " not in told.replace("mcp server", "")


async def test_a_list_without_an_end_is_given_up() -> None:
    with running(Paged(is_endless=True)) as url, pytest.raises(ImportProblem, match="does not end"):
        await draft_mcp(Server(url=url))


def test_the_lines_of_a_server_are_yaml_whatever_is_in_them() -> None:
    (line,) = Server(command=("a", 'b"c', "d: #e", "${x}")).lines()
    assert orjson.loads(line.removeprefix("mcp: ")) == {"command": ["a", 'b"c', "d: #e", "${x}"]}
