"""MCP, free of any transport: a message comes in, its answer goes out, and what the servers say meanwhile with it.

`tools/call` is a step and goes down the pipeline. `tools/list` shows what was agreed to. Everything else belongs to a
server: behind an endpoint of its own it is passed on as it is, byte for byte; behind the endpoint of all servers it is
sent to the server that the name (`server__name`) or the URI belongs to, and lists are put together.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, assert_never

from gateway import __version__
from gateway.clock import Clock
from gateway.core.backoff import full_jitter
from gateway.core.budget import caps_from
from gateway.core.call import Call
from gateway.core.canonical import action_digest, ambiguity, fingerprint
from gateway.core.codes import Code
from gateway.core.fault import Broken
from gateway.core.manifest import ApprovalPolicy
from gateway.core.mcp import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    Message,
    error_message,
    members,
    notification,
    replaced,
    result_message,
)
from gateway.core.mcp_answer import is_error, refusal_result
from gateway.core.mcp_era import ENVELOPE, MODERN, REMOVED, check_named, for_legacy, for_modern
from gateway.core.mcp_operations import BadArguments, built, result_of
from gateway.core.mcp_session import Client, apart
from gateway.core.mcp_task import EXTENSION, LEGACY_VERSION, Task, as_tasks, can_take_tasks
from gateway.core.mcp_tools import CALL, Definition, joined, operation_of, parted, target_of
from gateway.core.message import Body, BytesBody, Headers, Reply, Request, first_header
from gateway.core.outcome import Failed, InDoubt, Outcome, Refusal, Rejected, Success, is_result
from gateway.core.override import lookout, objection, second_field
from gateway.core.tool import AmbiguousPath, Catalog, Operation, ToolSpec
from gateway.egress import StreamBroken, Timings
from gateway.egress.mcp import McpEgress
from gateway.egress.mcp_http import FIRST_PAUSE_S, LONGEST_PAUSE_S, UPSTREAM_HTTP
from gateway.egress.mcp_link import Answer, Exchange, Session
from gateway.ingress.caller import Caller
from gateway.ingress.mcp_listing import Listed, Listings
from gateway.ingress.mcp_party import Foreign, Party
from gateway.ingress.mcp_tasks import METHODS as TASK_METHODS
from gateway.ingress.mcp_tasks import TaskKeeper
from gateway.ingress.proxy import budget_of, preferred_wait_s, trace_run
from gateway.journal import Journal
from gateway.journal.trajectories import Trajectories

__all__ = ["CALL_KEY", "RUN_KEY", "McpService"]

CALL_KEY: Final = "dev.seawall/call"
"""Where the run and the step of a call stand, in `_meta` of its result."""
RUN_KEY: Final = "dev.seawall/trajectory"
"""Where a client may name the run, in `_meta` of a call."""
RECOVERY_KEY: Final = "dev.seawall/recovery"
"""Where what a failure should lead to stands, in `_meta` of a server's own result that says no."""
BUDGET_KEY: Final = "dev.seawall/budget"
"""Where a client may give the run's caps, in `_meta` of a call, and where an answer says that one of them is nearly
spent."""
STAGE_KEY: Final = "dev.seawall/stage"
"""Where a client may name the part of its run that a call belongs to, in `_meta` of a call."""
KEYS: Final = ("dev.seawall/idempotencyKey", "idempotencyKey", "agentbarrier/idempotencyKey")
"""Where a client may name its own key, in `_meta` of a call; the last two are names that others use."""

POLL_TOOL: Final = "seawall__approval"
ROUND_S: Final = 20.0
"""How long one request waits for people: shorter than what clients give a request."""
ANSWER_LIMIT = 64 << 20
LISTS: Final = {
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
_BY_URI: Final = frozenset({"resources/read", "resources/subscribe", "resources/unsubscribe"})
_HELD_STATE: Final = "seawall.held."
_POLL_DEFINITION: Final[dict[str, object]] = {
    "name": POLL_TOOL,
    "description": "Ask how a call stands that waits for a person's approval. Once it is granted, make that call again "
    "unchanged.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "approval": {"type": "string", "description": "`approval` of the held call's result."},
            "wait_s": {"type": "number", "description": "Seconds to wait for a decision, at most 20."},
        },
        "required": ["approval"],
    },
    "annotations": {"readOnlyHint": True},
}
_OWN_PARAMS: Final = frozenset({"name", "arguments", "_meta", "task"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_MADE_UP: Final = frozenset({b"seawall-settled", b"seawall-staged"})
_TOLD: Final = {
    b"seawall-settled": "settled",
    b"seawall-staged": "staged",
    b"seawall-warning": "warning",
    b"seawall-directive": "directive",
}
"""What HTTP agents read in header fields stands beside run and step here."""
_KEY = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,255}")
_EVEN_IF_HELD: Final = ("ping", "tools/call")
"""Calls of tools are refused by the pipeline, in words for the model."""
SEAWALL: Final = {"name": "seawall", "title": "Seawall", "version": __version__}


class McpService:
    """Answers messages.

    Args:
        catalog: the one in force.
        egress: talks to the servers.
        run: takes a call down the pipeline, finishing writes whose caller leaves.
        journal: keeps the tasks.
        approval: says how an approval stands, waiting up to so many seconds for people; those of other agents' runs are
            unknown to a proven caller.
    """

    def __init__(
        self,
        catalog: Callable[[], Catalog],
        egress: McpEgress,
        run: Callable[[Call], Awaitable[Outcome]],
        listings: Listings,
        trajectories: Trajectories,
        clock: Clock,
        journal: Journal,
        approval: Callable[[str, float, Caller], Awaitable[Mapping[str, object] | Refusal]],
    ) -> None:
        self.held_by: Callable[[str, str], str | None] = lambda run, agent: None
        self._approval = approval
        self.catalog = catalog
        self.egress = egress
        self.listings = listings
        self._run = run
        self._trajectories = trajectories
        self._clock = clock
        self.listeners: list[Listener] = []
        self.tasks = TaskKeeper(journal, clock, catalog, self._step, approval, self._task_changed)
        self._owners: dict[str, str] = {}

    # --- requests

    async def answer(self, message: Message, party: Party) -> bytes | Foreign:
        """Return the response to a request."""
        try:
            said = await self._result(message, party)
        except ValueError as error:
            return error_message(message.id, INVALID_PARAMS, f"params cannot be read: {error}")
        if isinstance(said, bytes | Foreign):
            return said
        if party.client.is_modern:
            said = for_modern(said, message.method, SEAWALL if party.tool is None else None)
        else:
            said = for_legacy(said)
        return result_message(message.id, said)

    async def _result(self, message: Message, party: Party) -> str | bytes | Foreign:
        if party.client.is_modern and message.method in REMOVED:
            return error_message(message.id, METHOD_NOT_FOUND, f"{message.method} is not spoken in this era")
        if message.method not in _EVEN_IF_HELD and (held := self._held(message, party)) is not None:
            detail = f"This agent or run is quarantined ({held}). Send nothing more; an operator has to look at it."
            return error_message(
                message.id, INTERNAL_ERROR, detail, {"code": Code.QUARANTINED.value, "quarantine": held}
            )
        match message.method:
            case "ping":
                return "{}"
            case "initialize" | "server/discover":
                return await self._hello(message, party)
            case "tools/list":
                said = await self._tools(message, party)
                return as_tasks(said, party.client) if isinstance(said, str) else said
            case "tools/call":
                return await self.tasks.call(message, party)
            case "logging/setLevel":
                return await self._log_level(message, party)
            case "subscriptions/listen" if party.client.is_modern:
                return await self._listen(message, party)
        if message.method in TASK_METHODS and self.tasks.is_ours(message, party):
            return await self.tasks.answer(message, party)
        if party.tool is not None:
            return await self._pass_on(message, party, party.tool)
        return await self._route(message, party)

    def _held(self, message: Message, party: Party) -> str | None:
        """Return the quarantine that whoever sends a message is under: what is no call of a tool has no other guard."""
        named = _run_name(message, party)
        return self.held_by("" if isinstance(named, Refusal) else named[0], _agent(party))

    # --- greetings

    async def _hello(self, message: Message, party: Party) -> str | bytes | Foreign:
        client = party.client
        is_greeting = message.method == "initialize"
        if is_greeting is client.is_modern:
            return error_message(message.id, METHOD_NOT_FOUND, f"{message.method} is not spoken in this era")
        capabilities, info, instructions = _ALL, json.dumps(SEAWALL), None
        if party.tool is not None and party.tool.mcp is None:
            capabilities = '{"tools":{}}'
        elif party.tool is not None:
            session = await self.egress.session(party.tool, client, _timings(party.tool))
            if isinstance(session, Broken | Reply):
                return self._unreachable(message, party.tool, session)
            facts = session.facts
            capabilities, instructions = facts.raw_capabilities, facts.instructions
            info = json.dumps(facts.info or SEAWALL)
        parts = {"capabilities": _with_tasks(capabilities, client)}
        if instructions is not None:
            parts["instructions"] = json.dumps(instructions)
        if is_greeting:
            parts = {"protocolVersion": json.dumps(client.version), **parts, "serverInfo": info}
        else:
            parts = {
                "supportedVersions": json.dumps(MODERN),
                **parts,
                "_meta": f'{{"io.modelcontextprotocol/serverInfo":{info}}}',
            }
        return _object(parts)

    def _unreachable(self, message: Message, tool: ToolSpec, problem: Reply | Broken) -> bytes | Foreign:
        if isinstance(problem, Reply):
            if problem.status in (401, 403):
                return Foreign(problem)
            detail = f"{tool.name} answered {problem.status}"
        else:
            detail = problem.detail
        return error_message(
            message.id, INTERNAL_ERROR, f"{detail}. Other servers are not affected.", {"server": tool.name}
        )

    # --- tools

    async def _tools(self, message: Message, party: Party) -> str | bytes | Foreign:
        tool = party.tool
        if tool is None:
            return await self._all_tools(party)
        if tool.mcp is None:
            listed = await self.listings.of(tool, Exchange(client=party.client))
            return json.dumps({"tools": [one.value for one in self.listings.visible(tool, listed)] + _polls([tool])})
        answer = await self._ask(message, party, tool)
        if not isinstance(answer, Message):
            return self._unreachable(message, tool, answer)
        if answer.result is None:
            return _error_of(message, answer)
        try:
            page = self.listings.page(tool, answer)
        except ValueError as error:
            return error_message(message.id, INTERNAL_ERROR, f"The answer of {tool.name} is no list of tools: {error}.")
        if not (added := _polls([tool])) or "nextCursor" in answer.value:
            return page
        shown = members(page)["tools"][1]
        return replaced(page, {"tools": json.dumps([*(shown if isinstance(shown, list) else []), *added])})

    async def _all_tools(self, party: Party) -> str:
        catalog = self.catalog()
        servers = [tool for tool in catalog.tools.values() if tool.mcp is not None or tool.is_managed]
        exchange = Exchange(client=party.client)
        listed = await asyncio.gather(*(self.listings.soon(tool, exchange) for tool in servers))
        found: list[dict[str, object]] = []
        problems: dict[str, str] = {}
        for tool, one in sorted(zip(servers, listed, strict=True), key=lambda pair: pair[0].name):
            if one.problem is not None:
                problems[tool.name] = one.problem
            found += [{**item.value, "name": joined(tool.name, item.name)} for item in self.listings.visible(tool, one)]
        result: dict[str, object] = {"tools": found + _polls(servers)}
        if problems:
            result["_meta"] = {"dev.seawall/unavailable": problems}
        return json.dumps(result)

    # --- a call

    async def _step(self, message: Message, party: Party) -> str | bytes | Foreign:
        """Make a call once, and say what it came to."""
        params = members(message.params or "{}")
        name = params.get("name", ("", None))[1]
        raw, arguments = params.get("arguments", ("{}", {}))
        if arguments is None:
            raw, arguments = "{}", {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return error_message(message.id, INVALID_PARAMS, "`name` must be a text and `arguments` an object")
        if name == POLL_TOOL:
            return await self._poll(arguments, party)
        found = self._tool_of(name, party)
        if found is None:
            return self._unknown(message, name, party)
        tool, own = found
        exchange = self._exchange(message, party, tool)
        definition, listed = await self.listings.find(tool, own, exchange)
        if definition is not None:
            exchange.schema, exchange.needs_task = definition.schema, definition.is_task_alone
            if party.client.is_modern and (wrong := check_named(party.headers, exchange.schema, arguments)) is not None:
                return error_message(message.id, wrong.code, wrong.message)
        if self.listings.held(tool.name, own):
            return self._told(party, _held(tool, own))
        operation = self._operation(tool, own, definition)
        if operation is None or (definition is None and listed.is_complete and not operation.is_declared):
            return self._unknown(message, name, party, tool, listed)
        if tool.is_strict and not operation.is_declared and not operation.is_read:
            return self._told(party, _undeclared(tool, own))
        call = self._made(message, party, tool, operation, own, raw, arguments, exchange)
        if isinstance(call, Refusal):
            return self._told(party, call)
        if call.trajectory:
            # Durable with the run's first record, so that what is undone after a crash is undone in the same session.
            await self.egress.note(call.trajectory, tool, exchange.client)
        return await self._answered(message, party, call, await self._run(call), exchange)

    def _tool_of(self, name: str, party: Party) -> tuple[ToolSpec, str] | None:
        if party.tool is not None:
            return party.tool, name
        tools = self.catalog().tools
        found = parted(name, tools)
        return None if found is None else (tools[found[0]], found[1])

    def _operation(self, tool: ToolSpec, own: str, definition: Definition | None) -> Operation | None:
        if tool.mcp is not None:
            return operation_of(tool, own, definition)
        operation = tool.operations.get(own)
        return operation if operation is not None and operation.is_declared else None

    def _made(
        self,
        message: Message,
        party: Party,
        tool: ToolSpec,
        operation: Operation,
        own: str,
        raw: str,
        arguments: Mapping[str, object],
        exchange: Exchange,
    ) -> Call | Refusal:
        method, target, body = CALL, target_of(own), raw.encode()
        headers: Headers = ((b"Content-Type", b"application/json"),)
        sent: bytes | None = body
        params: Mapping[str, str] = {}
        if tool.mcp is None:
            try:
                method, target, headers, sent = built(operation, arguments)
                params = _same(operation, tool, method, target, headers, sent)
            except (BadArguments, AmbiguousPath) as error:
                return Refusal(code=Code.INVALID_ARGUMENTS, detail=f"{error}; nothing was sent.", dependency=tool.name)
        if operation.is_declared and not operation.is_read and (why := ambiguity(body)) is not None:
            detail = f"The arguments are ambiguous: {why}. Nothing was sent; send each key once."
            return Refusal(code=Code.INVALID_ARGUMENTS, detail=detail, dependency=tool.name)
        named = _run_name(message, party)
        if isinstance(named, Refusal):
            return named
        key = _caller_key(message, party)
        if isinstance(key, Refusal):
            return key
        budget = _budget(message, party, named[0])
        if isinstance(budget, Refusal):
            return budget
        stage = _stage(message, party)
        if isinstance(stage, Refusal):
            return stage
        # What answers a server's own questions makes another call of it; the agent's repeats of that are repeats.
        content = b"\0".join([body, *(f"{name}={text}".encode() for name, text in sorted(exchange.params.items()))])
        now = self._clock.now()
        return Call(
            tool=tool,
            operation=operation,
            request=Request(
                method,
                target.encode("ascii"),
                (*_context(message, party), *headers),
                None if sent is None else BytesBody(sent),
                has_side_effects=not operation.is_read,
                capture_answer=True,
                exchange=exchange if tool.mcp is not None else None,
            ),
            agent=_agent(party),
            is_agent_proven=party.client.is_proven,
            started=now,
            deadline=now + operation.timeouts.total,
            trajectory=named[0],
            is_run_named=named[1],
            params=params,
            caller_key=key,
            budget=budget,
            wait_s=ROUND_S if _asked_again(message) else preferred_wait_s(party.headers),
            stage=stage,
            action=action_digest(f"{tool.name}.{operation.name}", method, target, "application/json", content),
            fingerprint=fingerprint(method, target, "application/json", content),
        )

    async def _answered(
        self, message: Message, party: Party, call: Call, outcome: Outcome, exchange: Exchange
    ) -> str | bytes | Foreign:
        self._mark(party, call, outcome)
        if call.trajectory:
            is_urgent = not call.operation.is_read
            await self.egress.note(call.trajectory, call.tool, exchange.client, is_urgent=is_urgent)
        match outcome:
            case Success(reply, is_replay):
                return await self._reply(message, party, call, reply, is_replay)
            case Failed(reply=reply) if reply is not None:
                return await self._reply(message, party, call, reply, False)
            case Rejected(refusal) if refusal.code is Code.HELD_FOR_APPROVAL and _can_be_asked_again(message, party):
                return _held_question(refusal)
            case Rejected(refusal) if refusal.code is Code.HELD_FOR_APPROVAL:
                party.held = refusal
            case Rejected(refusal):
                if refusal.code is not Code.FOREIGN_TRAJECTORY:
                    self._trajectories.note_refusal(call.trajectory, refusal.code, call.tool.name, call.operation.name)
            case Failed(refusal=given):
                refusal = given or Refusal(
                    code=Code.UPSTREAM_CONNECT, detail=f"{call.tool.name} could not be reached; nothing was sent."
                )
            case InDoubt(refusal=refusal, reply=reply):
                if reply is not None:
                    await reply.aclose()
            case _ as never:
                assert_never(never)
        return self._told(party, refusal, call)

    async def _reply(
        self, message: Message, party: Party, call: Call, reply: Reply, is_replay: bool
    ) -> str | bytes | Foreign:
        try:
            body = await _whole(reply.body)
        except (StreamBroken, ValueError) as error:
            party.delivered = None
            refusal = Refusal(
                code=Code.UPSTREAM_PROTOCOL, detail=f"The answer of {call.tool.name} broke off: {error}. It was a read."
            )
            return self._told(party, refusal, call)
        finally:
            await reply.aclose()
        kind = (first_header(reply.headers, b"content-type") or b"").decode("latin-1")
        if call.tool.mcp is None or (_is_made_up(reply.headers) and not _is_result(body)):
            text = result_of(reply.status, kind, body)
        elif any(field in UPSTREAM_HTTP for field in reply.headers):
            if reply.status in (401, 403):
                return Foreign(Reply(reply.status, reply.reason, reply.headers, BytesBody(body)))
            text = result_of(reply.status, kind, body)
        elif is_error(reply):
            return f'{{"jsonrpc":"2.0","id":{message.id},"error":{body.decode()}}}'.encode()
        else:
            text = body.decode()
        added: dict[str, str] = {}
        if call.step is not None:
            where = {"trajectory": call.trajectory, "step": call.step, **({"replayed": True} if is_replay else {})}
            where |= {key: value.decode("latin-1") for name, value in reply.headers if (key := _TOLD.get(name.lower()))}
            added[CALL_KEY] = json.dumps(where)
        if call.notice:
            added[BUDGET_KEY] = json.dumps(call.notice)
        if (explained := first_header(reply.headers, b"seawall-explain")) is not None:
            added[RECOVERY_KEY] = explained.decode()
        if not added:
            return text
        meta = members(text).get("_meta", ("{}", {}))
        inner = replaced(meta[0] if isinstance(meta[1], dict) else "{}", added)
        return replaced(text, {"_meta": inner})

    def _mark(self, party: Party, call: Call, outcome: Outcome) -> None:
        if call.trajectory:
            party.marks = ((b"Seawall-Trajectory", call.trajectory.encode("ascii")),)
        if call.step is None or call.operation.is_read:
            return
        name, step = call.trajectory, call.step
        party.marks = (*party.marks, (b"Seawall-Step", b"%d" % step))
        party.delivered = (lambda: self._trajectories.delivered(name, step)) if is_result(outcome) else None

    def _told(self, party: Party, refusal: Refusal, call: Call | None = None) -> str:
        return refusal_result(
            refusal,
            trajectory=None if call is None else call.trajectory or None,
            step=None if call is None else call.step,
        )

    def _unknown(
        self, message: Message, name: str, party: Party, tool: ToolSpec | None = None, listed: Listed | None = None
    ) -> bytes:
        catalog = self.catalog().tools
        if tool is None or listed is None:
            known = [joined(server, "") for server in catalog]
        else:
            own = sorted(listed.tools)
            known = own if party.tool is not None else [joined(tool.name, one) for one in own]
        near = difflib.get_close_matches(name, known, n=3)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        return error_message(message.id, INVALID_PARAMS, f"Unknown tool: {name[:128]}.{hint}", {"known": known[:20]})

    async def _poll(self, arguments: Mapping[str, object], party: Party) -> str:
        """Answer the tool that asks how a held call stands."""
        identity, wait_s = arguments.get("approval"), arguments.get("wait_s", 0)
        if not isinstance(identity, str) or not isinstance(wait_s, int | float) or isinstance(wait_s, bool):
            return refusal_result(
                Refusal(
                    code=Code.INVALID_ARGUMENTS, detail="`approval` must be a text and `wait_s` a number of seconds."
                )
            )
        view = await self._approval(identity, max(0.0, min(float(wait_s), ROUND_S)), _caller(party))
        if isinstance(view, Refusal):
            return refusal_result(view)
        text = f"The approval is {view.get('state')}. {view.get('next') or ''}".strip()
        return json.dumps({"content": [{"type": "text", "text": text}], "structuredContent": view, "isError": False})

    # --- everything else

    def _exchange(self, message: Message, party: Party, tool: ToolSpec) -> Exchange:
        params = members(message.params or "{}")
        raw, value = params.get("_meta", ("{}", {}))
        meta = {} if not isinstance(value, dict) else {key: text for key, (text, _) in members(raw).items()}
        own = ENVELOPE | {RUN_KEY, STAGE_KEY, BUDGET_KEY, *KEYS}
        own_params = _OWN_PARAMS | {"requestState", "inputResponses"} if _is_ours(message) else _OWN_PARAMS
        client = party.client
        if party.conversation.log_level is not None:
            client = replace(client, log_level=party.conversation.log_level)
        outbox, conversation = party.outbox, party.conversation

        def tell(method: str, params: str | None) -> None:
            if method == "notifications/tools/list_changed":
                self.heard(tool.name, method, params)
            outbox.put(notification(method, params))

        async def ask(method: str, params: str | None) -> Message:
            return await conversation.ask(outbox, method, params)

        party.exchange = Exchange(
            client=client,
            params={key: text for key, (text, _) in params.items() if key not in own_params},
            meta={key: text for key, text in meta.items() if key not in own},
            headers=party.client.credentials,
            tell=tell,
            ask=party.asking or (ask if party.can_ask else None),
            is_detached=lambda: party.is_detached,
        )
        return party.exchange

    async def _ask(self, message: Message, party: Party, tool: ToolSpec, params: str | None = None) -> Answer:
        """Send a request on as it is."""
        exchange = self._exchange(message, party, tool)
        text = params if params is not None else message.params
        if text is not None and party.client.is_modern:
            text = _without_envelope(text)
        return await self.egress.request(tool, message.method, text, exchange, _timings(tool))

    async def _pass_on(
        self, message: Message, party: Party, tool: ToolSpec, params: str | None = None
    ) -> str | bytes | Foreign:
        if tool.mcp is None:
            return error_message(message.id, METHOD_NOT_FOUND, f"{tool.name} is HTTP: it has tools and nothing else")
        answer = await self._ask(message, party, tool, params)
        if not isinstance(answer, Message):
            return self._unreachable(message, tool, answer)
        return _error_of(message, answer) if answer.result is None else answer.result

    async def _log_level(self, message: Message, party: Party) -> str | bytes | Foreign:
        level = message.value.get("level")
        party.conversation.log_level = level if isinstance(level, str) else None
        await self.egress.memory.set("", party.client, message.method, message.params, message.value)
        if party.tool is None:
            servers = [tool for tool in self.catalog().tools.values() if tool.mcp is not None]
            await self.egress.set_everywhere(servers, party.client, message.method, message.params)
        elif party.tool.mcp is not None:
            session = await self.egress.session(party.tool, party.client, _timings(party.tool))
            if isinstance(session, Broken | Reply) or not session.facts.is_modern:
                return await self._pass_on(message, party, party.tool)
        return "{}"

    def level_of(self, client: Client) -> str | None:
        """Return the log level that a client asked for, be it before a restart."""
        entry = self.egress.memory.table.of("", client.nonce)
        level = None if entry is None or entry.level is None else members(entry.level).get("level", ("", None))[1]
        return level if isinstance(level, str) else None

    async def notified(self, message: Message, party: Party) -> None:
        """Take a notification of a client."""
        if message.method == "notifications/cancelled":
            raw = members(message.params or "{}").get("requestId", ("", None))[0]
            task = party.conversation.running.get(raw)
            if task is not None:
                task.cancel()
            return
        if message.method == "notifications/initialized" or party.tool is None or party.tool.mcp is None:
            return
        session = await self.egress.session(party.tool, party.client, _timings(party.tool))
        if not isinstance(session, Broken | Reply):
            await session.notify(message.method, message.params)

    async def attend(self, name: str, client: Client, since: str | None = None) -> None:
        """Have a server's own stream open for a client that listens, from a place in it on, until cancelled."""
        before: Session | None = None
        failures = 0
        while (tool := self.catalog().tools.get(name)) is not None:
            session = await self.egress.session(tool, client, _timings(tool))
            if session is before:
                return  # It has nothing to say unasked.
            if isinstance(session, Broken | Reply):
                failures += 1
                await self._clock.sleep(full_jitter(failures, FIRST_PAUSE_S, LONGEST_PAUSE_S, self._clock.draw()))
                continue
            before, failures = session, 0
            await session.listen(since)

    # --- all servers behind one endpoint

    async def _route(self, message: Message, party: Party) -> str | bytes | Foreign:
        servers = {name: tool for name, tool in self.catalog().tools.items() if tool.mcp is not None}
        if message.method in LISTS:
            return await self._together(message, party, servers)
        if message.method == "prompts/get":
            found = parted(str(message.value.get("name")), servers)
            if found is None:
                return error_message(message.id, INVALID_PARAMS, "no server has such a prompt")
            params = replaced(message.params or "{}", {"name": json.dumps(found[1])})
            return await self._pass_on(message, party, servers[found[0]], params)
        if message.method in _BY_URI:
            return await self._by_uri(message, party, servers)
        if message.method == "completion/complete":
            return await self._completion(message, party, servers)
        detail = f"{message.method} belongs to one server: send it to /seawall/mcp/SERVER"
        return error_message(message.id, METHOD_NOT_FOUND, detail)

    async def _together(self, message: Message, party: Party, servers: Mapping[str, ToolSpec]) -> str:
        key = LISTS[message.method]
        answers = await asyncio.gather(*(self._pages(message, party, tool, key) for tool in servers.values()))
        found: list[object] = []
        for name, items in zip(servers, answers, strict=True):
            for item in items:
                if key == "prompts" and isinstance(item, dict):
                    item = {**item, "name": joined(name, str(item.get("name")))}
                elif isinstance(item, dict) and isinstance(uri := item.get("uri"), str):
                    self._owners[uri] = name
                    while len(self._owners) > 50_000:
                        del self._owners[next(iter(self._owners))]
                found.append(item)
        return json.dumps({key: found})

    async def _pages(self, message: Message, party: Party, tool: ToolSpec, key: str) -> list[object]:
        found: list[object] = []
        params = _without_envelope(message.params or "{}")
        for _ in range(100):
            answer = await self._ask(message, party, tool, params)
            items = answer.value.get(key) if isinstance(answer, Message) else None
            if not isinstance(answer, Message) or not isinstance(items, list):
                break
            found += items
            cursor = answer.value.get("nextCursor")
            if not isinstance(cursor, str):
                break
            params = replaced(params, {"cursor": json.dumps(cursor)})
        return found

    async def _by_uri(self, message: Message, party: Party, servers: Mapping[str, ToolSpec]) -> str | bytes | Foreign:
        owner = self._owners.get(str(message.value.get("uri")))
        candidates = [servers[owner]] if owner in servers and owner is not None else list(servers.values())
        said: str | bytes | Foreign = error_message(message.id, INVALID_PARAMS, "no server has such a resource")
        for tool in candidates:
            said = await self._pass_on(message, party, tool)
            if isinstance(said, str):
                return said
        return said

    async def _completion(
        self, message: Message, party: Party, servers: Mapping[str, ToolSpec]
    ) -> str | bytes | Foreign:
        raw, ref = members(message.params or "{}").get("ref", ("{}", {}))
        if isinstance(ref, dict) and isinstance(name := ref.get("name"), str):
            found = parted(name, servers)
            if found is not None:
                inner = replaced(raw, {"name": json.dumps(found[1])})
                params = replaced(message.params or "{}", {"ref": inner})
                return await self._pass_on(message, party, servers[found[0]], params)
        return error_message(message.id, INVALID_PARAMS, "no server has what should be completed")

    # --- subscriptions of the stateless era

    async def _listen(self, message: Message, party: Party) -> bytes:
        """Tell what changes until the client leaves."""
        wanted = message.value.get("notifications")
        filter_ = dict(wanted) if isinstance(wanted, Mapping) else {}
        if "taskIds" in filter_:
            if not can_take_tasks(party.client):
                needed: dict[str, object] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
                return error_message(message.id, MISSING_CAPABILITY, "Missing required client capability", needed)
            named = filter_["taskIds"]
            known = [id for id in named if self.tasks.tasks.of(id, party.client)] if isinstance(named, list) else []
            filter_["taskIds"] = known
        meta = f'{{"io.modelcontextprotocol/subscriptionId":{message.id}}}'
        told = f'{{"notifications":{json.dumps(filter_)},"_meta":{meta}}}'
        party.outbox.put(notification("notifications/subscriptions/acknowledged", told))
        listener = Listener(party, filter_, meta)
        self.listeners.append(listener)
        tools = [party.tool] if party.tool is not None else [t for t in self.catalog().tools.values() if t.mcp]
        feeds = [asyncio.ensure_future(self._feed(message, party, tool, listener)) for tool in tools if tool.mcp]
        try:
            await asyncio.Event().wait()
        finally:
            self.listeners.remove(listener)
            for feed in feeds:
                feed.cancel()
        raise AssertionError

    async def _feed(self, message: Message, party: Party, tool: ToolSpec, listener: Listener) -> None:
        session = await self.egress.session(tool, party.client, _timings(tool))
        if isinstance(session, Broken | Reply):
            return
        if not session.facts.is_modern:
            for uri in listener.uris:
                text = f'{{"uri":{json.dumps(uri)}}}'
                exchange = Exchange(client=party.client, headers=party.client.credentials)
                await self.egress.request(tool, "resources/subscribe", text, exchange, _timings(tool))
            await self.attend(tool.name, party.client)
            return
        exchange = Exchange(
            client=party.client,
            headers=party.client.credentials,
            tell=lambda method, params: self.heard(tool.name, method, params),
        )
        params = _without_envelope(message.params or "{}")
        forever = _timings(tool)._replace(idle_s=86_400.0, total_s=86_400.0)
        await session.request(message.method, params, exchange, forever, has_side_effects=False)

    def heard(self, tool: str, method: str, params: str | None, client: Client | None = None) -> None:
        """Take what a server says that belongs to no request, and tell those who want to know; of what was said in the
        session of a client (None: to all), those whose session it is."""
        if method == "notifications/tools/list_changed":
            self.listings.changed(tool)
        for listener in self.listeners:
            if client is not None and client.nonce != apart(listener.party.client).nonce:
                continue
            if listener.party.tool is None or listener.party.tool.name == tool:
                listener.hear(method, params)

    def _task_changed(self, task: Task) -> None:
        """Tell the clients that listen for a task."""
        for listener in self.listeners:
            named = listener.wanted.get("taskIds")
            if isinstance(named, list) and task.id in named:
                told = replaced(self.tasks.view(task), {"_meta": listener.meta})
                listener.party.outbox.put(notification("notifications/tasks", told))


@dataclass(frozen=True, slots=True, eq=False)
class Listener:
    """One open subscription."""

    party: Party
    wanted: Mapping[str, object]
    meta: str

    @property
    def uris(self) -> list[str]:
        """The resources whose changes it wants to know."""
        found = self.wanted.get("resourceSubscriptions")
        return [uri for uri in found if isinstance(uri, str)] if isinstance(found, list) else []

    def hear(self, method: str, params: str | None) -> None:
        """Pass a notification on if it was asked for."""
        key = _FILTERS.get(method)
        is_wanted = self.wanted.get(key) is True if key is not None else False
        if method == "notifications/resources/updated":
            is_wanted = members(params or "{}").get("uri", ("", None))[1] in self.uris
        if is_wanted:
            self.party.outbox.put(notification(method, replaced(params or "{}", {"_meta": self.meta})))


_FILTERS: Final = {
    "notifications/tools/list_changed": "toolsListChanged",
    "notifications/prompts/list_changed": "promptsListChanged",
    "notifications/resources/list_changed": "resourcesListChanged",
}
_TASKS: Final = '{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}'
_ALL: Final = json.dumps({
    "tools": {"listChanged": True}, "prompts": {"listChanged": True}, "resources": {"listChanged": True},
    "logging": {}, "completions": {},
})  # fmt: skip


def _with_tasks(capabilities: str, client: Client) -> str:
    """Return a server's capabilities with ours: calls may be tasks, whoever the server is."""
    if client.is_modern:
        extensions = members(capabilities).get("extensions", ("{}", {}))
        own = replaced(extensions[0] if isinstance(extensions[1], dict) else "{}", {EXTENSION: "{}"})
        return replaced(capabilities, {"extensions": own})
    if client.version != LEGACY_VERSION:
        return capabilities
    return replaced(capabilities, {"tasks": _TASKS})


def _polls(tools: Iterable[ToolSpec]) -> list[dict[str, object]]:
    """The tool that asks about approvals, where something may need one."""
    needed = any(op.approval is ApprovalPolicy.REQUIRED for tool in tools for op in tool.operations.values())
    return [_POLL_DEFINITION] if needed else []


def _is_ours(message: Message) -> bool:
    state = message.value.get("requestState")
    return isinstance(state, str) and state.startswith(_HELD_STATE)


def _asked_again(message: Message) -> bool:
    """Whether the client was told that its call is held, and its user wants to wait on."""
    responses = message.value.get("inputResponses")
    said = responses.get("approval") if isinstance(responses, Mapping) else None
    return _is_ours(message) and isinstance(said, Mapping) and said.get("action") == "accept"


def _can_be_asked_again(message: Message, party: Party) -> bool:
    """Whether a held call may be answered with a question: the client can put one to its user, who has not said no."""
    is_able = party.client.is_modern and party.client.can("elicitation") and not party.is_task
    return is_able and (not _is_ours(message) or _asked_again(message))


def _held_question(refusal: Refusal) -> str:
    """A held call in the protocol's own words: whoever says yes asks again, for as long as the approval is open.

    The state names the approval for people who look at it; nothing is decided by it, so it needs no seal: the call itself is
    matched with its approval by the gate.
    """
    schema = {"type": "object", "properties": {}}
    question = {"message": f"{refusal.detail} Accept to wait for the decision.", "requestedSchema": schema}
    result = {
        "resultType": "input_required",
        "requestState": f"{_HELD_STATE}{refusal.extra.get('approval', '')}",
        "inputRequests": {"approval": {"method": "elicitation/create", "params": question}},
        "_meta": {"dev.seawall/held": dict(refusal.extra)},
    }
    return json.dumps(result)


def _object(parts: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(key)}:{raw}" for key, raw in parts.items()) + "}"


def _error_of(message: Message, answer: Message) -> bytes:
    return f'{{"jsonrpc":"2.0","id":{message.id},"error":{answer.error}}}'.encode()


def _without_envelope(params: str) -> str:
    raw, value = members(params).get("_meta", ("{}", {}))
    if not isinstance(value, dict) or ENVELOPE.isdisjoint(value):
        return params
    rest = replaced(raw, dict.fromkeys(ENVELOPE))
    return replaced(params, {"_meta": rest if rest != "{}" else None})


def _timings(tool: ToolSpec) -> Timings:
    bounds = next(iter(tool.operations.values())).timeouts
    return Timings(connect_s=bounds.connect, first_byte_s=bounds.first_byte, idle_s=bounds.idle, total_s=bounds.total)


def _held(tool: ToolSpec, name: str) -> Refusal:
    return Refusal(
        code=Code.HOLD,
        dependency=tool.name,
        detail=f"The definition of {tool.name}'s tool {name} is not the one that was agreed to, so it is not called; "
        "an operator has to look at it (seawall tools diff) and accept it. Use another tool meanwhile.",
    )


def _undeclared(tool: ToolSpec, name: str) -> Refusal:
    declared = sorted(one.source.removeprefix(f"{CALL} ") for one in tool.operations.values() if one.is_declared)
    return Refusal(
        code=Code.UNKNOWN_TOOL,
        dependency=tool.name,
        detail=f"{tool.name} is strict, and its tool {name} is not declared, so it is not called. "
        f"Use one of: {', '.join(declared) or 'none'}.",
    )


def _is_made_up(headers: Headers) -> bool:
    """Whether an answer is the gateway's own, of a step whose tool was not asked yet, or whose answer never came."""
    return any(name.lower() in _MADE_UP for name, _ in headers)


def _is_result(body: bytes) -> bool:
    """Whether what a manifest made of a probe's answer (`result`) is a tool's result already."""
    try:
        return isinstance(members(body.decode()).get("content", ("", None))[1], list)
    except ValueError:
        return False


def _stage(message: Message, party: Party) -> str | Refusal:
    given = first_header(party.headers, b"seawall-stage")
    stage = message.meta.get(STAGE_KEY, "") if given is None else given.decode("latin-1")
    if isinstance(stage, str) and (not stage or _NAME.fullmatch(stage)):
        return stage
    return Refusal(
        code=Code.INVALID_ARGUMENTS,
        detail=f"A stage's name (header Seawall-Stage, or {STAGE_KEY} in _meta) holds 1 to 128 letters, digits and . _ : -, "
        "the first a letter or digit.",
    )


def _run_name(message: Message, party: Party) -> tuple[str, bool] | Refusal:
    given = first_header(party.headers, b"seawall-trajectory")
    name = message.meta.get(RUN_KEY) if given is None else given.decode("latin-1")
    if name is None:
        return _traced(message, party), False
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return Refusal(
            code=Code.INVALID_ARGUMENTS,
            detail=f"A run's name (header Seawall-Trajectory, or {RUN_KEY} in _meta) holds 1 to 128 letters, digits and "
            ". _ : -, the first a letter or digit.",
        )
    return name, True


def _budget(message: Message, party: Party, run: str) -> dict[str, float] | Refusal | None:
    field = first_header(party.headers, b"seawall-budget")
    given = message.meta.get(BUDGET_KEY)
    if field is not None or given is None:
        return budget_of(field, run)
    caps = caps_from(given)
    if not run:
        caps = [f"a budget belongs to a run, so name one with {RUN_KEY}"]
    if isinstance(caps, list):
        return Refusal(
            code=Code.INVALID_ARGUMENTS,
            detail=f"Nothing was sent. {BUDGET_KEY} in _meta: {'; '.join(caps)}.",
            extra={"problems": caps},
        )
    return caps


def _caller_key(message: Message, party: Party) -> str | Refusal | None:
    given = first_header(party.headers, b"idempotency-key")
    key: object = next((message.meta[name] for name in KEYS if name in message.meta), None)
    if given is not None:
        key = given.decode("latin-1").strip('"')
    if key is None:
        return None
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        return Refusal(
            code=Code.INVALID_ARGUMENTS, detail="An idempotency key holds 1 to 255 visible ASCII characters, no quotes."
        )
    return key


def _agent(party: Party) -> str:
    return party.client.agent or "local"


def _caller(party: Party) -> Caller:
    return Caller(_agent(party), is_proven=party.client.is_proven)


def _same(
    operation: Operation, tool: ToolSpec, method: str, target: str, headers: Headers, sent: bytes | None
) -> Mapping[str, str]:
    """Return the parameters of a request that arguments have made of an operation, once it is sure to be no other's.

    Raises:
        AmbiguousPath: it is another operation, or the tool could take it for another.
        BadArguments: one of them could replace the method.
    """
    match = tool.match(method, target)
    if match.operation.name != operation.name:
        raise AmbiguousPath(
            f"with these arguments it would be a call of `{match.operation.name}`, not of `{operation.name}`: change the "
            "arguments, or call that"
        )
    if (field := second_field(headers, operation.overrides)) is not None:
        raise BadArguments(objection(f"the header field `{field}`", tool.name))
    found = lookout((first_header(headers, b"content-type") or b"").decode("latin-1"))
    if sent and found is not None and "_method" not in operation.overrides and found.finds(sent):
        raise BadArguments(objection("the argument `_method`", tool.name))
    return match.params


def _context(message: Message, party: Party) -> Headers:
    """The trace that a call belongs to: what `_meta` says wins over the request's header (SEP-414)."""
    found: list[tuple[bytes, bytes]] = []
    for name in ("traceparent", "tracestate"):
        said = message.meta.get(name)
        value = said.encode("ascii", "ignore") if isinstance(said, str) else None
        value = first_header(party.headers, name.encode()) if value is None else value
        if value is not None and re.fullmatch(rb"[\x20-\x7e]{1,512}", value):
            found.append((name.encode(), value))
    return tuple(found)


def _traced(message: Message, party: Party) -> str:
    """A client without a session has the run of its trace; without a trace, the agent's own that closes by itself."""
    trace = first_header(_context(message, party), b"traceparent")
    if trace is None or party.client.nonce:
        return ""
    return trace_run(trace, party.client.agent if party.client.is_proven else None)


async def _whole(body: Body) -> bytes:
    if isinstance(body, BytesBody):
        return body.data
    data = bytearray()
    async for piece in body.chunks():
        data += piece
        if len(data) > ANSWER_LIMIT:
            raise ValueError(f"it is larger than {ANSWER_LIMIT} bytes")
    return bytes(data)
