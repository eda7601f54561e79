"""The Autobahn cases for WebSockets, driven by kosoku, against one server: directly, and through the gateway.

What the server makes of each case is its own affair; that it is the same through the gateway is ours. Of cases 9 (limits),
12 and 13 (compression), which take minutes, only a few are run.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from tests.gateway.harness import serving
from tests.suites.rig import TOOL, installed, run

CASES = {
    "framing, control frames, UTF-8, closing": ("-x", "9.*", "-x", "12.*", "-x", "13.*"),
    "limits and compression, a few": ("-i", "9.1.1", "-i", "9.2.1", "-i", "9.5.1", "-i", "12.1.1", "-i", "13.1.1"),
}


async def echo(socket: ServerConnection) -> None:
    async for message in socket:
        await socket.send(message)


@pytest.mark.parametrize("cases", sorted(CASES))
async def test_every_case_ends_as_it_does_without_the_gateway(
    tmp_path: Path, cases: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "websockets")
    text = TOOL.replace("NAME", "talk") + "    websocket: true\n"
    async with serve(echo, "127.0.0.1", 0, max_size=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with serving(tmp_path, port, text) as running:
            direct = await results(f"127.0.0.1:{port}", tmp_path / "direct", *CASES[cases])
            through = await results(f"127.0.0.1:{running.agent.port}/talk", tmp_path / "through", *CASES[cases])
    assert len(direct) >= (240 if "-x" in CASES[cases] else 5)
    assert through == direct


async def results(address: str, folder: Path, *cases: str) -> dict[str, tuple[str, str, int | None]]:
    """Return what became of each case: behaviour, behaviour of the close, the server's closing code."""
    _, printed = await run(installed("kosoku"), "-p", 4, "-o", folder, *cases, address)
    assert (folder / "index.json").exists(), printed
    [found] = json.loads((folder / "index.json").read_text()).values()
    return {case: _verdict(result) for case, result in found.items()}


def _verdict(result: dict[str, Any]) -> tuple[str, str, int | None]:
    # Whether a server notices a fault early is a matter of how its input was cut: NON-STRICT is conforming, too.
    behaviour = "OK" if result["behavior"] == "NON-STRICT" else result["behavior"]
    return behaviour, result["behaviorClose"], result["remoteCloseCode"]
