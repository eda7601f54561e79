"""What happened, told to metrics, traces, logs and whoever watches the timeline.

Stages call the methods of `Telemetry` and know nothing of Prometheus or OpenTelemetry. Start with `report`; `metrics` holds
every metric name, `traces` every span name and attribute, `logs` and `redaction` what may be written down, `events` the
live timeline, `export` the switches of the OpenTelemetry SDK (the extra `seawall[otel]`).
"""

from gateway.telemetry.events import Event, Subscription
from gateway.telemetry.export import TracingUnavailable, configure_tracing
from gateway.telemetry.metrics import DomainUse, Statistics
from gateway.telemetry.report import Telemetry, Told
from gateway.telemetry.settings import LogFormat, TelemetrySettings
from gateway.telemetry.traces import CONTEXT_HEADERS, outgoing

__all__ = [
    "CONTEXT_HEADERS",
    "DomainUse",
    "Event",
    "LogFormat",
    "Statistics",
    "Subscription",
    "Telemetry",
    "TelemetrySettings",
    "Told",
    "TracingUnavailable",
    "configure_tracing",
    "outgoing",
]
