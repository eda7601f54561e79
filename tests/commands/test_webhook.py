"""`seawall webhook` as a process: it listens over TLS, answers, and ends when it is told to."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import sys
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner

from gateway.cli import main
from tests.kubernetes.certificates import make_certificate
from tests.kubernetes.reviews import admission_review


async def test_it_answers_over_tls_and_ends_at_sigterm(tmp_path: Path) -> None:
    """As the chart starts it."""
    make_certificate(tmp_path / "tls")
    (tmp_path / "injector.yaml").write_text("image: registry.example.com/seawall:1\naccept_journal_loss: true\n")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "gateway", "webhook", "--settings", str(tmp_path / "injector.yaml"),
        "--tls", str(tmp_path / "tls"), "--listen", "127.0.0.1:0", stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url = json.loads(await process.stdout.readline())["listen"]
        trust = ssl.create_default_context(cafile=str(tmp_path / "tls" / "ca.crt"))
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/inject", json=admission_review(), ssl=trust) as response,
        ):
            assert (await response.json())["response"]["allowed"] is True
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "Mount a kubernetes.io/tls Secret"),
        (["--settings", "gone.yaml"], "gone.yaml: cannot read it"),
    ],
)
def test_what_is_missing_is_said_before_it_listens(tmp_path: Path, arguments: list[str], why: str) -> None:
    """A webhook that answers nothing holds up every pod."""
    told = CliRunner().invoke(main, ["webhook", "--tls", str(tmp_path), *arguments])
    assert told.exit_code == 1
    assert why in told.stderr
    make_certificate(tmp_path)
    (tmp_path / "tls.key").write_text("no key")
    if not arguments:
        assert "cannot be used" in CliRunner().invoke(main, ["webhook", "--tls", str(tmp_path)]).stderr
        make_certificate(tmp_path)
        told = CliRunner().invoke(main, ["webhook", "--tls", str(tmp_path), "--listen", "x"])
        assert "expected HOST:PORT" in told.stderr
