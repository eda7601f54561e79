"""Takes query strings and exception texts out of spans that are not ours, on their way out, in the exporter's thread.

The stock aiohttp instrumentations record both, and know of secrets only four parameter names. Imports the SDK, so it is
imported only by `export` where the SDK is wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.util.types import AttributeValue

__all__ = ["OUR_SCOPE", "ScrubbedExporter", "without_queries"]

OUR_SCOPE = "seawall"
_GONE = frozenset({"url.query", "exception.message", "exception.stacktrace"})
_CUT = frozenset({"url.full", "http.url", "http.target"})


class ScrubbedExporter(SpanExporter):
    """Exports through `inner`."""

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export, scrubbed."""
        return self._inner.export([_scrubbed(span) for span in spans])

    def shutdown(self) -> None:
        """Pass on."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Pass on."""
        return self._inner.force_flush(timeout_millis)


def without_queries(attributes: Mapping[str, AttributeValue] | None) -> dict[str, AttributeValue]:
    """Return the attributes without queries and exception texts."""
    return {
        name: value.partition("?")[0] if name in _CUT and isinstance(value, str) else value
        for name, value in (attributes or {}).items()
        if name not in _GONE
    }


def _scrubbed(span: ReadableSpan) -> ReadableSpan:
    scope = span.instrumentation_scope
    if scope is not None and scope.name == OUR_SCOPE:
        return span
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=without_queries(span.attributes),
        events=[Event(event.name, without_queries(event.attributes), event.timestamp) for event in span.events],
        links=span.links,
        kind=span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=scope,
    )
