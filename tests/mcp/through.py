"""A client that reaches a server only through a gateway of its own: what the suite's client scenarios run."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

import mcp_types as types
from mcp.client.client import Client

from tests.gateway.harness import serving


async def main(url: str) -> None:
    text = f'version: 1\ntools:\n  server: {{mcp: {{url: "{url.replace("localhost", "127.0.0.1")}"}}}}\n'
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder), 0, text) as on:
            endpoint = f"{on.gateway.listen}/seawall/mcp/server"
            async with Client(endpoint, mode=os.environ.get("ERA", "legacy"), elicitation_callback=accepted) as client:
                for tool in (await client.list_tools()).tools:
                    await client.call_tool(tool.name, {"a": 5, "b": 3} if tool.name == "add_numbers" else {})


async def accepted(context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
    """Accept with the defaults that the server names."""
    schema = getattr(params, "requested_schema", {})
    content = {name: one["default"] for name, one in schema.get("properties", {}).items() if "default" in one}
    return types.ElicitResult(action="accept", content=content)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
