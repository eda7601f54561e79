"""Servers of other people, from the registries, behind the gateway."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from mcp.client.client import Client

from gateway.cli import main
from tests.gateway.harness import serving
from tests.mcp.rig import NPM

NODE = NPM / "node/bin/node"
OFFICIAL = NPM / "@modelcontextprotocol"


async def test_filesystem_memory_git_and_everything(tmp_path: Path) -> None:
    """Four servers, three authors' habits, two languages; one endpoint."""
    files, repository = tmp_path / "files", tmp_path / "repository"
    files.mkdir()
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    text = f"""
version: 1
tools:
  files:
    mcp: {{command: [{NODE}, {OFFICIAL}/server-filesystem/dist/index.js, {files}]}}
  memory:
    mcp:
      command: [{NODE}, {OFFICIAL}/server-memory/dist/index.js]
      environment: {{MEMORY_FILE_PATH: {tmp_path}/memory.json}}
    operations:
      remember:
        match: CALL create_entities
        tier: compensable
        compensator:
          request: CALL delete_entities
          json: {{entityNames: ["${{request.json.entities[0].name}}"]}}
      forget: {{match: CALL delete_entities, tier: reversible, idempotent: true}}
  git:
    mcp: {{command: [{sys.executable}, -m, mcp_server_git, --repository, {repository}]}}
  everything:
    mcp: {{command: [{NODE}, {OFFICIAL}/server-everything/dist/index.js, stdio]}}
"""
    async with serving(tmp_path, 0, text) as on:
        async with Client(f"{on.gateway.listen}/seawall/mcp", mode="legacy") as client:
            listed = await client.list_tools()
            assert "dev.seawall/unavailable" not in (listed.meta or {})
            names = {tool.name.partition("__")[0] for tool in listed.tools}
            assert names == {"everything", "files", "git", "memory"}
            wrote = await client.call_tool("files__write_file", {"path": str(files / "a.txt"), "content": "hello"})
            assert not wrote.is_error
            assert (files / "a.txt").read_text() == "hello"
            status = await client.call_tool("git__git_status", {"repo_path": str(repository)})
            assert "branch" in status.content[0].text
            echoed = await client.call_tool("everything__echo", {"message": "hi"})
            assert echoed.content[0].text == "Echo: hi"
            entity = {"name": "Ann", "entityType": "person", "observations": ["likes tea"]}
            run = {"dev.seawall/trajectory": "notes"}
            await client.call_tool("memory__create_entities", {"entities": [entity]}, meta=run)
            assert "Ann" in (tmp_path / "memory.json").read_text()
        aborted = await on.agent.send("POST", "/seawall/v1/trajectories/notes/abort", {})
        assert (aborted.status, aborted.json["state"]) == (200, "aborted_clean")
        assert "Ann" not in (tmp_path / "memory.json").read_text()


async def test_a_child_that_dies_is_started_again(tmp_path: Path) -> None:
    """A call in flight is in doubt; the next one finds a new process (obot#7929 is the leak this must not be)."""
    script = tmp_path / "fragile.py"
    script.write_text(
        "import os\n"
        "from mcp.server.mcpserver import MCPServer\n"
        "server = MCPServer('fragile')\n"
        "@server.tool()\n"
        "def pid() -> str:\n    return str(os.getpid())\n"
        "@server.tool()\n"
        "def die() -> str:\n    os._exit(1)\n"
        "server.run('stdio')\n"
    )
    text = f"""
version: 1
tools:
  fragile:
    mcp: {{command: [{sys.executable}, {script}]}}
    operations:
      pid: {{match: CALL pid, tier: read}}
"""
    async with (
        serving(tmp_path, 0, text) as on,
        Client(f"{on.gateway.listen}/seawall/mcp/fragile", mode="legacy") as client,
    ):
        first = (await client.call_tool("pid", {})).content[0].text
        died = await client.call_tool("die", {})
        assert died.structured_content["code"] == "ERR_OUTCOME_UNKNOWN"
        again = await client.call_tool("pid", {})
        while again.is_error:
            assert again.structured_content["dispatched"] == "no"
            again = await client.call_tool("pid", {})
        assert again.content[0].text != first


@pytest.mark.parametrize("server", ["memory", "everything", "git"])
def test_a_server_of_other_people_becomes_a_draft_that_is_good(tmp_path: Path, server: str) -> None:
    """Connected to for real; the draft passes `seawall check` as it stands."""
    commands = {
        "memory": [str(NODE), f"{OFFICIAL}/server-memory/dist/index.js"],
        "everything": [str(NODE), f"{OFFICIAL}/server-everything/dist/index.js", "stdio"],
        "git": [sys.executable, "-m", "mcp_server_git"],
    }
    out = tmp_path / "draft.yaml"
    imported = CliRunner().invoke(main, ["catalog", "import", "mcp", "--out", str(out), "--", *commands[server]])
    assert imported.exit_code == 0, imported.stderr
    assert CliRunner().invoke(main, ["check", str(out)]).exit_code == 0
    text = out.read_text()
    tiers = dict(re.findall(r'^      (\w+): \{match: "CALL [^"]+", tier: (\w+)\}', text, re.MULTILINE))
    expected = {
        "memory": {"create_entities": "pivot", "delete_entities": "pivot", "read_graph": "read"},
        "everything": {"echo": "read", "trigger_long_running_operation": "pivot"},
        "git": {"git_commit": "pivot", "git_status": "read"},
    }
    assert expected[server].items() <= tiers.items()
    assert set(tiers.values()) == {"read", "pivot"}
    bound = 'request: "CALL delete_entities", json: {"entityNames": "${request.json.entities.map(one, one.name)}"}'
    assert (bound in text) is (server == "memory")
