"""The server with everything, and what the conformance suite of 2026-07-28 wants to see besides: questions before an answer,
arguments that routers see, demands on the client.

    python rounds.py PORT    Streamable HTTP at /mcp
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import mcp_types as types
from everything import Kept, server
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.shared.exceptions import MCPError
from pydantic import Field

Rounds = types.InputRequiredResult


def elicit(message: str, **properties: str) -> types.ElicitRequest:
    schema: Any = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": list(properties),
    }
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def sample(text: str) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=text))
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[message], max_tokens=50))


def roots() -> types.ListRootsRequest:
    return types.ListRootsRequest()


def said(ctx: Context, key: str) -> Any:
    return (ctx.input_responses or {}).get(key)


@server.tool()
async def test_input_required_result_elicitation(ctx: Context) -> str | Rounds:
    """Asks for a name."""
    answer = said(ctx, "user_name")
    if not isinstance(answer, types.ElicitResult) or not answer.content:
        return Rounds(input_requests={"user_name": elicit("What is your name?", name="string")})
    return f"Hello, {answer.content['name']}!"


@server.tool()
async def test_input_required_result_sampling(ctx: Context) -> str | Rounds:
    """Asks the model."""
    answer = said(ctx, "capital_question")
    if answer is None:
        return Rounds(input_requests={"capital_question": sample("What is the capital of France?")})
    return f"It said {getattr(answer.content, 'text', '')}"


@server.tool()
async def test_input_required_result_list_roots(ctx: Context) -> str | Rounds:
    """Asks for the roots."""
    answer = said(ctx, "client_roots")
    if answer is None:
        return Rounds(input_requests={"client_roots": roots()})
    return "Roots: " + ", ".join(str(root.uri) for root in answer.roots)


@server.tool()
async def test_input_required_result_request_state(ctx: Context) -> str | Rounds:
    """Has its state brought back."""
    if ctx.request_state is None:
        return Rounds(input_requests={"confirm": elicit("Please confirm", ok="boolean")}, request_state="kept")
    return "state-ok" if ctx.request_state == "kept" else "state-lost"


@server.tool()
async def test_input_required_result_tampered_state(ctx: Context) -> str | Rounds:
    """Has its state brought back as it was."""
    return await test_input_required_result_request_state(ctx)


@server.tool()
async def test_input_required_result_multiple_inputs(ctx: Context) -> str | Rounds:
    """Asks three things at once."""
    if ctx.request_state is None:
        asked = {"user_name": elicit("What is your name?", name="string"), "greeting": sample("Generate a greeting"),
                 "client_roots": roots()}  # fmt: skip
        return Rounds(input_requests=asked, request_state="three")
    return f"{len(ctx.input_responses or {})} answers"


@server.tool()
async def test_input_required_result_multi_round(ctx: Context) -> str | Rounds:
    """Asks twice."""
    if ctx.request_state is None:
        return Rounds(
            input_requests={"step1": elicit("Step 1: What is your name?", name="string")}, request_state="one"
        )
    if ctx.request_state == "one":
        question = elicit("Step 2: What is your favorite color?", color="string")
        return Rounds(input_requests={"step2": question}, request_state="two")
    return "done"


@server.tool()
async def test_input_required_result_capabilities(ctx: Context) -> str | Rounds:
    """Asks only what the client can answer."""
    able = ctx.client_capabilities
    asked: dict[str, Any] = {}
    if able is not None and able.sampling is not None:
        asked["greeting"] = sample("Hello?")
    if able is not None and able.elicitation is not None:
        asked["user_name"] = elicit("What is your name?", name="string")
    return Rounds(input_requests=asked) if asked and not ctx.input_responses else "nothing to ask"


@server.tool()
async def test_streaming_elicitation(ctx: Context) -> str | Rounds:
    """Says something, then asks."""
    await ctx.report_progress(1, 2, "half")
    return await test_input_required_result_elicitation(ctx)


@server.tool()
async def test_logging_tool(ctx: Context) -> str:
    """Logs."""
    await ctx.info("something")
    return "logged"


@server.tool()
async def test_missing_capability(ctx: Context) -> str:
    """Needs a client that can sample."""
    able = ctx.client_capabilities
    if able is None or able.sampling is None:
        needed = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(code=-32021, message="Missing required client capability", data=needed)
    return "able"


@server.tool()
def test_named(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
    """Has an argument that a router sees."""
    return region


@server.prompt()
async def test_input_required_result_prompt(ctx: Context) -> list[UserMessage] | Rounds:
    """Asks what it is about."""
    answer = said(ctx, "user_context")
    if answer is None:
        question = elicit("What context should the prompt use?", context="string")
        return Rounds(input_requests={"user_context": question})
    return [UserMessage(f"About {answer.content['context']}.")]


if __name__ == "__main__":
    server.run("streamable-http", port=int(sys.argv[1]), event_store=Kept(), retry_interval=100)
