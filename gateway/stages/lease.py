"""How long what a step gave is good, read from its answer where the manifest says so (the rule is in `core/gate.py`)."""

from __future__ import annotations

from datetime import datetime

from gateway.core.call import Call
from gateway.core.expression import Environment, ExpressionError

__all__ = ["lease_of"]

_MILLISECONDS_FROM = 10**11
"""Numbers from here on are milliseconds since 1970: as seconds they would lie beyond the year 5000."""


def lease_of(call: Call, env: Environment, at: int) -> tuple[str | None, int | None]:
    """Return the name and the end (UTC milliseconds; 0: unknown) of the lease that a step's answer gives, if any.

    `at` is the time of the answer.
    """
    declared = call.operation.lease
    if declared is None:
        return None, None
    name = f"{call.tool.name}.{call.operation.name}:{call.step}"
    try:
        if declared.name is not None:
            name = f"{call.tool.name}:{declared.name(env)}"
        if declared.ttl_s is not None:
            return name, at + round(declared.ttl_s * 1000)
        return name, 0 if declared.until is None else _moment(declared.until(env))
    except ExpressionError:
        return name, 0


def _moment(value: object) -> int:
    if isinstance(value, str):
        try:
            read = datetime.fromisoformat(value)
        except ValueError:
            return 0
        return round(read.timestamp() * 1000) if read.tzinfo is not None else 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 10**15:
        return 0
    return round(value if value >= _MILLISECONDS_FROM else value * 1000)
