"""The few methods through which everybody reports, and who is told what.

Each turns its arguments into labels once and hands them to metrics, traces, logs and the timeline. A bug in here is
counted and logged, never felt: no method raises.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, Concatenate, NamedTuple, ParamSpec, TextIO, TypeVar, cast

from opentelemetry import trace

from gateway import __version__
from gateway.clock import Clock, SystemClock
from gateway.core.call import Call
from gateway.core.codes import Code
from gateway.core.fault import Fault
from gateway.core.manifest import Tier
from gateway.core.outcome import Outcome, Success
from gateway.core.tool import Operation, ToolSpec
from gateway.telemetry.events import Event, Subscription, Timeline
from gateway.telemetry.export import configure_tracing, instrument_aiohttp, shut_down
from gateway.telemetry.logs import configure_logging
from gateway.telemetry.metrics import OTHER, Metrics, Statistics
from gateway.telemetry.redaction import Redactor
from gateway.telemetry.settings import TelemetrySettings
from gateway.telemetry.traces import AttemptSpan, CallSpan, PassOn, Spans, Traces
from gateway.telemetry.verdict import Verdict, judge

__all__ = ["Telemetry"]

STEP_STATES = frozenset(
    {
        "intended",
        "staged",
        "released",
        "deferred",
        "committed",
        "failed",
        "in_doubt",
        "escalated",
        "compensating",
        "compensated",
        "skipped",
        "compensation_failed",
    }
)
_ORDINARY = frozenset({"intended", "committed", "failed"})
"""States of a step that only the count, the timeline and the debug log hear of."""

TRAJECTORY_STATES = frozenset(
    {"preparing", "pivot", "finalizing", "succeeded", "compensating", "aborted_clean", "frozen", "closed"}
)
TIERS = frozenset(Tier)
COMPENSATION_RESULTS = {"compensated": "compensated", "compensation_failed": "failed"}


class Told(NamedTuple):
    """How successes of an operation are counted: the label of its tool, those of its calls, and those of its attempts."""

    name: str
    calls: tuple[str, str, str, str]
    attempts: tuple[str, str]


_log = logging.getLogger("gateway")
_P = ParamSpec("_P")
_R = TypeVar("_R")


def _never_raises(
    method: Callable[Concatenate[Telemetry, _P], _R],
) -> Callable[Concatenate[Telemetry, _P], _R | None]:
    @functools.wraps(method)
    def guarded(self: Telemetry, *args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            self.background_failed(f"telemetry.{method.__name__}", error)
            return None

    return cast("Callable[Concatenate[Telemetry, _P], _R | None]", guarded)


class Telemetry:
    """What happened, told to metrics, traces and logs. No method raises, blocks or keeps a reference to its arguments.

    Args:
        clock: stamps the timeline's events.
        tracer_provider: makes spans; None passes trace context on and makes none.
        keep_events: how many events to keep for those who ask later; 0 makes events only while somebody subscribes.
        is_current: put spans into the current context, for the stock instrumentations.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        keep_events: int = 0,
        is_current: bool = False,
    ) -> None:
        self.redactor = Redactor()
        self.metrics = Metrics(__version__)
        self.timeline = Timeline(keep_events)
        self._clock = clock or SystemClock()
        self._traces: Traces = (
            Spans(tracer_provider, self.redactor, version=__version__, is_current=is_current)
            if tracer_provider is not None
            else PassOn()
        )
        self._undo = ExitStack()
        self._is_debug = functools.partial(_log.isEnabledFor, logging.DEBUG)

    @classmethod
    def configured(
        cls,
        settings: TelemetrySettings,
        clock: Clock | None = None,
        *,
        keep_events: int = 0,
        stream: TextIO | None = None,
    ) -> Telemetry:
        """Return one for a process: logs on `stream` (stderr), spans as `OTEL_*` says, aiohttp instrumented if wanted.

        Call it before any aiohttp application or session is built; `shutdown` undoes all of it.

        Raises:
            TracingUnavailable: traces are asked for and cannot be had.
        """
        provider = configure_tracing(settings)
        with ExitStack() as undo:
            if provider is not None:
                undo.callback(shut_down, provider, settings.flush_timeout)
                if settings.auto_instrument:
                    undo.callback(instrument_aiohttp(provider))
            telemetry = cls(
                clock, tracer_provider=provider, keep_events=keep_events, is_current=settings.auto_instrument
            )
            undo.callback(configure_logging(settings, telemetry.redactor, stream))
            telemetry._undo = undo.pop_all()
        return telemetry

    def shutdown(self) -> None:
        """Undo what `configured` did and export what is left, within the settings' bound.

        Blocks for that long at most, so call it when the loop has nothing left to do, or from a thread. May be repeated.
        """
        self.timeline.close()
        self._undo.close()

    # What the application sets

    def manifest_loaded(self, tools: Iterable[str]) -> None:
        """Take the names of the manifest's tools as label values; all others are `other`. Call it at each reload."""
        self.metrics.know(tools)

    def observe(self, statistics: Callable[[], Statistics]) -> None:
        """Ask for figures that only others know at each scrape. One that raises leaves them out of the page."""

        def guarded() -> Statistics:
            try:
                return statistics()
            except Exception as error:
                self.background_failed("telemetry.statistics", error)
                return Statistics()

        self.metrics.observe(guarded)

    def redact(self, values: Iterable[str | bytes]) -> None:
        """Never let these secrets into a log line or span."""
        self.redactor.add(values)

    def subscribe(self, callback: Callable[[Event], None], capacity: int = 1_000) -> Subscription:
        """Have `callback` called with each event, in order, in a thread of its own.

        One that is slow loses the oldest events beyond `capacity`; one that raises is dropped. `close()` it when done.
        """
        return self.timeline.subscribe(callback, capacity)

    def render(self, accept: str = "") -> bytes:
        """Return the metrics page, as OpenMetrics where `accept` asks for it; `content_type(accept)` names its type."""
        return self.metrics.render(accept)

    def content_type(self, accept: str = "") -> str:
        """Return the media type of the metrics page."""
        return self.metrics.content_type(accept)

    # What stages and workers report

    # The four reports that every call makes catch for themselves what `_never_raises` would: it costs a call of its own.

    def call_started(self, call: Call) -> object:
        """Open the call's span; sets `call.traceparent`. Returns a handle for `call_finished`."""
        try:
            call.trace = opened = self._traces.call_started(call)
            if self.timeline.is_watched:
                self._tell("call.started", **_call_fields(call))
            return opened
        except Exception as error:
            self.background_failed("telemetry.call_started", error)
            return None

    def call_finished(self, handle: object, call: Call, outcome: Outcome | BaseException, seconds: float) -> None:
        """Close the call's span and count the call. An exception is a bug or a cancellation."""
        try:
            verdict, tool, metrics = judge(outcome), call.tool, self.metrics
            name = metrics.tools.get(tool.name) or metrics.tools.learn(tool.name)
            metrics.calls[(name, tool.domain.name, call.operation.tier, verdict.outcome)] += 1
            metrics.call_seconds.observe(name, seconds)
            if verdict.code is not None:
                metrics.refusals[(name, verdict.code)] += 1
            if handle is not None and isinstance(handle, CallSpan):
                call.trace = None
                handle.finished(call, verdict)
            if self._is_debug():
                _log.debug("call finished", extra={**_call_fields(call), **_verdict_fields(verdict, seconds)})
            if self.timeline.is_watched:
                self._tell("call.finished", **_call_fields(call), **_verdict_fields(verdict, seconds))
        except Exception as error:
            self.background_failed("telemetry.call_finished", error)

    def told_of(self, tool: ToolSpec, operation: Operation) -> Told:
        """Return how successes of an operation are counted, for `call_ended` and `attempt_ended`."""
        name = self.metrics.tools.learn(tool.name)
        return Told(name, (name, tool.domain.name, operation.tier, "success"), (name, Fault.NONE))

    def call_ended(self, handle: object, call: Call, outcome: Outcome, seconds: float, told: Told) -> None:
        """Do what `call_finished` does, for calls of an operation that `told_of` knows: most are only counted."""
        try:
            if (
                handle is None
                and type(outcome) is Success
                and not outcome.is_replay
                and not self.timeline.is_watched
                and not self._is_debug()
            ):
                self.metrics.calls[told.calls] += 1
                self.metrics.call_seconds.observe(told.name, seconds)
                return
        except Exception as error:
            self.background_failed("telemetry.call_ended", error)
            return
        self.call_finished(handle, call, outcome, seconds)

    def attempt_started(self, call: Call) -> object:
        """Open the span of one attempt; sets `call.traceparent` so that the tool's spans hang below it."""
        try:
            if self.timeline.is_watched:
                header = call.tool.idempotency.header if call.tool.idempotency and call.key else None
                self._tell("attempt.started", **_call_fields(call), key=call.key, key_header=header)
            opened = call.trace
            return opened.attempt_started(call) if isinstance(opened, CallSpan) else None
        except Exception as error:
            self.background_failed("telemetry.attempt_started", error)
            return None

    def attempt_ended(self, handle: object, call: Call, outcome: Outcome, seconds: float, told: Told) -> None:
        """Do what `attempt_finished` does, for attempts at an operation that `told_of` knows: most are only counted."""
        try:
            if handle is None and type(outcome) is Success and not self.timeline.is_watched and not self._is_debug():
                self.metrics.attempts[told.attempts] += 1
                return
        except Exception as error:
            self.background_failed("telemetry.attempt_ended", error)
            return
        self.attempt_finished(handle, call, outcome, seconds)

    def attempt_finished(self, handle: object, call: Call, outcome: Outcome | BaseException, seconds: float) -> None:
        """Close the attempt's span and count the attempt."""
        try:
            verdict, name, metrics = judge(outcome), call.tool.name, self.metrics
            metrics.attempts[(metrics.tools.get(name) or metrics.tools.learn(name), verdict.fault)] += 1
            if handle is not None and isinstance(handle, AttemptSpan):
                handle.finished(verdict)
            if self._is_debug():
                _log.debug("attempt finished", extra={**_call_fields(call), **_verdict_fields(verdict, seconds)})
            if self.timeline.is_watched:
                self._tell("attempt.finished", **_call_fields(call), **_verdict_fields(verdict, seconds))
        except Exception as error:
            self.background_failed("telemetry.attempt_finished", error)

    @_never_raises
    def retry_scheduled(self, call: Call, fault: Fault, delay_s: float) -> None:
        """A repeat was decided."""
        self.metrics.retries[(call.tool.domain.name, fault)].inc()
        if isinstance(call.trace, CallSpan):
            call.trace.span.add_event("retry.scheduled", {"seawall.fault": fault.value, "seawall.delay_s": delay_s})
        if self._is_debug():
            _log.debug("retry scheduled", extra={**_call_fields(call), "fault": fault.value, "delay_s": delay_s})
        if self.timeline.is_watched:
            self._tell("retry.scheduled", **_call_fields(call), fault=fault.value, delay_s=delay_s)

    @_never_raises
    def queue_waited(self, call: Call, seconds: float) -> None:
        """A call got its slot after waiting."""
        self.metrics.queue_wait.observe(call.tool.domain.name, seconds)
        if isinstance(call.trace, CallSpan):
            call.trace.span.set_attribute("seawall.queue_wait_s", seconds)
        if self.timeline.is_watched:
            self._tell("queue.waited", **_call_fields(call), domain=call.tool.domain.name, seconds=seconds)

    @_never_raises
    def breaker_changed(self, tool: str, state: str, cause: str, cooldown_s: float) -> None:
        """A breaker went to another state."""
        label = self.metrics.tools[tool]
        self.metrics.breaker_transitions[(label, state, self.metrics.causes.learn(cause))].inc()
        if label != OTHER:
            self.metrics.set_breaker(label, state)
        fields = {"tool": tool, "state": str(state), "cause": str(cause), "cooldown_s": cooldown_s}
        _log.log(logging.WARNING if state == "open" else logging.INFO, "breaker %s", state, extra=fields)
        self._tell("breaker.changed", **fields)

    @_never_raises
    def refused(self, tool: str, code: Code) -> None:
        """A refusal went out that never became a call (ingress), so that it is counted too."""
        self.metrics.refusals[(self.metrics.tools[tool], code)] += 1
        if self._is_debug():
            _log.debug("refused", extra={"tool": tool, "code": code.value})
        if self.timeline.is_watched:
            self._tell("refused", tool=tool, code=code.value)

    def step_changed(
        self, trajectory: str, step: int, operation: str, state: str, tier: str = "", tool: str = ""
    ) -> None:
        """A step was intended, committed, failed, is in doubt, or was compensated."""
        try:
            self._step_changed(trajectory, step, operation, state, tier, tool)
        except Exception as error:
            self.background_failed("telemetry.step_changed", error)

    def step_reached(self, call: Call, step: int, state: str) -> None:
        """The step that a call is has come to another state; see `step_changed`."""
        operation = call.operation
        try:
            if state in _ORDINARY and not self.timeline.is_watched and not self._is_debug():
                self.metrics.steps[(operation.tier, state)] += 1
                return
        except Exception as error:
            self.background_failed("telemetry.step_reached", error)
            return
        self.step_changed(call.trajectory, step, operation.name, state, operation.tier, call.tool.name)

    def _step_changed(self, trajectory: str, step: int, operation: str, state: str, tier: str, tool: str) -> None:
        known = state if state in STEP_STATES else OTHER
        self.metrics.steps[(tier if tier in TIERS else OTHER, known)] += 1
        if state in _ORDINARY and not self.timeline.is_watched and not self._is_debug():
            return
        if (result := COMPENSATION_RESULTS.get(state)) is not None:
            self.metrics.compensations[(result,)].inc()
        level = logging.WARNING if state in ("compensation_failed", "escalated") else logging.DEBUG
        if level > logging.DEBUG or self.timeline.is_watched or self._is_debug():
            fields = {"trajectory": trajectory, "step": step, "operation": operation, "state": str(state), "tool": tool}
            _log.log(level, "step %s", state, extra=fields)
            self._tell("step.changed", **fields)

    @_never_raises
    def trajectory_changed(self, trajectory: str, state: str, detail: str = "") -> None:
        """A run went to another state."""
        self.metrics.trajectories[(state if state in TRAJECTORY_STATES else OTHER,)].inc()
        fields = {"trajectory": trajectory, "state": str(state), "detail": detail}
        # That a run began is said at debug only: some agents open one for every few calls.
        level = {"frozen": logging.WARNING, "preparing": logging.DEBUG}.get(str(state), logging.INFO)
        _log.log(level, "trajectory %s", state, extra=fields)
        self._tell("trajectory.changed", **fields)

    @_never_raises
    def loop_found(self, call: Call, pattern: str, done: str, entropy_bits: float) -> None:
        """A run goes in circles, and something was done about it: `observed`, `interrupt`, `mask`, `rewind`, `deadlock`."""
        self.metrics.loops[(pattern, done)].inc()
        fields = {**_call_fields(call), "pattern": pattern, "done": done, "entropy_bits": round(entropy_bits, 3)}
        _log.log(logging.INFO if done in ("observed", "interrupt") else logging.WARNING, "loop found", extra=fields)
        if isinstance(call.trace, CallSpan):
            call.trace.span.add_event("loop.found", {"seawall.pattern": pattern, "seawall.done": done})
        self._tell("loop.found", **fields)

    def entropy_seen(self, call: Call, bits: float) -> None:
        """How varied the recent actions of the call's run are."""
        try:
            self.metrics.entropy.observe("", bits)
            if call.trace is not None and isinstance(call.trace, CallSpan):
                call.trace.span.set_attribute("seawall.action_entropy_bits", bits)
        except Exception as error:
            self.background_failed("telemetry.entropy_seen", error)

    @_never_raises
    def quarantined(self, trigger: str, severed: int) -> None:
        """A run or an agent was quarantined, and so many of its calls, streams and tunnels were cut."""
        self.metrics.quarantines[(trigger,)].inc()
        self.metrics.severed.inc(severed)

    @_never_raises
    def quarantine_stage_done(self, stage: str, seconds: float) -> None:
        """One of the four stages of a quarantine is done, so long after its trigger."""
        self.metrics.quarantine_stages.observe(stage, seconds)

    @_never_raises
    def leases_over(self, trajectory: str, problems: Iterable[str]) -> None:
        """What steps of a run gave is good for nothing any more, and its pivot will be refused for that."""
        self.metrics.stale_leases.inc()
        fields = {"trajectory": trajectory, "detail": "; ".join(problems)}
        _log.warning("leases are over", extra=fields)
        self._tell("leases.over", **fields)

    @_never_raises
    def journal_committed(self, entries: int, seconds: float) -> None:
        """One group commit."""
        self.metrics.journal_seconds.observe("", seconds)
        self.metrics.journal_entries.inc(entries)

    def background_failed(self, where: str, error: BaseException) -> None:
        """Something in the background raised: log it with its traceback."""
        try:
            self.metrics.background_failures[(self.metrics.places.learn(where),)].inc()
            _log.error("failure in the background", exc_info=error, extra={"where": where})
            self._tell("background.failed", where=where, error=type(error).__name__)
        except Exception:
            _log.critical("telemetry failed while it reported a failure")

    def _tell(self, kind: str, **fields: Any) -> None:
        if self.timeline.is_watched:
            self.timeline.publish(Event(kind, self._clock.at(), fields))


def _call_fields(call: Call) -> dict[str, Any]:
    traceparent = call.traceparent
    return {
        "trajectory": call.trajectory,
        "step": call.step,
        "tool": call.tool.name,
        "operation": call.operation.name,
        "lane": call.lane.value,
        "attempt": call.attempt,
        "trace_id": None if traceparent is None else traceparent[3:35].decode("latin-1"),
    }


def _verdict_fields(verdict: Verdict, seconds: float) -> dict[str, Any]:
    return {
        "outcome": verdict.outcome,
        "fault": str(verdict.fault),
        "code": verdict.code and verdict.code.value,
        "status": verdict.status,
        "seconds": round(seconds, 6),
    }
