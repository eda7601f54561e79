"""Kills the process it runs in at a named point: put this folder on PYTHONPATH and name the point in CHAOS_KILL_AT.

CHAOS_KILL_AT=POINT:N kills at the Nth time that the point is passed. Points: `before-write`, `inside-transaction`,
`after-commit` (the commit is durable, nobody has heard of it), `before-send` (the intent is durable, nothing has left),
`after-answer` (the tool has answered, nothing is recorded), `compensating` (the same, for a compensator).
"""

from __future__ import annotations

import os
import signal
from typing import Any

_POINT, _, _NUMBER = os.environ.get("CHAOS_KILL_AT", "").partition(":")
_left = int(_NUMBER or 0)


def _pass(point: str) -> None:
    global _left
    if point != _POINT:
        return
    _left -= 1
    if _left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)


class _Connection:
    """A connection that dies between the last row and COMMIT."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def execute(self, sql: str, *args: Any) -> Any:
        if sql == "COMMIT":
            _pass("inside-transaction")
        return self._raw.execute(sql, *args)


def _arm() -> None:
    from gateway.core.call import Lane
    from gateway.journal import statements
    from gateway.stages.dispatch import Dispatch

    write, dispatch = statements.write, Dispatch.__call__

    def writing(connection: Any, *args: Any) -> Any:
        _pass("before-write")
        plan = write(_Connection(connection), *args)
        _pass("after-commit")
        return plan

    async def dispatching(self: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        if not call.operation.is_read:
            _pass("before-send")
        outcome = await dispatch(self, call, *args, **kwargs)
        if not call.operation.is_read:
            _pass("compensating" if call.lane is Lane.COMPENSATION else "after-answer")
        return outcome

    writing.__name__ = "write"
    statements.write = writing
    Dispatch.__call__ = dispatching  # type: ignore[method-assign]


if _POINT:
    _arm()
