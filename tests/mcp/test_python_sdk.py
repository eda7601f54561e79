"""The official Python SDK, in each era it speaks, through the gateway to servers of each era and transport."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.client.stdio import stdio_client

from tests.gateway.harness import serving
from tests.mcp.rig import EVERYTHING, SERVERS

ERAS = ["legacy", "auto"]
SERVED = ["over_http", "over_pipes"]


def manifest(url: str) -> str:
    return f"""
version: 1
domains:
  d: {{timeouts: {{connect: 5s, first_byte: 20s, idle: 20s, total: 30s}}}}
tools:
  over_http: {{mcp: {{url: "{url}"}}, domain: d}}
  over_pipes: {{mcp: {{command: {EVERYTHING}}}, domain: d}}
"""


async def sampled(context: Any, params: Any) -> types.CreateMessageResult:
    text = types.TextContent(type="text", text="sampled")
    return types.CreateMessageResult(role="assistant", content=text, model="none")


async def elicited(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"response": "elicited"})


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("tool", SERVED)
async def test_everything_a_client_does_works(tmp_path: Path, everything_url: str, era: str, tool: str) -> None:
    """Tools, progress, resources, prompts, completion, errors: as if the gateway were not there."""
    async with (
        serving(tmp_path, 0, manifest(everything_url)) as on,
        Client(f"{on.gateway.listen}/seawall/mcp/{tool}", mode=era) as client,
    ):
        assert client.protocol_version == ("2025-11-25" if era == "legacy" else "2026-07-28")
        names = {one.name for one in (await client.list_tools()).tools}
        assert "test_simple_text" in names
        result = await client.call_tool("test_simple_text", {})
        assert result.content[0].text == "This is a simple text response for testing."
        told: list[float] = []

        async def progress(done: float, total: float | None, message: str | None) -> None:
            told.append(done)

        await client.call_tool("test_tool_with_progress", {}, progress_callback=progress)
        assert told == [0, 50, 100]
        failed = await client.call_tool("test_error_handling", {})
        assert failed.is_error
        assert len((await client.list_resources()).resources) == 3
        read = await client.read_resource("test://template/7/data")
        assert '"id":"7"' in read.contents[0].text
        assert len((await client.list_prompts()).prompts) == 4
        prompt = await client.get_prompt("test_prompt_with_arguments", {"arg1": "a", "arg2": "b"})
        assert "arg1='a'" in prompt.messages[0].content.text
        completed = await client.complete(
            types.PromptReference(type="ref/prompt", name="test_prompt_with_arguments"), {"name": "arg1", "value": "p"}
        )
        assert completed.completion.values == ["paris", "park"]


@pytest.mark.parametrize("tool", SERVED)
async def test_a_server_may_ask_the_clients_model_and_user(tmp_path: Path, everything_url: str, tool: str) -> None:
    """Sampling and elicitation come back to the client whose call it is."""
    async with (
        serving(tmp_path, 0, manifest(everything_url)) as on,
        Client(
            f"{on.gateway.listen}/seawall/mcp/{tool}",
            mode="legacy",
            sampling_callback=sampled,
            elicitation_callback=elicited,
        ) as client,
    ):
        answer = await client.call_tool("test_sampling", {"prompt": "?"})
        assert answer.content[0].text == "LLM response: sampled"
        answer = await client.call_tool("test_elicitation", {"message": "?"})
        assert '"response":"elicited"' in answer.content[0].text


@pytest.mark.parametrize("era", ERAS)
async def test_all_servers_are_one_behind_the_common_endpoint(tmp_path: Path, everything_url: str, era: str) -> None:
    """Names say whose a tool or prompt is; resources are found by their URI."""
    async with (
        serving(tmp_path, 0, manifest(everything_url)) as on,
        Client(f"{on.gateway.listen}/seawall/mcp", mode=era) as client,
    ):
        names = [one.name for one in (await client.list_tools()).tools]
        assert names == sorted(names)
        assert {"over_http__test_simple_text", "over_pipes__test_simple_text"} <= set(names)
        result = await client.call_tool("over_pipes__test_simple_text", {})
        assert not result.is_error
        prompts = {one.name for one in (await client.list_prompts()).prompts}
        assert "over_http__test_simple_prompt" in prompts
        prompt = await client.get_prompt("over_http__test_simple_prompt")
        assert prompt.messages[0].content.text == "This is a simple prompt for testing."
        assert (await client.read_resource("test://static-text")).contents[0].text.startswith("This is the content")


@pytest.mark.parametrize("era", ERAS)
async def test_wrap_is_a_server_like_the_one_inside(tmp_path: Path, era: str) -> None:
    """`seawall wrap -- COMMAND` in a desktop client's settings, and nothing else."""
    command = ["-m", "gateway", "wrap", "--data", str(tmp_path), "--", sys.executable]
    parameters = StdioServerParameters(
        command=sys.executable,
        args=[*command, str(SERVERS / "everything.py"), "stdio"],
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    async with Client(
        stdio_client(parameters), mode=era, sampling_callback=sampled, elicitation_callback=elicited
    ) as client:
        assert len((await client.list_tools()).tools) > 10
        result = await client.call_tool("test_simple_text", {})
        assert result.content[0].text == "This is a simple text response for testing."
        assert result.meta["dev.seawall/call"]["step"] == 1
        if era == "legacy":
            answer = await client.call_tool("test_sampling", {"prompt": "?"})
            assert answer.content[0].text == "LLM response: sampled"


async def listed_roots(context: Any) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[types.Root(uri="file:///work", name="work")])


async def answered(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "Ann", "ok": True, "color": "blue", "context": "tea"})


@pytest.mark.parametrize("era", ERAS)
async def test_a_stateless_server_asks_before_it_answers(tmp_path: Path, rounds_url: str, era: str) -> None:
    """`input_required` and the repeated call, to a client of its era; to one of the other, questions on its stream.

    Model, user and roots; several at once; several rounds; the server's state comes back as it was.
    """
    text = f"""
version: 1
domains:
  d: {{timeouts: {{connect: 5s, first_byte: 20s, idle: 20s, total: 30s}}}}
tools:
  rounds: {{mcp: {{url: "{rounds_url}", protocol: "2026-07-28"}}, domain: d}}
"""
    async with (
        serving(tmp_path, 0, text) as on,
        Client(
            f"{on.gateway.listen}/seawall/mcp/rounds",
            mode=era,
            sampling_callback=sampled,
            elicitation_callback=answered,
            list_roots_callback=listed_roots,
        ) as client,
    ):
        said = {}
        for name in ("elicitation", "sampling", "list_roots", "request_state", "multiple_inputs", "multi_round"):
            result = await client.call_tool(f"test_input_required_result_{name}", {})
            said[name] = result.content[0].text
        assert said == {
            "elicitation": "Hello, Ann!",
            "sampling": "It said sampled",
            "list_roots": "Roots: file:///work",
            "request_state": "state-ok",
            "multiple_inputs": "3 answers",
            "multi_round": "done",
        }
        prompt = await client.get_prompt("test_input_required_result_prompt")
        assert prompt.messages[0].content.text == "About tea."
