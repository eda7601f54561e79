"""Spans: `execute_tool {tool}` for a call, with one client span for each attempt at the tool.

Without an SDK, or for a trace that is not sampled, the incoming W3C context is passed on as it came and nothing else is
done; where none came, none is invented. Sampling is decided before anything is built. Attributes hold no query string, no
body, no header, no key; compensations link to the step that they undo, so that one run is one linked trace.

Source: W3C Trace Context; OpenTelemetry semantic conventions for HTTP client spans and for GenAI `execute_tool` spans
(their names are written out here: the constants are private to OpenTelemetry).
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable
from contextvars import Token
from typing import Protocol

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from gateway.core.call import Call, Lane
from gateway.core.fault import Fault
from gateway.core.message import Headers
from gateway.telemetry.redaction import Redactor
from gateway.telemetry.verdict import Verdict

__all__ = ["CONTEXT_HEADERS", "AttemptSpan", "CallSpan", "PassOn", "Spans", "Traces", "incoming", "outgoing"]

MAX_LINKS = 4_096  # steps whose spans a compensation can still be linked to
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"})

_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
CONTEXT_HEADERS = frozenset({b"traceparent", b"tracestate", b"baggage"})
_FAILED = Status(StatusCode.ERROR)


class CallSpan:
    """The open span of a call, and the context in which its attempts run. Only whoever opens spans can make one, so that a
    call without a span cannot be asked to open one for an attempt."""

    __slots__ = ("_spans", "context", "span")

    def __init__(self, span: trace.Span, spans: Spans) -> None:
        self.span = span
        self.context = trace.set_span_in_context(span, Context())
        self._spans = spans

    def attempt_started(self, call: Call) -> AttemptSpan:
        """Open the span of an attempt below it, and set what the tool will read."""
        return self._spans.attempt_started(self, call)

    def finished(self, call: Call, verdict: Verdict) -> None:
        """Say what became of the call and close its span."""
        self._spans.call_finished(self, call, verdict)


class AttemptSpan:
    """The open span of an attempt; `token` takes it out of the current context again."""

    __slots__ = ("_token", "span")

    def __init__(self, span: trace.Span, token: Token[Context] | None) -> None:
        self.span = span
        self._token = token

    def finished(self, verdict: Verdict) -> None:
        """Say how the attempt went and close its span."""
        if self._token is not None:
            otel_context.detach(self._token)
        attributes: dict[str, str | int] = {}
        if verdict.fault != Fault.NONE:
            attributes["seawall.fault"] = str(verdict.fault)
        if verdict.status is not None:
            attributes["http.response.status_code"] = verdict.status
        _close(self.span, attributes, verdict)


class Traces(Protocol):
    """What the reporter asks of tracing; what was opened is asked the rest."""

    def call_started(self, call: Call) -> CallSpan | None:
        """Open the call's span if its trace is sampled, and set what the tool will read."""


class PassOn:
    """No SDK: the incoming context goes to the tool as it came."""

    def call_started(self, call: Call) -> None:
        """Set what the tool will read."""
        call.traceparent, call.tracestate = incoming(call)


class Spans:
    """Spans through `provider`.

    `is_current` puts an attempt's span into the current context, where the stock client instrumentation looks for its
    parent; without one nobody looks, and the cost is saved.
    """

    def __init__(
        self, provider: trace.TracerProvider, redactor: Redactor, *, version: str = "", is_current: bool = False
    ) -> None:
        self._tracer = provider.get_tracer("seawall", version)
        self._redactor = redactor
        self._is_current = is_current
        self._honours_unsampled = _honours_unsampled(provider)
        # With the stock instrumentations a call may hang below a span of theirs, and is no new trace.
        self._is_root_dropped = None if is_current else _foresight(provider)
        self._steps: OrderedDict[tuple[str, int], SpanContext] = OrderedDict()

    def call_started(self, call: Call) -> CallSpan | None:
        """Decide about sampling; if the trace is sampled, open the call's span."""
        traceparent, tracestate = call.traceparent, call.tracestate = incoming(call)
        if traceparent is not None and self._honours_unsampled and not int(traceparent[53:55], 16) & 1:
            return None
        if traceparent is None and self._is_root_dropped is not None and self._is_root_dropped():
            return None
        name = call.tool.name
        span = self._tracer.start_span(
            f"execute_tool {name}",
            _parent(traceparent, tracestate),
            SpanKind.INTERNAL,
            {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name},
        )
        if not span.is_recording():
            return None
        if (
            call.lane is Lane.COMPENSATION
            and (undone := self._steps.get((call.trajectory, call.step or 0))) is not None
        ):
            span.add_link(undone, {"seawall.link": "compensates"})
        _carry(span, call)
        return CallSpan(span, self)

    def call_finished(self, opened: CallSpan, call: Call, verdict: Verdict) -> None:
        """Say what became of the call and close its span."""
        span = opened.span
        attributes: dict[str, str | int] = {
            "seawall.operation": call.operation.name,
            "seawall.tier": call.operation.tier.value,
            "seawall.outcome": verdict.outcome,
            "seawall.attempts": call.attempt,
        }
        if call.lane is not Lane.FORWARD:
            attributes["seawall.lane"] = call.lane.value
        if call.agent:
            attributes["gen_ai.agent.id"] = self._redactor.known(call.agent)
        if call.trajectory:
            attributes["gen_ai.conversation.id"] = self._redactor.known(call.trajectory)
        if call.step is not None:
            attributes["seawall.step"] = call.step
            if call.lane is Lane.FORWARD:
                self._remember(call.trajectory, call.step, span.get_span_context())
        if call.key is not None:
            attributes["seawall.key_digest"] = hashlib.sha256(call.key.encode()).hexdigest()[:16]
        _close(span, attributes, verdict)

    def attempt_started(self, opened: CallSpan, call: Call) -> AttemptSpan:
        """Open an attempt's span below the call's."""
        request, upstream = call.request, call.tool.upstream
        method = request.method if request.method in METHODS else "_OTHER"
        attributes: dict[str, str | int] = {
            "http.request.method": method,
            "server.address": upstream.host,
            "server.port": upstream.port,
            "url.path": self._redactor.known(request.target.partition(b"?")[0].decode("latin-1")),
        }
        if call.attempt > 1:
            attributes["http.request.resend_count"] = call.attempt - 1
        span = self._tracer.start_span(
            method if method != "_OTHER" else "HTTP", opened.context, SpanKind.CLIENT, attributes
        )
        _carry(span, call)
        token = otel_context.attach(trace.set_span_in_context(span)) if self._is_current else None
        return AttemptSpan(span, token)

    def _remember(self, trajectory: str, step: int, context: SpanContext) -> None:
        self._steps[(trajectory, step)] = context
        if len(self._steps) > MAX_LINKS:
            self._steps.popitem(last=False)


def incoming(call: Call) -> tuple[bytes | None, bytes | None]:
    """Return the valid W3C context that came with a call: set by ingress (MCP `_meta`), else from the request's headers.

    An invalid `traceparent` counts as none, and takes its `tracestate` with it.
    """
    traceparent = call.traceparent
    if traceparent is not None:
        return (traceparent, call.tracestate) if traceparent and _is_valid(traceparent) else (None, None)
    tracestate: bytes | None = None
    for name, value in call.request.headers:
        size = len(name)
        if size == 11 and traceparent is None and name.lower() == b"traceparent":
            traceparent = value
        elif size == 10 and value and name.lower() == b"tracestate":
            tracestate = value if tracestate is None else tracestate + b"," + value
    if traceparent is None or not _is_valid(traceparent):
        return None, None
    return traceparent, tracestate


def outgoing(call: Call) -> Headers:
    """Return the call's trace context as header fields, in place of `CONTEXT_HEADERS` of the request that came.

    `baggage` never goes to a tool: it is the agent's own, and may hold anything.
    """
    if call.traceparent is None:
        return ()
    if call.tracestate is None:
        return ((b"traceparent", call.traceparent),)
    return ((b"traceparent", call.traceparent), (b"tracestate", call.tracestate))


def _is_valid(traceparent: bytes) -> bool:
    return _TRACEPARENT.fullmatch(traceparent) is not None and (len(traceparent) == 55 or traceparent[:2] != b"00")


def _parent(traceparent: bytes | None, tracestate: bytes | None) -> Context:
    """Return the context to start a call's span in: that of a server span already open around us, else what came in."""
    current = trace.get_current_span()
    if current.get_span_context().is_valid:
        return trace.set_span_in_context(current, Context())
    if traceparent is None:
        return Context()
    state = None if tracestate is None else TraceState.from_header([tracestate.decode("latin-1")])
    flags = TraceFlags(int(traceparent[53:55], 16))
    remote = SpanContext(int(traceparent[3:35], 16), int(traceparent[36:52], 16), True, flags, state)
    return trace.set_span_in_context(trace.NonRecordingSpan(remote), Context())


def _carry(span: trace.Span, call: Call) -> None:
    """Set what the tool will read, so that its spans hang below this one."""
    context = span.get_span_context()
    call.traceparent = b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags)
    call.tracestate = context.trace_state.to_header().encode("latin-1") if context.trace_state else None


def _close(span: trace.Span, attributes: dict[str, str | int], verdict: Verdict) -> None:
    if verdict.error_type is not None:
        attributes["error.type"] = str(verdict.error_type)
        span.set_status(_FAILED)
    span.set_attributes(attributes)
    span.end()


def _foresight(provider: trace.TracerProvider) -> Callable[[], bool] | None:
    """Return what knows whether the next new trace is dropped, if the provider draws its ids so (`telemetry/roots.py`)."""
    return getattr(getattr(provider, "id_generator", None), "is_next_dropped", None)


def _honours_unsampled(provider: trace.TracerProvider) -> bool:
    """Whether a parent that is not sampled certainly means that we are not; then the SDK need not be asked."""
    sampler = getattr(provider, "sampler", None)
    return sampler is not None and "remoteParentNotSampled:AlwaysOffSampler" in sampler.get_description()
