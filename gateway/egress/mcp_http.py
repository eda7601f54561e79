"""MCP servers over Streamable HTTP, in both eras, on top of the HTTP egress.

Every message is one ordinary exchange of `Egress`: its table of errors, credentials and TLS are the ones in force here too,
and `Broken` means what it means there. Which era a server speaks is asked once: `server/discover`, and where that is not
answered, `initialize`. A stateless server has one session for all clients, since each request says whose it is; a server
of the handshake era gets a session for each client, as it may keep state there.

A session that the server has forgotten (404) is opened again and the request is sent once more: a 404 says that it was not
looked at. A stream that ends early is resumed from its last event where the server numbers them.

Source: MCP "Transports" 2025-03-26 to 2026-07-28; SEP-1699 (a server may close a stream and have the client come back).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

from gateway.core.codes import Dispatched
from gateway.core.fault import Broken, Fault
from gateway.core.mcp import (
    METHOD_NOT_FOUND,
    UNSUPPORTED_VERSION,
    Kind,
    Malformed,
    Message,
    error_message,
    members,
    notification,
    parse,
    replaced,
    request,
    result_message,
)
from gateway.core.mcp_era import CAPABILITIES, CLIENT_INFO, LEGACY, LOG_LEVEL, MODERN, VERSION, named, request_headers
from gateway.core.mcp_session import Client
from gateway.core.message import BytesBody, Headers, Reply, Request, first_header
from gateway.core.sse import Event, Events, EventTooLarge
from gateway.core.tool import ToolSpec
from gateway.egress import Egress, StreamBroken, Timings
from gateway.egress.mcp_link import Answer, Exchange, OnEvent, OnQuestion, Server, ServerFacts, Session

__all__ = ["UPSTREAM_HTTP", "HttpServer"]

UPSTREAM_HTTP: Headers = ((b"Mcp-Upstream-Answer", b"http"),)
"""Marks an answer that is the server's HTTP and not MCP."""

ANSWER_LIMIT = 64 << 20
RESUME_LIMIT = 8
GOODBYE_S = 2.0
_ACCEPT: Headers = (
    (b"Content-Type", b"application/json"),
    (b"Accept", b"application/json, text/event-stream"),
)


class HttpServer:
    """One MCP server over HTTP.

    Args:
        tool: where it is; its `upstream.prefix` is the endpoint's path.
        http: what sends.
        on_event, on_question: take what belongs to no request.
        sessions_max: sessions of the handshake era kept at a time; the one idle for longest gives way.
    """

    def __init__(
        self, tool: ToolSpec, http: Egress, on_event: OnEvent, on_question: OnQuestion, *, sessions_max: int = 256
    ) -> None:
        self.tool = tool
        self.http = http
        self.on_event = on_event
        self.on_question = on_question
        self.path = (tool.upstream.prefix or "/").encode("ascii")
        self.wire = replace(tool, upstream=replace(tool.upstream, prefix=""))
        self._sessions_max = sessions_max
        self._sessions: OrderedDict[str, HttpSession] = OrderedDict()
        self._stateless: HttpSession | None = None
        self._is_modern_only = False
        self._opening: dict[str, asyncio.Lock] = {}
        assert tool.mcp is not None
        self._protocol = tool.mcp.protocol

    @property
    def in_flight(self) -> int:
        """Requests that wait for their answers."""
        stateless = 0 if self._stateless is None else self._stateless.in_flight
        return stateless + sum(session.in_flight for session in self._sessions.values())

    async def session(self, client: Client, timings: Timings) -> Session | Reply | Broken:
        """Return the session for a client."""
        if self._stateless is not None and (client.is_modern or self._is_modern_only):
            return self._stateless
        if (known := self._sessions.get(client.nonce)) is not None:
            self._sessions.move_to_end(client.nonce)
            return known
        lock = self._opening.setdefault(client.nonce, asyncio.Lock())
        try:
            async with lock:
                known = self._sessions.get(client.nonce)
                return known if known is not None else await self._open(client, timings)
        finally:
            if not lock.locked():
                self._opening.pop(client.nonce, None)

    async def _open(self, client: Client, timings: Timings) -> Session | Reply | Broken:
        """Negotiate: first the era that the client speaks too, in which nothing gets lost, then the other one."""
        eras = [True, False] if client.is_modern else [False, True]
        if self._protocol != "auto":
            eras = [self._protocol in MODERN]
        answer: Session | Reply | Broken | None = None
        for is_modern in eras:
            answer = await (self._discover(client, timings) if is_modern else self._greeted(client, timings))
            if isinstance(answer, HttpSession) or _is_final(answer):
                break
        return answer or Broken(Fault.PROTOCOL, Dispatched.NO, f"{self.tool.name} does not speak {self._protocol}")

    async def _greeted(self, client: Client, timings: Timings) -> Session | Reply | Broken:
        await self._make_room()
        session = HttpSession(self, ServerFacts(version=LEGACY[0], is_modern=False), client)
        problem = await session.greet(timings)
        if problem is not None:
            return problem
        self._sessions[client.nonce] = session
        return session

    async def _discover(self, client: Client, timings: Timings) -> HttpSession | Broken | Reply | None:
        if self._stateless is not None:
            return self._stateless
        session = HttpSession(self, ServerFacts(version=MODERN[0], is_modern=True), client)
        for _ in range(2):  # A server that refuses the version and names the same one is asked once more.
            answer = await session.request(
                "server/discover", None, Exchange(client=client), timings, has_side_effects=False
            )
            if not _is_offered(answer):
                break
        if isinstance(answer, Broken):
            return answer
        if isinstance(answer, Reply):
            if answer.status in (401, 403, 429) or answer.status >= 500:
                return answer
            await answer.aclose()
            return None
        versions = answer.value.get("supportedVersions")
        if answer.result is None or not isinstance(versions, list) or MODERN[0] not in versions:
            return None
        session.facts = facts_of(answer, MODERN[0], is_modern=True)
        self._is_modern_only = not client.is_modern
        self._stateless = session
        return session

    async def _make_room(self) -> None:
        while len(self._sessions) >= self._sessions_max:
            idle = next((nonce for nonce, session in self._sessions.items() if not session.in_flight), None)
            if idle is None:
                return
            await self._sessions.pop(idle).close()

    def drop(self, session: HttpSession) -> None:
        """Forget a session that the server no longer knows."""
        if self._sessions.get(session.client.nonce) is session:
            del self._sessions[session.client.nonce]

    async def end(self, client: Client) -> None:
        """End a client's session."""
        session = self._sessions.pop(client.nonce, None)
        if session is not None:
            await session.close()

    async def close(self) -> None:
        """End all sessions; a server that does not care is not waited for."""
        sessions, self._sessions = list(self._sessions.values()), OrderedDict()
        if self._stateless is not None:
            sessions.append(self._stateless)
        tasks = [asyncio.get_running_loop().create_task(session.close()) for session in sessions]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=GOODBYE_S)
            for task in late:
                task.cancel()
            await asyncio.wait(tasks)


class HttpSession:
    """One conversation over HTTP."""

    def __init__(self, server: HttpServer, facts: ServerFacts, client: Client) -> None:
        self.facts = facts
        self.client = client
        self._server = server
        self._id: bytes | None = None
        self._next = 0
        self._asking: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Task[None] | None = None
        self._exchanges: list[Exchange] = []

    @property
    def in_flight(self) -> int:
        """Requests that wait for their answers."""
        return len(self._exchanges)

    # --- the handshake

    async def greet(self, timings: Timings) -> Reply | Broken | None:
        """Introduce the client. Returns what went wrong, or None."""
        tool = self._server.tool
        assert tool.mcp is not None
        version = tool.mcp.protocol if tool.mcp.protocol in LEGACY else LEGACY[0]
        params = greeting(self.client, version)
        sent = self._number()
        reply = await self._post(sent, "initialize", params, Exchange(client=self.client), timings, False)
        if isinstance(reply, Broken):
            return reply
        self._id = first_header(reply.headers, b"mcp-session-id")
        answer = await self._read(sent, reply, Exchange(client=self.client), timings)
        if not isinstance(answer, Message):
            return answer
        if answer.result is None:
            return Broken(
                Fault.PROTOCOL, Dispatched.NO, f"{tool.name} refused to be greeted: {answer.value.get('message')}"
            )
        self.facts = facts_of(answer, str(answer.value.get("protocolVersion") or version), is_modern=False)
        await self.notify("notifications/initialized", None)
        return None

    def listen(self) -> None:
        """Open the stream for what the server says unasked, if it has one. May be repeated."""
        if not self.facts.is_modern and (self._listening is None or self._listening.done()):
            self._listening = asyncio.get_running_loop().create_task(self._listen(), name="mcp stream")

    async def _listen(self) -> None:
        timings = Timings(connect_s=10.0, first_byte_s=30.0, idle_s=3600.0, total_s=30.0)
        events, exchange = Events(), Exchange(client=self.client)
        for _ in range(RESUME_LIMIT):
            last: Headers = () if events.last_id is None else ((b"Last-Event-ID", events.last_id.encode()),)
            get = Request("GET", self._server.path, (*self._headers(), *last, _ACCEPT[1]), None, False, False)
            reply = await self._server.http.send(self._server.wire, get, timings)
            if isinstance(reply, Broken):
                return
            try:
                if reply.status != 200 or not _is_stream(reply):
                    return
                async for event in _events(reply, events):
                    self._take(event, "", exchange)
            except (StreamBroken, EventTooLarge, Malformed):
                pass
            finally:
                await reply.aclose()
            await asyncio.sleep(1.0)

    # --- requests

    async def request(
        self, method: str, params: str | None, exchange: Exchange, timings: Timings, *, has_side_effects: bool
    ) -> Answer:
        """Send a request once and return what came back."""
        self._exchanges.append(exchange)
        sent = self._number()
        try:
            reply = await self._post(sent, method, params, exchange, timings, has_side_effects)
            if isinstance(reply, Broken):
                return reply
            if reply.status == 404 and self._id is not None and not _is_json(reply):
                await reply.aclose()
                return await self._anew(method, params, exchange, timings, has_side_effects)
            return await self._read(sent, reply, exchange, timings)
        except asyncio.CancelledError:
            self._cancelled_soon(sent)
            raise
        finally:
            self._exchanges.remove(exchange)

    async def _anew(
        self, method: str, params: str | None, exchange: Exchange, timings: Timings, has_side_effects: bool
    ) -> Answer:
        self._id = None
        problem = await self.greet(timings)
        if problem is not None:
            self._server.drop(self)
            return problem
        sent = self._number()
        reply = await self._post(sent, method, params, exchange, timings, has_side_effects)
        return reply if isinstance(reply, Broken) else await self._read(sent, reply, exchange, timings)

    def _number(self) -> str:
        self._next += 1
        return str(self._next)

    async def _post(
        self,
        sent: str,
        method: str,
        params: str | None,
        exchange: Exchange,
        timings: Timings,
        has_side_effects: bool,
    ) -> Reply | Broken:
        headers = (*_ACCEPT, *exchange.headers)
        if self.facts.is_modern:
            params = enveloped(params, exchange.client, self.facts.version)
            value = json.loads(params)
            headers += request_headers(method, value, self.facts.version)
            headers += named(exchange.schema, value.get("arguments"))
        else:
            headers += self._headers(is_greeting=method == "initialize")
        post = Request(
            "POST",
            self._server.path,
            headers,
            BytesBody(request(sent, method, params)),
            has_side_effects=has_side_effects,
            capture_answer=False,
        )
        return await self._server.http.send(self._server.wire, post, timings)

    def _headers(self, *, is_greeting: bool = False) -> Headers:
        headers: Headers = () if self._id is None else ((b"Mcp-Session-Id", self._id),)
        if not is_greeting:
            headers += ((b"MCP-Protocol-Version", self.facts.version.encode()),)
        return headers

    async def _read(self, sent: str, reply: Reply, exchange: Exchange, timings: Timings) -> Answer:
        name = self._server.tool.name
        events = Events()
        try:
            if not _is_stream(reply):
                return await self._plain(sent, reply)
            exchange.is_streamed = True
            answer = await self._until_answered(sent, reply, events, exchange)
        except (EventTooLarge, Malformed) as error:
            return Broken(Fault.PROTOCOL, Dispatched.YES, f"{name} sent something that is not MCP: {error}")
        except StreamBroken as error:
            answer = None
            broken = Broken(Fault.RESET, Dispatched.YES, str(error))
        else:
            broken = Broken(Fault.PROTOCOL, Dispatched.YES, f"{name} ended its stream without an answer")
        finally:
            await reply.aclose()
        return answer or await self._resumed(sent, events, exchange, timings) or broken

    async def _plain(self, sent: str, reply: Reply) -> Answer:
        name = self._server.tool.name
        data = bytearray()
        async for piece in reply.body.chunks():
            data += piece
            if len(data) > ANSWER_LIMIT:
                return Broken(Fault.PROTOCOL, Dispatched.YES, f"{name} sent an answer larger than {ANSWER_LIMIT} bytes")
        if _is_json(reply):
            try:
                answer = parse(bytes(data))
            except Malformed:
                answer = None
            if answer is not None and answer.kind is Kind.RESPONSE:
                return answer
        if reply.status < 400:
            return Broken(Fault.PROTOCOL, Dispatched.YES, f"{name} answered {reply.status} without a JSON-RPC response")
        return Reply(reply.status, reply.reason, (*reply.headers, *UPSTREAM_HTTP), BytesBody(bytes(data)))

    async def _until_answered(self, sent: str, reply: Reply, events: Events, exchange: Exchange) -> Message | None:
        async for event in _events(reply, events):
            answer = self._take(event, sent, exchange)
            if answer is not None:
                return answer
        return None

    async def _resumed(self, sent: str, events: Events, exchange: Exchange, timings: Timings) -> Message | None:
        """Ask for the rest of a stream that ended early, where the server numbers its events."""
        for _ in range(RESUME_LIMIT):
            if events.last_id is None or self.facts.is_modern:
                return None
            await asyncio.sleep(min(5.0, (events.retry_ms or 1000) / 1000))
            last = (b"Last-Event-ID", events.last_id.encode())
            get = Request("GET", self._server.path, (*self._headers(), last, _ACCEPT[1]), None, False, False)
            reply = await self._server.http.send(self._server.wire, get, timings)
            if isinstance(reply, Broken):
                return None
            try:
                if reply.status != 200 or not _is_stream(reply):
                    return None
                answer = await self._until_answered(sent, reply, events, exchange)
            except (StreamBroken, EventTooLarge, Malformed):
                continue
            finally:
                await reply.aclose()
            if answer is not None:
                return answer
        return None

    # --- what the server says meanwhile

    def _take(self, event: Event, sent: str, exchange: Exchange) -> Message | None:
        if not event.data or event.name != "message":
            return None
        message = parse(event.data)
        match message.kind:
            case Kind.RESPONSE:
                return message if message.id == sent or message.id == "null" else None
            case Kind.REQUEST:
                exchange.was_asked = True
                task = asyncio.get_running_loop().create_task(self._ask(message, exchange))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)
            case Kind.NOTIFICATION if sent:
                exchange.tell(message.method, message.params)
            case Kind.NOTIFICATION:
                self._server.on_event(self._server.tool.name, message.method, message.params)
        return None

    async def _ask(self, message: Message, exchange: Exchange) -> None:
        if message.method == "ping":
            await self._send(result_message(message.id, "{}"))
            return
        said: Message | None
        # A session without a client of its own is shared: a question is for the call on whose stream it came, or for nobody.
        asked = (exchange, *self._exchanges) if self.client.nonce else (exchange,)
        asks = [one.ask for one in asked if one.ask is not None]
        if asks:
            said = await asks[0](message.method, message.params)
        else:
            said = await self._server.on_question(self._server.tool.name, self.client, message.method, message.params)
        await self._send(
            error_message(message.id, METHOD_NOT_FOUND, "the client cannot be asked")
            if said is None
            else readdressed(said, message.id)
        )

    async def notify(self, method: str, params: str | None) -> None:
        """Send a notification."""
        await self._send(notification(method, params))

    async def _send(self, data: bytes) -> None:
        timings = Timings(connect_s=5.0, first_byte_s=10.0, idle_s=10.0, total_s=10.0)
        post = Request("POST", self._server.path, (*_ACCEPT, *self._headers()), BytesBody(data), False, True)
        reply = await self._server.http.send(self._server.wire, post, timings)
        if isinstance(reply, Reply):
            await reply.aclose()

    def _cancelled_soon(self, sent: str) -> None:
        """Tell a server of the handshake era that nobody waits any more; for a stateless one the closed stream says so."""
        if not self.facts.is_modern:
            params = f'{{"requestId":{sent},"reason":"the client has left"}}'
            task = asyncio.get_running_loop().create_task(self.notify("notifications/cancelled", params))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def close(self) -> None:
        """Say goodbye. May be repeated."""
        tasks = [task for task in (self._listening, *self._asking) if task is not None]
        self._listening = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._id is None:
            return
        goodbye = Request("DELETE", self._server.path, self._headers(), None, False, True)
        self._id = None
        timings = Timings(connect_s=1.0, first_byte_s=1.0, idle_s=1.0, total_s=1.0)
        reply = await self._server.http.send(self._server.wire, goodbye, timings)
        if isinstance(reply, Reply):
            await reply.aclose()


# --- messages that both transports send -----------------------------------------------------------------------------


def greeting(client: Client, version: str) -> str:
    """Return the params of `initialize`."""
    info = {"name": "client", "version": "0", **client.info}
    params = {"protocolVersion": version, "capabilities": client.capabilities, "clientInfo": info}
    return json.dumps(params)


def enveloped(params: str | None, client: Client, version: str) -> str:
    """Return params with the envelope of the stateless era, which says who asks."""
    params = params or "{}"
    meta = members(params).get("_meta", ("{}", {}))[0]
    own: dict[str, str | None] = {
        VERSION: json.dumps(version),
        CAPABILITIES: json.dumps(client.capabilities),
        CLIENT_INFO: json.dumps({"name": "client", "version": "0", **client.info}),
        LOG_LEVEL: None if client.log_level is None else json.dumps(client.log_level),
    }
    return replaced(params, {"_meta": replaced(meta, own)})


def readdressed(answer: Message, id: str) -> bytes:
    """Return a response under another id."""
    if answer.error is not None:
        return f'{{"jsonrpc":"2.0","id":{id},"error":{answer.error}}}'.encode()
    return result_message(id, answer.result or "{}")


def facts_of(answer: Message, version: str, *, is_modern: bool) -> ServerFacts:
    """Return what a server said of itself."""
    found = members(answer.result or "{}")
    meta = answer.meta.get("io.modelcontextprotocol/serverInfo")
    info = answer.value.get("serverInfo", meta)
    capabilities = answer.value.get("capabilities")
    instructions = answer.value.get("instructions")
    return ServerFacts(
        version=version,
        is_modern=is_modern,
        raw_capabilities=found.get("capabilities", ("{}", None))[0],
        capabilities=capabilities if isinstance(capabilities, Mapping) else {},
        info=info if isinstance(info, Mapping) else {},
        instructions=instructions if isinstance(instructions, str) else None,
    )


def _is_offered(answer: Answer) -> bool:
    """Whether a server refused the version of a request, and says that it speaks it."""
    if not isinstance(answer, Message) or answer.error is None or answer.value.get("code") != UNSUPPORTED_VERSION:
        return False
    data = answer.value.get("data")
    supported = data.get("supported") if isinstance(data, Mapping) else None
    return isinstance(supported, list) and MODERN[0] in supported


def _is_final(answer: object) -> bool:
    """Whether another era would not help: the server is unreachable, or wants a credential."""
    if isinstance(answer, Reply):
        return answer.status in (401, 403, 429) or answer.status >= 500
    return isinstance(answer, Broken) and answer.dispatched is Dispatched.NO and answer.fault is not Fault.PROTOCOL


def _is_stream(reply: Reply) -> bool:
    return _media(reply) == b"text/event-stream" and reply.status < 400


def _is_json(reply: Reply) -> bool:
    return _media(reply) == b"application/json"


def _media(reply: Reply) -> bytes:
    return (first_header(reply.headers, b"content-type") or b"").partition(b";")[0].strip().lower()


async def _events(reply: Reply, events: Events) -> AsyncIterator[Event]:
    async with contextlib.aclosing(reply.body.chunks()) as chunks:  # type: ignore[type-var]
        async for piece in chunks:
            for event in events.feed(piece):
                yield event


_proof: type[Server] = HttpServer
