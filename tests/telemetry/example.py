"""One tool and calls to it, as small as they can be."""

from __future__ import annotations

import dataclasses

from gateway.core.admission import AdmissionSettings
from gateway.core.breaker import BreakerSettings
from gateway.core.call import Call
from gateway.core.codes import Code
from gateway.core.manifest import IdempotencySettings, Tier, TimeoutSettings
from gateway.core.message import BytesBody, Headers, Reply, Request
from gateway.core.outcome import Refusal, Rejected, Success
from gateway.core.retry import RetrySettings
from gateway.core.tool import Domain, Match, Operation, ToolSpec, Upstream

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE_ID}-{PARENT_ID}-01".encode()
UNSAMPLED = f"00-{TRACE_ID}-{PARENT_ID}-00".encode()

HOLD = Operation(name="hold", tier=Tier.COMPENSABLE, timeouts=TimeoutSettings())
SAAS = Domain(name="saas", admission=AdmissionSettings(), timeouts=TimeoutSettings())


def make_tool(name: str = "payments") -> ToolSpec:
    return ToolSpec(
        name=name,
        upstream=Upstream("https", "api.example.com", 443),
        domain=SAAS,
        breaker=BreakerSettings(),
        retry=RetrySettings(),
        match=lambda method, target: Match(HOLD, {}, "the only one"),
        operations={"hold": HOLD},
        idempotency=IdempotencySettings(),
    )


def make_call(headers: Headers = (), *, tool: str = "payments", target: bytes = b"/v1/holds", **given: object) -> Call:
    call = Call(
        tool=make_tool(tool),
        operation=HOLD,
        request=Request("POST", target, headers),
        agent="agent-7",
        started=0.0,
        deadline=10.0,
        trajectory="run-1",
        attempt=1,
    )
    return dataclasses.replace(call, **given)


def answered(status: int = 200, *, is_replay: bool = False) -> Success:
    return Success(Reply(status, b"", (), BytesBody()), is_replay)


def rejected(code: Code = Code.CIRCUIT_OPEN) -> Rejected:
    return Rejected(Refusal(code=code, detail="The breaker of payments is open."))
