"""New traces that are dropped cost nothing, and exactly those are kept that the SDK would keep."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBasedTraceIdRatio, Sampler, TraceIdRatioBased

from gateway.telemetry.redaction import Redactor
from gateway.telemetry.roots import Roots, foreseeing
from gateway.telemetry.traces import Spans
from tests.telemetry.example import make_call

TRACES = 400


class Traced:
    """Roots of a sampler, and what is exported of calls that begin new traces."""

    def __init__(self, sampler: Sampler) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = foreseeing(TracerProvider(sampler=sampler, id_generator=Roots(), shutdown_on_exit=False))
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.spans = Spans(self.provider, Redactor())

    def call(self) -> bool:
        opened = self.spans.call_started(make_call())
        if opened is not None:
            opened.span.end()
        return opened is not None

    def ids(self) -> list[int]:
        return [span.context.trace_id for span in self.exporter.get_finished_spans() if span.context is not None]


@pytest.mark.parametrize("sampler", [ParentBasedTraceIdRatio(0.25), TraceIdRatioBased(0.25)])
def test_what_is_kept_is_what_the_sampler_keeps(sampler: Sampler) -> None:
    traced = Traced(sampler)
    kept = sum(traced.call() for _ in range(TRACES))
    assert kept == len(traced.ids()) == len(set(traced.ids()))
    assert 50 <= kept <= 150, "a quarter of 400, within six standard deviations"
    assert all(sampler.should_sample(None, trace_id, "x").decision.is_sampled() for trace_id in traced.ids())


@pytest.mark.parametrize(("rate", "kept"), [(0.0, 0), (1.0, 20)])
def test_none_and_all(rate: float, kept: int) -> None:
    traced = Traced(ParentBasedTraceIdRatio(rate))
    assert sum(traced.call() for _ in range(20)) == kept


def test_with_another_sampler_nothing_is_foreseen() -> None:
    traced = Traced(ALWAYS_ON)
    assert not Roots().is_next_dropped()
    assert sum(traced.call() for _ in range(20)) == 20
