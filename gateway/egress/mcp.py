"""The egress that knows MCP servers: takes a `CALL`, finds the session, and brings back an HTTP-shaped answer.

It stands in front of the HTTP egress behind the same protocol, so breaker, retry, admission, journal and saga see one more
tool and nothing else. Listings and everything that is not a call of a tool go through `request`, beside the pipeline.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Iterable, Mapping

from gateway.clock import Clock
from gateway.core.codes import Dispatched
from gateway.core.fault import Broken, Fault
from gateway.core.mcp import METHOD_NOT_FOUND, Kind, Message, members, replaced
from gateway.core.mcp_answer import reply_of
from gateway.core.mcp_memory import SETTING
from gateway.core.mcp_session import Client, apart
from gateway.core.mcp_tools import called
from gateway.core.message import Body, BytesBody, Reply, Request, first_header
from gateway.core.tool import ToolSpec
from gateway.egress import Egress, Timings
from gateway.egress.mcp_guardian import Guardian
from gateway.egress.mcp_http import HttpServer, never_sent, place_of
from gateway.egress.mcp_link import OWN_CLIENT, SOON, Answer, Exchange, OnEvent, OnQuestion, Server, Session
from gateway.egress.mcp_memory import SessionMemory
from gateway.egress.mcp_stdio import StdioServer
from gateway.egress.mcp_task import as_task, is_task, takes_tasks, taking_tasks, until_over

__all__ = ["KEY_META", "McpEgress"]

KEY_META = "dev.seawall/idempotencyKey"
"""Where a server that honours keys (`idempotency:` in the manifest) finds the step's own, in `_meta`."""

ROUNDS_MAX = 10
"""How often a server may ask before it answers; what the SDKs allow."""

_RUNS_KEPT = 10_000
_DONE = Message(kind=Kind.RESPONSE, id="1", result="{}", value={})


class McpEgress:
    """An `Egress` for both kinds of tools.

    Args:
        http: sends to HTTP tools, and carries Streamable HTTP.
        clock: for pauses between starts of child processes.
        memory: what is known of sessions from before; without it, nothing.

    Attributes:
        task_alone: by server, the tools that it takes as tasks alone, as far as it was listed.
    """

    def __init__(self, http: Egress, clock: Clock, memory: SessionMemory | None = None) -> None:
        self.memory = SessionMemory() if memory is None else memory
        self.on_event: OnEvent = lambda tool, client, method, params, place: None
        self.on_question: OnQuestion = _nobody
        self.child_capabilities: Mapping[str, object] = {"sampling": {}, "elicitation": {}}
        self._http = http
        self._clock = clock
        self._guardian = Guardian()
        self._servers: dict[str, Server] = {}
        self._specs: dict[str, ToolSpec] = {}
        self._retired: list[tuple[Server, bool]] = []
        self.task_alone: dict[str, frozenset[str]] = {}
        self._clients: OrderedDict[tuple[str, str], Client] = OrderedDict()

    def send(self, tool: ToolSpec, request: Request, timings: Timings) -> Awaitable[Reply | Broken]:
        """Send once; see `Egress`."""
        return self._http.send(tool, request, timings) if tool.mcp is None else self._called(tool, request, timings)

    async def _called(self, tool: ToolSpec, request: Request, timings: Timings) -> Reply | Broken:
        given = request.exchange
        exchange = given if isinstance(given, Exchange) else self._exchange_of(tool, given)
        try:
            arguments = await _text(request.body)
            params = _call_params(tool, arguments, exchange, request)
        except ValueError as error:
            return Broken(Fault.CLIENT_ERROR, Dispatched.NO, f"nothing was sent to {tool.name}: {error}")
        if called(request.target.decode("ascii")) in self.task_alone.get(tool.name, ()):
            exchange.needs_task = True
        answer = await self.request(
            tool, "tools/call", params, exchange, timings, has_side_effects=request.has_side_effects
        )
        return reply_of(answer) if isinstance(answer, Message) else answer

    async def request(
        self,
        tool: ToolSpec,
        method: str,
        params: str | None,
        exchange: Exchange,
        timings: Timings,
        *,
        has_side_effects: bool = False,
    ) -> Answer:
        """Send any request to a server and return what came back."""
        if method == "resources/unsubscribe" and self._is_wanted_by_others(tool, exchange.client, params):
            return await self._set(tool, method, params, exchange, _DONE)
        session = await self.session(tool, exchange.client, timings)
        if isinstance(session, Reply | Broken):
            return await never_sent(tool.name, session)
        answer = await self._first(session, method, params, exchange, timings, has_side_effects=has_side_effects)
        if method in SETTING:
            return await self._set(tool, method, params, exchange, answer)
        if (exchange.client.is_modern and not exchange.is_detached()) or not session.facts.is_modern:
            return answer
        for _ in range(ROUNDS_MAX):
            if not _asks_for_input(answer) or exchange.ask is None:
                break
            assert isinstance(answer, Message)
            params = await _with_input(params or "{}", answer, exchange)
            answer = await self._first(session, method, params, exchange, timings, has_side_effects=has_side_effects)
        return answer

    def _is_wanted_by_others(self, tool: ToolSpec, client: Client, params: str | None) -> bool:
        """Whether others have subscribed, at the same child, to what a client does not want any more."""
        server = self._servers.get(tool.name)
        return isinstance(server, StdioServer) and server.is_subscribed(_value(params).get("uri"), apart(client))

    async def _set(self, tool: ToolSpec, method: str, params: str | None, exchange: Exchange, answer: Answer) -> Answer:
        """Remember what was set, before the client is told that it was."""
        if isinstance(answer, Message) and answer.error is None:
            await self.memory.set(tool.name, apart(exchange.client), method, params, _value(params))
        return answer

    async def _first(
        self,
        session: Session,
        method: str,
        params: str | None,
        exchange: Exchange,
        timings: Timings,
        *,
        has_side_effects: bool,
    ) -> Answer:
        if method != "tools/call":
            return await session.request(method, params, exchange, timings, has_side_effects=has_side_effects)
        if session.facts.is_modern:
            exchange.client = taking_tasks(exchange.client)
        takes = takes_tasks(session)
        if takes and exchange.needs_task:
            return await as_task(session, params, exchange, timings, has_side_effects=has_side_effects)
        answer = await session.request(method, params, exchange, timings, has_side_effects=has_side_effects)
        if takes and not exchange.was_asked and isinstance(answer, Message) and _is_unknown_method(answer):
            # It takes this call as a task alone, says so in this way, and did not begin it.
            return await as_task(session, params, exchange, timings, has_side_effects=has_side_effects)
        if session.facts.is_modern and isinstance(answer, Message) and is_task(answer):
            return await until_over(session, answer, exchange, timings, self._clock, has_side_effects=has_side_effects)
        return answer

    async def session(self, tool: ToolSpec, client: Client, timings: Timings) -> Session | Reply | Broken:
        """Return the session with a server for a client."""
        return await self._server(tool).session(client, timings)

    async def set_everywhere(self, tools: Iterable[ToolSpec], client: Client, method: str, params: str | None) -> None:
        """Set at several servers what a client sets for all of them. Those that it has no session with are told when it is
        opened; one that refuses or is dead does not matter to the others."""
        open = [tool for tool in tools if self._server(tool).has_session(client)]
        exchanges = (self.request(tool, method, params, Exchange(client=client), SOON) for tool in open)
        await asyncio.gather(*exchanges)

    async def end(self, tool: ToolSpec, client: Client) -> None:
        """End a client's session with a server."""
        if tool.name in self._servers or self.memory.table.of(tool.name, client.nonce) is not None:
            await self._server(tool).end(client)
        await self.memory.forget(tool.name, client)

    async def evict(self, tool: ToolSpec, client: Client) -> None:
        """End a client's session with a server for want of room: it comes back, with what the client had set."""
        if tool.name in self._servers:
            await self._servers[tool.name].evict(client)

    async def note(self, trajectory: str, tool: ToolSpec, client: Client, *, is_urgent: bool = False) -> None:
        """Remember with whose session a run's steps are made, so that they are undone with the same; durably with the
        journal's next record, or before this returns if it is urgent."""
        self._noted(trajectory, tool.name, client)
        await self.memory.run(tool.name, apart(client), trajectory, is_urgent=is_urgent)

    def _noted(self, trajectory: str, server: str, client: Client) -> None:
        key = (trajectory, server)
        self._clients[key] = client
        self._clients.move_to_end(key)
        if len(self._clients) > _RUNS_KEPT:
            self._clients.popitem(last=False)

    def restored(self) -> None:
        """Take over from the memory, once it is loaded, in whose session each run has steps."""
        for entry in self.memory.table:
            for trajectory in entry.runs:
                self._noted(trajectory, entry.server, entry.client)

    def _exchange_of(self, tool: ToolSpec, run: object) -> Exchange:
        """Return what a request of ours for a run carries along: the session, and the credential, that its steps had."""
        client = self._clients.get((run, tool.name), OWN_CLIENT) if isinstance(run, str) else OWN_CLIENT
        return Exchange(client=client, headers=client.credentials)

    def _server(self, tool: ToolSpec) -> Server:
        """Return the server of a tool; one that was reconfigured is replaced, and closed once nobody can be using it."""
        known = self._servers.get(tool.name)
        if known is not None and self._specs[tool.name].digest == tool.digest:
            return known
        if known is not None:
            is_there_still = place_of(self._specs[tool.name]) == place_of(tool)
            self._retired.append((known, is_there_still))
        assert tool.mcp is not None
        server: Server
        if tool.mcp.command:
            server = StdioServer(
                tool,
                self._clock,
                self._heard,
                self._asked,
                self.memory,
                self._guardian,
                capabilities=self.child_capabilities,
            )
        else:
            server = HttpServer(tool, self._http, self._clock, self.memory, self._heard, self._asked)
        self._servers[tool.name], self._specs[tool.name] = server, tool
        return server

    def _heard(self, tool: str, client: Client | None, method: str, params: str | None, place: str | None) -> None:
        self.on_event(tool, client, method, params, place)

    async def _asked(self, tool: str, client: Client, method: str, params: str | None) -> Message | None:
        return await self.on_question(tool, client, method, params)

    async def keep_only(self, tools: Mapping[str, ToolSpec]) -> None:
        """Close servers that are no longer in the manifest, and those that were replaced, once nobody uses them."""
        for name in [name for name in self._servers if name not in tools]:
            self._retired.append((self._servers.pop(name), False))
            del self._specs[name]
        idle = [one for one in self._retired if not one[0].in_flight]
        self._retired = [one for one in self._retired if one[0].in_flight]
        for server, is_leaving in idle:
            await server.close(is_leaving=is_leaving)

    async def close(self) -> None:
        """Close connections and child processes; sessions over HTTP stay, to be gone on with. May be repeated."""
        servers, self._servers, self._retired = [*self._servers.values(), *(one for one, _ in self._retired)], {}, []
        for server in servers:
            await server.close(is_leaving=True)
        self._guardian.close()
        await self._http.close()


async def _nobody(tool: str, client: Client, method: str, params: str | None) -> Message | None:
    return None


def _asks_for_input(answer: Answer) -> bool:
    return isinstance(answer, Message) and answer.value.get("resultType") == "input_required"


async def _with_input(params: str, answer: Message, exchange: Exchange) -> str:
    """Put a stateless server's questions to a client of the other era; return the params with its answers."""
    asked = members(answer.result or "{}")
    responses: dict[str, str] = {}
    for key, (raw, value) in members(asked.get("inputRequests", ("{}", {}))[0]).items():
        if isinstance(value, dict) and isinstance(method := value.get("method"), str) and exchange.ask is not None:
            said = await exchange.ask(method, members(raw).get("params", ("{}", {}))[0])
            responses[key] = said.result or '{"action":"cancel"}'
    changes: dict[str, str | None] = {"inputResponses": _joined(responses) if responses else None}
    if "requestState" in asked:
        changes["requestState"] = asked["requestState"][0]
    return replaced(params, changes)


def _value(params: str | None) -> Mapping[str, object]:
    return {key: value for key, (_, value) in members(params or "{}").items()}


def _is_unknown_method(answer: Message) -> bool:
    return answer.error is not None and answer.value.get("code") == METHOD_NOT_FOUND


def _call_params(tool: ToolSpec, arguments: str, exchange: Exchange, request: Request) -> str:
    """Return the params of `tools/call`: what the agent sent, with the name and the arguments of the step."""
    members(arguments)
    name = called(request.target.decode("ascii"))
    meta = dict(exchange.meta)
    for field in (b"traceparent", b"tracestate"):
        if (value := first_header(request.headers, field)) is not None:
            meta[field.decode()] = json.dumps(value.decode("latin-1"))
    if tool.idempotency is not None:
        key = first_header(request.headers, tool.idempotency.header.lower().encode("ascii"))
        if key is not None:
            meta[KEY_META] = json.dumps(key.decode("latin-1"))
    parts = {"name": json.dumps(name), "arguments": arguments, **exchange.params}
    if meta:
        parts["_meta"] = _joined(meta)
    return _joined(parts)


def _joined(parts: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(key)}:{raw}" for key, raw in parts.items()) + "}"


async def _text(body: Body | None) -> str:
    if body is None:
        return "{}"
    data = body.data if isinstance(body, BytesBody) else b"".join([piece async for piece in body.chunks()])
    return data.decode() or "{}"


_proof: type[Egress] = McpEgress
