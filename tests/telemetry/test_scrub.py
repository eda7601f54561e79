from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.telemetry.scrub import OUR_SCOPE, ScrubbedExporter


def test_queries_and_exception_texts_of_foreign_spans_do_not_leave():
    """The stock instrumentations record `secret=abc` as it stands, and exceptions with the URL in their text."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(ScrubbedExporter(exporter)))
    span = provider.get_tracer("foreign").start_span(
        "GET",
        attributes={
            "url.query": "a=canary",
            "url.full": "http://x/y?a=canary",
            "http.target": "/y?canary",
            "url.path": "/y",
            "port": 1,
        },
    )
    span.record_exception(ValueError("canary"))
    span.end()
    (exported,) = exporter.get_finished_spans()
    assert "canary" not in exported.to_json()
    assert dict(exported.attributes) == {"url.full": "http://x/y", "http.target": "/y", "url.path": "/y", "port": 1}
    assert exported.events[0].attributes["exception.type"] == "ValueError"
    assert exported.context == span.get_span_context()
    assert exported.end_time == span.end_time


def test_our_own_spans_pass_untouched():
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(ScrubbedExporter(exporter)))
    provider.get_tracer(OUR_SCOPE).start_span("x", attributes={"url.full": "a?b"}).end()
    assert exporter.get_finished_spans()[0].attributes["url.full"] == "a?b"
    assert ScrubbedExporter(exporter).force_flush()
