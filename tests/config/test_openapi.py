"""A tool's OpenAPI document beside the manifest: read with it, watched with it, and second to its own words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config.errors import ConfigError
from gateway.config.files import stamp_of
from gateway.config.source import ManifestSource
from gateway.core.mcp_operations import described
from tests.config.manifests import tool, write

ORDER: dict[str, Any] = {
    "openapi": "3.1.0",
    "paths": {
        "/orders": {
            "post": {
                "summary": "Order something.",
                "requestBody": {"content": {"application/json": {"schema": {"properties": {"item": {}}}}}},
            },
        },
    },
}
OPERATIONS = "order: {match: POST /orders, tier: pivot}\nother: {match: POST /other, tier: pivot}"


def prepared(folder: Path, document: object, operations: str = OPERATIONS) -> ManifestSource:
    (folder / "shop.json").write_text(document if isinstance(document, str) else json.dumps(document))
    return ManifestSource(write(folder, m=tool(operations, "    openapi: shop.json\n")), is_offline=True)


def test_models_see_what_the_document_says(tmp_path: Path) -> None:
    """Of operations that are not in it, what `match` says; that is odd, and said."""
    source = prepared(tmp_path, ORDER)
    order, other = described(source.load().tools["pay"])
    assert (order.value["description"], order.schema) == (
        "Order something.",
        {"type": "object", "properties": {"item": {}}},
    )
    assert other.value["description"] == "Sends POST /other."
    (warning,) = source.warnings
    assert "`shop.json` does not describe it" in str(warning)


def test_the_manifests_own_words_win(tmp_path: Path) -> None:
    words = "order: {match: POST /orders, tier: pivot, description: Ours., input: {type: object, required: [item]}}"
    (order,) = described(prepared(tmp_path, ORDER, words).load().tools["pay"])
    assert (order.value["description"], order.schema) == ("Ours.", {"type": "object", "required": ["item"]})


def test_a_changed_document_is_a_changed_tool(tmp_path: Path) -> None:
    """And an unchanged one is none: a reload leaves its calls and its breaker alone."""
    source = prepared(tmp_path, ORDER)
    first = source.load()
    assert source.load(first).tools["pay"] is first.tools["pay"]
    (tmp_path / "shop.json").write_text(json.dumps(ORDER | {"info": {}}))
    assert stamp_of(source.files) != source.stamp
    assert source.load(first).tools["pay"] is not first.tools["pay"]


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("{", "neither JSON nor YAML"),
        ("[]", "no `paths`"),
        ({"paths": {}}, "no OpenAPI version"),
        (None, "cannot read"),
    ],
)
def test_what_is_no_document_is_a_problem_with_a_place(tmp_path: Path, document: object, why: str) -> None:
    source = prepared(tmp_path, document or ORDER)
    if document is None:
        (tmp_path / "shop.json").unlink()
    with pytest.raises(ConfigError) as caught:
        source.load()
    (problem,) = caught.value.problems
    assert why in problem.message
    assert problem.line > 1
