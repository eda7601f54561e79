"""The tool servers as a fixture: real processes, one pair for each test that asks."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from gateway.demo.world import World


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A running world with nothing in it."""
    world = World(tmp_path)
    try:
        await world.start()
        yield world
    finally:
        await world.stop()
