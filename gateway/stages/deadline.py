"""The whole call's deadline: out of time is refused here; every wait further in reads the same `call.deadline`."""

from __future__ import annotations

from collections.abc import Awaitable

from gateway.clock import Clock
from gateway.core.call import Call, Handler, Passable
from gateway.core.codes import Code
from gateway.core.outcome import Outcome, Refusal, Rejected
from gateway.telemetry import Telemetry

__all__ = ["DeadlineStage"]


class DeadlineStage(Passable):
    """Begins nothing for a call whose time is over."""

    def __init__(self, clock: Clock, telemetry: Telemetry) -> None:
        self._clock = clock
        self._telemetry = telemetry

    def __call__(self, call: Call, proceed: Handler) -> Awaitable[Outcome]:
        """Return the outcome, or ERR_DEADLINE if there is no time left: zero is zero, not "no limit"."""
        return _refused(call) if self._clock.now() >= call.deadline else proceed(call)

    def lets_pass(self, call: Call) -> bool:
        """Whether there is time left."""
        return self._clock.now() < call.deadline


async def _refused(call: Call) -> Outcome:
    detail = (
        f"The call {call.tool.name}.{call.operation.name} had used up its time before anything was sent; "
        "nothing happened, so it may be sent again with more time."
    )
    return Rejected(Refusal(code=Code.DEADLINE, detail=detail, dependency=call.tool.name))
