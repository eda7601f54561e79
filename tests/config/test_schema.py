"""The published schemas accept what the loader accepts, and are complete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gateway.config.decode import parse_duration, parse_size
from gateway.config.schema import duration_text, manifest_schema, server_schema, size_text

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    "path", sorted([*ROOT.glob("config/**/*.yaml"), *ROOT.glob("policies/*.yaml")]), ids=lambda path: path.stem
)
def test_every_shipped_file_fits_its_schema(path: Path) -> None:
    """Editors check with it."""
    schema = server_schema() if path.name == "seawall.yaml" else manifest_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(path.read_text()), schema)


@pytest.mark.parametrize(
    "manifest",
    [
        {"tols": {}},
        {"tools": {"a": {"upstream": "http://a", "operations": {"x": {"tier": "read"}}}}},
        {"tools": {"a": {"upstream": "http://a", "breaker": {"window": 3}}}},
        {"tools": {"a": {"upstream": "http://a", "breaker": {"cooldown": "soon"}}}},
        {"tools": {"a": {"upstream": "http://a", "operations": {"x": {"match": "GET /", "tier": "no"}}}}},
        {"version": 2},
    ],
)
def test_what_the_loader_refuses_by_shape_the_schema_refuses(manifest: dict[str, Any]) -> None:
    """An editor should not call good what the gateway will not take."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(manifest, manifest_schema())


@pytest.mark.parametrize("schema", [manifest_schema(), server_schema()], ids=["manifest", "server"])
def test_every_setting_is_described(schema: dict[str, Any]) -> None:
    """The reference page is only as good as the sentences."""
    for part in [schema, *schema["definitions"].values()]:
        part = next((arm for arm in part.get("anyOf", [part]) if "properties" in arm), part)
        assert part["description"]
        for name, field in part["properties"].items():
            assert field.get("description", "").endswith("."), name


@pytest.mark.parametrize("seconds", [0.1, 0.5, 1.0, 1.5, 30.0, 60.0, 90.0, 3600.0, 86_400.0])
def test_defaults_are_shown_as_they_are_written(seconds: float) -> None:
    """And read back as they were."""
    assert parse_duration(duration_text(seconds)) == seconds


@pytest.mark.parametrize("size", [1, 1000, 1024, 65_536, 3 << 30])
def test_sizes_are_shown_as_they_are_written(size: int) -> None:
    """The same for sizes."""
    assert parse_size(size_text(size)) == size
