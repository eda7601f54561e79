"""Every setting says all about itself once."""

from __future__ import annotations

import pytest

from gateway.config.fields import REQUIRED, choices, fields_of, is_settings, summary
from gateway.core.breaker import BreakerSettings
from gateway.core.manifest import Manifest, OperationSettings
from gateway.core.server import ServerSettings
from gateway.core.setting import Format


def test_marks_are_read_from_the_field() -> None:
    """Type, format, bounds, default and sentence."""
    slow_after = fields_of(BreakerSettings)["slow_after"]
    assert (slow_after.kind, slow_after.is_optional, slow_after.formats) == (float, True, {Format.SECONDS})
    assert slow_after.bounds == {"exclusiveMinimum": 0}
    assert fields_of(OperationSettings)["match"].default is REQUIRED
    assert choices(fields_of(OperationSettings)["tier"].kind) == ("read", "reversible", "compensable", "pivot")
    assert summary(Manifest) == "Everything the gateway knows about the tools."


@pytest.mark.parametrize("settings", [Manifest, ServerSettings])
def test_every_field_has_a_sentence(settings: type) -> None:
    """Pages, schemas and `--help` print it."""
    assert is_settings(settings)
    assert [name for name, field in fields_of(settings).items() if not field.doc.endswith(".")] == []
