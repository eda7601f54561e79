"""k6 and Locust, the real ones, at a real gateway: what docs/storms.md tells people to run, and their exit codes."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from tests.gateway.harness import serving
from tests.lacking import lacking
from tests.origin import Answer, Origin

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".clients" / "generators" / "bin"
JSON = ((b"Content-Type", b"application/json"),)

pytestmark = [pytest.mark.clients, pytest.mark.timeout(180)]


async def _run(program: str, *arguments: str, cwd: Path) -> tuple[int, str]:
    if not (BIN / program).exists():
        lacking(f"{program}: `make clients` installs it")
    process = await asyncio.create_subprocess_exec(
        str(BIN / program), *arguments, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "K6_NO_USAGE_REPORT": "true", "SEAWALL_STORM_READ": "GET /plain/items",
             "SEAWALL_STORM_WRITE": "POST /pay/holds"},
    )  # fmt: skip
    told, _ = await process.communicate()
    return process.returncode or 0, told.decode()


@pytest.mark.parametrize("is_well", [True, False])
async def test_k6_storms_with_calls_that_come_when_they_are_due(tmp_path: Path, is_well: bool) -> None:
    """Against a tool that works, and one that is down: refusals are answers, and its thresholds make the exit code."""
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        origin.default = Answer(200, b"{}", JSON) if is_well else Answer(500)
        code, told = await _run(
            "k6", "run", "--quiet", "-e", f"URL={running.gateway.listen}/plain/items", "-e", "RATE=50", "-e", "DURATION=3s",
            "--summary-export", "summary.json", str(ROOT / "loadtests" / "k6" / "storm.js"), cwd=tmp_path,
        )  # fmt: skip
        arrived = origin.ledger.total or len(origin.requests)
    metrics = json.loads((tmp_path / "summary.json").read_text())["metrics"]
    assert 140 <= metrics["iterations"]["count"] <= 151, told
    assert metrics["checks"]["fails"] == 0, told
    if is_well:
        assert code == 0, told
        assert "refusals" not in metrics or metrics["refusals"]["count"] == 0
        assert arrived >= 140
    else:
        assert metrics["refusals"]["count"] >= 100, told
        assert arrived <= 40


async def test_locusts_agents_read_write_and_heed_refusals(tmp_path: Path) -> None:
    """Every kind of agent calls; runs are opened and committed; no bug, no lost connection: the exit code is 0."""
    async with Origin(honours_keys=True) as origin, serving(tmp_path, origin.port) as running:
        origin.on("POST /holds", Answer(201, b'{"id": "h"}', JSON))
        origin.default = Answer(200, b"{}", JSON)
        code, told = await _run(
            "locust", "-f", str(ROOT / "loadtests" / "locustfile.py"), "--headless", "-u", "12", "-r", "12", "-t", "6s",
            "--host", running.gateway.listen, "--json", "--only-summary", cwd=tmp_path,
        )  # fmt: skip
        arrived = [request.path for request in origin.requests]
    assert code == 0, told
    assert arrived.count("/items") >= 10
    assert arrived.count("/holds") >= 2
    assert "commit" in told
    assert '"GET /plain/items"' in told
    assert '"impatient"' in told
