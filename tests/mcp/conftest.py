"""Clients and servers of other people, on loopback. Their warnings are theirs."""

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SERVERS = Path(__file__).parent / "servers"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/mcp/" in str(item.path):
            item.add_marker(pytest.mark.filterwarnings("default"))
            item.add_marker(pytest.mark.clients)


@pytest.fixture(scope="session")
def everything_url() -> Iterator[str]:
    """The server with everything, over Streamable HTTP, in both eras."""
    with running("everything.py") as url:
        yield url


@pytest.fixture(scope="session")
def rounds_url() -> Iterator[str]:
    """The same server with tools that ask before they answer."""
    with running("rounds.py") as url:
        yield url


@contextlib.contextmanager
def running(script: str) -> Iterator[str]:
    """Run a server, and yield its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(SERVERS / script), str(port)], stderr=subprocess.DEVNULL)
    try:
        asyncio.run(listening(port))
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


async def listening(port: int) -> None:
    """Return once somebody listens there."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.05)
