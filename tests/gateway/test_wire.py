"""What the wire promises, through a whole gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.certificates import Issuer, server_context
from tests.gateway.harness import serving
from tests.origin import Origin

MUTUAL = """
tools:
  pay:
    upstream: https://127.0.0.1:PORT
    tls: {ca: ca.pem, certificate: cert.pem, key: key.pem}
    breaker: {cooldown: 50ms, max_cooldown: 100ms}
"""


async def test_a_renewed_certificate_is_taken_up_by_itself(tmp_path: Path) -> None:
    """First the tool trusts nobody who has ours; then the operator puts the new files in place."""
    issuer, stranger = Issuer(tmp_path), Issuer(tmp_path, "stranger")
    (tmp_path / "ca.pem").write_bytes(issuer.ca.read_bytes())
    _put(tmp_path, stranger.issue("client"))
    async with (
        Origin(tls=server_context(issuer.issue("127.0.0.1"), clients=issuer.ca)) as origin,
        serving(tmp_path, origin.port, MUTUAL, watch=True) as running,
    ):
        assert (await running.agent.send("GET", "/pay/x")).status in (502, 503)
        _put(tmp_path, issuer.issue("client"))
        async with asyncio.timeout(30):
            while (await running.agent.send("GET", "/pay/x")).status != 200:
                await asyncio.sleep(0.1)
        assert running.gateway.reload_problem is None


def _put(folder: Path, issued: Path) -> None:
    for name in ("cert.pem", "key.pem"):
        (folder / name).write_bytes((issued / name).read_bytes())
