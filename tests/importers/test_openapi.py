"""OpenAPI documents of each version become drafts that `seawall check` accepts, with and without their proposals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.source import ManifestSource
from gateway.core.draft import render
from gateway.core.manifest import Tier
from gateway.core.tool import Catalog
from gateway.importers.openapi import ImportProblem, draft_openapi

SHOP: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Shop API", "version": "7"},
    "servers": [{"url": "https://{region}.shop.example/v1/", "variables": {"region": {"default": "eu"}}}],
    "components": {
        "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"}},
        "parameters": {"Key": {"in": "header", "name": "Idempotency-Key"}},
        "schemas": {"Order": {"type": "object", "properties": {"total": {}, "order_id": {}}}},
        "responses": {
            "Order": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Order"}}}},
        },
    },
    "paths": {
        "/orders": {
            "get": {"operationId": "listOrders", "responses": {"200": {}}},
            "post": {
                "operationId": "createOrder",
                "parameters": [{"$ref": "#/components/parameters/Key"}],
                "responses": {"201": {"$ref": "#/components/responses/Order"}},
            },
        },
        "/orders/{order-id}": {"get": {"operationId": "getOrder"}, "delete": {"operationId": "deleteOrder"}},
        "/orders/{order-id}/hold": {"post": {"operationId": "holdOrder"}},
        "/orders/{order-id}/release": {"post": {"operationId": "releaseOrder"}},
        "/orders/{id}": {"put": {"operationId": "listOrders"}, "delete": {"operationId": "again"}},
        "/mails/send": {"get": {"operationId": "sendMail"}},
        "/files/{name}.txt": {"get": {"operationId": "file"}},
        "/shared": {"$ref": "#/components/pathItems/Shared"},
        "/lost": {"$ref": "#/nowhere"},
        "/elsewhere": {"$ref": "https://other.example/x.json"},
    },
}
SHOP["components"]["pathItems"] = {"Shared": {"post": {"operationId": "shared"}}}


def checked(folder: Path, text: str) -> Catalog:
    path = folder / "draft.yaml"
    path.write_text(text)
    return ManifestSource(path, is_offline=True).load()


def confirmed(text: str) -> str:
    """Take every proposal over, as a person would: the commented line instead of the one above it."""
    lines: list[str] = []
    for line in text.splitlines():
        if re.match(r"      # \w+: \{match", line):
            lines[-2:] = [line.replace("# ", "", 1)]
        elif line.startswith("    # PROPOSAL credentials"):
            lines.append(line.replace("# PROPOSAL ", ""))
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def test_a_draft_is_a_manifest_and_its_writes_are_pivots(tmp_path: Path) -> None:
    tool, title = draft_openapi(json.dumps(SHOP).encode())
    catalog = checked(tmp_path, render(tool, title))
    shop = catalog.tools["shop_api"]
    assert shop.upstream.origin == "https://eu.shop.example:443"
    assert shop.upstream.prefix == "/v1"
    tiers = {name: operation.tier for name, operation in shop.operations.items() if operation.is_declared}
    assert {name for name, tier in tiers.items() if tier is Tier.READ} == {"list_orders", "get_order"}
    assert set(tiers.values()) == {Tier.READ, Tier.PIVOT}
    assert {"create_order", "delete_order", "hold_order", "release_order", "list_orders_2", "send_mail", "shared"} < {
        *tiers
    }


def test_confirmed_proposals_are_a_manifest_too(tmp_path: Path) -> None:
    tool, title = draft_openapi(json.dumps(SHOP).encode())
    shop = checked(tmp_path, confirmed(render(tool, title))).tools["shop_api"]
    undone = {
        name: operation.compensator.request.source
        for name, operation in shop.operations.items()
        if operation.compensator is not None
    }
    assert undone == {
        "create_order": "DELETE /orders/${response.json.order_id}",
        "hold_order": "POST /orders/${params.order_id}/release",
        "list_orders_2": "DELETE /orders/${params.id}",
    }
    assert shop.credential == (b"X-Api-Key", b"secret-shop_api")


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    tool, title = draft_openapi(json.dumps(SHOP).encode())
    text = render(tool, title)
    assert "# Left out: GET /files/{name}.txt: " in text
    assert "# Left out: DELETE /orders/{id}: no call can be told from one to DELETE /orders/{order_id}" in text
    assert "idempotency: {header: Idempotency-Key" in text


def test_swagger_2_and_yaml_are_read(tmp_path: Path) -> None:
    document = {
        "swagger": "2.0",
        "info": {"title": "Pets"},
        "host": "pets.example:8443",
        "basePath": "/api",
        "schemes": ["http", "https"],
        "securityDefinitions": {"o": {"type": "oauth2"}},
        "paths": {
            "/pets": {"post": {"responses": {200: {"schema": {"properties": {"uuid": {}}}}}}},
            "/pets/{petId}": {"delete": {}},
        },
    }
    tool, title = draft_openapi(yaml.safe_dump(document).encode(), name="pets")
    text = render(tool, title)
    assert "${response.json.uuid}" in text
    pets = checked(tmp_path, confirmed(text)).tools["pets"]
    assert (pets.upstream.origin, pets.upstream.prefix) == ("https://pets.example:8443", "/api")
    assert pets.credential == (b"Authorization", b"Bearer secret-pets")


def test_a_relative_server_is_relative_to_the_document() -> None:
    document = json.dumps({"openapi": "3.0.0", "servers": [{"url": "/v2"}], "paths": {}}).encode()
    tool, _ = draft_openapi(document, source="https://api.example:444/docs/openapi.json")
    assert tool.where == ("upstream: https://api.example:444/v2",)
    with pytest.raises(ImportProblem, match="--upstream"):
        draft_openapi(document, source="openapi.json")
    assert draft_openapi(document, upstream="http://x/")[0].where == ("upstream: http://x/",)


def test_only_wanted_paths_are_drafted() -> None:
    tool, _ = draft_openapi(json.dumps(SHOP).encode(), only=["/mails", "/shared"])
    assert [one.name for one in tool.operations] == ["send_mail", "shared"]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"{", "neither JSON nor YAML"),
        (b"\xff\xfe\x00", "neither JSON nor YAML"),
        (b"[]", "no `paths`"),
        (b'{"paths": []}', "no `paths`"),
        (b'{"openapi": "4.0.0", "paths": {}}', "no OpenAPI version"),
        (b'{"paths": {}}', "no OpenAPI version"),
        (b'{"openapi": "3.0.0", "paths": {}}', "--upstream"),
        (b"!!python/object/apply:os.system [x]", "neither JSON nor YAML"),
    ],
)
def test_what_is_no_description_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ImportProblem, match=why):
        draft_openapi(data)


def test_our_own_control_plane_can_be_drafted(tmp_path: Path) -> None:
    from gateway.ingress.control import _openapi

    tool, title = draft_openapi(json.dumps(_openapi()).encode(), upstream="http://127.0.0.1:9090")
    catalog = checked(tmp_path, render(tool, title))
    assert catalog.tools["seawall_control_plane"].operations["trajectories"].tier is Tier.READ
