"""A server that says which log level it was told, session by session. Run with a port, or `stdio`."""

from __future__ import annotations

import sys
from typing import Any

import mcp_types as types
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("levels", log_level="ERROR")


@server.tool(annotations=types.ToolAnnotations(read_only_hint=True))
def level(ctx: Context) -> str:
    """Say which level was set in this session."""
    return str(ctx.session._connection.state.get("level", "none"))


async def _set(ctx: Any, params: types.SetLevelRequestParams) -> types.EmptyResult:
    ctx.session._connection.state["level"] = params.level
    return types.EmptyResult()


server._lowlevel_server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, _set)

if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", port=int(sys.argv[1]))
