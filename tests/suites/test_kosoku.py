"""The Autobahn cases for WebSockets, driven by kosoku: directly, and through the gateway, with either end the hostile one.

What a server or a client makes of a case is its own affair; that it is the same through the gateway is ours. Compression
(cases 12 and 13) is an extension that the two ends agree on and the gateway knows nothing of. Of those cases, which take
half an hour, a few sizes of message are run here; `python -m tests.suites.test_kosoku 12 13` runs all of these groups.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, WebSocketException

from tests.gateway.harness import serving
from tests.suites.rig import TOOL, installed, run

_COMPRESSED = [
    f"{kind}.{size}"
    for kind in (*(f"12.{n}" for n in range(1, 6)), *(f"13.{n}" for n in range(1, 8)))
    for size in (1, 3)
]
CASES: dict[str, tuple[list[str], int]] = {
    "framing, control frames, UTF-8, closing": (["-x", "9.*", "-x", "12.*", "-x", "13.*"], 247),
    "limits": (["-i", "9.*"], 54),
    "compression": ([part for case in (*_COMPRESSED, "12.1.11", "13.2.11") for part in ("-i", case)], 26),
}
"""By name: what is asked of kosoku, and how many cases that is. A `*` stands at the end alone."""
TALK = TOOL.replace("NAME", "talk") + "    websocket: true\n"
Verdicts = dict[str, tuple[str, str, int | None]]
"""By case: behaviour, behaviour of the close, the closing code of the end that is tested."""


async def echo(socket: ServerConnection) -> None:
    with contextlib.suppress(ConnectionClosed):
        async for message in socket:
            await socket.send(message)


@contextlib.asynccontextmanager
async def echoing(folder: Path) -> AsyncIterator[tuple[str, str]]:
    """Run a server that says everything again; yields where it is, and where it is through the gateway."""
    async with serve(echo, "127.0.0.1", 0, max_size=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with serving(folder, port, TALK) as running:
            yield f"127.0.0.1:{port}", f"127.0.0.1:{running.agent.port}/talk"


@pytest.mark.parametrize("cases", sorted(CASES))
async def test_every_case_ends_as_it_does_without_the_gateway(
    tmp_path: Path, cases: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "websockets")
    chosen, count = CASES[cases]
    async with echoing(tmp_path) as (near, far):
        direct, through = await both(near, far, tmp_path, *chosen)
    assert len(direct) == count
    assert through == direct
    if cases != "framing, control frames, UTF-8, closing":
        assert {verdict[0] for verdict in direct.values()} == {"OK"}, "what was not negotiated was not shown"


async def test_what_a_hostile_tool_says_reaches_an_agent_as_it_would_without_the_gateway(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The other way round: kosoku is the tool, and judges the client behind the gateway."""
    caplog.set_level(logging.CRITICAL, "websockets")
    chosen, count = CASES["framing, control frames, UTF-8, closing"]
    async with hostile(tmp_path / "direct", *chosen) as (port, verdicts):
        await drive(f"ws://127.0.0.1:{port}")
        direct = await verdicts()
    async with hostile(tmp_path / "through", *chosen) as (port, verdicts), serving(tmp_path, port, TALK) as running:
        await drive(f"ws://127.0.0.1:{running.agent.port}/talk")
        through = await verdicts()
    assert len(direct) == count
    assert through == direct


async def both(near: str, far: str, folder: Path, *cases: str) -> tuple[Verdicts, Verdicts]:
    """Return what becomes of each case directly, and through the gateway.

    What is not well is asked once more, one case at a time: kosoku gives each a time, and a busy machine none.
    """
    direct = await results(near, folder / "direct", *cases)
    through = await results(far, folder / "through", *cases)
    odd = [case for case, verdict in direct.items() if verdict[0] != "OK" or through.get(case) != verdict]
    if odd:
        again = [part for case in odd for part in ("-i", case)]
        direct |= await results(near, folder / "direct-again", *again, at_once=1)
        through |= await results(far, folder / "through-again", *again, at_once=1)
    return direct, through


async def results(address: str, folder: Path, *cases: str, at_once: int = 4) -> Verdicts:
    """Return what became of each case for the server at an address."""
    _, printed = await run(installed("kosoku"), "-p", at_once, "-o", folder, *cases, address)
    assert (folder / "index.json").exists(), printed
    return _verdicts(folder)


@contextlib.asynccontextmanager
async def hostile(folder: Path, *cases: str) -> AsyncIterator[tuple[int, Any]]:
    """Run kosoku as a server; yields its port, and what waits for its verdicts on the client that has driven all cases."""
    process = await asyncio.create_subprocess_exec(
        installed("kosoku"), "-m", "fuzzingserver", "-o", str(folder), *cases, "127.0.0.1:0",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    line = await process.stderr.readline()

    async def verdicts() -> Verdicts:
        await process.communicate()
        return _verdicts(folder)

    try:
        yield int(line.rsplit(b":", 1)[1]), verdicts
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def drive(url: str) -> None:
    """Ask a fuzzing server for its cases one by one, and answer each as an echo does."""
    async with connect(f"{url}/getCaseCount") as socket:
        count = int(await socket.recv())
    for case in range(1, count + 1):
        with contextlib.suppress(WebSocketException):
            async with connect(f"{url}/runCase?case={case}&agent=a", max_size=None, ping_interval=None) as socket:
                async for message in socket:
                    await socket.send(message)
    async with connect(f"{url}/updateReports?agent=a") as socket:
        await socket.wait_closed()


def _verdicts(folder: Path) -> Verdicts:
    by_agent = json.loads((folder / "index.json").read_text())
    return {case: _verdict(result) for found in by_agent.values() for case, result in found.items()}


def _verdict(result: dict[str, Any]) -> tuple[str, str, int | None]:
    # Whether a server notices a fault early is a matter of how its input was cut: NON-STRICT is conforming, too.
    behaviour = "OK" if result["behavior"] == "NON-STRICT" else result["behavior"]
    return behaviour, result["behaviorClose"], result["remoteCloseCode"]


async def _all(folder: Path, groups: Sequence[str]) -> None:
    """Run whole groups both ways, and print how many cases there are, how they end, and which end otherwise."""
    async with echoing(folder) as (near, far):
        for group in groups:
            (folder / group).mkdir()
            direct, through = await both(near, far, folder / group, "-i", f"{group}.*")
            ends = Counter(behaviour for behaviour, *_ in through.values())
            differing = {case: (direct[case], through[case]) for case in direct if through[case] != direct[case]}
            sys.stdout.write(
                f"{group}: {len(direct)} cases, {dict(ends)}; otherwise than without: {differing or 'none'}\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    logging.getLogger("websockets").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(_all(Path(made), sys.argv[1:]))
