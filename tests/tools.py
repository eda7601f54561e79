"""Tools, requests and readers for tests of the wire that need no manifest."""

import gc
from collections.abc import AsyncIterator

import psutil

from gateway.core.admission import AdmissionSettings
from gateway.core.breaker import BreakerSettings
from gateway.core.codes import Dispatched
from gateway.core.fault import Broken, Fault
from gateway.core.manifest import Tier, TimeoutSettings
from gateway.core.message import Body, BytesBody, Headers, Reply, Request
from gateway.core.reach import Reach
from gateway.core.retry import RetrySettings
from gateway.core.tool import Domain, Match, Operation, ToolSpec, Upstream
from gateway.egress import Timings

MIB = 1 << 20
LONG = Timings(connect_s=20, first_byte_s=20, idle_s=20, total_s=20)
SOON = 0.05


def make_tool(
    host: str,
    port: int,
    *,
    name: str = "tool",
    scheme: str = "http",
    prefix: str = "",
    credential: tuple[bytes, bytes] | None = None,
    reach: Reach = Reach.AUTO,
) -> ToolSpec:
    """Return a tool with one undeclared read, which every call matches."""
    operation = Operation(name="any", tier=Tier.READ, timeouts=TimeoutSettings(), is_declared=False)
    return ToolSpec(
        name=name,
        upstream=Upstream(scheme, host, port, prefix),
        domain=Domain(name=name, admission=AdmissionSettings(), timeouts=TimeoutSettings()),
        breaker=BreakerSettings(),
        retry=RetrySettings(),
        match=lambda method, target: Match(operation, {}, "made for a test"),
        operations={operation.name: operation},
        credential=credential,
        reach=reach,
    )


def get(target: bytes = b"/x", headers: Headers = ()) -> Request:
    return Request("GET", target, headers, has_side_effects=False, capture_answer=False)


def post(body: bytes | Body | None = b"{}", headers: Headers = (), target: bytes = b"/x") -> Request:
    return Request("POST", target, headers, BytesBody(body) if isinstance(body, bytes) else body)


def answered(outcome: Reply | Broken) -> Reply:
    assert isinstance(outcome, Reply), outcome
    return outcome


def broken(outcome: Reply | Broken) -> tuple[Fault, Dispatched]:
    assert isinstance(outcome, Broken), outcome
    return outcome.fault, outcome.dispatched


async def read(reply: Reply) -> bytes:
    try:
        return b"".join([data async for data in reply.body.chunks()])
    finally:
        await reply.aclose()


class Stream:
    """A request body that is no bytes."""

    is_replayable = False

    def __init__(self, chunks: AsyncIterator[bytes], size: int | None = None) -> None:
        self._chunks = chunks
        self.size = size

    def chunks(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def aclose(self) -> None:
        """Nothing to give back."""


def rss_bytes() -> int:
    """Memory of this process, rubbish collected."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)
