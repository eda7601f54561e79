"""Outermost: sees every call and its outcome, and turns a bug into ERR_INTERNAL instead of a broken connection."""

from __future__ import annotations

import asyncio

from gateway.clock import Clock
from gateway.core.call import Call, Handler, Passable
from gateway.core.codes import Code, Dispatched
from gateway.core.outcome import Outcome, Refusal, Rejected
from gateway.telemetry import Telemetry

__all__ = ["TelemetryStage"]


class TelemetryStage(Passable):
    """Reports calls."""

    def __init__(self, clock: Clock, telemetry: Telemetry) -> None:
        self.clock = clock
        self.telemetry = telemetry

    async def __call__(self, call: Call, proceed: Handler) -> Outcome:
        """Report the call's beginning and end."""
        handle = self.telemetry.call_started(call)
        try:
            outcome = await proceed(call)
        except asyncio.CancelledError as error:
            self.telemetry.call_finished(handle, call, error, self.clock.now() - call.started)
            raise
        except Exception as error:
            return self.failed(handle, call, error)
        self.telemetry.call_finished(handle, call, outcome, self.clock.now() - call.started)
        return outcome

    def failed(self, handle: object, call: Call, error: Exception) -> Rejected:
        """Report a bug that ended a call; return what the agent gets instead of a broken connection."""
        self.telemetry.background_failed(f"call to {call.tool.name}", error)
        self.telemetry.call_finished(handle, call, error, self.clock.now() - call.started)
        return Rejected(_internal(call))

    def passed(self, call: Call) -> None:
        """Report the call's beginning."""
        self.telemetry.call_started(call)

    def refused(self, call: Call, outcome: Rejected) -> Rejected:
        """Report its end."""
        self.telemetry.call_finished(call.trace, call, outcome, self.clock.now() - call.started)
        return outcome


def _internal(call: Call) -> Refusal:
    may_have_left = call.is_committed_to_send or call.operation.is_read
    return Refusal(
        code=Code.INTERNAL,
        dispatched=Dispatched.MAYBE if may_have_left else Dispatched.NO,
        dependency=call.tool.name,
        detail=f"The gateway failed on this call to {call.tool.name}; the operator's log has the cause. "
        + (
            "It may have happened: read the tool's state before repeating it." if may_have_left else "Nothing was sent."
        ),
    )
