"""A server whose tools take a while or ask, and that knows nothing of tasks: what the suite of that extension calls.

python jobs.py PORT    Streamable HTTP at /mcp
"""

from __future__ import annotations

import asyncio
import sys

from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

server = MCPServer("jobs")


class Sure(BaseModel):
    confirm: bool = True


class Name(BaseModel):
    name: str = ""


@server.tool()
def greet(name: str = "") -> str:
    """Greets at once."""
    return f"Hello, {name}!"


@server.tool()
async def slow_compute(seconds: float = 1, label: str = "") -> str:
    """Takes as long as it is told to."""
    await asyncio.sleep(seconds)
    return f"{label} took {seconds} s"


@server.tool()
async def failing_job() -> str:
    """Fails after a while."""
    await asyncio.sleep(1)
    raise RuntimeError("the job has failed")


@server.tool()
async def protocol_error_job() -> str:
    """Breaks the server's own protocol after a while."""
    await asyncio.sleep(1)
    raise MCPError(code=-32603, message="the job broke off")


@server.tool()
async def confirm_delete(ctx: Context, filename: str = "") -> str:
    """Asks once."""
    answer = await ctx.elicit(f"Delete {filename}?", Sure)
    return f"{answer.action}: {filename}"


@server.tool()
async def multi_input(ctx: Context) -> str:
    """Asks twice at once."""
    answers = await asyncio.gather(ctx.elicit("Who?", Name), ctx.elicit("And who else?", Name))
    return " ".join(answer.action for answer in answers)


if __name__ == "__main__":
    server.run("streamable-http", port=int(sys.argv[1]))
