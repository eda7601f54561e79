"""What `mcp_calls` calls: over HTTP with a port, over pipes with `stdio`, behind FastMCP's proxy with a URL too."""

from __future__ import annotations

import sys
from typing import Any


def _server() -> Any:
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("adder", log_level="ERROR")

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    server.add_tool(add)
    server.add_tool(add, name="look")
    return server


def main(arguments: list[str]) -> None:
    """Serve until killed."""
    if len(arguments) == 2:
        from fastmcp.server import create_proxy

        create_proxy(arguments[1]).run("http", host="127.0.0.1", port=int(arguments[0]), show_banner=False)
    elif arguments == ["stdio"]:
        _server().run("stdio")
    else:
        _server().run("streamable-http", port=int(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
