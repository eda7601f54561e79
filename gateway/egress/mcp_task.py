"""Calls that a server makes tasks of: waited for, so that a step is done when its task is, and not when it was accepted.

A server of 2025-11-25 is asked for a task where it takes the tool as one alone; one of 2026-07-28 decides by itself, since
the gateway says for every call that it takes tasks, whatever the agent's client can do. The client sees the result.

Once the server has accepted a task, nothing may say any more that the call was never begun: a server that cannot be
reached, has forgotten the task, or ends it with an error of the protocol, leaves a write in doubt.

Source: MCP 2025-11-25 "Tasks"; extension io.modelcontextprotocol/tasks, 2026-07-28.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from gateway.clock import Clock
from gateway.core.codes import Dispatched
from gateway.core.fault import Broken, Fault
from gateway.core.mcp import Kind, Message, members, replaced
from gateway.core.mcp_session import Client
from gateway.core.mcp_task import EXTENSION, RELATED
from gateway.egress import Timings
from gateway.egress.mcp_link import Answer, Exchange, Session

__all__ = ["as_task", "is_task", "takes_tasks", "taking_tasks", "until_over"]

POLL_S: Final = 1.0
SHORTEST_POLL_S: Final = 0.05
LONGEST_POLL_S: Final = 5.0
_GOODBYE: Final = Timings(connect_s=1.0, first_byte_s=2.0, idle_s=2.0, total_s=2.0)
_CANCELLED: Final = '{"action":"cancel"}'


def takes_tasks(session: Session) -> bool:
    """Whether a server is of 2025-11-25 and takes calls as tasks."""
    taken: object = session.facts.capabilities
    for key in ("tasks", "requests", "tools", "call"):
        taken = taken.get(key) if isinstance(taken, Mapping) else None
    return isinstance(taken, Mapping) and not session.facts.is_modern


def taking_tasks(client: Client) -> Client:
    """Return a client as a stateless server is told of it: it takes tasks, for the gateway does."""
    extensions = client.capabilities.get("extensions")
    own = {**extensions, EXTENSION: {}} if isinstance(extensions, Mapping) else {EXTENSION: {}}
    return replace(client, capabilities={**client.capabilities, "extensions": own})


def is_task(answer: Answer) -> bool:
    """Whether a stateless server made a task of a call."""
    return isinstance(answer, Message) and answer.result is not None and answer.value.get("resultType") == "task"


async def as_task(
    session: Session, params: str | None, exchange: Exchange, timings: Timings, *, has_side_effects: bool
) -> Answer:
    """Make a call as a task of a server of 2025-11-25, and wait for its result."""
    ttl = json.dumps({"ttl": round(timings.total_s * 1000)})
    sent = replaced(params or "{}", {"task": ttl})
    answer = await session.request("tools/call", sent, exchange, timings, has_side_effects=has_side_effects)
    task = answer.value.get("task") if isinstance(answer, Message) and answer.result is not None else None
    id = task.get("taskId") if isinstance(task, Mapping) else None
    if not isinstance(id, str):
        return answer
    asked = json.dumps({"taskId": id})
    try:
        result = await session.request("tasks/result", asked, exchange, timings, has_side_effects=has_side_effects)
    except asyncio.CancelledError:
        await asyncio.shield(_given_up(session, asked, exchange))
        raise
    if not isinstance(result, Message) or result.result is None:
        return _lost(result)
    meta = members(result.result).get("_meta", ("{}", {}))
    if not isinstance(meta[1], dict) or RELATED not in meta[1]:
        return result
    rest = replaced(meta[0], {RELATED: None})
    return replace(result, result=replaced(result.result, {"_meta": rest if rest != "{}" else None}))


async def until_over(
    session: Session, created: Message, exchange: Exchange, timings: Timings, clock: Clock, *, has_side_effects: bool
) -> Answer:
    """Wait for the end of a stateless server's task; its questions are put to the client."""
    view, asked, until = (
        created.value,
        json.dumps({"taskId": created.value.get("taskId")}),
        clock.now() + timings.total_s,
    )
    seen: set[str] = set()
    try:
        while True:
            await clock.sleep(_poll_s(view.get("pollIntervalMs")))
            if clock.now() >= until:
                await _given_up(session, asked, exchange)
                return Broken(Fault.TIMEOUT, Dispatched.YES, f"its task did not end within {timings.total_s:.0f} s")
            got = await session.request("tasks/get", asked, exchange, timings, has_side_effects=has_side_effects)
            if not isinstance(got, Message) or got.result is None:
                return _lost(got)
            view, parts = got.value, members(got.result)
            match view.get("status"):
                case "completed" if isinstance(value := view.get("result"), Mapping):
                    return Message(kind=Kind.RESPONSE, id=got.id, result=parts["result"][0], value=value)
                case "failed" | "cancelled" as how:
                    why = view.get("error")
                    said = why.get("message") if isinstance(why, Mapping) else view.get("statusMessage")
                    return Broken(Fault.PROTOCOL, Dispatched.YES, f"its task {how}: {str(said)[:200]}")
                case "input_required":
                    await _answered(session, asked, parts.get("inputRequests", ("{}", {}))[0], seen, exchange)
                case "working":
                    pass
                case status:
                    return Broken(Fault.PROTOCOL, Dispatched.YES, f"its task has the status {str(status)[:40]!r}")
    except asyncio.CancelledError:
        await asyncio.shield(_given_up(session, asked, exchange))
        raise


async def _answered(session: Session, asked: str, requests: str, seen: set[str], exchange: Exchange) -> None:
    """Put what a task asks to the client, each question once. Nobody to ask is a no."""
    exchange.was_asked = True
    responses: dict[str, str] = {}
    for key, (raw, value) in members(requests).items():
        method = value.get("method") if isinstance(value, dict) else None
        if key in seen or not isinstance(method, str):
            continue
        seen.add(key)
        said = None if exchange.ask is None else await exchange.ask(method, members(raw).get("params", ("{}", {}))[0])
        responses[key] = _CANCELLED if said is None or said.result is None else said.result
    if responses:
        given = "{" + ",".join(f"{json.dumps(key)}:{raw}" for key, raw in responses.items()) + "}"
        params = replaced(asked, {"inputResponses": given})
        own = Exchange(client=exchange.client, headers=exchange.headers)
        await session.request("tasks/update", params, own, _GOODBYE, has_side_effects=False)


def _poll_s(interval_ms: object) -> float:
    asked = interval_ms / 1000 if isinstance(interval_ms, int | float) else POLL_S
    return max(SHORTEST_POLL_S, min(asked, LONGEST_POLL_S))


def _lost(answer: Answer) -> Broken:
    """What became of an accepted task cannot be told."""
    if isinstance(answer, Broken):
        return replace(answer, dispatched=Dispatched.YES)
    if isinstance(answer, Message):
        return Broken(
            Fault.PROTOCOL, Dispatched.YES, f"its task cannot be had: {str(answer.value.get('message'))[:200]}"
        )
    return Broken(Fault.PROTOCOL, Dispatched.YES, f"its task cannot be had: it answered {answer.status}")


async def _given_up(session: Session, asked: str, exchange: Exchange) -> None:
    own = Exchange(client=exchange.client, headers=exchange.headers)
    await session.request("tasks/cancel", asked, own, _GOODBYE, has_side_effects=False)
