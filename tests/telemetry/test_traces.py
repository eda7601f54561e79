import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode

from gateway.core.call import Lane
from gateway.core.codes import Code
from gateway.core.fault import Fault
from gateway.core.message import BytesBody, Reply
from gateway.core.outcome import Failed, InDoubt, Refusal
from gateway.telemetry import Telemetry, outgoing
from gateway.telemetry.traces import MAX_LINKS, incoming
from tests.telemetry.example import PARENT_ID, SAMPLED, TRACE_ID, UNSAMPLED, answered, make_call, rejected


class Traced:
    """A telemetry with an SDK behind it that keeps its spans."""

    def __init__(self, sampler=None, **given) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.telemetry = Telemetry(tracer_provider=self.provider, **given)

    def run(self, call, *outcomes):
        """Let a call have these outcomes, one attempt each; the last is the call's own."""
        handle = self.telemetry.call_started(call)
        for number, outcome in enumerate(outcomes, start=1):
            call.attempt = number
            attempt = self.telemetry.attempt_started(call)
            self.telemetry.attempt_finished(attempt, call, outcome, 0.1)
        self.telemetry.call_finished(handle, call, outcomes[-1], 0.2)
        return self.spans

    @property
    def spans(self):
        return {span.name: span for span in self.exporter.get_finished_spans()}


def traced_by(name: bytes, value: bytes, **given):
    return make_call(((b"Accept", b"*/*"), (name, value)), **given)


def test_without_an_sdk_the_incoming_context_is_passed_on_as_it_came():
    """A proxy that drops the trace cuts everybody's trace in two."""
    telemetry = Telemetry()
    call = make_call(((b"TraceParent", SAMPLED), (b"tracestate", b"a=1"), (b"Tracestate", b"b=2")))
    assert telemetry.call_started(call) is None
    assert telemetry.attempt_started(call) is None
    assert (call.traceparent, call.tracestate) == (SAMPLED, b"a=1,b=2")


def test_without_an_sdk_and_without_an_incoming_context_none_is_invented():
    call = make_call()
    assert Telemetry().call_started(call) is None
    assert call.traceparent is None
    assert call.tracestate is None


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"hello",
        SAMPLED.upper(),
        SAMPLED[:-1],
        SAMPLED + b"-more",
        b"ff" + SAMPLED[2:],
        b"00-" + b"0" * 32 + SAMPLED[35:],
        SAMPLED[:36] + b"0" * 16 + b"-01",
        SAMPLED + b"\n",
    ],
)
def test_an_invalid_traceparent_counts_as_none_and_takes_its_tracestate_with_it(header):
    """W3C Trace Context section 3.2.2.5: what cannot be parsed is ignored, tracestate included."""
    assert incoming(make_call(((b"traceparent", header), (b"tracestate", b"a=1")))) == (None, None)


def test_a_later_version_of_traceparent_is_accepted():
    """W3C Trace Context section 3.2.2: versions to come may append fields."""
    later = b"01" + SAMPLED[2:] + b"-more"
    assert incoming(traced_by(b"traceparent", later))[0] == later


def test_a_context_that_ingress_found_wins_over_the_header():
    """MCP carries it in `_meta`, which names the caller more closely than the connection's header."""
    call = traced_by(b"traceparent", UNSAMPLED, traceparent=SAMPLED, tracestate=b"a=1")
    assert incoming(call) == (SAMPLED, b"a=1")


def test_a_sampled_call_is_a_span_with_a_client_span_for_each_attempt():
    traced = Traced()
    call = traced_by(b"traceparent", SAMPLED, target=b"/v1/holds?secret=abc", step=3, key="key-1")
    traced.run(call, Failed(Fault.CONNECT), answered(201))
    first, second, whole = traced.exporter.get_finished_spans()
    assert whole.name == "execute_tool payments"
    assert whole.kind is SpanKind.INTERNAL
    assert f"{whole.context.trace_id:032x}" == TRACE_ID
    assert f"{whole.parent.span_id:016x}" == PARENT_ID
    assert dict(whole.attributes) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "payments",
        "gen_ai.agent.id": "agent-7",
        "gen_ai.conversation.id": "run-1",
        "seawall.operation": "hold",
        "seawall.tier": "compensable",
        "seawall.outcome": "success",
        "seawall.attempts": 2,
        "seawall.step": 3,
        "seawall.key_digest": whole.attributes["seawall.key_digest"],
    }
    assert whole.status.status_code is StatusCode.UNSET
    for attempt in (first, second):
        assert attempt.kind is SpanKind.CLIENT
        assert attempt.name == "POST"
        assert attempt.parent.span_id == whole.context.span_id
    assert dict(first.attributes) == {
        "http.request.method": "POST",
        "server.address": "api.example.com",
        "server.port": 443,
        "url.path": "/v1/holds",
        "seawall.fault": "connect",
        "error.type": "connect",
    }
    assert first.status.status_code is StatusCode.ERROR
    assert second.attributes["http.request.resend_count"] == 1
    assert second.attributes["http.response.status_code"] == 201


def test_the_tool_reads_the_attempts_context_instead_of_the_agents():
    """So that the tool's own spans hang below the attempt that caused them."""
    traced = Traced()
    call = make_call(((b"traceparent", SAMPLED), (b"tracestate", b"vendor=1")))
    traced.telemetry.call_started(call)
    attempt = traced.telemetry.attempt_started(call)
    sent, state = call.traceparent, call.tracestate
    traced.telemetry.attempt_finished(attempt, call, answered(), 0.1)
    (span,) = traced.exporter.get_finished_spans()
    assert sent[:55] == f"00-{TRACE_ID}-{span.context.span_id:016x}-01".encode()
    assert state == b"vendor=1"


def test_dispatch_replaces_the_agents_context_and_drops_its_baggage():
    """Baggage is the agent's own and may hold anything; a third party is not told."""
    call = make_call(((b"Traceparent", b"invalid"), (b"x", b"1"), (b"baggage", b"user=7"), (b"TRACESTATE", b"a=1")))
    Telemetry().call_started(call)
    assert outgoing(call) == ()
    call.traceparent, call.tracestate = SAMPLED, b"b=2"
    assert outgoing(call) == ((b"traceparent", SAMPLED), (b"tracestate", b"b=2"))


def test_a_parent_that_is_not_sampled_is_passed_on_and_makes_no_span():
    traced = Traced()
    call = traced_by(b"traceparent", UNSAMPLED)
    assert traced.run(call, answered()) == {}
    assert call.traceparent == UNSAMPLED


def test_a_root_that_the_sampler_drops_makes_no_span_and_no_context():
    traced = Traced(ParentBased(TraceIdRatioBased(0.0)))
    call = make_call()
    assert traced.run(call, answered()) == {}
    assert call.traceparent is None


def test_a_sampler_that_drops_everything_leaves_the_incoming_context_alone():
    traced = Traced(ALWAYS_OFF)
    call = traced_by(b"traceparent", SAMPLED)
    assert traced.run(call, answered()) == {}
    assert call.traceparent == SAMPLED


@pytest.mark.parametrize(
    ("outcome", "error_type"),
    [
        (rejected(Code.BULKHEAD_FULL), "ERR_BULKHEAD_FULL"),
        (Failed(Fault.CLIENT_ERROR, reply=Reply(404, b"", (), BytesBody())), "client_error"),
        (InDoubt(Fault.TIMEOUT, Refusal(code=Code.OUTCOME_UNKNOWN, detail="x")), "ERR_OUTCOME_UNKNOWN"),
        (ValueError("canary-text"), "ValueError"),
    ],
)
def test_what_went_wrong_is_the_error_type(outcome, error_type):
    """Low cardinality: a code, a fault or a class, never a text."""
    whole = Traced().run(make_call(), outcome)["execute_tool payments"]
    assert whole.attributes["error.type"] == error_type
    assert whole.status.status_code is StatusCode.ERROR
    assert "canary-text" not in whole.to_json()


def test_a_compensation_links_to_the_step_that_it_undoes():
    """One run is one linked trace, also when the undoing happens hours later."""
    traced = Traced()
    step = traced.run(make_call(step=3), answered())["execute_tool payments"]
    traced.exporter.clear()
    undo = traced.run(make_call(step=3, lane=Lane.COMPENSATION), answered())["execute_tool payments"]
    (link,) = undo.links
    assert link.context.span_id == step.context.span_id
    assert undo.context.trace_id != step.context.trace_id
    assert undo.attributes["seawall.lane"] == "compensation"


def test_steps_to_link_to_are_bounded():
    traced = Traced()
    for number in range(MAX_LINKS + 5):
        call = make_call(step=number)
        traced.telemetry.call_finished(traced.telemetry.call_started(call), call, answered(), 0.1)
    assert len(traced.telemetry._traces._steps) == MAX_LINKS


def test_no_secret_key_query_or_header_is_in_a_span():
    """Traces leave the machine and are read by many."""
    traced = Traced()
    traced.telemetry.redact(["canary/secret"])
    call = make_call(
        ((b"Authorization", b"Bearer canary-header"),),
        target=b"/v1/canary%2Fsecret/holds?canary-query",
        key="canary-key",
        step=1,
        trajectory="run canary/secret",
        agent="canary/secret",
    )
    traced.run(call, answered())
    assert len(traced.spans) == 2
    for span in traced.spans.values():
        assert "canary" not in span.to_json()


def test_a_retry_is_an_event_of_its_call():
    traced = Traced()
    call = make_call()
    handle = traced.telemetry.call_started(call)
    traced.telemetry.queue_waited(call, 0.5)
    traced.telemetry.retry_scheduled(call, Fault.SERVER, 0.25)
    traced.telemetry.call_finished(handle, call, answered(), 1.0)
    whole = traced.spans["execute_tool payments"]
    (event,) = whole.events
    assert (event.name, dict(event.attributes)) == (
        "retry.scheduled",
        {"seawall.fault": "server", "seawall.delay_s": 0.25},
    )
    assert whole.attributes["seawall.queue_wait_s"] == 0.5


def test_an_unusual_method_does_not_become_a_span_name():
    """The method is the agent's text: anything may stand there."""
    call = make_call()
    call.request.method = "X" * 1000
    spans = Traced().run(call, answered())
    assert spans["HTTP"].attributes["http.request.method"] == "_OTHER"


def test_the_calls_span_hangs_below_a_server_span_that_is_already_open():
    """With the stock server instrumentation on, its span has the incoming context and ours is its child."""
    traced = Traced(is_current=True)
    with traced.provider.get_tracer("server").start_as_current_span("POST /payments") as server:
        call = traced_by(b"traceparent", SAMPLED)
        handle = traced.telemetry.call_started(call)
        attempt = traced.telemetry.attempt_started(call)
        inside = trace.get_current_span().get_span_context().span_id
        traced.telemetry.attempt_finished(attempt, call, answered(), 0.1)
        assert trace.get_current_span() is server
        traced.telemetry.call_finished(handle, call, answered(), 0.1)
    assert traced.spans["execute_tool payments"].parent.span_id == server.get_span_context().span_id
    assert traced.spans["POST"].context.span_id == inside


def test_a_broken_sdk_is_not_felt_by_the_call():
    """Telemetry tells what happened; it may not decide it."""

    class Broken(trace.TracerProvider):
        def get_tracer(self, *args, **kwargs):
            return self

        def start_span(self, *args, **kwargs):
            raise RuntimeError("broken")

    telemetry = Telemetry(tracer_provider=Broken())
    call = make_call()
    handle = telemetry.call_started(call)
    telemetry.attempt_finished(telemetry.attempt_started(call), call, answered(), 0.1)
    telemetry.call_finished(handle, call, answered(), 0.1)
    assert b'gateway_background_failures_total{where="telemetry.call_started"} 1.0' in telemetry.render()
