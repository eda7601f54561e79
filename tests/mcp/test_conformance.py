"""The protocol's own conformance suite, run against a server directly and through the gateway: no check may be lost."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from tests.gateway.harness import serving
from tests.mcp.rig import EVERYTHING, NPM, ROOT

SUITE = NPM / "@modelcontextprotocol/conformance/dist/index.js"
LINE = re.compile(r"^[✓✗] ([a-z0-9-]+): (\d+) passed, (\d+) failed", re.MULTILINE)


async def checks(url: str, suite: str = "active") -> dict[str, tuple[int, int]]:
    """Passed and failed checks by scenario."""
    command = [str(NPM / "node/bin/node"), str(SUITE), "server", "--suite", suite, "--url", url]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(100):
        out, _ = await process.communicate()
    return {name: (int(passed), int(failed)) for name, passed, failed in LINE.findall(out.decode())}


@pytest.mark.timeout(240)
async def test_no_check_is_lost_by_passing_through(tmp_path: Path, everything_url: str) -> None:
    """Over HTTP every check stands; over pipes every one that does not ask for streams of the server's own."""
    text = f"""
version: 1
domains:
  d: {{timeouts: {{connect: 5s, first_byte: 20s, idle: 20s, total: 30s}}}}
tools:
  http: {{mcp: {{url: "{everything_url}"}}, domain: d}}
  pipes: {{mcp: {{command: {EVERYTHING}}}, domain: d}}
"""
    async with serving(tmp_path, 0, text) as on:
        direct = await checks(everything_url)
        assert sum(passed for passed, _ in direct.values()) >= 39
        through = await checks(f"{on.gateway.listen}/seawall/mcp/http")
        assert through == direct
        pending = await checks(everything_url, "pending")
        assert await checks(f"{on.gateway.listen}/seawall/mcp/http", "pending") == pending
        piped = await checks(f"{on.gateway.listen}/seawall/mcp/pipes")
        assert {name for name, (_, failed) in piped.items() if failed} == set()
        assert piped.keys() == direct.keys()


@pytest.mark.parametrize("scenario", ["initialize", "tools_call", "sse-retry", "elicitation-sep1034-client-defaults"])
async def test_towards_a_server_the_gateway_is_a_conforming_client(scenario: str) -> None:
    """The suite plays the server; what reaches it has come through us."""
    command = [str(NPM / "node/bin/node"), str(SUITE), "client", "--scenario", scenario, "--timeout", "40000"]
    process = await asyncio.create_subprocess_exec(
        *command,
        "--command",
        f"{sys.executable} -W ignore -m tests.mcp.through",
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    async with asyncio.timeout(55):
        out, _ = await process.communicate()
    text = out.decode()
    assert process.returncode == 0, text[-3000:]
    assert re.search(r"Passed: (\d+)/\1, 0 failed", text), text[-3000:]
