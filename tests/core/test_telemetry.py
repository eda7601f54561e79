"""Telemetry settings."""

from __future__ import annotations

from gateway.core.telemetry import LogFormat, TelemetrySettings


def test_stock_instrumentation_is_off_unless_asked_for() -> None:
    """It costs more than a whole call."""
    settings = TelemetrySettings()
    assert not settings.auto_instrument
    assert settings.log_format is LogFormat.AUTO
