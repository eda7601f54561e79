"""The OpenTelemetry SDK: whether it runs, where it sends spans, and the stock aiohttp instrumentations.

Everything is set by the standard `OTEL_*` environment. The SDK is an extra (`seawall[otel]`) and imported only here, only
when it is asked for. Nothing is made global: each gateway has its own provider.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from opentelemetry import trace
from yarl import URL

from gateway import __version__
from gateway.telemetry.settings import TelemetrySettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

__all__ = ["TracingUnavailable", "configure_tracing", "instrument_aiohttp", "shut_down"]

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
EXPORTERS = ("otlp", "console", "none")
INSTRUMENTATION_DEFAULTS = {
    "OTEL_SEMCONV_STABILITY_OPT_IN": "http",
    "OTEL_PYTHON_AIOHTTP_SERVER_EXCLUDED_URLS": "^/healthz$,^/readyz$,^/metrics$",
}


class TracingUnavailable(Exception):
    """Tracing was asked for and cannot be had. The message names the variable and what to do."""


def configure_tracing(settings: TelemetrySettings) -> TracerProvider | None:
    """Return a provider that exports spans as the `OTEL_*` environment says, or None if it does not ask for traces.

    Asked for by `OTEL_TRACES_EXPORTER` (otlp, console, none), or by an OTLP endpoint where that is unset. Sampler,
    resource, headers, limits and batching follow the SDK's own variables.

    Raises:
        TracingUnavailable: the extra is not installed, or the exporter or protocol is one that we do not have.
    """
    names = _exporters_asked_for(os.environ)
    if not names:
        return None
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from gateway.telemetry.roots import Roots, foreseeing
        from gateway.telemetry.scrub import ScrubbedExporter

        exporters = [_exporter(name) for name in names]
    except ImportError as error:
        raise TracingUnavailable(
            f"Traces are asked for (OTEL_TRACES_EXPORTER or OTEL_EXPORTER_OTLP_ENDPOINT), but {error.name} is not "
            "installed. Install seawall[otel], or set OTEL_TRACES_EXPORTER=none."
        ) from error
    provider = foreseeing(
        TracerProvider(resource=Resource.create(_identity(os.environ)), id_generator=Roots(), shutdown_on_exit=False)
    )
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(ScrubbedExporter(exporter)))
    return provider


def _exporters_asked_for(environ: Mapping[str, str]) -> list[str]:
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    default = "otlp" if any(environ.get(name) for name in ENDPOINTS) else "none"
    listed = environ.get("OTEL_TRACES_EXPORTER", "").strip() or default
    names = [name.strip().lower() for name in listed.split(",") if name.strip()]
    for name in names:
        if name not in EXPORTERS:
            raise TracingUnavailable(f"OTEL_TRACES_EXPORTER names {name!r}; use one of {', '.join(EXPORTERS)}.")
    protocol = next((environ[name] for name in PROTOCOLS if environ.get(name)), "http/protobuf")
    if "otlp" in names and protocol != "http/protobuf":
        raise TracingUnavailable(
            f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}; only 'http/protobuf' is built in. "
            "Point the endpoint at the collector's HTTP port (4318)."
        )
    return [] if "none" in names else names


def _exporter(name: str) -> SpanExporter:
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _identity(environ: Mapping[str, str]) -> dict[str, str]:
    """Return who we are; the name only where the operator has not given one."""
    is_named = environ.get("OTEL_SERVICE_NAME") or "service.name=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return {"service.version": __version__, **({} if is_named else {"service.name": "seawall"})}


def instrument_aiohttp(provider: trace.TracerProvider) -> Callable[[], None]:
    """Have aiohttp's own server and client make spans too, without queries; returns what undoes it.

    The instrumentations replace `aiohttp.web.Application` and wrap `ClientSession` for the whole process, so call it
    before any of them is built. What the operator has set in the environment wins over our defaults.

    Raises:
        TracingUnavailable: the extra is not installed.
    """
    added = {name: value for name, value in INSTRUMENTATION_DEFAULTS.items() if name not in os.environ}
    os.environ.update(added)
    try:
        from opentelemetry.instrumentation.aiohttp_client import AioHttpClientInstrumentor
        from opentelemetry.instrumentation.aiohttp_server import AioHttpServerInstrumentor
    except ImportError as error:
        _forget(added)
        raise TracingUnavailable(
            f"auto_instrument is on, but {error.name} is not installed. Install seawall[otel], or switch it off."
        ) from error
    server, client = AioHttpServerInstrumentor(), AioHttpClientInstrumentor()
    mine = [one for one in (server, client) if not one.is_instrumented_by_opentelemetry]
    if server in mine:
        with warnings.catch_warnings():  # it subclasses web.Application, which aiohttp discourages
            warnings.simplefilter("ignore", DeprecationWarning)
            server.instrument(tracer_provider=provider)
    if client in mine:
        client.instrument(tracer_provider=provider, url_filter=_without_query)

    def undo() -> None:
        for one in mine:
            one.uninstrument()
        _forget(added)

    return undo


def shut_down(provider: trace.TracerProvider, timeout_s: float) -> bool:
    """Export what is left and stop; returns whether that was done in time. Blocks for `timeout_s` at most.

    The SDK's own bound is 30 s per processor and cannot be set, so it runs in a thread that we stop waiting for.
    """
    stop = getattr(provider, "shutdown", None)
    if stop is None:
        return True
    thread = threading.Thread(target=stop, name="seawall-flush", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return not thread.is_alive()


def _without_query(url: URL) -> str:
    return str(url.with_query(None).with_fragment(None).with_user(None))


def _forget(added: Mapping[str, str]) -> None:
    for name in added:
        os.environ.pop(name, None)
