"""What expressions see of a call that was sent: the names that compensators, probes and postconditions are bound from."""

from __future__ import annotations

from gateway.core.call import Call
from gateway.core.environment import EVALUATED_LIMIT, request_env
from gateway.core.message import body_bytes

__all__ = ["call_env"]


async def call_env(call: Call) -> dict[str, object]:
    """Return `request`, `params`, `key`, `trajectory` and `step` of a call; `response` is for the caller to add."""
    request = call.request
    asked = b"" if request.body is None else await body_bytes(request.body, EVALUATED_LIMIT) or b""
    target = request.target.decode("latin-1")
    return {
        "request": request_env(request.method, target, request.headers, asked, call.params),
        "params": dict(call.params),
        "key": call.key,
        "trajectory": {"id": call.trajectory, "agent": call.agent},
        "step": {"number": call.step, "operation": call.operation.name, "tier": call.operation.tier.value},
    }
