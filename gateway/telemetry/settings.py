"""What an operator may choose about logs and traces lies in `core/telemetry.py`, with all other settings."""

from gateway.core.telemetry import LogFormat, TelemetrySettings

__all__ = ["LogFormat", "TelemetrySettings"]
