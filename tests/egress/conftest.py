"""An origin and an egress towards it, on each event loop that the gateway runs on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from gateway.egress.client import ClientEgress
from gateway.egress.direct import DirectEgress
from gateway.egress.spool import Spool
from tests.origin import Origin
from tests.tools import MIB


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Sockets and timers differ between the two loops in just the corners that matter here."""
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    async with Origin() as made:
        yield made


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    made = Spool(tmp_path / "spool", memory_limit=MIB)
    yield made
    made.close()


@pytest.fixture(params=[DirectEgress, ClientEgress])
async def egress(request: pytest.FixtureRequest, spool: Spool) -> AsyncIterator[DirectEgress | ClientEgress]:
    made = request.param(spool, answer_limit=80 * MIB)
    yield made
    await made.close()


@pytest.fixture
async def client(spool: Spool) -> AsyncIterator[ClientEgress]:
    made = ClientEgress(spool, answer_limit=80 * MIB)
    yield made
    await made.close()
