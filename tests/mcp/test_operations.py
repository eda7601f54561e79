"""HTTP tools offered as MCP tools, with what their OpenAPI documents say of them."""

from __future__ import annotations

import json
from pathlib import Path

from mcp.client.client import Client

from tests.gateway.harness import serving
from tests.mcp.rig import Raw, problem_of, result_of
from tests.origin import Answer, Origin

JSON = ((b"Content-Type", b"application/json"),)
DOCUMENT = {
    "openapi": "3.0.3",
    "servers": [{"url": "https://api.shop.example/v1"}],
    "paths": {
        "/orders/{shop-id}": {
            "post": {
                "summary": "Order something at a shop.",
                "parameters": [
                    {"name": "shop-id", "in": "path", "required": True, "schema": {"type": "integer"}},
                    {"name": "notify", "in": "query", "schema": {"type": "boolean"}},
                    {"name": "X-Channel", "in": "header", "schema": {"type": "string", "enum": ["web", "shop"]}},
                ],
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/x-www-form-urlencoded": {
                            "schema": {
                                "type": "object",
                                "required": ["item"],
                                "properties": {
                                    "item": {"type": "string"},
                                    "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
                                },
                            }
                        }
                    },
                },
            }
        }
    },
}
MANIFEST = """
version: 1
tools:
  shop:
    upstream: http://127.0.0.1:PORT/v1
    openapi: shop.json
    operations:
      order:
        match: POST /orders/{shop}
        tier: compensable
        compensator: {request: "DELETE /orders/${params.shop}/${response.json.id}"}
"""


async def test_a_model_sees_the_documents_schema_and_the_tool_gets_its_own_request(tmp_path: Path) -> None:
    """Path, query, header and form from one flat object of arguments; the abort undoes it all the same."""
    (tmp_path / "shop.json").write_text(json.dumps(DOCUMENT))
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST) as on:
        origin.default = Answer(201, b'{"id":"o1"}', JSON)
        async with Client(f"{on.gateway.listen}/seawall/mcp", mode="legacy") as client:
            (tool,) = (await client.list_tools()).tools
            assert (tool.name, tool.description) == ("shop__order", "Order something at a shop.")
            assert tool.input_schema["required"] == ["shop", "item"]
            assert tool.input_schema["properties"]["X-Channel"]["enum"] == ["web", "shop"]
            arguments = {"shop": 7, "notify": True, "X-Channel": "web", "item": "tea", "metadata": {"for": "Ann"}}
            result = await client.call_tool(tool.name, arguments, meta={"dev.seawall/trajectory": "r1"})
            assert result.structured_content == {"id": "o1"}
        (request,) = origin.requests
        assert request.head.startswith(b"POST /v1/orders/7?notify=true ")
        assert request.values(b"x-channel") == [b"web"]
        assert request.values(b"content-type") == [b"application/x-www-form-urlencoded"]
        assert request.body == b"item=tea&metadata[for]=Ann"
        aborted = await on.agent.send("POST", "/seawall/v1/trajectories/r1/abort", {})
        assert aborted.json["state"] == "aborted_clean"
        assert origin.requests[-1].head.startswith(b"DELETE /v1/orders/7/o1 ")


async def test_arguments_that_do_not_fit_are_refused_by_name_and_nothing_is_sent(tmp_path: Path) -> None:
    (tmp_path / "shop.json").write_text(json.dumps(DOCUMENT))
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST) as on:
        client = Raw(on.agent, "/seawall/mcp/shop")
        await client.initialize()
        assert [tool["name"] for tool in result_of(await client.post("tools/list"))["tools"]] == ["order"]
        for arguments, why in (
            ({"shop": 7}, "'item' is missing"),
            ({"shop": "x", "item": "tea"}, "'shop' must be of the type integer"),
            ({"shop": 7, "item": {"a": 1}}, "'item' must be of the type string"),
        ):
            told = problem_of(await client.call("order", arguments))
            assert told["code"] == "ERR_INVALID_ARGUMENTS"
            assert why in told["detail"]
        assert origin.requests == []


CAREFUL = """
version: 1
tools:
  shop:
    upstream: http://127.0.0.1:PORT
    openapi: shop.json
    operations:
      show: {match: 'GET /orders/{id}', tier: read}
      purge: {match: GET /orders/all, tier: pivot}
      search: {match: POST /search, tier: read}
      change: {match: POST /change, tier: pivot, overrides: [_method]}
      order: {match: 'POST /orders/{shop}', tier: pivot}
"""


async def test_arguments_cannot_make_another_operation_of_a_call(tmp_path: Path) -> None:
    """Neither by filling a hole with what makes it another path, nor by a second word about the method."""
    document = json.loads(json.dumps(DOCUMENT))
    header = {"name": "X-HTTP-Method-Override", "in": "header", "schema": {"type": "string"}}
    document["paths"]["/orders/{shop-id}"]["post"]["parameters"].append(header)
    (tmp_path / "shop.json").write_text(json.dumps(document))
    async with Origin() as origin, serving(tmp_path, origin.port, CAREFUL) as on:
        origin.default = Answer(200, b"{}", JSON)
        client = Raw(on.agent, "/seawall/mcp/shop")
        await client.initialize()
        for name, arguments, why in (
            ("show", {"id": "all"}, "would be a call of `purge`, not of `show`: change the arguments"),
            ("show", {"id": "ALL"}, "as that of `purge`"),
            ("show", {"id": "7", "_method": "DELETE"}, "the query parameter `_method` could have the tool take"),
            ("search", {"text": "x", "_method": "DELETE"}, "the argument `_method` could have shop take the call"),
            (
                "order",
                {"shop": 7, "item": "tea", header["name"]: "DELETE"},
                "the header field `X-HTTP-Method-Override`",
            ),
        ):
            told = problem_of(await client.call(name, arguments))
            assert (told["code"], told["dispatched"]) == ("ERR_INVALID_ARGUMENTS", "no")
            assert why in told["detail"]
        assert origin.requests == []
        for name, arguments in (("show", {"id": "7"}), ("change", {"_method": "PATCH"}), ("purge", {})):
            assert not (await client.call(name, arguments)).get("isError")
        assert [one.head.split(b" HTTP")[0] for one in origin.requests] == [
            b"GET /orders/7", b"POST /change", b"GET /orders/all"
        ]  # fmt: skip
