"""Short ways to make what tests need: tools, operations, calls, replies."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from gateway.core.admission import AdmissionSettings, RateSettings
from gateway.core.breaker import BreakerSettings
from gateway.core.call import Call, Lane
from gateway.core.manifest import IdempotencySettings, Tier, TimeoutSettings
from gateway.core.message import Body, BytesBody, Headers, Reply, Request
from gateway.core.retry import RetrySettings
from gateway.core.tool import Catalog, Domain, Match, Operation, ToolSpec, Upstream

__all__ = ["StreamBody", "call_of", "catalog_of", "domain_of", "operation_of", "reply_of", "tool_of"]


class StreamBody:
    """A body that can be read once: yields `pieces`, then raises `error` if there is one."""

    is_replayable = False
    size = None

    def __init__(self, pieces: Sequence[bytes] = (b"data",), error: BaseException | None = None) -> None:
        self._pieces, self._error = pieces, error
        self.is_closed = False

    async def chunks(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        if self._error is not None:
            raise self._error

    async def aclose(self) -> None:
        self.is_closed = True


def domain_of(name: str = "saas", *, timeouts: TimeoutSettings | None = None, **admission: Any) -> Domain:
    """Return a domain; further keywords are fields of `AdmissionSettings`."""
    if isinstance(admission.get("rate"), tuple):
        calls, per = admission["rate"]
        admission["rate"] = RateSettings(calls=calls, per=per)
    return Domain(name=name, admission=AdmissionSettings(**admission), timeouts=timeouts or TimeoutSettings())


def operation_of(name: str = "hold", tier: Tier = Tier.COMPENSABLE, **fields: Any) -> Operation:
    """Return an operation."""
    fields.setdefault("timeouts", TimeoutSettings())
    return Operation(name=name, tier=tier, **fields)


def tool_of(
    name: str = "payments",
    *operations: Operation,
    domain: Domain | None = None,
    breaker: BreakerSettings | None = None,
    retry: RetrySettings | None = None,
    idempotency: IdempotencySettings | None = None,
    match: Callable[[str, str], Match] | None = None,
    **fields: Any,
) -> ToolSpec:
    """Return a tool; without `match`, every call is its first operation."""
    operations = operations or (operation_of(),)
    fields.setdefault("breaker_key", name)
    return ToolSpec(
        name=name,
        upstream=fields.pop("upstream", None) or Upstream("http", "127.0.0.1", 9),
        domain=domain or domain_of(),
        breaker=breaker or BreakerSettings(),
        retry=retry or RetrySettings(),
        match=match or (lambda method, target: Match(operations[0], {}, "the only one")),
        operations={operation.name: operation for operation in operations},
        idempotency=idempotency,
        **fields,
    )


def catalog_of(*tools: ToolSpec) -> Catalog:
    """Return a catalog of tools and their domains."""
    return Catalog(tools={tool.name: tool for tool in tools}, domains={tool.domain.name: tool.domain for tool in tools})


def call_of(
    tool: ToolSpec | None = None,
    operation: Operation | None = None,
    *,
    now: float = 1_000.0,
    timeout_s: float = 60.0,
    body: Body | None = None,
    agent: str = "agent",
    lane: Lane = Lane.FORWARD,
    **fields: Any,
) -> Call:
    """Return a call of a tool's operation (its first one, if not named), accepted at `now`."""
    tool = tool or tool_of()
    operation = operation or next(iter(tool.operations.values()))
    request = Request(
        method="GET" if operation.is_read else "POST",
        target=b"/" + operation.name.encode(),
        headers=(),
        body=body,
        has_side_effects=not operation.is_read,
        capture_answer=not operation.is_read,
    )
    fields.setdefault("action", hashlib.sha256(f"{tool.name}.{operation.name}".encode()).digest())
    return Call(
        tool=tool,
        operation=operation,
        request=request,
        agent=agent,
        started=now,
        deadline=now + timeout_s,
        lane=lane,
        **fields,
    )


def reply_of(status: int = 200, body: Body | bytes = b"{}", headers: Headers = (), reason: bytes = b"") -> Reply:
    """Return a tool's answer."""
    return Reply(status, reason, headers, BytesBody(body) if isinstance(body, bytes) else body)
