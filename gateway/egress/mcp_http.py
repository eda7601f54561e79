"""MCP servers over Streamable HTTP, in both eras, on top of the HTTP egress.

Every message is one ordinary exchange of `Egress`: its table of errors, credentials and TLS are the ones in force here too,
and `Broken` means what it means there. Which era a server speaks is asked once: `server/discover`, and where that is not
answered, `initialize`. A stateless server has one session for all clients, since each request says whose it is; a server
of the handshake era gets a session for each client, as it may keep state there.

A session outlives us where the server lets it: its id is remembered, and after a restart the client's next message goes on
in it, without another greeting. A session that the server has forgotten (404, or the 400 of many servers) is opened again,
what the client had set is set again, and the request is sent once more: the status says that it was not looked at. A stream
that ends early is resumed from its last event where the server numbers them.

Source: MCP "Transports" 2025-03-26 to 2026-07-28; SEP-1699 (a server may close a stream and have the client come back).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from enum import Enum

from gateway.clock import Clock
from gateway.core.backoff import full_jitter
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
from gateway.core.mcp_session import Client, apart
from gateway.core.message import BytesBody, Headers, Reply, Request, first_header
from gateway.core.sse import Event, Events, EventTooLarge
from gateway.core.tool import ToolSpec
from gateway.egress import Egress, StreamBroken, Timings
from gateway.egress.mcp_link import Answer, Exchange, OnEvent, OnQuestion, Server, ServerFacts, Session
from gateway.egress.mcp_memory import SessionMemory

__all__ = ["UPSTREAM_HTTP", "HttpServer"]

UPSTREAM_HTTP: Headers = ((b"Mcp-Upstream-Answer", b"http"),)
"""Marks an answer that is the server's HTTP and not MCP."""

ANSWER_LIMIT = 64 << 20
RESUME_LIMIT = 8
GOODBYE_S = 2.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
"""Pauses between the attempts to have a session's stream open (full jitter)."""
RENEWALS_MAX = 3
"""A server that says so often in a row that it does not know a session which it has just opened has no stream for it."""
_LISTENING = Timings(connect_s=10.0, first_byte_s=30.0, idle_s=3600.0, total_s=30.0)
_REFUSAL_MAX = 64 << 10
_REFUSED = -32000
_NO_SESSION = re.compile(r"session.?id|session not found|not initialized", re.IGNORECASE)
"""How servers built on the examples of the SDKs say with a 400 that they do not know a session."""
_ACCEPT: Headers = (
    (b"Content-Type", b"application/json"),
    (b"Accept", b"application/json, text/event-stream"),
)


class HttpServer:
    """One MCP server over HTTP.

    Args:
        tool: where it is; its `upstream.prefix` is the endpoint's path.
        http: what sends.
        clock: for pauses, and for ids that were not used before a restart.
        memory: what is known of sessions from before.
        on_event, on_question: take what belongs to no request.
        sessions_max: sessions of the handshake era kept at a time; the one idle for longest gives way.
    """

    def __init__(
        self,
        tool: ToolSpec,
        http: Egress,
        clock: Clock,
        memory: SessionMemory,
        on_event: OnEvent,
        on_question: OnQuestion,
        *,
        sessions_max: int = 256,
    ) -> None:
        self.tool = tool
        self.http = http
        self.clock = clock
        self.memory = memory
        self.on_event = on_event
        self.on_question = on_question
        self.path = (tool.upstream.prefix or "/").encode("ascii")
        self.wire = replace(tool, upstream=replace(tool.upstream, prefix=""))
        self.place = place_of(tool)
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
        client = apart(client)
        if (known := self._sessions.get(client.nonce)) is not None:
            self._sessions.move_to_end(client.nonce)
            known.credentials = client.credentials or known.credentials
            return known
        lock = self._opening.setdefault(client.nonce, asyncio.Lock())
        try:
            async with lock:
                known = self._sessions.get(client.nonce)
                return known or self._adopted(client) or await self._open(client, timings)
        finally:
            if not lock.locked():
                self._opening.pop(client.nonce, None)

    def has_session(self, client: Client) -> bool:
        """Whether a client of the handshake era has a session, be it one from before a restart."""
        return client.nonce in self._sessions or self._is_kept(client)

    def _is_kept(self, client: Client) -> bool:
        entry = self.memory.table.of(self.tool.name, client.nonce)
        return entry is not None and entry.is_open

    def _adopted(self, client: Client) -> HttpSession | None:
        """Return a session from before a restart, without a word to the server: if it has forgotten, it will say so."""
        entry = self.memory.table.of(self.tool.name, client.nonce)
        if entry is None or not entry.is_open or entry.place != self.place or self._protocol in MODERN:
            return None
        if client.is_modern and self._protocol == "auto":
            return None
        facts = facts_of_result(entry.greeting, LEGACY[0], is_modern=False)
        session = HttpSession(self, facts, client, id=entry.id, last=self.clock.at() * 1_000)
        self._sessions[client.nonce] = session
        return session

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
        await session.set_again(timings)
        self._sessions[client.nonce] = session
        return session

    async def _discover(self, client: Client, timings: Timings) -> HttpSession | Broken | Reply | None:
        if self._stateless is not None:
            return self._stateless
        session = HttpSession(self, ServerFacts(version=MODERN[0], is_modern=True), client)
        for _ in range(2):  # A server that refuses the version and names the same one is asked once more.
            exchange = Exchange(client=client, headers=client.credentials)
            answer = await session.request("server/discover", None, exchange, timings, has_side_effects=False)
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
            idle = next((session.client for session in self._sessions.values() if not session.is_busy), None)
            if idle is None:
                return
            await self.evict(idle)

    async def drop(self, session: HttpSession) -> None:
        """Forget a session that the server no longer knows."""
        if self._sessions.get(session.client.nonce) is session:
            del self._sessions[session.client.nonce]
        await self.memory.closed(self.tool.name, session.client)

    async def end(self, client: Client) -> None:
        """End a client's session, be it one from before a restart."""
        if client.nonce not in self._sessions:
            self._adopted(client)
        session = self._sessions.pop(client.nonce, None)
        if session is not None:
            await session.close()

    async def evict(self, client: Client) -> None:
        """End a client's session for want of room."""
        session = self._sessions.pop(client.nonce, None)
        if session is not None:
            await session.close()
            await self.memory.closed(self.tool.name, client)

    async def close(self, *, is_leaving: bool = False) -> None:
        """End all sessions; a server that does not care is not waited for."""
        sessions, self._sessions = list(self._sessions.values()), OrderedDict()
        if self._stateless is not None:
            sessions.append(self._stateless)
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(one.close(is_leaving=is_leaving and self._is_kept(one.client))) for one in sessions]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=GOODBYE_S)
            for task in late:
                task.cancel()
            await asyncio.wait(tasks)


class _Heard(Enum):
    """What became of an attempt to listen."""

    SOMETHING = "the stream was open, and has ended"
    NOTHING = "the server has no such stream"
    FORGOTTEN = "the server does not know the session"
    FAILED = "the server could not be reached, or would not just now"


class HttpSession:
    """One conversation over HTTP.

    Args:
        id: of a session from before a restart.
        last: the highest number that a request in it may have had.

    Attributes:
        credentials: the client's own, as it last came: for what we send in the session that is no request of the client.
    """

    def __init__(
        self, server: HttpServer, facts: ServerFacts, client: Client, *, id: str | None = None, last: int = 0
    ) -> None:
        self.facts = facts
        self.client = client
        self.credentials = () if facts.is_modern else client.credentials
        self._server = server
        self._id = None if id is None else id.encode("latin-1")
        self._next = last
        self._asking: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Task[None] | None = None
        self._listeners = 0
        self._since: str | None = None
        self._exchanges: list[Exchange] = []
        self._renewing = asyncio.Lock()

    @property
    def in_flight(self) -> int:
        """Requests that wait for their answers."""
        return len(self._exchanges)

    @property
    def is_busy(self) -> bool:
        """Whether somebody would miss it."""
        return bool(self._exchanges or self._listeners)

    # --- the handshake

    async def greet(self, timings: Timings) -> Reply | Broken | None:
        """Introduce the client. Returns what went wrong, or None."""
        tool = self._server.tool
        assert tool.mcp is not None
        version = tool.mcp.protocol if tool.mcp.protocol in LEGACY else LEGACY[0]
        params = greeting(self.client, version)
        sent = self._number()
        exchange = self._own_exchange()
        reply = await self._post(sent, "initialize", params, exchange, timings, False)
        if isinstance(reply, Broken):
            return reply
        self._id = first_header(reply.headers, b"mcp-session-id")
        answer = await self._read(sent, reply, exchange, timings)
        if not isinstance(answer, Message):
            return answer
        if answer.result is None:
            return Broken(
                Fault.PROTOCOL, Dispatched.NO, f"{tool.name} refused to be greeted: {answer.value.get('message')}"
            )
        self.facts = facts_of(answer, version, is_modern=False)
        await self.notify("notifications/initialized", None)
        id = None if self._id is None else self._id.decode("latin-1")
        await self._server.memory.opened(tool.name, self.client, self._server.place, id, answer.result)
        return None

    async def set_again(self, timings: Timings) -> None:
        """Set what the client had set in the session before this one."""
        settings = self._server.memory.table.settings_of(self._server.tool.name, self.client.nonce)
        for method, params in settings:
            sent = self._number()
            exchange = self._own_exchange()
            reply = await self._post(sent, method, params, exchange, timings, False)
            if isinstance(reply, Reply):
                await self._read(sent, reply, exchange, timings)

    async def _renew(self, stale: bytes | None, timings: Timings) -> Reply | Broken | None:
        """Open the session again that the server has forgotten, unless somebody has done so already."""
        async with self._renewing:
            if self._id != stale:
                return None
            self._since = None
            problem = await self.greet(timings)
            if problem is not None:
                await self._server.drop(self)
                return await never_sent(self._server.tool.name, problem)
            await self.set_again(timings)
            return None

    # --- the server's own stream

    async def listen(self, since: str | None = None) -> None:
        """Take what the server says unasked. The stream is open for as long as anybody listens."""
        if self.facts.is_modern:
            return
        self._since = self._since or since
        self._listeners += 1
        if self._listening is None or self._listening.done():
            self._listening = asyncio.get_running_loop().create_task(self._listen(), name="mcp stream")
        try:
            await asyncio.wait((self._listening,))
        finally:
            self._listeners -= 1
            if not self._listeners and self._listening is not None:
                self._listening.cancel()
                self._listening = None

    async def _listen(self) -> None:
        failures = renewals = 0
        while True:
            stale = self._id
            heard = await self._hear()
            renewals = renewals + 1 if heard is _Heard.FORGOTTEN else 0
            if heard is _Heard.NOTHING or renewals > RENEWALS_MAX:
                return
            if renewals and await self._renew(stale, _LISTENING) is not None:
                return
            failures = 0 if heard is _Heard.SOMETHING else failures + 1
            clock = self._server.clock
            await clock.sleep(full_jitter(failures + 1, FIRST_PAUSE_S, LONGEST_PAUSE_S, clock.draw()))

    async def _hear(self) -> _Heard:
        """Open the stream once and take what comes.

        What was missed comes on a stream of its own, which some servers then go on with and others do not. So the ordinary
        one is asked for as well: where the first has become it, the server says that there can be but one (409).
        """
        missed = await self._get(self._since) if self._since is not None else _Heard.NOTHING
        rest = None if isinstance(missed, _Heard) else asyncio.get_running_loop().create_task(self._drain(missed))
        try:
            pause_s = FIRST_PAUSE_S
            while True:
                opened = await self._get(None)
                if isinstance(opened, Reply):
                    await self._drain(opened)
                    return _Heard.SOMETHING
                if rest is None:
                    return opened
                # The server may have taken the stream from before the restart for one that is open still.
                done, _ = await asyncio.wait((rest,), timeout=pause_s)
                if done:
                    return _Heard.SOMETHING
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            if rest is not None:
                rest.cancel()
                await asyncio.wait((rest,))

    async def _get(self, since: str | None) -> Reply | _Heard:
        last: Headers = () if since is None else ((b"Last-Event-ID", since.encode()),)
        headers = (*self._headers(), *self.credentials, *last, _ACCEPT[1])
        get = Request("GET", self._server.path, headers, None, False, False)
        reply = await self._server.http.send(self._server.wire, get, _LISTENING)
        if isinstance(reply, Broken):
            return _Heard.FAILED
        if reply.status == 200 and _is_stream(reply):
            return reply
        try:
            said = b"".join([piece async for piece in _bounded(reply.body.chunks())])
        except StreamBroken:
            said = b""
        finally:
            await reply.aclose()
        is_unknown = reply.status == 404 or (reply.status == 400 and _NO_SESSION.search(said.decode("latin-1")))
        if self._id is not None and is_unknown:
            return _Heard.FORGOTTEN
        is_passing = reply.status in (401, 403, 408, 409, 429) or reply.status >= 500
        return _Heard.FAILED if is_passing and reply.status != 501 else _Heard.NOTHING

    async def _drain(self, reply: Reply) -> None:
        events, exchange = Events(ANSWER_LIMIT), Exchange(client=self.client)
        try:
            async for event in _events(reply, events):
                self._since = event.id or self._since
                self._take(event, "", exchange)
        except (StreamBroken, EventTooLarge, Malformed):
            pass
        finally:
            await reply.aclose()

    # --- requests

    async def request(
        self, method: str, params: str | None, exchange: Exchange, timings: Timings, *, has_side_effects: bool
    ) -> Answer:
        """Send a request once and return what came back."""
        self._exchanges.append(exchange)
        sent = self._number()
        try:
            stale = self._id
            reply = await self._post(sent, method, params, exchange, timings, has_side_effects)
            if isinstance(reply, Broken):
                return reply
            answer = await self._read(sent, reply, exchange, timings)
            if stale is None or not _is_forgotten(reply.status, answer):
                return answer
            problem = await self._renew(stale, timings)
            if problem is not None:
                return problem
            sent = self._number()
            reply = await self._post(sent, method, params, exchange, timings, has_side_effects)
            return reply if isinstance(reply, Broken) else await self._read(sent, reply, exchange, timings)
        except asyncio.CancelledError:
            self._cancelled_soon(sent)
            raise
        finally:
            self._exchanges.remove(exchange)

    def _own_exchange(self) -> Exchange:
        """What a request of ours in the client's session carries along."""
        return Exchange(client=self.client, headers=self.credentials)

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
        if is_greeting:
            return ()
        headers: Headers = () if self._id is None else ((b"Mcp-Session-Id", self._id),)
        return (*headers, (b"MCP-Protocol-Version", self.facts.version.encode()))

    async def _read(self, sent: str, reply: Reply, exchange: Exchange, timings: Timings) -> Answer:
        name = self._server.tool.name
        events = Events(ANSWER_LIMIT)
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
            headers = (*self._headers(), *self.credentials, last, _ACCEPT[1])
            get = Request("GET", self._server.path, headers, None, False, False)
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
                tool = self._server.tool.name
                self._server.on_event(tool, self.client, message.method, message.params, event.id)
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
        headers = (*_ACCEPT, *self._headers(), *self.credentials)
        post = Request("POST", self._server.path, headers, BytesBody(data), False, True)
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

    async def close(self, *, is_leaving: bool = False) -> None:
        """Say goodbye, unless the session is to be gone on with. May be repeated."""
        tasks = [task for task in (self._listening, *self._asking) if task is not None]
        self._listening = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._id is None or is_leaving:
            return
        goodbye = Request("DELETE", self._server.path, (*self._headers(), *self.credentials), None, False, True)
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


async def never_sent(server: str, problem: Reply | Broken) -> Reply | Broken:
    """Return what a greeting that went wrong means for the request that wanted it: whatever became of the one, the other was
    not sent. What a server says of us or of its load (401, 429, 503) is for the client to see."""
    if isinstance(problem, Broken):
        return replace(problem, dispatched=Dispatched.NO)
    if problem.status < 500 or problem.status == 503:
        return problem
    await problem.aclose()
    return Broken(Fault.SERVER, Dispatched.NO, f"{server} answered {problem.status} to its greeting")


def place_of(tool: ToolSpec) -> str:
    """Return where a server is, as it is remembered with its sessions."""
    return f"{tool.upstream.origin}{tool.upstream.prefix or '/'}"


def facts_of(answer: Message, version: str, *, is_modern: bool) -> ServerFacts:
    """Return what a server said of itself."""
    return facts_of_result(answer.result or "{}", version, is_modern=is_modern)


def facts_of_result(result: str, version: str, *, is_modern: bool) -> ServerFacts:
    """Return what a server said of itself in the raw result of its greeting; `version` is what we speak if it names none."""
    found = members(result)
    meta = found.get("_meta", ("{}", {}))[1]
    _, info = found.get("serverInfo", ("", None))
    if info is None and isinstance(meta, Mapping):
        info = meta.get("io.modelcontextprotocol/serverInfo")
    _, capabilities = found.get("capabilities", ("", None))
    _, instructions = found.get("instructions", ("", None))
    _, spoken = found.get("protocolVersion", ("", None))
    return ServerFacts(
        version=spoken if isinstance(spoken, str) and spoken and not is_modern else version,
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


def _is_forgotten(status: int, answer: Answer) -> bool:
    """Whether a request was refused because the server does not know its session: it was not looked at."""
    if isinstance(answer, Message):
        code = answer.value.get("code")
        if status == 404:
            return code != METHOD_NOT_FOUND
        return status == 400 and code == _REFUSED and _NO_SESSION.search(answer.error or "") is not None
    if isinstance(answer, Broken) or not isinstance(answer.body, BytesBody):
        return False
    return status == 404 or (status == 400 and _NO_SESSION.search(answer.body.data.decode("latin-1")) is not None)


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


async def _bounded(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield no more than what a refusal has to say."""
    size = 0
    async for piece in chunks:
        yield piece
        size += len(piece)
        if size > _REFUSAL_MAX:
            return


_proof: type[Server] = HttpServer
