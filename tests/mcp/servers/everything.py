"""A server with everything that the conformance suite asks a server for. Run with a port, or `stdio`."""

from __future__ import annotations

import asyncio
import base64
import sys
from typing import Annotated, Any, Literal

import mcp_types as types
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.server.streamable_http import EventMessage, EventStore
from pydantic import BaseModel, Field

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SOUND = base64.b64encode(b"RIFF\x24\x00\x00\x00WAVEfmt ").decode()

server = MCPServer("everything", instructions="Everything, once.", log_level="ERROR")


class Kept(EventStore):
    """Events by stream, so that a stream can be resumed."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self.events.append((stream_id, message))
        return str(len(self.events))

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str | None:
        after = int(last_event_id)
        stream = self.events[after - 1][0]
        for number, (owner, message) in enumerate(self.events[after:], after + 1):
            if owner == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


def embedded(uri: str, text: str, mime_type: str = "text/plain") -> types.EmbeddedResource:
    resource = types.TextResourceContents(uri=uri, mime_type=mime_type, text=text)
    return types.EmbeddedResource(type="resource", resource=resource)


IMAGE = types.ImageContent(type="image", data=PIXEL, mime_type="image/png")


@server.tool()
def test_simple_text() -> str:
    """Text."""
    return "This is a simple text response for testing."


@server.tool()
def test_image_content() -> list[types.ImageContent]:
    """An image."""
    return [IMAGE]


@server.tool()
def test_audio_content() -> list[types.AudioContent]:
    """A sound."""
    return [types.AudioContent(type="audio", data=SOUND, mime_type="audio/wav")]


@server.tool()
def test_embedded_resource() -> list[types.EmbeddedResource]:
    """A resource inside."""
    return [embedded("test://embedded-resource", "This is an embedded resource content.")]


@server.tool()
def test_multiple_content_types() -> list[types.TextContent | types.ImageContent | types.EmbeddedResource]:
    """Several kinds of content."""
    text = types.TextContent(type="text", text="Multiple content types test:")
    return [text, IMAGE, embedded("test://mixed-content-resource", '{"test":"data","value":123}', "application/json")]


@server.tool()
async def test_tool_with_logging(ctx: Context) -> str:
    """Speaks while it works."""
    for what in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(what)
        await asyncio.sleep(0.02)
    return "Tool with logging executed successfully"


@server.tool()
async def test_tool_with_progress(ctx: Context) -> str:
    """Tells how far it is."""
    for done in (0, 50, 100):
        await ctx.report_progress(done, 100, f"Completed step {done} of 100")
        await asyncio.sleep(0.02)
    return "done"


@server.tool()
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Asks the client's model."""
    text = types.TextContent(type="text", text=prompt)
    answer = await ctx.session.create_message([types.SamplingMessage(role="user", content=text)], max_tokens=100)
    return f"LLM response: {getattr(answer.content, 'text', 'none')}"


class Answer(BaseModel):
    response: str = Field(description="User's response")


class Defaults(BaseModel):
    name: str = Field(default="John Doe", description="User name")
    age: int = Field(default=30, description="User age")
    score: float = Field(default=95.5, description="User score")
    status: Annotated[str, Field(json_schema_extra={"enum": ["active", "inactive", "pending"]})] = "active"
    verified: bool = Field(default=True, description="Verification status")


def titled(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"const": const, "title": title} for const, title in pairs]


class Choices(BaseModel):
    untitledSingle: Annotated[str, Field(json_schema_extra={"enum": ["option1", "option2", "option3"]})]
    titledSingle: Annotated[str, Field(json_schema_extra={"oneOf": titled(("value1", "First"), ("value2", "Second"))})]
    untitledMulti: Annotated[
        list[str], Field(json_schema_extra={"items": {"type": "string", "enum": ["option1", "option2", "option3"]}})
    ]
    titledMulti: Annotated[
        list[str], Field(json_schema_extra={"items": {"anyOf": titled(("value1", "First"), ("value2", "Second"))}})
    ]
    legacyEnum: Annotated[str, Field(json_schema_extra={"enum": ["opt1", "opt2"], "enumNames": ["One", "Two"]})]


@server.tool()
async def test_elicitation(message: str, ctx: Context) -> str:
    """Asks the user."""
    answer = await ctx.elicit(message, Answer)
    return f"User response: {answer.model_dump_json()}"


@server.tool()
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Asks with defaults."""
    answer = await ctx.elicit("Please provide user information", Defaults)
    return f"Elicitation completed: {answer.model_dump_json()}"


@server.tool()
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Asks with choices."""
    answer = await ctx.elicit("Please choose", Choices)
    return f"Elicitation completed: {answer.model_dump_json()}"


@server.tool()
def test_error_handling() -> str:
    """Fails."""
    raise RuntimeError("This tool intentionally returns an error for testing")


@server.tool()
async def test_reconnection(ctx: Context) -> str:
    """Closes the stream in the middle of the call."""
    await ctx.close_sse_stream()
    await asyncio.sleep(0.2)
    return "Reconnection test completed successfully"


_later: set[asyncio.Task[None]] = set()


@server.tool()
async def announce_later(delay_s: float, ctx: Context) -> str:
    """Says after a while, on the session's own stream, that the resources have changed."""

    async def announce() -> None:
        await asyncio.sleep(delay_s)
        await ctx.session.send_resource_list_changed()

    _later.add(asyncio.ensure_future(announce()))
    return "soon"


class Address(BaseModel):
    street: str = ""
    kind: Literal["home", "work"] = "home"


@server.tool()
def json_schema_2020_12_tool(name: str = "", address: Address | None = None) -> str:
    """Has a schema with definitions."""
    return name


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """Text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """Bytes."""
    return base64.b64decode(PIXEL)


@server.resource("test://template/{id}/data", mime_type="application/json")
def template(id: str) -> str:
    """A template."""
    return f'{{"id":"{id}","templateTest":true,"data":"Data for ID: {id}"}}'


@server.resource("test://watched-resource", mime_type="text/plain")
def watched() -> str:
    """To be subscribed to."""
    return "Watched resource content"


@server.prompt()
def test_simple_prompt() -> str:
    """A prompt."""
    return "This is a simple prompt for testing."


@server.prompt()
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.prompt()
def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:
    """A prompt with a resource."""
    text = types.TextContent(type="text", text="Please process the embedded resource above.")
    return [UserMessage(embedded(resourceUri, "Embedded resource content for testing.")), UserMessage(text)]


@server.prompt()
def test_prompt_with_image() -> list[UserMessage]:
    """A prompt with an image."""
    return [UserMessage(IMAGE), UserMessage("Please analyze the image above.")]


@server.completion()
async def complete(ref: Any, argument: Any, context: Any) -> types.Completion:
    return types.Completion(values=["paris", "park"], total=2, has_more=False)


async def _done(ctx: Any, params: Any) -> types.EmptyResult:
    return types.EmptyResult()


for _method, _params in (
    ("logging/setLevel", types.SetLevelRequestParams),
    ("resources/subscribe", types.SubscribeRequestParams),
    ("resources/unsubscribe", types.UnsubscribeRequestParams),
):
    server._lowlevel_server.add_request_handler(_method, _params, _done)

if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", port=int(sys.argv[1]), event_store=Kept(), retry_interval=100)
