"""What an OpenAPI document says of a call's arguments: schema, and where each goes."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.openapi import SCHEMA_LIMIT, Described, Document

SHOP: dict[str, Any] = {
    "openapi": "3.0.3",
    "servers": [{"url": "https://shop.example/v1"}],
    "paths": {
        "/orders/{order-id}/lines": {
            "parameters": [
                {"name": "order-id", "in": "path", "required": True, "schema": {"type": "integer"}},
                {"name": "dry", "in": "query", "schema": {"type": "boolean"}, "description": "Try it."},
            ],
            "post": {
                "summary": "Add a line.",
                "parameters": [
                    {"name": "dry", "in": "query", "required": True, "schema": {"type": "boolean"}},
                    {"name": "X-Shop", "in": "header", "schema": {"type": "string"}},
                    {"name": "Idempotency-Key", "in": "header", "required": True, "schema": {"type": "string"}},
                    {"name": "Authorization", "in": "header", "schema": {"type": "string"}},
                    {"name": "session", "in": "cookie", "schema": {"type": "string"}},
                    {"name": "fields", "in": "query", "explode": False, "schema": {"type": "array"}},
                ],
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Line"}}},
                },
            },
        },
        "/search": {
            "get": {
                "parameters": [{"$ref": "#/components/parameters/Q"}, {"name": "n", "in": "query", "content": {
                    "application/json": {"schema": {"type": "object"}}}}],
            },
            "post": {
                "description": "Search.",
                "requestBody": {"content": {
                    "application/x-www-form-urlencoded": {"schema": {"type": "object", "properties": {"q": {}}}}}},
            },
            "put": {"requestBody": {"content": {"application/json": {"schema": {"type": "array"}}}, "required": True}},
            "patch": {"requestBody": {"content": {"text/csv": {"schema": {"type": "string"}}}}},
        },
        "/both/{q}": {
            "post": {"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Q"}}}}},
        },
        "/files/{name}.txt": {"get": {}},
    },
    "components": {
        "parameters": {"Q": {"name": "q", "in": "query", "required": True, "schema": {"type": "string", "x-a": 1}}},
        "schemas": {
            "Q": {"type": "object", "properties": {"q": {"type": "string"}}},
            "Money": {"type": "number", "minimum": 0, "exclusiveMinimum": True, "example": 5},
            "Line": {
                "allOf": [
                    {"$ref": "#/components/schemas/Base"},
                    {"type": "object", "required": ["price"], "properties": {
                        "price": {"$ref": "#/components/schemas/Money"}, "note": {"type": "string", "nullable": True}}},
                ],
            },
            "Base": {"type": "object", "required": ["sku"], "properties": {
                "id": {"type": "string", "readOnly": True}, "sku": {"type": "string"},
                "parts": {"type": "array", "items": {"$ref": "#/components/schemas/Line"}}}},
        },
    },
}  # fmt: skip


def found(match: str, document: dict[str, Any] = SHOP) -> Described:
    described = Document(document).find(match)
    assert described is not None
    return described


def test_path_query_header_and_body_become_one_object() -> None:
    """Holes have the manifest's names; keys, credentials and cookies are nobody's arguments."""
    line = found("POST /orders/{order}/lines")
    properties: Any = line.schema["properties"]
    assert set(properties) == {"order", "dry", "X-Shop", "fields", "sku", "parts", "price", "note"}
    assert line.schema["required"] == ["order", "dry", "sku", "price"]
    assert properties["order"] == {"type": "integer"}
    assert line.description == "Add a line."
    assert (line.form.query, line.form.joined) == ({"dry", "fields"}, {"fields"})
    assert dict(line.form.headers) == {"X-Shop": "X-Shop"}


def test_references_are_definitions_and_older_words_are_said_in_json_schema() -> None:
    """A schema may hold itself; `nullable`, `exclusiveMinimum: true` and examples are not passed on."""
    schema: Any = found("POST /orders/{order}/lines").schema
    assert schema["properties"]["price"] == {"$ref": "#/$defs/Money"}
    assert schema["$defs"]["Money"] == {"type": "number", "exclusiveMinimum": 0}
    assert schema["properties"]["note"] == {"type": ["string", "null"]}
    assert schema["properties"]["parts"]["items"] == {"$ref": "#/$defs/Line"}
    assert set(schema["$defs"]) == {"Line", "Base", "Money"}


def test_the_servers_path_may_stand_in_the_match() -> None:
    """Where the tool's upstream is the bare host."""
    assert found("POST /v1/orders/{order}/lines") == found("POST /orders/{order}/lines")


def test_bodies_are_forms_or_one_argument_where_they_are_no_object() -> None:
    """Or where a name would be there twice; what is no JSON and no form stays unsaid."""
    assert found("POST /search").form.is_form
    put = found("PUT /search")
    assert (put.form.body, put.schema["required"]) == ("body", ["body"])
    both = found("POST /both/{q}")
    assert (both.form.body, set(both.schema["properties"])) == ("body", {"q", "body"})  # type: ignore[call-overload]
    assert found("PATCH /search").schema["properties"] == {}


def test_a_parameter_may_be_a_reference_or_have_content() -> None:
    schema: Any = found("GET /search").schema
    assert schema["properties"] == {"q": {"type": "string"}, "n": {"type": "object"}}
    assert schema["required"] == ["q"]


def test_a_query_that_the_match_fixes_is_no_argument() -> None:
    assert "q" not in found("GET /search?q=tea").schema["properties"]  # type: ignore[operator]


def test_what_is_not_there_is_not_found() -> None:
    """Nor what a manifest cannot express."""
    document = Document(SHOP)
    assert document.find("GET /orders/{order}/lines") is None
    assert document.find("GET /files/{name}") is None
    assert Document({"openapi": "3.0.0"}).find("GET /") is None


def test_swagger_2_says_it_otherwise() -> None:
    document = {
        "swagger": "2.0",
        "basePath": "/api",
        "paths": {
            "/pets": {
                "post": {"parameters": [
                    {"in": "formData", "name": "name", "type": "string", "required": True},
                    {"in": "formData", "name": "photo", "type": "file"},
                    {"in": "query", "name": "tags", "type": "array", "items": {"type": "string"}},
                ]},
                "put": {"parameters": [
                    {"in": "body", "name": "pet", "required": True, "schema": {"$ref": "#/definitions/Pet"}},
                    {"in": "query", "name": "tags", "type": "array", "collectionFormat": "multi"},
                ]},
            },
        },
        "definitions": {"Pet": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}},
    }  # fmt: skip
    post, put = found("POST /api/pets", document), found("PUT /pets", document)
    assert (post.form.is_form, post.form.joined, post.schema["required"]) == (True, {"tags"}, ["name"])
    assert (put.form.is_form, put.form.joined, put.schema["required"]) == (False, set(), ["name"])


@pytest.mark.parametrize(("size", "keeps"), [(20, True), (4_000, False)])
def test_a_schema_that_would_fill_the_context_is_cut_down(size: int, keeps: bool) -> None:
    """First words go, then what is below the arguments; their names stay."""
    inner = {f"m{n}": {"type": "string", "description": "word " * 1_000} for n in range(size)}
    body = {"type": "object", "required": ["a"], "properties": {"a": {"type": "object", "properties": inner}}}
    content = {"requestBody": {"required": True, "content": {"application/json": {"schema": body}}}}
    schema: Any = found("POST /x", {"openapi": "3.1.0", "paths": {"/x": {"post": content}}}).schema
    assert len(str(schema)) < SCHEMA_LIMIT
    assert schema["required"] == ["a"]
    assert ("properties" in schema["properties"]["a"]) is keeps


def test_odd_documents_are_no_crash() -> None:
    """Whatever a file holds where something else was expected."""
    for operation in (
        {"parameters": {}},
        {"parameters": [None, 7, {"in": "query"}, {"in": "query", "name": "a", "schema": 7}]},
        {"requestBody": {"content": []}},
        {"requestBody": {"$ref": "https://elsewhere.example/x.json"}},
        {"requestBody": {"content": {"application/json": None}}},
        {"requestBody": {"content": {"application/json": {"schema": {"allOf": [7, True]}}}}},
        {"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Me"}}}}},
    ):
        document = {
            "openapi": "3.0.0",
            "paths": {"/x": {"post": operation}},
            "components": {"schemas": {"Me": {"$ref": "#/components/schemas/Me"}}},
        }
        assert found("POST /x", document).schema["type"] == "object"
