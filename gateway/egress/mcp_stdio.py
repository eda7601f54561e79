"""MCP servers as child processes: started when first needed, greeted, watched, and started again when they die.

One process serves all agents, unless the manifest asks for one each. Requests are told apart by ids of our own, progress by
tokens of our own. What a child asks (sampling, elicitation) goes to the client whose requests are in flight; if several
clients have some, nobody can say whose it is, and it is answered that the client cannot be asked.

What clients had set (the log level, subscriptions) is set again in the child that comes after one that died, be it by itself
or with us; of a changed resource only those are told who subscribed to it.

What reached a child that dies is in doubt: its pipe took the bytes. A child that dies again and again is started with
growing pauses (full jitter); calls wait out a short pause, and are refused at once in a long one: nothing was sent.

A child whose gateway is killed is ended by the guardian (`mcp_guardian.py`).

The child sees a short list of our variables and those of the manifest; what it writes to stderr goes to the log.

Source: MCP "Transports", stdio (close stdin, then terminate, then kill); Brooker 2015 (full jitter).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from gateway.clock import Clock
from gateway.core.backoff import full_jitter
from gateway.core.codes import Dispatched
from gateway.core.fault import Broken, Fault
from gateway.core.mcp import (
    METHOD_NOT_FOUND,
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
from gateway.core.mcp_era import LEGACY, MODERN
from gateway.core.mcp_memory import settings_of
from gateway.core.mcp_session import Client
from gateway.core.message import Reply
from gateway.core.tool import ToolSpec
from gateway.egress import Timings
from gateway.egress.mcp_guardian import Guardian
from gateway.egress.mcp_http import enveloped, facts_of, greeting, readdressed
from gateway.egress.mcp_link import SOON, Answer, Exchange, OnEvent, OnQuestion, Server, ServerFacts, Session
from gateway.egress.mcp_memory import SessionMemory

__all__ = ["StdioServer"]

LINE_LIMIT: Final = 64 << 20
INHERITED: Final = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TERM", "TMPDIR", "TZ")
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 30.0
PATIENCE_S: Final = 1.0
STEADY_S: Final = 30.0
"""A child that has lived so long did start well: the next pause is a short one again."""
_PIECE: Final = 64 << 10
_SAID_MAX: Final = 1_000
"""As much of a line of its stderr is kept, in bytes; all of it is read, as a child waits for that."""
PROBE_S: Final = 3.0
"""How long a child that refused the handshake may take to answer `server/discover`."""

_log = logging.getLogger("gateway.mcp")


class StdioServer:
    """One MCP server behind pipes. A process is kept running from its first use until `close`."""

    def __init__(
        self,
        tool: ToolSpec,
        clock: Clock,
        on_event: OnEvent,
        on_question: OnQuestion,
        memory: SessionMemory,
        guardian: Guardian,
        *,
        capabilities: Mapping[str, object],
    ) -> None:
        """`memory` is what clients have set in the children before; `guardian` ends the child if we are killed;
        `capabilities` is what the child is told that its client can do: more than an agent can is refused then."""
        self.tool = tool
        self._clock = clock
        self._on_event = on_event
        self._on_question = on_question
        self._memory = memory
        self._guardian = guardian
        self._capabilities = capabilities
        self._child: _Child | None = None
        self._lock = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None
        self._deaths = 0
        self._not_before = 0.0
        self._is_closed = False

    @property
    def in_flight(self) -> int:
        """Requests that wait for their answers."""
        return 0 if self._child is None else self._child.in_flight

    async def session(self, client: Client, timings: Timings) -> Session | Reply | Broken:
        """Return the running child, started if need be."""
        async with self._lock:
            child = self._child
            if child is not None and child.is_alive:
                return child
            if self._is_closed:
                return Broken(Fault.CONNECT, Dispatched.NO, f"{self.tool.name} is shut down")
            wait_s = self._not_before - self._clock.now()
            if 0 < wait_s <= PATIENCE_S:
                await self._clock.sleep(wait_s)
            elif wait_s > 0:
                return Broken(
                    Fault.CONNECT, Dispatched.NO, f"{self.tool.name} has ended and is started again in {wait_s:.1f} s"
                )
            return await self._start(client, timings.total_s)

    def has_session(self, client: Client) -> bool:
        """Whether the child runs: it is everybody's."""
        return self._child is not None and self._child.is_alive

    async def _start(self, client: Client, limit_s: float) -> Session | Broken:
        child = _Child(self.tool, self._on_event, self._on_question, self._guardian)
        try:
            await child.start()
        except OSError as error:
            self._died()
            what = error.strerror or type(error).__name__
            return Broken(Fault.CONNECT, Dispatched.NO, f"the program of {self.tool.name} cannot be started: {what}")
        told = Client(version=LEGACY[0], capabilities=self._capabilities, info=client.info)
        try:
            async with asyncio.timeout(max(1.0, limit_s)):
                problem = await child.greet(told)
                if problem is None:
                    await self._set_again(child)
        except TimeoutError:
            problem = Broken(
                Fault.CONNECT_TIMEOUT, Dispatched.NO, f"{self.tool.name} did not answer its greeting in time"
            )
        except BaseException:
            await child.end()
            raise
        if problem is not None:
            await child.end()
            self._died()
            return problem
        self._child = child
        self._keeper = asyncio.get_running_loop().create_task(self._keep(child), name=f"mcp {self.tool.name}")
        return child

    async def _set_again(self, child: _Child) -> None:
        """Set what clients had set in the children before this one: each resource once, and the level set last."""
        if child.facts.is_modern:
            return
        table = self._memory.table
        at_all = [entry for entry in table.of_server("") if entry.client.scope in ("", self.tool.name)]
        for method, params in settings_of((*table.of_server(self.tool.name), *at_all)):
            await child.request(method, params, Exchange(client=child.client), SOON, has_side_effects=False)

    async def _keep(self, child: _Child) -> None:
        """Wait for its end, then start it again, so that the next call need not wait for that."""
        began = self._clock.now()
        await child.gone()
        if self._is_closed:
            return
        if self._clock.now() - began > STEADY_S:
            self._deaths = 0
        pause_s = self._died()
        _log.warning(
            "an MCP server has ended",
            extra={"event": "mcp_ended", "tool": self.tool.name, "again_in_s": round(pause_s, 1)},
        )
        await child.end()
        await self._clock.sleep(pause_s)
        async with self._lock:
            if not self._is_closed and self._child is child:
                await self._start(child.client, 30.0)

    def _died(self) -> float:
        self._deaths += 1
        pause_s = full_jitter(self._deaths, FIRST_PAUSE_S, LONGEST_PAUSE_S, self._clock.draw())
        self._not_before = self._clock.now() + pause_s
        return pause_s

    async def end(self, client: Client) -> None:
        """Unsubscribe from what this client alone had subscribed to. The child is everybody's."""
        entry, child = self._memory.table.of(self.tool.name, client.nonce), self._child
        if entry is None or child is None or not child.is_alive:
            return
        for uri in [uri for uri in entry.subscriptions if not self.is_subscribed(uri, client)]:
            params = json.dumps({"uri": uri})
            await child.request("resources/unsubscribe", params, Exchange(client=client), SOON, has_side_effects=False)

    def is_subscribed(self, uri: object, client: Client) -> bool:
        """Whether another client than this one has subscribed to a resource."""
        entries = self._memory.table.of_server(self.tool.name)
        return any(uri in entry.subscriptions for entry in entries if entry.client.nonce != client.nonce)

    async def evict(self, client: Client) -> None:
        """Nothing to do: the child is everybody's, and the client comes back."""

    async def close(self, *, is_leaving: bool = False) -> None:
        """End the child. May be repeated."""
        self._is_closed = True
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait((keeper,))
        if self._child is not None:
            await self._child.end()


class _Waiting:
    """A request that was written and not answered."""

    __slots__ = ("answer", "exchange", "token")

    def __init__(self, exchange: Exchange, token: str | None) -> None:
        self.exchange = exchange
        self.token = token
        self.answer: asyncio.Future[Message | Broken] = asyncio.get_running_loop().create_future()

    def take(self, answer: Message | Broken) -> None:
        """Take the answer, unless there is one."""
        if not self.answer.done():
            self.answer.set_result(answer)


class _Child:
    """A process, and the conversation with it."""

    def __init__(self, tool: ToolSpec, on_event: OnEvent, on_question: OnQuestion, guardian: Guardian) -> None:
        self.facts: ServerFacts = ServerFacts(version=LEGACY[0], is_modern=False)
        self.client = Client(version=LEGACY[0])
        self._tool = tool
        self._on_event = on_event
        self._on_question = on_question
        self._guardian = guardian
        self._process: asyncio.subprocess.Process | None = None
        self._waiting: dict[str, _Waiting] = {}
        self._next = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._reader: asyncio.Task[None] | None = None
        self._said: deque[str] = deque(maxlen=20)

    @property
    def is_alive(self) -> bool:
        """Whether it can be talked to."""
        return self._reader is not None and not self._reader.done()

    @property
    def in_flight(self) -> int:
        """Requests that wait for their answers."""
        return len(self._waiting)

    async def start(self) -> None:
        """Start the process.

        Raises:
            OSError: there is no such program, or it may not be run.
        """
        mcp = self._tool.mcp
        assert mcp is not None
        names = os.environ if mcp.is_inheriting else INHERITED
        known = {name: os.environ[name] for name in names if name in os.environ}
        self._process = await asyncio.create_subprocess_exec(
            *mcp.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**known, **dict(mcp.environment)},
            cwd=mcp.folder,
            limit=LINE_LIMIT,
            start_new_session=True,
        )
        self._guardian.watch(self._process.pid)
        self._reader = self._spawn(self._read())
        self._spawn(self._log())

    async def greet(self, client: Client) -> Broken | None:
        """Introduce ourselves. Returns what went wrong, or None."""
        self.client = client
        mcp = self._tool.mcp
        assert mcp is not None
        if mcp.protocol not in MODERN:
            problem = await self._greet(client, mcp.protocol if mcp.protocol in LEGACY else LEGACY[0])
            if problem is None or mcp.protocol != "auto" or not self.is_alive:
                return problem
        self.facts = ServerFacts(version=MODERN[0], is_modern=True)
        answer = await self._ask_for(Exchange(client=client), "server/discover", None, PROBE_S)
        versions = None if answer is None else answer.value.get("supportedVersions")
        if answer is None or not isinstance(versions, list) or MODERN[0] not in versions:
            return self._gone()
        self.facts = facts_of(answer, MODERN[0], is_modern=True)
        return None

    async def _greet(self, client: Client, version: str) -> Broken | None:
        answer = await self._ask_for(Exchange(client=client), "initialize", greeting(client, version), 60.0)
        if answer is None:
            return self._gone()
        if answer.result is None:
            what = answer.value.get("message")
            return Broken(Fault.PROTOCOL, Dispatched.NO, f"{self._tool.name} refused to be greeted: {what}")
        self.facts = facts_of(answer, version, is_modern=False)
        await self.notify("notifications/initialized", None)
        return None

    async def _ask_for(self, exchange: Exchange, method: str, params: str | None, limit_s: float) -> Message | None:
        try:
            async with asyncio.timeout(limit_s):
                answer = await self.request(method, params, exchange, _UNBOUNDED, has_side_effects=False)
        except TimeoutError:
            return None
        return answer if isinstance(answer, Message) else None

    def _gone(self) -> Broken:
        said = f" ({self._said[-1][:200]})" if self._said else ""
        return Broken(Fault.CONNECT, Dispatched.NO, f"{self._tool.name} ended or fell silent before it was ready{said}")

    # --- requests

    async def request(
        self, method: str, params: str | None, exchange: Exchange, timings: Timings, *, has_side_effects: bool
    ) -> Answer:
        """Send a request once and return what came back."""
        self._next += 1
        sent = str(self._next)
        if self.facts.is_modern:
            params = enveloped(params, exchange.client, self.facts.version)
        params, token = _with_own_token(params, sent)
        waiting = self._waiting[sent] = _Waiting(exchange, token)
        name = self._tool.name
        try:
            if not self.is_alive:
                return Broken(Fault.CONNECT, Dispatched.NO, f"{name} has ended")
            if not await self._write(request(sent, method, params)):
                return Broken(Fault.RESET, Dispatched.MAYBE, f"{name} ended while the call was written to it")
            async with asyncio.timeout(timings.total_s if timings is not _UNBOUNDED else None):
                return await waiting.answer
        except TimeoutError:
            self._cancelled_soon(sent)
            return Broken(Fault.TIMEOUT, Dispatched.YES, f"{name} did not answer within {timings.total_s:.0f} s")
        except asyncio.CancelledError:
            self._cancelled_soon(sent)
            raise
        finally:
            del self._waiting[sent]

    async def notify(self, method: str, params: str | None) -> None:
        """Send a notification."""
        await self._write(notification(method, params))

    def _cancelled_soon(self, sent: str) -> None:
        if self.is_alive:
            params = f'{{"requestId":{sent},"reason":"nobody waits for it any more"}}'
            self._spawn(self.notify("notifications/cancelled", params))

    async def _write(self, data: bytes) -> bool:
        process = self._process
        if process is None or process.stdin is None or process.stdin.is_closing():
            return False
        try:
            process.stdin.write(data + b"\n")
            await process.stdin.drain()
        except (ConnectionError, RuntimeError):
            return False
        return True

    # --- what it says

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        broken = Broken(Fault.RESET, Dispatched.YES, f"{self._tool.name} ended before it answered")
        try:
            while line := await self._process.stdout.readline():
                if line.strip():
                    self._take(line)
        except ValueError:
            what = f"wrote a line of more than {LINE_LIMIT} bytes"
            broken = Broken(Fault.PROTOCOL, Dispatched.YES, f"{self._tool.name} {what}, and is started again")
            _log.warning("an MCP server %s", what, extra={"tool": self._tool.name})
        finally:
            for waiting in self._waiting.values():
                waiting.take(broken)

    def _take(self, line: bytes) -> None:
        try:
            message = parse(line)
        except Malformed as error:
            # Many write to stdout what is meant for people. Only of what names a request it is known whose answer it is.
            _log.warning("an MCP server wrote a line that is no message", extra={"tool": self._tool.name})
            if (waiting := self._waiting.get(error.id)) is not None:
                what = f"{self._tool.name} sent something that is not MCP: {error}"
                waiting.take(Broken(Fault.PROTOCOL, Dispatched.YES, what))
            return
        match message.kind:
            case Kind.RESPONSE:
                if (waiting := self._waiting.get(message.id)) is not None:
                    waiting.take(message)
            case Kind.REQUEST:
                self._spawn(self._answer(message))
            case Kind.NOTIFICATION:
                self._heard(message)

    def _heard(self, message: Message) -> None:
        if message.method == "notifications/progress":
            token = message.value.get("progressToken")
            waiting = self._waiting.get(str(token))
            if waiting is not None and waiting.token is not None and message.params is not None:
                waiting.exchange.tell(message.method, replaced(message.params, {"progressToken": waiting.token}))
            return
        if message.method == "notifications/message" and self._waiting:
            # Whose call a line is about can be said only while all calls are one client's; others must not read it.
            exchanges = [waiting.exchange for waiting in self._waiting.values()]
            if len(exchanges) == 1 or _is_one_clients(exchanges):
                exchanges[0].tell(message.method, message.params)
            return
        self._on_event(self._tool.name, None, message.method, message.params, None)

    async def _answer(self, message: Message) -> None:
        if message.method == "ping":
            await self._write(result_message(message.id, "{}"))
            return
        exchanges = [waiting.exchange for waiting in self._waiting.values()]
        for exchange in exchanges:
            exchange.was_asked = True
        is_one = len(exchanges) == 1 or _is_one_clients(exchanges)
        ask = next((exchange.ask for exchange in exchanges if exchange.ask is not None), None)
        said: Message | None = None
        if ask is not None:
            said = await ask(message.method, message.params) if is_one else None
        else:
            said = await self._on_question(self._tool.name, Client(version=""), message.method, message.params)
        await self._write(
            error_message(message.id, METHOD_NOT_FOUND, "no client can be asked that just now")
            if said is None
            else readdressed(said, message.id)
        )

    async def _log(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        rest = b""
        while piece := await self._process.stderr.read(_PIECE):
            *lines, rest = (rest + piece).split(b"\n")
            rest = rest[:_SAID_MAX]
            for line in lines:
                text = line[:_SAID_MAX].decode("utf-8", "replace").rstrip()
                self._said.append(text)
                _log.debug("said: %s", text, extra={"event": "mcp_stderr", "tool": self._tool.name})

    # --- its end

    async def close(self) -> None:
        """Nothing to do: the child is everybody's, and its server ends it."""

    async def listen(self, since: str | None = None) -> None:
        """Wait for its end: a child says what it wants to."""
        await self.gone()

    async def gone(self) -> None:
        """Return once it can no longer be talked to."""
        if self._reader is not None:
            await asyncio.wait((self._reader,))

    async def end(self) -> None:
        """Close its stdin, then ask it to end, then end it. May be repeated."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if process.returncode is not None:
                break
            if number is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        self._guardian.leave(process.pid)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                await process.stdin.wait_closed()

    def _spawn(self, coroutine: object) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


_UNBOUNDED: Final = Timings(connect_s=60.0, first_byte_s=60.0, idle_s=60.0, total_s=60.0)


def _is_one_clients(exchanges: Sequence[Exchange]) -> bool:
    """Whether all these are of one session."""
    clients = {exchange.client.nonce for exchange in exchanges}
    return len(clients) == 1 and "" not in clients


def _with_own_token(params: str | None, own: str) -> tuple[str | None, str | None]:
    """Return params with our progress token in place of the agent's, and the agent's own."""
    if params is None or '"progressToken"' not in params:
        return params, None
    raw, value = members(params).get("_meta", ("{}", {}))
    if not isinstance(value, dict) or "progressToken" not in value:
        return params, None
    token = members(raw)["progressToken"][0]
    return replaced(params, {"_meta": replaced(raw, {"progressToken": own})}), token


_proof: type[Server] = StdioServer
