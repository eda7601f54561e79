"""The pages under docs/clients/, run as they stand: only addresses are put in."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.demo.world import PAYMENTS_KEY, World, authorization
from tests.gateway.harness import Serving, serving
from tests.mcp.rig import LANGGRAPH, NPM, ROOT, Ledger, ledger

PAGES = ROOT / "docs/clients"
NODE = NPM / "node/bin/node"
PAY = """
version: 1
tools:
  pay:
    mcp: {url: URL}
    operations:
      charge:
        match: CALL charge
        tier: compensable
        compensator: {request: CALL refund, json: {amount: "${request.json.amount}"}}
      refund: {match: CALL refund, tier: reversible, idempotent: true}
"""


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (PAGES / page).read_text(), re.DOTALL | re.MULTILINE)


def git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=repository, check=True, capture_output=True, text=True)
    return done.stdout


async def run(program: Path | str, file: Path, code: str, on: Serving, **environment: str) -> str:
    """Run a block against a gateway, and return what it printed."""
    file.write_text(code.replace("http://127.0.0.1:8080", on.gateway.listen))
    process = await asyncio.create_subprocess_exec(
        str(program),
        str(file),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={
            **os.environ,
            "PYTHONWARNINGS": "ignore",
            "LANGSMITH_TRACING": "false",
            "OPENAI_API_KEY": "none",
            **environment,
        },
    )
    async with asyncio.timeout(50):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-3000:]
    return out.decode()


async def charged(tmp_path: Path, program: Path | str, file: Path, code: str) -> tuple[str, Ledger, Any]:
    async with ledger() as server, serving(tmp_path, 0, PAY.replace("URL", server.url)) as on:
        out = await run(program, file, code, on)
        heads = (await on.operator.send("GET", "/api/v1/trajectories")).json["trajectories"]
        return out, server, heads


@pytest.mark.parametrize("page", ["python-sdk.md", "fastmcp.md", "openai-agents.md"])
async def test_a_python_client_needs_a_url_and_no_code(tmp_path: Path, page: str) -> None:
    """The write is done once, and the gateway knows of it."""
    code = "\n\n".join(blocks(page, "python"))
    _, server, runs = await charged(tmp_path, sys.executable, tmp_path / "client.py", code)
    assert server.effects == [{"tool": "charge", "amount": 5}]
    assert len(runs) == 1


@pytest.mark.parametrize("block", [0, 1], ids=["sdk", "client"])
async def test_a_typescript_client_needs_a_url_and_no_code(tmp_path: Path, block: int) -> None:
    """Version 1 of the SDK in its era, version 2 in the newest."""
    (tmp_path / "node_modules").symlink_to(NPM)
    code = blocks("typescript-sdk.md", "javascript")[block]
    out, server, runs = await charged(tmp_path, NODE, tmp_path / "client.mjs", code)
    assert server.effects == [{"tool": "charge", "amount": 5}]
    assert ("2026-07-28" in out) is (block == 1)
    assert '{"id":1}' in out
    assert len(runs) == 1


async def test_a_langgraph_run_over_mixed_tools_is_undone(tmp_path: Path) -> None:
    """Git over MCP, localstripe and moto over HTTP: the last step is refused, and nothing of the others stays anywhere."""
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    (repository / "notes.txt").write_text("notes")
    for command in (
        ["config", "user.email", "a@b.c"],
        ["config", "user.name", "a"],
        ["commit", "-q", "--allow-empty", "-m", "x"],
    ):
        git(repository, *command)
    (text,) = blocks("langgraph.md", "yaml")
    world = World(tmp_path)
    try:
        await world.start()
        await world.call("storage", "PUT", "/reports")
        text = text.replace("127.0.0.1:9000", f"127.0.0.1:{world.port('payments')}")
        text = text.replace("127.0.0.1:9001", f"127.0.0.1:{world.port('storage')}")
        text = text.replace("[mcp-server-git]", f"[{sys.executable}, -m, mcp_server_git]")
        text = text.replace("${secret:payments}", PAYMENTS_KEY).replace("${secret:store}", authorization("storage"))
        async with serving(tmp_path, 0, text) as on:
            code = "\n\n".join(blocks("langgraph.md", "python"))
            versioned = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
            assert (await on.agent.send("PUT", "/store/reports?versioning", versioned)).status == 200
            out = await run(LANGGRAPH, tmp_path / "graph.py", code, on, REPOSITORY=str(repository))
            assert out.splitlines() == [
                "git__git_add: success",
                "hold: success",
                "store: success",
                "capture: error",
                "aborted_clean",
            ]
            steps = (await on.agent.send("GET", "/seawall/v1/trajectories/report-17")).json["steps"]
        assert [(step["operation"], step["state"]) for step in steps] == [
            ("add", "compensated"),
            ("hold", "compensated"),
            ("put", "compensated"),
            ("capture", "failed"),
        ]
        left = await world.look()
        assert (left.files, left.holds, left.taken, len(left.released)) == ({}, {}, {}, 1)
        history = await world.text("storage", "GET", "/reports?versions")
        assert ("<Version>" in history, "<DeleteMarker>" in history) == (True, True), (
            "the object was there, and was deleted"
        )
        assert git(repository, "diff", "--cached", "--name-only") == ""
        blob = git(repository, "hash-object", "notes.txt").strip()
        assert git(repository, "cat-file", "-p", blob) == "notes", "it had been staged: git keeps what was ever added"
    finally:
        await world.stop()


def test_the_manifest_of_the_mcp_page_is_good(tmp_path: Path) -> None:
    """As `seawall check` sees it."""
    from gateway.config.source import ManifestSource

    servers, operations = re.findall(
        r"^```yaml\n(.*?)^```", (ROOT / "docs/mcp.md").read_text(), re.DOTALL | re.MULTILINE
    )
    (tmp_path / "manifest.yaml").write_text(servers)
    catalog = ManifestSource(tmp_path / "manifest.yaml", is_offline=True).load()
    assert {name for name, tool in catalog.tools.items() if tool.mcp is not None} == {"crm", "notes"}
    (tmp_path / "manifest.yaml").write_text(operations)
    (tmp_path / "shop.json").write_text(
        '{"openapi": "3.1.0", "paths": {"/orders/{id}": {"post": {"summary": "Buy."}}}}'
    )
    shop = ManifestSource(tmp_path / "manifest.yaml", is_offline=True).load().tools["shop"]
    assert shop.operations["order"].description == "Buy."


async def test_the_desktop_page_names_a_command_that_is_there(tmp_path: Path) -> None:
    """What stands in the settings of a client is what the command line takes."""
    (settings,) = blocks("desktop.md", "json")
    server = json.loads(settings)["mcpServers"]["memory"]
    assert server["command"] == "seawall"
    assert server["args"][:2] == ["wrap", "--"]
