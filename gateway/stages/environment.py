"""What expressions see of a call that was sent: the names that compensators, probes and postconditions are bound from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from gateway.core.call import Call
from gateway.core.environment import EVALUATED_LIMIT, Lazily, request_env
from gateway.core.message import BytesBody, body_bytes

__all__ = ["CallEnv", "call_env"]


class CallEnv(Lazily):
    """`request`, `params`, `key`, `trajectory` and `step` of a call; `response` is for the caller to add."""

    __slots__ = ("_asked", "_call")

    _makers: ClassVar[Mapping[str, Callable[[Any], object]]] = {
        "request": lambda env: env._request(),
        "params": lambda env: dict(env._call.params),
        "key": lambda env: env._call.key,
        "trajectory": lambda env: env._trajectory(),
        "step": lambda env: env._step(),
    }

    def __init__(self, call: Call, asked: bytes) -> None:
        self._call = call
        self._asked = asked

    def _request(self) -> object:
        request = self._call.request
        target = request.target.decode("latin-1")
        return request_env(request.method, target, request.headers, self._asked, self._call.params)

    def _trajectory(self) -> object:
        return {"id": self._call.trajectory, "agent": self._call.agent}

    def _step(self) -> object:
        operation = self._call.operation
        return {"number": self._call.step, "operation": operation.name, "tier": operation.tier.value}


async def call_env(call: Call) -> CallEnv:
    """Return what expressions see of a call. Looks at its body; everything else is made when it is looked at."""
    body = call.request.body
    if body is None:
        return CallEnv(call, b"")
    if isinstance(body, BytesBody):
        return CallEnv(call, body.data if len(body.data) <= EVALUATED_LIMIT else b"")
    return CallEnv(call, await body_bytes(body, EVALUATED_LIMIT) or b"")
