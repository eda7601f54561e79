"""Every span and metric name, and the few methods through which stages report.

Stages call these methods and know nothing of Prometheus or OpenTelemetry.
"""

from __future__ import annotations

from gateway.core.call import Call
from gateway.core.codes import Code
from gateway.core.fault import Fault
from gateway.core.outcome import Outcome

__all__ = ["Telemetry"]


class Telemetry:
    """What happened, told to metrics, traces and logs. No method raises, blocks or keeps a reference to its arguments."""

    def call_started(self, call: Call) -> object:
        """Open the call's span; sets `call.traceparent`. Returns a handle for `call_finished`."""

    def call_finished(self, handle: object, call: Call, outcome: Outcome | BaseException, seconds: float) -> None:
        """Close the call's span and count the call. An exception is a bug or a cancellation."""

    def attempt_started(self, call: Call) -> object:
        """Open the span of one attempt; sets `call.traceparent` so that the tool's spans hang below it."""

    def attempt_finished(self, handle: object, call: Call, outcome: Outcome | BaseException, seconds: float) -> None:
        """Close the attempt's span and count the attempt."""

    def retry_scheduled(self, call: Call, fault: Fault, delay_s: float) -> None:
        """A repeat was decided."""

    def queue_waited(self, call: Call, seconds: float) -> None:
        """A call got its slot after waiting."""

    def breaker_changed(self, tool: str, state: str, cause: str, cooldown_s: float) -> None:
        """A breaker went to another state."""

    def refused(self, tool: str, code: Code) -> None:
        """A refusal went out that never became a call (ingress), so that it is counted too."""

    def step_changed(self, trajectory: str, step: int, operation: str, state: str) -> None:
        """A step was intended, committed, failed, is in doubt, or was compensated."""

    def trajectory_changed(self, trajectory: str, state: str, detail: str = "") -> None:
        """A run went to another state."""

    def journal_committed(self, entries: int, seconds: float) -> None:
        """One group commit."""

    def background_failed(self, where: str, error: BaseException) -> None:
        """Something in the background raised: log it with its traceback."""
