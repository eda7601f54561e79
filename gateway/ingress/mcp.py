"""MCP over Streamable HTTP, towards clients of both eras.

    /seawall/mcp           all servers; tools are called `server__tool`
    /seawall/mcp/{server}  one server; names as they are

POST carries messages, GET (handshake era) is the stream for what belongs to no request, DELETE ends a session. An answer is
plain JSON as long as there is nothing to say before it; with the first notification or question, or after `STREAM_AFTER_S`,
it becomes a stream, kept alive with comments and without any bound on its length. A client that closes the stream of a
read cancels it; of a write, it only stops waiting: the write is finished, recorded, and delivered to whoever repeats it.

Web pages may not talk to us: a foreign `Origin` is refused, and on loopback a `Host` that is none (DNS rebinding).

Source: MCP "Transports" 2025-03-26 to 2026-07-28.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Final
from urllib.parse import unquote

from gateway.clock import Clock
from gateway.core.codes import Code
from gateway.core.mcp import (
    INVALID_REQUEST,
    Kind,
    Malformed,
    Message,
    error_message,
    members,
    notification,
    parse,
    parse_batch,
)
from gateway.core.mcp_ended import EndedSessions
from gateway.core.mcp_era import (
    CAPABILITIES,
    CLIENT_INFO,
    LEGACY,
    LOG_LEVEL,
    MODERN,
    VERSION,
    check_envelope,
    http_status,
    is_modern,
    negotiated,
)
from gateway.core.mcp_session import (
    ANONYMOUS,
    Client,
    sealed,
    sealed_places,
    unsealed,
    unsealed_places,
    with_credentials,
)
from gateway.core.message import BytesBody, Headers, first_header, without_headers
from gateway.core.outcome import Refusal
from gateway.core.problem import problem
from gateway.core.sse import comment, event, pause
from gateway.core.tool import ToolSpec
from gateway.egress.spool import Spool, SpoolFailed, TooLarge
from gateway.ingress.http import IncomingRequest, OutgoingResponse, UploadBroken
from gateway.ingress.mcp_conversations import Conversation, Conversations
from gateway.ingress.mcp_party import Foreign, Party
from gateway.ingress.mcp_service import McpService

__all__ = ["McpFront"]

STREAM_AFTER_S: Final = 5.0
KEEP_ALIVE_S: Final = 15.0
COME_BACK_MS: Final = 5_000
"""When a client whose stream broke off is asked to come back. The SDKs try once or twice and then listen no more, so it is
as long as a restart may take."""
_ROOT: Final = b"/seawall/mcp"
_AGENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_LOCAL = re.compile(r"(?:https?://)?(?:localhost|127\.\d+\.\d+\.\d+|\[::1\])(?::\d+)?", re.IGNORECASE)
_JSON: Headers = ((b"Content-Type", b"application/json"),)
_STREAM: Headers = (
    (b"Content-Type", b"text/event-stream"),
    (b"Cache-Control", b"no-cache, no-transform"),
    (b"X-Accel-Buffering", b"no"),
)
_UPSTREAM_FIELDS = frozenset({b"mcp-upstream-answer", b"content-length", b"transfer-encoding", b"date"})


class McpFront:
    """Serves the two kinds of endpoints.

    Args:
        service: answers messages.
        spool: takes large bodies while they come in.
        key: seals session ids.
        body_max: a larger message is refused, in bytes.
        sessions_max: clients of the handshake era in memory at a time.
        is_local: whether only this machine can connect.
        keep_ended: has a page of `ended` kept durably, by slot; must not fail.

    Attributes:
        ended: the sessions that their clients have ended.
    """

    def __init__(
        self,
        service: McpService,
        spool: Spool,
        clock: Clock,
        key: bytes,
        *,
        body_max: int,
        sessions_max: int,
        is_local: Callable[[], bool],
        keep_ended: Callable[[int, bytes], Awaitable[None]],
    ) -> None:
        self.service = service
        self._spool = spool
        self._clock = clock
        self._key = key
        self._body_max = body_max
        self._is_local = is_local
        self._conversations = Conversations(sessions_max)
        self.ended = EndedSessions()
        self._keep_ended = keep_ended
        self._tasks: set[asyncio.Task[None]] = set()
        self._stateless = 0
        service.egress.on_event = self.heard
        service.egress.on_question = self.asked
        service.tasks.conversation_of = lambda client: self.adopt(client) if client.nonce else Conversation(client)

    async def __call__(self, request: IncomingRequest) -> OutgoingResponse:
        """Answer one HTTP request below `/seawall/mcp`."""
        if (why := self._foreign_page(request.headers)) is not None:
            return _refused(403, why)
        tool = self._endpoint(request.target)
        if isinstance(tool, OutgoingResponse):
            return tool
        match request.method:
            case "POST":
                return await self._post(request, tool)
            case "GET":
                return self._get(request, tool)
            case "DELETE":
                return await self._delete(request, tool)
        return _not_allowed()

    def _foreign_page(self, headers: Headers) -> str | None:
        host = (first_header(headers, b"host") or b"").decode("latin-1")
        if self._is_local() and host and not _LOCAL.fullmatch(host):
            return f"The Host {host[:100]!r} is not this machine's own."
        origin = (first_header(headers, b"origin") or b"").decode("latin-1")
        if origin and not _LOCAL.fullmatch(origin) and origin.partition("://")[2] != host:
            return "Web pages from elsewhere may not use this endpoint (Origin)."
        return None

    def _endpoint(self, target: bytes) -> ToolSpec | OutgoingResponse | None:
        rest = target.partition(b"?")[0].removeprefix(_ROOT).strip(b"/").decode("latin-1")
        if not rest:
            return None
        tools = self.service.catalog().tools
        if (tool := tools.get(unquote(rest))) is not None:
            return tool
        known = ", ".join(sorted(tools)[:10]) or "none"
        return _refused(404, f"No server is called {rest[:64]!r}. Known: {known}.")

    # --- POST

    async def _post(self, request: IncomingRequest, tool: ToolSpec | None) -> OutgoingResponse:
        try:
            body = await request.read_all(self._spool, max_bytes=self._body_max, memory_limit=self._body_max)
        except TooLarge:
            return _refused(413, f"The message is larger than {self._body_max} bytes (setting limits.body).")
        except (UploadBroken, SpoolFailed) as error:
            return _refused(400, f"The message could not be read: {error}.")
        try:
            data = body.data if isinstance(body, BytesBody) else b"".join([piece async for piece in body.chunks()])
            messages = parse_batch(data)
        except Malformed as error:
            return _json(400, error_message(error.id, error.code, str(error)))
        finally:
            await body.aclose()
        if isinstance(messages, list):
            return await self._batch(request, tool, messages)
        if is_modern(request.headers, messages):
            return await self._stateless_post(request, tool, messages)
        return await self._session_post(request, tool, messages)

    async def _stateless_post(
        self, request: IncomingRequest, tool: ToolSpec | None, message: Message
    ) -> OutgoingResponse:
        if message.kind is Kind.NOTIFICATION:
            return OutgoingResponse(status=202)
        if message.kind is Kind.RESPONSE:
            return _json(400, error_message("null", INVALID_REQUEST, "in this era the server asks nothing"))
        objection = check_envelope(request.headers, message)
        if objection is not None:
            data = error_message(message.id, objection.code, objection.message, objection.data)
            return _json(http_status(objection.code), data)
        self._stateless += 1
        meta = message.meta
        capabilities, info, level = meta[CAPABILITIES], meta.get(CLIENT_INFO), meta.get(LOG_LEVEL)
        client = Client(
            nonce="",
            agent=_agent(request) or request.peer or "local",
            is_proven=request.proven_agent is not None,
            version=str(meta[VERSION]),
            capabilities=capabilities if isinstance(capabilities, dict) else {},
            info=info if isinstance(info, dict) else {},
            log_level=level if isinstance(level, str) else None,
            is_modern=True,
        )
        client = with_credentials(client, _credentials(request, tool), self._key)
        party = Party(conversation=Conversation(client), tool=tool, headers=request.headers)
        return await self._exchange(request, message, party)

    async def _session_post(
        self, request: IncomingRequest, tool: ToolSpec | None, message: Message
    ) -> OutgoingResponse:
        said = (first_header(request.headers, b"mcp-protocol-version") or b"").decode("latin-1")
        if said and said not in (*LEGACY, *MODERN):
            detail = f"the protocol version {said[:40]!r} is not spoken here"
            return _json(400, error_message(message.id, INVALID_REQUEST, detail, {"supported": [*MODERN, *LEGACY]}))
        if message.method == "initialize" and message.kind is Kind.REQUEST:
            client = self._newcomer(request, tool, message)
        else:
            found = self._recognised(request, tool)
            if isinstance(found, OutgoingResponse):
                return found
            client = found
        taken = await self._conversation(client)
        if taken is None:
            return _full()
        party = Party(conversation=taken, tool=tool, headers=request.headers, can_ask=_takes_streams(request.headers))
        if message.kind is Kind.RESPONSE:
            taken.answered(message)
            return OutgoingResponse(status=202)
        if message.kind is Kind.NOTIFICATION:
            await self.service.notified(message, party)
            return OutgoingResponse(status=202)
        response = await self._exchange(request, message, party)
        if message.method == "initialize" and response.status == 200:
            seal = (b"Mcp-Session-Id", sealed(client, self._key).encode())
            response.headers = (*response.headers, seal)
        return response

    def _newcomer(self, request: IncomingRequest, tool: ToolSpec | None, message: Message) -> Client:
        nonce = self._clock.token()
        capabilities, info = message.value.get("capabilities"), message.value.get("clientInfo")
        client = Client(
            nonce=nonce,
            scope="" if tool is None else tool.name,
            agent=_agent(request) or f"mcp-{nonce[:16]}",
            is_proven=request.proven_agent is not None,
            version=negotiated(message.value.get("protocolVersion")),
            capabilities=capabilities if isinstance(capabilities, dict) else {},
            info=info if isinstance(info, dict) else {},
        )
        return with_credentials(client, _credentials(request, tool), self._key)

    def _recognised(self, request: IncomingRequest, tool: ToolSpec | None) -> Client | OutgoingResponse:
        """Return who speaks, and with which credential."""
        found = self._known(request, tool)
        if isinstance(found, OutgoingResponse):
            return found
        return with_credentials(found, _credentials(request, tool), self._key)

    def _known(self, request: IncomingRequest, tool: ToolSpec | None) -> Client | OutgoingResponse:
        """Return whose session it is. A client that carries no id is taken as it is: some never do."""
        id = first_header(request.headers, b"mcp-session-id")
        if id is None:
            agent = _agent(request) or request.peer or "local"
            said = (first_header(request.headers, b"mcp-protocol-version") or b"2025-03-26").decode("latin-1")
            proven = request.proven_agent is not None
            return Client(nonce=f"{ANONYMOUS}{agent}", agent=agent, is_proven=proven, version=negotiated(said))
        client = unsealed(id.decode("latin-1"), self._key)
        scope = "" if tool is None else tool.name
        if client is None or client.scope != scope or client.nonce in self.ended:
            return _json(404, error_message("null", INVALID_REQUEST, "This session is over. Start with initialize."))
        if request.proven_agent is not None:
            if client.agent != request.proven_agent:
                return _json(404, error_message("null", INVALID_REQUEST, "This session is not yours: initialize one."))
            return replace(client, is_proven=True)
        given = _agent(request)
        return client if given is None else replace(client, agent=given)

    async def _conversation(self, client: Client) -> Conversation | None:
        conversation = self._of(client)
        if conversation is None:
            return None
        conversation.client = client
        if conversation.log_level is None:
            conversation.log_level = self.service.level_of(client)
        return conversation

    def adopt(self, client: Client) -> Conversation:
        """Return the conversation of a client that comes another way than over HTTP."""
        return self._of(client) or Conversation(client)

    def _of(self, client: Client) -> Conversation | None:
        found = self._conversations.of(client)
        if found is None:
            return None
        conversation, gone = found
        for one in gone:
            self._later(self._evict(one.client))
        return conversation

    async def _evict(self, client: Client) -> None:
        for tool in self._servers_of(client):
            await self.service.egress.evict(tool, client)

    async def _forget(self, client: Client) -> None:
        for tool in self._servers_of(client):
            await self.service.egress.end(tool, client)
        await self.service.egress.memory.forget("", client)

    def _servers_of(self, client: Client) -> list[ToolSpec]:
        tools = self.service.catalog().tools.values()
        return [tool for tool in tools if tool.mcp is not None and client.scope in ("", tool.name)]

    async def _batch(
        self, request: IncomingRequest, tool: ToolSpec | None, messages: list[Message]
    ) -> OutgoingResponse:
        """Answer a batch of revision 2025-03-26, one message after the other."""
        client = self._recognised(request, tool)
        if isinstance(client, OutgoingResponse):
            return client
        if client.version not in ("2025-03-26", "2024-11-05") or any(one.method == "initialize" for one in messages):
            return _json(400, error_message("null", INVALID_REQUEST, f"revision {client.version} has no batches"))
        conversation = await self._conversation(client)
        if conversation is None:
            return _full()
        answers: list[bytes] = []
        delivered: list[Callable[[], None]] = []
        for message in messages:
            party = Party(conversation=conversation, tool=tool, headers=request.headers)
            if message.kind is Kind.RESPONSE:
                conversation.answered(message)
            elif message.kind is Kind.NOTIFICATION:
                await self.service.notified(message, party)
            else:
                said = await self.service.answer(message, party)
                if isinstance(said, Foreign):
                    return _foreign(said)
                answers.append(said)
                if party.delivered is not None:
                    delivered.append(party.delivered)
        if not answers:
            return OutgoingResponse(status=202)
        response = _json(200, b"[" + b",".join(answers) + b"]")
        response.on_delivered = partial(_call_all, delivered)
        return response

    # --- one request and its answer

    async def _exchange(self, request: IncomingRequest, message: Message, party: Party) -> OutgoingResponse:
        """Answer with JSON if the answer comes before anything else does, else with a stream."""
        running = party.conversation.running
        if message.id in running:
            return _json(400, error_message(message.id, INVALID_REQUEST, "this id is in flight already"))
        task = asyncio.get_running_loop().create_task(self.service.answer(message, party))
        running[message.id] = task
        task.add_done_callback(lambda _: running.pop(message.id, None))
        streams = _takes_streams(request.headers)
        said: asyncio.Task[None] | None = None
        try:
            if streams:
                said = asyncio.get_running_loop().create_task(party.outbox.wait())
                limit_s = STREAM_AFTER_S
                await asyncio.wait((task, said), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            if said is not None:
                said.cancel()
        has_more = not task.done() or (said is not None and said.done() and not said.cancelled())
        if streams and (has_more or _is_streamed(task, party)):
            return _streamed(task, party, message)
        return _plain_answer(task, party, message)

    # --- GET and DELETE

    def _get(self, request: IncomingRequest, tool: ToolSpec | None) -> OutgoingResponse:
        if first_header(request.headers, b"mcp-session-id") is None:
            return _not_allowed()
        if not _takes_streams(request.headers):
            return _refused(406, "This stream is text/event-stream; accept it.")
        client = self._recognised(request, tool)
        if isinstance(client, OutgoingResponse):
            return client
        conversation = self._of(client)
        if conversation is None:
            return _full()
        if conversation.listeners:
            return _refused(409, "This session has its stream open already.")
        last = (first_header(request.headers, b"last-event-id") or b"").decode("latin-1")
        conversation.places = unsealed_places(last, client.nonce, self._key) or conversation.places
        conversation.attending = [
            self._later(self.service.attend(server.name, client, conversation.places.get(server.name)))
            for server in self._servers_of(client)
        ]
        body = _Stream(_unasked(conversation), partial(_cancel_all, conversation.attending))
        return OutgoingResponse(status=200, headers=_STREAM, body=body)

    async def _delete(self, request: IncomingRequest, tool: ToolSpec | None) -> OutgoingResponse:
        if first_header(request.headers, b"mcp-session-id") is None:
            return _not_allowed()
        client = self._recognised(request, tool)
        if isinstance(client, OutgoingResponse):
            return client
        ended = self._conversations.end(client.nonce)
        _cancel_all([] if ended is None else ended.attending)  # or they would open the sessions again that end here
        slot, page = self.ended.add(client.nonce)
        await self._forget(client)
        await self._keep_ended(slot, page)
        return OutgoingResponse(status=204)

    # --- what servers say unasked

    def heard(self, tool: str, client: Client | None, method: str, params: str | None, place: str | None) -> None:
        """Tell the client whose session it was said in; of what was said to all (a child), those whom it concerns."""
        self.service.heard(tool, method, params, client)
        for conversation in self._conversations.all():
            if not conversation.listeners or conversation.client.scope not in ("", tool):
                continue
            if not self._concerns(conversation.client, client, tool, method, params):
                continue
            if place is not None:
                conversation.places[tool] = place
            id = sealed_places(conversation.client.nonce, conversation.places, self._key) if place else None
            conversation.stream.put(notification(method, params), id)

    def _concerns(self, listening: Client, client: Client | None, tool: str, method: str, params: str | None) -> bool:
        if client is not None:
            return client.nonce == listening.nonce
        if method != "notifications/resources/updated":
            return True
        entry = self.service.egress.memory.table.of(tool, listening.nonce)
        uri = members(params or "{}").get("uri", ("", None))[1]
        return entry is not None and uri in entry.subscriptions

    async def asked(self, tool: str, client: Client, method: str, params: str | None) -> Message | None:
        """Put a server's question to the client whose session it is; without one, to the only client that listens."""
        listening = [one for one in self._conversations.all() if one.listeners and one.client.scope in ("", tool)]
        if client.nonce:
            listening = [one for one in listening if one.client.nonce == client.nonce]
        if len(listening) != 1:
            return None
        return await listening[0].ask(listening[0].stream, method, params)

    def statistics(self) -> dict[str, int]:
        """Return how many sessions are in memory, and how many stateless requests came."""
        return {"mcp_sessions": len(self._conversations), "mcp_stateless": self._stateless}

    def _later(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Stop what goes on in the background. May be repeated."""
        await self.service.listings.close()
        await self.service.tasks.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


# --- answers --------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Stream:
    """A body of events; given up, it cancels what it waits for."""

    pieces: AsyncIterator[bytes]
    on_close: Callable[[], object]

    size = None
    is_replayable = False

    def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the events."""
        return self.pieces

    async def aclose(self) -> None:
        """Stop waiting."""
        self.on_close()
        if isinstance(self.pieces, contextlib.AbstractAsyncContextManager) or hasattr(self.pieces, "aclose"):
            with contextlib.suppress(RuntimeError):
                await self.pieces.aclose()


def _streamed(task: asyncio.Task[bytes | Foreign], party: Party, message: Message) -> OutgoingResponse:
    body = _Stream(_until_answered(task, party, message), task.cancel)
    response = OutgoingResponse(status=200, headers=(*_STREAM, *party.marks), body=body)
    response.on_delivered = lambda: party.delivered() if party.delivered is not None else None
    return response


def _is_streamed(task: asyncio.Task[bytes | Foreign], party: Party) -> bool:
    """Whether the server answered with a stream: then so do we, unless the client has to see a status."""
    if party.exchange is None or not party.exchange.is_streamed or task.cancelled() or task.exception() is not None:
        return False
    answer = task.result()
    return not (isinstance(answer, Foreign) or (party.client.is_modern and b'"error"' in answer[:400]))


async def _until_answered(task: asyncio.Task[bytes | Foreign], party: Party, message: Message) -> AsyncIterator[bytes]:
    while not task.done():
        for data in party.outbox.take():
            yield event(data)
        said = asyncio.get_running_loop().create_task(party.outbox.wait())
        try:
            done, _ = await asyncio.wait((task, said), timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            said.cancel()
        if not done:
            yield comment()
    for data in party.outbox.take():
        yield event(data)
    if not task.cancelled():
        yield event(_data_of(task.result(), message))


async def _unasked(conversation: Conversation) -> AsyncIterator[bytes]:
    conversation.listeners += 1
    try:
        yield comment("listening") + pause(COME_BACK_MS)
        while True:
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await conversation.stream.wait()
            except TimeoutError:
                yield comment()
            for data, id in conversation.stream.take_numbered():
                yield event(data, id)
    finally:
        conversation.listeners -= 1


def _cancel_all(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()


def _call_all(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()


def _data_of(answer: bytes | Foreign, message: Message) -> bytes:
    if isinstance(answer, Foreign):
        detail = f"the server answered {answer.reply.status}; its headers cannot be shown any more"
        return error_message(message.id, INVALID_REQUEST, detail)
    return answer


def _plain_answer(task: asyncio.Task[bytes | Foreign], party: Party, message: Message) -> OutgoingResponse:
    if task.cancelled():
        return _json(200, error_message(message.id, INVALID_REQUEST, "the request was cancelled"))
    answer = task.result()
    if isinstance(answer, Foreign):
        return _foreign(answer)
    status = 200
    if party.client.is_modern and b'"error"' in answer[:400]:
        answered = parse(answer)
        code = answered.value.get("code")
        status = http_status(code) if answered.error is not None and isinstance(code, int) else 200
    response = _json(status, answer)
    response.headers = (*response.headers, *party.marks)
    response.on_delivered = party.delivered
    return response


def _foreign(answer: Foreign) -> OutgoingResponse:
    reply = answer.reply
    headers = without_headers(reply.headers, _UPSTREAM_FIELDS)
    return OutgoingResponse(status=reply.status, reason=reply.reason, headers=headers, body=reply.body)


def _json(status: int, data: bytes) -> OutgoingResponse:
    return OutgoingResponse(status=status, headers=_JSON, body=BytesBody(data))


def _refused(status: int, detail: str) -> OutgoingResponse:
    told = problem(Refusal(code=Code.INVALID_ARGUMENTS, detail=detail), status=status)
    return OutgoingResponse(status=status, headers=told.headers, body=BytesBody(told.body))


def _full() -> OutgoingResponse:
    refusal = Refusal(
        code=Code.RESOURCE_EXHAUSTED,
        detail="The gateway has as many MCP sessions at work as it may (setting limits.mcp_sessions). Try again later.",
        retry_after_ms=5_000,
    )
    told = problem(refusal)
    return OutgoingResponse(status=told.status, headers=told.headers, body=BytesBody(told.body))


def _not_allowed() -> OutgoingResponse:
    response = _refused(405, "Send messages with POST; a session's GET and DELETE carry its Mcp-Session-Id.")
    response.headers = (*response.headers, (b"Allow", b"POST, GET, DELETE"))
    return response


def _agent(request: IncomingRequest) -> str | None:
    if request.proven_agent is not None:
        return request.proven_agent
    given = first_header(request.headers, b"seawall-agent")
    text = None if given is None else given.decode("latin-1")
    return text if text is not None and _AGENT.fullmatch(text) else None


def _credentials(request: IncomingRequest, tool: ToolSpec | None) -> Headers:
    """The client's own credential goes to the one server that its endpoint is for, and to nobody else."""
    if tool is None:
        return ()
    return tuple(field for field in request.headers if field[0].lower() == b"authorization")


def _takes_streams(headers: Headers) -> bool:
    accepted = b",".join(value for name, value in headers if name.lower() == b"accept").lower()
    return b"text/event-stream" in accepted or b"*/*" in accepted
