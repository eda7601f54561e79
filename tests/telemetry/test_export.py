import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.telemetry import Telemetry, TelemetrySettings, TracingUnavailable, configure_tracing
from gateway.telemetry.export import instrument_aiohttp, shut_down
from gateway.telemetry.scrub import ScrubbedExporter
from tests.telemetry.example import answered, make_call


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


@pytest.fixture
def collector(monkeypatch):
    """A collector on loopback that keeps what it is sent."""
    received: list[ExportTraceServiceRequest] = []

    class Receive(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receive)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    yield received
    server.shutdown()
    server.server_close()
    thread.join()


def test_nobody_asked_means_no_sdk():
    assert configure_tracing(TelemetrySettings()) is None


def test_the_sdk_is_not_even_imported_unless_it_is_asked_for():
    """It is an extra, and it costs start-up time."""
    program = "import sys, gateway.telemetry as t; t.Telemetry.configured(t.TelemetrySettings()); print(*sys.modules)"
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert not [name for name in done.stdout.split() if name.startswith("opentelemetry.sdk")]


@pytest.mark.parametrize(
    "environment",
    [
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
    ],
)
def test_tracing_is_switched_off_by_the_standard_names(monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert configure_tracing(TelemetrySettings()) is None


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [("OTEL_TRACES_EXPORTER", "zipkin", "otlp, console, none"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "4318")],
)
def test_what_we_do_not_have_is_refused_with_advice(monkeypatch, name, value, advice):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv(name, value)
    with pytest.raises(TracingUnavailable, match=advice):
        configure_tracing(TelemetrySettings())


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(TracingUnavailable, match=r"seawall\[otel\]"):
        configure_tracing(TelemetrySettings())


def test_spans_reach_a_collector_before_shutdown_ends(collector, monkeypatch):
    """Real bytes over a real socket, read with the protocol's own classes."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    telemetry = Telemetry.configured(TelemetrySettings())
    call = make_call()
    telemetry.call_finished(telemetry.call_started(call), call, answered(), 0.1)
    telemetry.shutdown()
    telemetry.shutdown()
    (request,) = collector
    (resource,) = request.resource_spans
    attributes = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert attributes["service.name"] == "seawall"
    assert attributes["deployment.environment.name"] == "test"
    assert [span.name for scope in resource.scope_spans for span in scope.spans] == ["execute_tool payments"]


def test_the_operators_service_name_wins(collector, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "wall-7")
    provider = configure_tracing(TelemetrySettings())
    assert provider.resource.attributes["service.name"] == "wall-7"
    assert shut_down(provider, 30)


def test_shutdown_does_not_wait_longer_than_it_was_told():
    """The SDK would wait half a minute for a collector that is gone; an orchestrator kills us before."""
    released = threading.Event()

    class Stuck(SpanProcessor):
        def shutdown(self) -> None:
            released.wait(30)

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Stuck())
    assert not shut_down(provider, 0.01)
    released.set()


async def test_the_stock_instrumentations_nest_around_ours_and_are_undone():
    """Switched on: server span, our call, our attempt, client span, in one trace, and no query string in any."""
    plain = web.Application
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(ScrubbedExporter(exporter)))
    undo = instrument_aiohttp(provider)
    try:
        telemetry = Telemetry(tracer_provider=provider, is_current=True)
        seen: list[str | None] = []

        async def tool(request: web.Request) -> web.Response:
            seen.append(request.headers.get("traceparent"))
            return web.Response()

        async def gateway(request: web.Request) -> web.Response:
            call = make_call(tuple(request.raw_headers))
            handle = telemetry.call_started(call)
            attempt = telemetry.attempt_started(call)
            async with aiohttp.ClientSession() as session, session.get(f"{origin}/tool?token=canary") as answer:
                await answer.read()
            telemetry.attempt_finished(attempt, call, answered(), 0.1)
            telemetry.call_finished(handle, call, answered(), 0.1)
            return web.Response()

        app = web.Application()
        app.router.add_get("/tool", tool)
        app.router.add_get("/call", gateway)
        app.router.add_get("/healthz", tool)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        origin = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession() as session, session.get(f"{origin}/call?token=canary") as answer:
            assert answer.status == 200
        async with aiohttp.ClientSession() as session, session.get(f"{origin}/healthz") as answer:
            assert answer.status == 200
        await runner.cleanup()
    finally:
        undo()
    spans = exporter.get_finished_spans()
    by_id = {span.context.span_id: span for span in spans}

    def line(span) -> list[str]:
        return [] if span is None else [span.name, *line(by_id.get(span.parent.span_id) if span.parent else None)]

    deepest = max((line(span) for span in spans), key=len)
    assert deepest == ["GET /tool", "GET", "POST", "execute_tool payments", "GET /call", "GET"]
    assert not any("canary" in span.to_json() for span in spans)
    assert "GET /healthz" not in {span.name for span in spans}
    assert any(span.attributes.get("url.path") == "/call" for span in spans)
    assert web.Application is plain
