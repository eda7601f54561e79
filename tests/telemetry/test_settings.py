from dataclasses import fields
from typing import get_type_hints

from gateway.core.setting import Doc
from gateway.telemetry import TelemetrySettings


def test_every_setting_says_what_it_is():
    """The reference page is printed from these sentences."""
    hints = get_type_hints(TelemetrySettings, include_extras=True)
    for field in fields(TelemetrySettings):
        assert any(isinstance(mark, Doc) for mark in hints[field.name].__metadata__), field.name
