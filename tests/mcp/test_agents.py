"""LangGraph agents whose models follow a policy, through the whole gateway against real MCP servers: one that loops, one
that repairs, one that heeds the interrupt. What they do to the world is read from the servers, not from the gateway."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.harness import Serving, serving
from tests.mcp.rig import LANGGRAPH, Ledger, ledger
from tests.mcp.test_pages import run

MANIFEST = """
version: 1
tools:
  git:
    mcp: {command: [PYTHON, -m, mcp_server_git]}
    operations:
      add:
        match: CALL git_add
        tier: compensable
        compensator: {request: CALL git_reset, json: {repo_path: "${request.json.repo_path}"}}
      checkout: {match: CALL git_checkout, tier: reversible}
  pay:
    mcp: {url: "URL"}
    operations:
      charge:
        match: CALL charge
        tier: compensable
        compensator: {request: CALL refund, json: {amount: "${request.json.amount}"}}
      refund: {match: CALL refund, tier: reversible, idempotent: true}
"""

AGENT = '''
import asyncio
from typing import Any

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_mcp_adapters.client import MultiServerMCPClient
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

TURNS = 30


def call(messages: list[Any], name: str, **arguments: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"{name}-{len(messages)}"}])


def add(messages: list[Any], file: str) -> AIMessage:
    return call(messages, "git__git_add", repo_path="REPOSITORY", files=[file])


def decide(messages: list[Any]) -> AIMessage:
    seen = [message for message in messages if isinstance(message, ToolMessage)]
    if not seen:
        return call(messages, "pay__charge", amount=5)
    POLICY


class Model(GenericFakeChatModel):
    """Decides by what it has seen."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> "Model":
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=decide(messages))])


async def main() -> None:
    connection = {
        "transport": "streamable_http",
        "url": "http://127.0.0.1:8080/seawall/mcp",
        "headers": {"Seawall-Trajectory": "trip"},
    }
    tools = await MultiServerMCPClient({"seawall": connection}).get_tools()
    model = Model(messages=iter(())).bind_tools(tools)
    said: list[Any] = []

    async def think(state: MessagesState) -> dict[str, Any]:
        said[:] = state["messages"]
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode(tools, handle_tool_errors=True))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition, {"tools": "tools", END: END})
    graph.add_edge("tools", "think")
    try:
        state = await graph.compile().ainvoke(
            {"messages": [HumanMessage("Stage the notes and pay.")]}, {"recursion_limit": 2 * TURNS}
        )
        said[:] = state["messages"]
    except GraphRecursionError:
        print("the framework's own ceiling")
    for message in said:
        if isinstance(message, ToolMessage):
            print(message.status, str(message.content)[:4000].replace("\\n", " "))


asyncio.run(main())
'''
LOOPS = 'return call(messages, "git__git_checkout", repo_path="REPOSITORY", branch_name="no-such-branch")'
REPAIRS = """if len(seen) > 1 and seen[-1].status == "success":
        return AIMessage("done")
    return add(messages, "notes.txt" if seen[-1].status == "error" else "note.txt")"""
HEEDS = """if len(seen) > 1 and seen[-1].status == "success":
        return AIMessage("done")
    return add(messages, "notes.txt" if "Do not repeat it" in str(seen[-1].content) else "note.txt")"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / "notes.txt").write_text("notes")
    for command in (
        ["config", "user.email", "a@b.c"],
        ["config", "user.name", "a"],
        ["commit", "-q", "--allow-empty", "-m", "x"],
    ):
        subprocess.run(["git", "-C", str(folder), *command], check=True)
    return folder


def staged(repository: Path) -> str:
    command = ["git", "-C", str(repository), "diff", "--cached", "--name-only"]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


async def ran(tmp_path: Path, repository: Path, policy: str, server: Ledger, on: Serving) -> list[str]:
    code = AGENT.replace("POLICY", policy).replace("REPOSITORY", str(repository))
    return (await run(LANGGRAPH, tmp_path / "agent.py", code, on)).splitlines()


async def shown(on: Serving) -> dict[str, Any]:
    found: dict[str, Any] = (await on.agent.send("GET", "/seawall/v1/trajectories/trip")).json
    return found


def manifest(server: Ledger) -> str:
    return MANIFEST.replace("URL", server.url).replace("PYTHON", sys.executable)


async def test_an_agent_that_loops_is_stopped_and_what_it_did_is_undone(tmp_path: Path, repository: Path) -> None:
    """It pays, then asks for a branch that is not there, thirty turns long, whatever it reads."""
    async with ledger() as server, serving(tmp_path, 0, manifest(server)) as on:
        said = await ran(tmp_path, repository, LOOPS, server, on)
        assert said[0] == "the framework's own ceiling"
        answers = said[2:]
        stopped = next(
            n for n, text in enumerate(answers) if "SEMANTIC_WATCHDOG_INTERRUPT" in text or "was not sent" in text
        )
        assert stopped == 3, "three equal noes left, the fourth did not"
        assert any("stopped for good" in text for text in answers)
        view = await shown(on)
        while view["state"] == "compensating":
            view = await shown(on)
        assert view["state"] == "aborted_clean"
        assert [step["operation"] for step in view["steps"]] == ["charge", *["checkout"] * 3]
        assert [effect["tool"] for effect in server.effects] == ["charge", "refund"]


async def test_an_agent_that_repairs_is_let_be(tmp_path: Path, repository: Path) -> None:
    async with ledger() as server, serving(tmp_path, 0, manifest(server)) as on:
        said = await ran(tmp_path, repository, REPAIRS, server, on)
        assert [line.split(" ")[0] for line in said] == ["success", "error", "success"]
        assert "was not sent" not in " ".join(said)
        assert staged(repository) == "notes.txt"
        repairs = (await on.operator.send("GET", "/api/v1/repairs")).json
        assert '"worked": 1' in str(repairs).replace("'", '"')
        committed = await on.agent.send("POST", "/seawall/v1/trajectories/trip/commit")
        assert committed.json["state"] == "succeeded"
        assert "watchdog" not in committed.json


async def test_an_agent_that_heeds_the_interrupt_gets_through(tmp_path: Path, repository: Path) -> None:
    """It says the same until it is told not to, then forms another hypothesis."""
    async with ledger() as server, serving(tmp_path, 0, manifest(server)) as on:
        said = await ran(tmp_path, repository, HEEDS, server, on)
        assert [line.split(" ")[0] for line in said] == ["success", *["error"] * 4, "success"]
        assert staged(repository) == "notes.txt"
        view = await shown(on)
        assert (view["state"], view["watchdog"]["interrupts"], view["watchdog"]["is_deadlocked"]) == (
            "preparing",
            1,
            False,
        )
        assert [effect["tool"] for effect in server.effects] == ["charge"]
