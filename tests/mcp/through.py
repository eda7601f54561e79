"""A client that reaches a server only through a gateway of its own: what the suite's client scenarios run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path

import mcp_types as types
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from tests.gateway.harness import serving


async def main(url: str) -> None:
    text = f'version: 1\ntools:\n  server: {{mcp: {{url: "{url.replace("localhost", "127.0.0.1")}"}}}}\n'
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder), 0, text) as on:
            endpoint = f"{on.gateway.listen}/seawall/mcp/server"
            async with Client(endpoint, mode=os.environ.get("ERA", "legacy"), elicitation_callback=accepted) as client:
                tools = (await client.list_tools()).tools
                schema = next((tool.input_schema for tool in tools if "echo" not in tool.name), {})
                for name, arguments in asked() or [(tool.name, given(tool.name, schema)) for tool in tools]:
                    with contextlib.suppress(MCPError):  # what a server refuses is the scenario's to judge
                        await client.call_tool(name, arguments)


def asked() -> list[tuple[str, dict[str, object]]]:
    """The calls that the scenario asks for, if it does."""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    return [(call["name"], call["arguments"]) for call in context.get("toolCalls", [])]


def given(name: str, schema: dict[str, object]) -> dict[str, object]:
    """What a tool gets that the scenario asks nothing in particular of."""
    known: dict[str, dict[str, object]] = {"add_numbers": {"a": 5, "b": 3}, "json_schema_echo": {"schema": schema}}
    return known.get(name, {})


async def accepted(context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
    """Accept with the defaults that the server names."""
    schema = getattr(params, "requested_schema", {})
    content = {name: one["default"] for name, one in schema.get("properties", {}).items() if "default" in one}
    return types.ElicitResult(action="accept", content=content)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
