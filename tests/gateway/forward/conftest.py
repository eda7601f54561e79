"""The proxy's tests run on each event loop that the gateway runs on."""

import asyncio
from collections.abc import Callable

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Handing a connection over, and TLS over a socket pair, go deep into the loop."""
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
