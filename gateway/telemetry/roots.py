"""Which new traces are sampled, known before a span is asked for.

The SDK samples by the lower 64 bits of a trace id, and says so: it can be known from the id alone. Asked for a span that it
will drop, it takes as long as a whole stage of the pipeline; with one trace sampled in ten that is the dearest part of
telemetry. So the id is drawn first, and the SDK is asked only for traces that it keeps, under that same id.

Source: OpenTelemetry specification, Tracing SDK, TraceIdRatioBased.
"""

from __future__ import annotations

import re

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Sampler, TraceIdRatioBased

__all__ = ["Roots", "foreseeing"]

_RATIO = re.compile(r"(?:ParentBased\{root:)?TraceIdRatioBased\{([^}]+)\}")


class Roots(RandomIdGenerator):
    """Random ids; that of the next trace can be looked at. For the event loop's thread, as spans are."""

    def __init__(self) -> None:
        self._bound: int | None = None
        self._next: int | None = None

    def follow(self, sampler: Sampler) -> None:
        """Take over at what share this sampler keeps new traces; with any but the SDK's own ratio nothing is foreseen."""
        found = _RATIO.match(sampler.get_description())
        self._bound = None if found is None else TraceIdRatioBased.get_bound_for_rate(float(found[1]))

    def is_next_dropped(self) -> bool:
        """Draw the id of a new trace. Returns whether the sampler certainly drops it; if not, the next trace has that id."""
        if self._bound is None:
            return False
        trace_id = self.draw()
        if trace_id & TraceIdRatioBased.TRACE_ID_LIMIT >= self._bound:
            return True
        self._next = trace_id
        return False

    def draw(self) -> int:
        """Return a new trace id."""
        return super().generate_trace_id()

    def generate_trace_id(self) -> int:
        """Return the id that was foreseen, else a new one."""
        foreseen, self._next = self._next, None
        return self.draw() if foreseen is None else foreseen


def foreseeing(provider: TracerProvider) -> TracerProvider:
    """Return a provider that was made with `Roots` once those follow its sampler."""
    assert isinstance(provider.id_generator, Roots)
    provider.id_generator.follow(provider.sampler)
    return provider
