"""The data plane: a request becomes a `Call`, its `Outcome` becomes an answer.

    /{tool}/{path}      to the tool, answers unchanged
    /seawall/...        ours (`ingress/runs.py`)

Reads run in the caller's own task, so that a caller who leaves cancels the upstream at once. Writes run in a task of their
own: until the intent is on its way to disk a leaving caller cancels them too; from there on they are finished without it,
and the answer waits for the next identical call.
"""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, Protocol, assert_never, cast

from aiohttp.http import HttpVersion11

from gateway.clock import Clock
from gateway.core.budget import caps_of_header
from gateway.core.call import FORWARD, Call, Handler
from gateway.core.canonical import action_namer, ambiguity, digests, is_json
from gateway.core.codes import Code, Dispatched
from gateway.core.environment import EVALUATED_LIMIT
from gateway.core.forwarding import BadHops, hops_left, unfit, via
from gateway.core.header_filter import Seen
from gateway.core.headers import protected_option, replace_fields
from gateway.core.manifest import Tier
from gateway.core.message import Body, BytesBody, Headers, Reply, Request, body_bytes
from gateway.core.outcome import RESULTS, Failed, InDoubt, Outcome, Refusal, Rejected, Success
from gateway.core.override import SPELLINGS, is_suspect, objection, second_field
from gateway.core.paths import ToolTarget, split_target
from gateway.core.problem import Problem, problem
from gateway.core.remembered import Remembered
from gateway.core.tool import AmbiguousPath, Catalog, Operation, ToolSpec
from gateway.core.websocket import SWITCHING, VERSION, request_problem, switching
from gateway.egress import Switched
from gateway.egress.spool import Spool, SpoolFailed, TooLarge
from gateway.ingress.caller import Caller, caller_of
from gateway.ingress.forward import Forward, Traveller
from gateway.ingress.http import AtOnce, IncomingRequest, OutgoingResponse, UploadBroken
from gateway.ingress.lookout import Watched, names_method, overriding, watched
from gateway.ingress.refusing import Refusing
from gateway.ingress.repeated import Repeated
from gateway.journal.trajectories import Trajectories
from gateway.stages.flights import quarantined
from gateway.telemetry import Telemetry

__all__ = [
    "Proxy",
    "ProxyLimits",
    "budget_of",
    "preferred_wait_s",
    "refuse",
    "refuse_request",
    "trace_run",
]

# Members that every call is compared with, looked up once (docs/adr/0092).
_PIVOT: Final = Tier.PIVOT
_READ: Final = Tier.READ
_FOREIGN: Final = Code.FOREIGN_TRAJECTORY
_QUARANTINED: Final = Code.QUARANTINED

_NAME = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_KEY = re.compile(rb'"?[\x21\x23-\x5b\x5d-\x7e]{1,255}"?')
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_OURS = re.compile(rb"/seawall(?:[/?]|\Z)")
_MCP = re.compile(rb"/seawall/mcp(?:[/?]|\Z)")
_NO_TRACE = b"0" * 32
_METHODS = b"GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE"
_NEVER_PASSED = frozenset({"TRACE", "CONNECT"})
"""TRACE would echo credentials (RFC 9110 section 9.3.8); CONNECT opens a tunnel and belongs to the forward proxy."""

_ODD = _NEVER_PASSED | {"OPTIONS"}
"""Methods about which something has to be asked first."""


_SAY_MORE: Final = SPELLINGS | {b"connection", b"prefer", b"seawall-budget", b"seawall-stage"}
"""Fields that say something of a call that few calls say, and that has to be looked at."""

_NO_MARKS: Headers = ()
_REPLAYED: Headers = ((b"Seawall-Replayed", b"true"),)

_LAST: Headers = ((b"Connection", b"close"),)
"""Nobody who is quarantined keeps a connection."""

PREFERRED_WAIT_MAX_S = 3600.0
"""The longest wait that an agent may ask for (`Prefer: wait`, RFC 7240 section 4.3)."""


class Carry(Protocol):
    """What carries WebSockets (`ingress/websocket.py`)."""

    async def __call__(
        self,
        agent: asyncio.Transport,
        from_agent: bytes,
        tool: asyncio.Transport,
        from_tool: bytes,
        *,
        idle_s: float,
        is_welcome: Callable[[], bool],
        whose: tuple[str, str] = ...,
    ) -> None:
        """Carry one until it is over, and close both connections."""


class ProxyLimits:
    """Bounds of the data plane. Sizes in bytes."""

    __slots__ = ("body_max", "body_memory", "in_flight")

    def __init__(
        self, *, body_memory: int = 256 * 1024, body_max: int = 64 * 1024 * 1024, in_flight: int = 10_000
    ) -> None:
        self.body_memory = body_memory
        self.body_max = body_max
        self.in_flight = in_flight


class Proxy:
    """Serves the data plane.

    `catalog` may be replaced at any time; calls in flight keep the tool they started with. `contained` has the agents that
    are quarantined, with the names of their quarantines: nothing of theirs is taken in.
    """

    def __init__(
        self,
        catalog: Catalog,
        pipeline: Handler,
        runs: Callable[[IncomingRequest], Awaitable[OutgoingResponse]],
        trajectories: Trajectories,
        spool: Spool,
        clock: Clock,
        telemetry: Telemetry,
        limits: ProxyLimits,
        pseudonym: bytes = b"seawall",
        forward: Forward | None = None,
        peek: Callable[[Call], Rejected | None] = lambda call: None,
        at_once: Callable[[Call], Rejected | None] = lambda call: None,
    ) -> None:
        """`pseudonym` is what this gateway calls itself in Via, so that it knows a request that comes round. `forward`:
        how targets in a proxy's forms are understood; without one they are refused. `peek` tells whether a call would be
        refused whatever its body is, before an agent is told to go on and upload it; `at_once` makes a call that is refused
        without anybody having to wait (`Pipeline.refused_at_once`)."""
        self._peek = peek
        self._refused_at_once = at_once
        self.refusing = Refusing()
        self._forward = forward
        self.catalog = catalog
        self.is_admitting = True
        self._pipeline = pipeline
        self._runs = runs
        self._trajectories = trajectories
        self._spool = spool
        self._clock = clock
        self._telemetry = telemetry
        self._limits = limits
        self._pseudonym = pseudonym
        self._in_flight = 0
        self.held_by: Callable[[str, str], str | None] = lambda run, agent: None
        self.on_stray: Callable[[str, str, str], None] = lambda agent, run, why: None
        self.contained: Mapping[str, Sequence[str]] = {}
        self.mcp: Callable[[IncomingRequest], Awaitable[OutgoingResponse]] | None = None
        self.carry: Carry | None = None
        self._writes: set[asyncio.Task[Any]] = set()

    def __call__(self, request: IncomingRequest) -> Awaitable[OutgoingResponse]:
        """Answer one request."""
        if self._forward is not None and not request.target.startswith(b"/"):
            if request.method == "CONNECT":
                return self._tunnel(request, self._forward)
            if request.target == b"*" and request.method == "OPTIONS":
                return self._about_us()
            self._forward.localise(request)
            if not request.target.startswith(b"/"):
                return self._carry_as_proxy(request)
        if request.target.startswith(b"/seawall") and _OURS.match(request.target):
            if self.mcp is not None and _MCP.match(request.target):
                return self.mcp(request)
            return self._runs(request)
        return self._carry(request)

    def at_once(self, request: IncomingRequest) -> AtOnce | None:
        """Return what answers requests with this very head while their calls are refused without anybody having to wait.

        None where something is wrong with it, or has to be asked about it first: then it has to be carried.
        """
        field = request.fields
        if (
            request.method in _ODD
            or not request.target.startswith(b"/")
            or b"via" in field
            or b"idempotency-key" in field
        ):
            return None
        call = self._accept(request)
        repeated = None if isinstance(call, Refusal) else self._repeated(request, call)
        if isinstance(call, Refusal) or repeated is None:
            return None
        catalog, limits = self.catalog, self._limits

        def answer(body: bytes | None) -> Problem | None:
            if self.catalog is not catalog or not self.is_admitting or self._in_flight >= limits.in_flight:
                return None
            if self.contained and call.agent in self.contained:
                return None
            rejected = repeated(body)
            if rejected is None:
                self.refusing.passed(call.tool.name)
                return None
            return self._told_at_once(call, rejected.refusal)

        return answer

    def _repeated(self, request: IncomingRequest, call: Call) -> Repeated | None:
        """Return a call as one that is made again and again; None where the journal has to be asked whose key it has."""
        kind, named, operation = _kind(request), None, call.operation
        if operation.is_read:
            call.action = _action_of_read(call)
        elif call.caller_key is not None:
            return None
        else:
            target = call.request.target.decode("ascii")
            named = action_namer(f"{call.tool.name}.{operation.name}", request.method, target, kind)
        is_certain = not operation.is_declared or not is_json(kind)
        return Repeated(
            call,
            self._clock,
            named,
            self._refused_at_once,
            is_certain=is_certain,
            is_overriding=overriding(request.method, kind, operation),
            body_max=self._limits.body_max,
        )

    def _told_at_once(self, call: Call, refusal: Refusal) -> Problem:
        """Note a refusal and word it, fields of our own included: what `_answer` does, for what is never a step's result."""
        self._noted(call, refusal)
        return problem(refusal, trajectory=call.trajectory or None, step=call.step, marks=_marks(call))

    async def _carry(self, request: IncomingRequest) -> OutgoingResponse:
        """Carry a call, if it is one that can be carried."""
        if request.target[:1] != b"/" or b"via" in request.fields:
            wrong = self._unfit(request)
            if wrong is not None:
                return wrong
        if not self.is_admitting or self._in_flight >= self._limits.in_flight:
            return self._refused("other", self._busy())
        self._in_flight += 1
        try:
            if request.manner.wants_websocket:
                return await self._open_websocket(request)
            if request.method == "OPTIONS" and (last := _last_hop(request)) is not None:
                return last
            call = self._accept(request)
            if isinstance(call, Refusal):
                return self._refused("other", call)
            tool = call.tool
            if self.contained and (held := self.contained.get(call.agent)):
                return self._refused(tool.name, quarantined(call, held[0]))
            if call.operation.is_read:
                if request.has_body:
                    return await self._read_by_body(request, call)
                call.action = _action_of_read(call)
                request.let_go()
                rejected = self._refused_now(call) if self.refusing else None
                return self._answer(call, rejected or await self._pipeline(call))
            if request.is_waiting_for_continue and (rejected := self._peek(call)) is not None:
                return self._answer(call, rejected)
            refusal = await self._capture(request, call)
            if refusal is not None:
                return self._refused(tool.name, refusal) if isinstance(refusal, Refusal) else refusal
            call.started = self._clock.now()
            call.deadline = call.started + call.operation.timeouts.total
            request.let_go()
            task = self._detach(request, call)
            try:
                return self._answer(call, self._refused_now(call) or await self._pipeline(call))
            finally:
                self._writes.discard(task)
                if call.request.body is not None:
                    await call.request.body.aclose()
        finally:
            self._in_flight -= 1

    def _unfit(self, request: IncomingRequest) -> OutgoingResponse | None:
        """Refuse what a gateway in front of tools has no business forwarding; None if it may be."""
        passed = request.fields.get(b"via")
        if passed is not None:
            passed = b", ".join([value for name, value in request.headers if name.lower() == b"via"])
        wrong = unfit(request.target, passed=passed, pseudonym=self._pseudonym, takes_urls=self._forward is not None)
        if wrong is None or request.method in _NEVER_PASSED:
            return None
        self._telemetry.refused("other", Code.INVALID_ARGUMENTS)
        return refuse_request(*wrong)

    async def _read_by_body(self, request: IncomingRequest, call: Call) -> OutgoingResponse:
        is_watched = "_method" not in call.operation.overrides
        body = watched(request, _kind(request)) if is_watched else request.stream()
        if body is None:
            return self._refused(call.tool.name, _said_twice(_IN_BODY, call.tool))
        call.request.body = body
        call.action = _action_of_read(call)
        request.let_go()
        outcome = self._refused_now(call) or await self._pipeline(call)
        if type(body) is Watched and body.has_named and isinstance(outcome, Failed):
            outcome = Failed(outcome.fault, _said_twice(_IN_BODY, call.tool, was_begun=True))
        return self._answer(call, outcome)

    def _refused_now(self, call: Call) -> Rejected | None:
        """Return the refusal of a call to a tool that refuses, where nobody has to wait for it; else None."""
        return self._refused_at_once(call) if call.tool.name in self.refusing else None

    async def _about_us(self) -> OutgoingResponse:
        """Answer OPTIONS *, which asks about the gateway as a whole (RFC 9110 section 9.3.7)."""
        return OutgoingResponse(status=204, headers=((b"Allow", _METHODS),))

    async def _carry_as_proxy(self, request: IncomingRequest) -> OutgoingResponse:
        response = await self._carry(request)
        response.headers = (*response.headers, via(self._pseudonym))
        return response

    async def _tunnel(self, request: IncomingRequest, forward: Forward) -> OutgoingResponse:
        if not self.is_admitting:
            return self._refused("other", self._busy())
        caller = caller_of(request)
        if isinstance(caller, Refusal):
            return self._refused("other", caller)
        if self.contained and caller.name in self.contained:
            return self._refused("other", _contained(caller.name, self.contained[caller.name][0]))
        run = (request.field(b"seawall-trajectory") or b"").decode("latin-1")
        answer = await forward.connect(request, Traveller(caller.name, run))
        return self._refused("other", self._strayed(request, answer)) if isinstance(answer, Refusal) else answer

    def _strayed(self, request: IncomingRequest, refusal: Refusal) -> Refusal:
        """Return a refusal, after locking away whoever called a host that is no tool's, where that is asked for."""
        forward = self._forward
        is_proxied = request.method == "CONNECT" or not request.target.startswith(b"/")
        if forward is None or not is_proxied or not forward.is_betrayed_by(refusal):
            return refusal
        caller = caller_of(request)
        named = refusal if isinstance(caller, Refusal) else self._run_name(request, caller)
        if isinstance(caller, Refusal) or isinstance(named, Refusal):
            return refusal
        self.on_stray(caller.name, named[0] if named[1] else "", refusal.detail)
        return Refusal(code=Code.QUARANTINED, detail=f"{refusal.detail} This run is quarantined because of it.")

    async def _open_websocket(self, request: IncomingRequest) -> OutgoingResponse:
        """Make the handshake a call like any read, and have what follows carried."""
        call = self._accept(request)
        if isinstance(call, Refusal):
            return self._refused("other", call)
        tool = call.tool
        settings, carry = tool.websocket, self.carry
        if settings is None or carry is None:
            return refuse_request(
                501, f"{tool.name} takes no WebSockets here (setting websocket of the tool): use HTTP."
            )
        wrong = request_problem(
            request.method,
            request.headers,
            is_http_1_1=request.manner.version == HttpVersion11,
            has_body=request.has_body and request.body_size != 0,
            origins=settings.origins,
        )
        if wrong is not None:
            refused = refuse_request(*wrong)
            if wrong[0] == 426:
                refused.headers = (*refused.headers, *SWITCHING, (b"Sec-WebSocket-Version", VERSION))
            return refused
        if not call.operation.is_read:
            detail = f"{call.operation.name} changes something, and what passes over a WebSocket could not be recorded."
            return self._refused(tool.name, Refusal(code=Code.INVALID_ARGUMENTS, detail=detail, dependency=tool.name))
        if self.contained and (held := self.contained.get(call.agent)):
            return self._refused(tool.name, quarantined(call, held[0]))
        call.request.upgrade, call.request.fresh_connection = b"websocket", True
        call.action = blake2b(b"%b websocket %b" % (tool.name.encode(), call.request.target), digest_size=16).digest()
        outcome = await self._pipeline(call)
        response = self._answer(call, outcome)
        reply = outcome.reply if isinstance(outcome, Success) else None
        if reply is None or reply.switched is None:
            return response
        switched = cast(Switched, reply.switched)

        async def takeover(agent: asyncio.Transport, early: bytes) -> None:
            try:
                far, from_tool = switched.hand_over()
            except ConnectionError:
                return  # the tool has left already: so has the agent's connection
            await carry(
                agent,
                early,
                far,
                from_tool,
                idle_s=settings.idle,
                is_welcome=lambda: request.is_welcome() and self.held_by(call.trajectory, call.agent) is None,
                whose=(call.agent, call.trajectory),
            )

        response.headers, response.takeover = switching(response.headers), takeover
        return response

    # --- making the call

    def _accept(self, request: IncomingRequest) -> Call | Refusal:
        fields, method = request.fields, request.method
        if method in _NEVER_PASSED:
            return Refusal(code=Code.INVALID_ARGUMENTS, detail=f"{method} is not passed on to tools.")
        says_more = not _SAY_MORE.isdisjoint(fields)
        option = protected_option(request.headers) if says_more else None
        if option is not None:
            return Refusal(
                code=Code.INVALID_ARGUMENTS,
                detail=f"Connection names {option.decode('latin-1')!r}, an end-to-end field: a proxy may not drop it. "
                "Leave it out of Connection.",
            )
        found = self._tool(request)
        if isinstance(found, Refusal):
            return self._strayed(request, found)
        tool, rest = found
        if tool.mcp is not None:
            where = f"/seawall/mcp/{tool.name}"
            return Refusal(
                code=Code.INVALID_ARGUMENTS,
                dependency=tool.name,
                detail=f"{tool.name} is an MCP server: it is served at {where} (and with all others at /seawall/mcp).",
            )
        try:
            match = tool.match(method, rest.decode("ascii"))
        except AmbiguousPath as error:
            return Refusal(code=Code.INVALID_ARGUMENTS, detail=str(error), dependency=tool.name)
        operation = match.operation
        if tool.is_strict and not operation.is_declared and operation.tier is not _READ:
            return Refusal(
                code=Code.UNKNOWN_TOOL,
                dependency=tool.name,
                detail=f"{tool.name} is strict and declares no operation for {method} "
                f"{rest.partition(b'?')[0].decode('ascii')}. Use one of: {', '.join(_declared(tool)) or 'none'}.",
            )
        if says_more and (said := self._second_field(request, tool, operation)):
            return _said_twice(f"the header field `{said}`", tool)
        caller = caller_of(request)
        if isinstance(caller, Refusal):
            return caller
        named = self._run_name(request, caller)
        if isinstance(named, Refusal):
            return named
        stage = fields.get(b"seawall-stage", b"") if says_more else b""
        if stage and not _NAME.fullmatch(stage):
            return _bad_header("Seawall-Stage", "1 to 128 letters, digits and . _ : -, the first a letter or digit")
        key = self._caller_key(request, tool)
        if isinstance(key, Refusal):
            return key
        budget = budget_of(fields.get(b"seawall-budget"), named[0]) if says_more else None
        if isinstance(budget, Refusal):
            return budget
        now, changes = self._clock.now(), not operation.is_read
        headers = request.headers if tool.admit is None else tool.admit(request.headers, self._seen(request))
        sent = Request(method, rest, headers, None, changes, changes, operation.tier is _PIVOT)
        call = Call(
            tool,
            operation,
            sent,
            caller.name,
            now,
            now + operation.timeouts.total,
            named[0],
            named[1],
            caller.is_proven,
            FORWARD,
            match.params,
            key,
        )
        if b"traceparent" not in fields:
            call.traceparent = b""
        if says_more:
            call.wait_s, call.stage, call.budget = preferred_wait_s(request.headers), stage.decode("ascii"), budget
        return call

    def _tool(self, request: IncomingRequest) -> tuple[ToolSpec, bytes] | Refusal:
        """Return the tool that a target means, with path and query below it."""
        target = split_target(request.target)
        if isinstance(target, ToolTarget):
            tool = self.catalog.tools.get(target.tool)
            return self._unknown_tool(target.tool) if tool is None else (tool, target.rest)
        if self._forward is not None and request.target[:1] != b"/":
            found = self._forward.find(request.method, request.target)
            return found if isinstance(found, Refusal) else (found.tool, found.rest)
        return Refusal(code=Code.INVALID_ARGUMENTS, detail=target.detail)

    def _second_field(self, request: IncomingRequest, tool: ToolSpec, operation: Operation) -> str | None:
        """Return a header field that would reach the tool and could replace method or path, or None."""
        headers = request.headers if tool.admit is None else tool.admit(request.headers, self._seen(request))
        return second_field(headers, operation.overrides)

    def _seen(self, request: IncomingRequest) -> Seen:
        return Seen(request.peer, request.field(b"host") or b"", request.scheme, self._pseudonym)

    def _run_name(self, request: IncomingRequest, caller: Caller) -> tuple[str, bool] | Refusal:
        given = request.fields.get(b"seawall-trajectory")
        if given is not None:
            if not _NAME.fullmatch(given):
                return _bad_header(
                    "Seawall-Trajectory", "1 to 128 letters, digits and . _ : -, the first a letter or digit"
                )
            return given.decode("ascii"), True
        trace = request.fields.get(b"traceparent")
        if trace is not None:
            return trace_run(trace, caller.name if caller.is_proven else None), False
        return "", False

    def _caller_key(self, request: IncomingRequest, tool: ToolSpec) -> str | Refusal | None:
        key = request.fields.get(b"idempotency-key")
        if key is None and tool.idempotency is not None:
            key = request.fields.get(_lowered[tool.idempotency.header])
        if key is None:
            return None
        if not _KEY.fullmatch(key):
            return _bad_header("Idempotency-Key", "1 to 255 visible ASCII characters, quoted or not")
        return key.strip(b'"').decode("ascii")

    async def _capture(self, request: IncomingRequest, call: Call) -> Refusal | OutgoingResponse | None:
        limits = self._limits
        try:
            body: Body = await request.read_all(self._spool, max_bytes=limits.body_max, memory_limit=limits.body_memory)
        except TooLarge:
            return Refusal(
                code=Code.PAYLOAD_TOO_LARGE,
                dependency=call.tool.name,
                detail=f"The body is larger than {limits.body_max} bytes (setting limits.body). Nothing was sent.",
            )
        except UploadBroken as error:
            return Refusal(code=Code.INVALID_ARGUMENTS, dependency=call.tool.name, detail=f"Nothing was sent: {error}.")
        except SpoolFailed as error:
            return Refusal(
                code=Code.RESOURCE_EXHAUSTED,
                dependency=call.tool.name,
                detail=f"The body could not be kept on disk ({error}), so nothing was sent. Try again later.",
                retry_after_ms=5000,
            )
        call.request.body = body if body.size or request.has_body else None
        kind, target, data = _kind(request), call.request.target.decode("ascii"), await _digestible(body)
        operation = f"{call.tool.name}.{call.operation.name}"
        call.action, call.fingerprint, is_canonical = digests(operation, request.method, target, kind, data)
        if not is_canonical or is_suspect(data):
            return await self._unclear(call, kind, body, is_canonical=is_canonical)
        return None

    async def _unclear(
        self, call: Call, kind: str, body: Body, *, is_canonical: bool
    ) -> Refusal | OutgoingResponse | None:
        """Refuse a body that could replace the method, or that the tool may read otherwise than the rules do."""
        if "_method" not in call.operation.overrides and await names_method(kind, body):
            await body.aclose()
            return _said_twice(_IN_BODY, call.tool)
        if not is_canonical and call.operation.is_declared and is_json(kind):
            return await self._ambiguous(call, body)
        return None

    async def _ambiguous(self, call: Call, body: Body) -> OutgoingResponse | None:
        """Refuse JSON that the tool may read otherwise than the rules do; what is too large for rules is not looked at."""
        why = ambiguity(await body_bytes(body, EVALUATED_LIMIT) or b"")
        if why is None:
            return None
        await body.aclose()
        self._telemetry.refused(call.tool.name, Code.INVALID_ARGUMENTS)
        detail = f"The JSON body is ambiguous: {why}. Nothing was sent; send each key once."
        told = problem(Refusal(code=Code.INVALID_ARGUMENTS, detail=detail, dependency=call.tool.name), status=400)
        return OutgoingResponse(status=told.status, headers=told.headers, body=BytesBody(told.body))

    # --- running it

    async def run(self, call: Call) -> Outcome:
        """Take a call that another entrance has made down the pipeline, under the same bounds and the same care."""
        if not self.is_admitting or self._in_flight >= self._limits.in_flight:
            return Rejected(self._busy())
        if self.contained and (held := self.contained.get(call.agent)):
            return Rejected(quarantined(call, held[0]))
        self._in_flight += 1
        try:
            if call.operation.is_read:
                outcome = self._refused_now(call) or await self._pipeline(call)
            else:
                outcome = await self._shielded(call)
        finally:
            self._in_flight -= 1
        if isinstance(outcome, Rejected):
            self.refusing.refused(call.tool.name, outcome.refusal.code)
        return outcome

    def _detach(self, request: IncomingRequest, call: Call) -> asyncio.Task[None]:
        """Have a write's task, the front's own, go on without the agent once the intent is on its way; return the task."""
        task = request.task
        assert task is not None
        request.write = call
        self._writes.add(task)
        return task

    async def _shielded(self, call: Call) -> Outcome:
        task = asyncio.get_running_loop().create_task(self._through(call))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if call.is_committed_to_send:
                task.add_done_callback(_discard_answer)
            else:
                task.cancel()
            raise

    async def _through(self, call: Call) -> Outcome:
        try:
            return self._refused_now(call) or await self._pipeline(call)
        finally:
            if call.request.body is not None:
                await call.request.body.aclose()

    async def drain(self, seconds: float) -> int:
        """Wait for writes in flight, detached ones included; cut off what is left. Returns how many were cut off."""
        if self._writes:
            await asyncio.wait(set(self._writes), timeout=seconds)
        left = list(self._writes)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=1.0)
        return len(left)

    # --- answering

    def _answer(self, call: Call, outcome: Outcome) -> OutgoingResponse:
        match outcome:
            case Success(reply, is_replay):
                marks = _marks(call)
                return self._pass_on(call, reply, marks + _REPLAYED if is_replay else marks)
            case Rejected(refusal):
                return self._refusal_of(call, refusal)
            case Failed(reply=reply) if reply is not None:
                return self._pass_on(call, reply, _marks(call))
            case Failed(refusal=refusal):
                return refuse(refusal or _no_answer(call), call, self._delivery(call))
            case InDoubt(refusal=refusal, reply=reply):
                return refuse(refusal, call, None, None if reply is None else reply.aclose)
            case _ as never:
                assert_never(never)

    def _refusal_of(self, call: Call, refusal: Refusal) -> OutgoingResponse:
        if refusal.code is _FOREIGN:
            return refuse(refusal, call)
        self._noted(call, refusal)
        return refuse(refusal, call, self._delivery(call) if refusal.code in RESULTS else None)

    def _noted(self, call: Call, refusal: Refusal) -> None:
        tool = call.tool.name
        self._trajectories.note_refusal(call.trajectory, refusal.code, tool, call.operation.name)
        self.refusing.refused(tool, refusal.code)

    def _pass_on(self, call: Call, reply: Reply, marks: Headers) -> OutgoingResponse:
        delivery = None if call.step is None else self._delivery(call)
        return OutgoingResponse(
            reply.status, reply.headers + marks, reply.body, reply.reason, delivery, None, None, reply
        )

    def _delivery(self, call: Call) -> Callable[[], None] | None:
        if call.step is None or call.operation.is_read:
            return None
        name, step = call.trajectory, call.step
        return lambda: self._trajectories.delivered(name, step)

    def _refused(self, tool: str, refusal: Refusal) -> OutgoingResponse:
        self._telemetry.refused(tool, refusal.code)
        return refuse(refusal)

    def _unknown_tool(self, name: str) -> Refusal:
        near = difflib.get_close_matches(name, self.catalog.tools, n=3)
        known = near or sorted(self.catalog.tools)[:10]
        hint = f"Did you mean {' or '.join(near)}?" if near else f"Known tools: {', '.join(known) or 'none'}."
        return Refusal(
            code=Code.UNKNOWN_TOOL, detail=f"No tool is called {name[:64]!r}. {hint}", extra={"known": known}
        )

    def _busy(self) -> Refusal:
        why = "is shutting down" if not self.is_admitting else f"has {self._in_flight} calls in flight, its limit"
        return Refusal(
            code=Code.RESOURCE_EXHAUSTED, detail=f"The gateway {why}; nothing was sent. Try again.", retry_after_ms=1000
        )

    def statistics(self) -> dict[str, int]:
        """Return calls and writes in flight."""
        return {"in_flight": self._in_flight, "writes": len(self._writes)}


def refuse(
    refusal: Refusal,
    call: Call | None = None,
    on_delivered: Callable[[], None] | None = None,
    release: Callable[[], Awaitable[None]] | None = None,
) -> OutgoingResponse:
    """Return a refusal as a problem JSON answer."""
    marks = _NO_MARKS if call is None else _marks(call)
    if refusal.code is _QUARANTINED:
        marks += _LAST
    if call is None:
        told = problem(refusal, marks=marks)
    else:
        told = problem(refusal, trajectory=call.trajectory or None, step=call.step, marks=marks)
    return OutgoingResponse(
        status=told.status,
        headers=told.headers,
        body=BytesBody(told.body),
        on_delivered=on_delivered,
        release=release,
    )


def _last_hop(request: IncomingRequest) -> OutgoingResponse | None:
    """Answer an OPTIONS that may go no further, or note on it that it has come one hop further."""
    value = request.field(b"max-forwards")
    if value is None:
        return None
    try:
        left = hops_left(value)
    except BadHops:
        return refuse_request(400, "Max-Forwards holds no number. Nothing was sent.")
    if left < 0:
        return OutgoingResponse(status=204, headers=((b"Allow", _METHODS),))
    request.replace_headers(replace_fields(request.headers, {b"max-forwards": b"%d" % left}))
    return None


def refuse_request(status: int, detail: str) -> OutgoingResponse:
    """Return the refusal of a request that the front itself could not take."""
    code = Code.INTERNAL if status == 500 else Code.INVALID_ARGUMENTS
    told = problem(Refusal(code=code, detail=detail), status=status)
    return OutgoingResponse(status=told.status, headers=told.headers, body=BytesBody(told.body))


def preferred_wait_s(headers: Headers) -> float:
    """Return how long the agent is ready to wait (`Prefer: wait=N`, whole seconds); 0 if it did not say."""
    for name, value in headers:
        if name.lower() == b"prefer":
            for preference in value.decode("latin-1").split(","):
                key, _, amount = preference.partition(";")[0].partition("=")
                amount = amount.strip().strip('"')
                if key.strip().lower() == "wait" and amount.isascii() and amount.isdigit():
                    return min(float(amount), PREFERRED_WAIT_MAX_S)
    return 0.0


def _marks(call: Call) -> Headers:
    marks = ((b"Seawall-Trajectory", call.trajectory.encode("ascii")),) if call.trajectory else _NO_MARKS
    if call.step is not None:
        marks += ((b"Seawall-Step", b"%d" % call.step),)
    if call.notice:
        marks += ((b"Seawall-Budget", call.notice.encode("ascii")),)
    return marks


def budget_of(field: bytes | None, run: str) -> dict[str, float] | Refusal | None:
    """Return the caps of a `Seawall-Budget` field, which belong to a run that has a name; None without one."""
    if field is None:
        return None
    caps = caps_of_header(field.decode("latin-1"))
    if not run:
        caps = ["a budget belongs to a run, so name one with Seawall-Trajectory"]
    if isinstance(caps, list):
        return Refusal(
            code=Code.INVALID_ARGUMENTS,
            detail=f"Nothing was sent. The header Seawall-Budget: {'; '.join(caps)}. Write it like usd=0.5, tokens=250000.",
            extra={"problems": caps},
        )
    return caps


def _contained(agent: str, quarantine: str) -> Refusal:
    return Refusal(
        code=Code.QUARANTINED,
        detail=f"Agent {agent} is quarantined ({quarantine}). Send nothing more; an operator has to look at it.",
        extra={"quarantine": quarantine},
    )


_IN_BODY: Final = "the body's field `_method`"


def _said_twice(what: str, tool: ToolSpec, *, was_begun: bool = False) -> Refusal:
    fact = "The request was broken off before its end" if was_begun else "Nothing was sent"
    return Refusal(
        code=Code.INVALID_ARGUMENTS,
        dependency=tool.name,
        detail=f"{fact}: {objection(what, tool.name)}.",
        dispatched=Dispatched.MAYBE if was_begun else None,
    )


def _no_answer(call: Call) -> Refusal:
    return Refusal(code=Code.UPSTREAM_CONNECT, detail=f"{call.tool.name} could not be reached; nothing was sent.")


def _bad_header(name: str, shape: str) -> Refusal:
    return Refusal(code=Code.INVALID_ARGUMENTS, detail=f"The header {name} must hold {shape}.")


_lowered = Remembered[str, bytes](lambda name: name.lower().encode("ascii"))


def _declared(tool: ToolSpec) -> list[str]:
    return sorted(name for name, operation in tool.operations.items() if operation.is_declared)


def _kind(request: IncomingRequest) -> str:
    return (request.field(b"content-type") or b"").decode("latin-1")


def _action_of_read(call: Call) -> bytes:
    """Name a read by what stands in front of its body, which streams."""
    name, verb, target = call.tool.name.encode(), call.request.method.encode(), call.request.target
    return blake2b(b"%b %b %b" % (name, verb, target), digest_size=16).digest()


async def _digestible(body: Body) -> bytes:
    """Return the body, or for one on disk its digest: what tells one action from another."""
    if isinstance(body, BytesBody):
        return body.data
    digest = blake2b(digest_size=32)
    async for chunk in body.chunks():
        digest.update(chunk)
    return b"spooled:" + digest.digest()


def _discard_answer(task: asyncio.Task[Outcome]) -> None:
    """Nobody waits for this answer any more: it lies in the journal, its body here can go."""
    if task.cancelled() or task.exception() is not None:
        return
    outcome = task.result()
    reply = None if isinstance(outcome, Rejected) else outcome.reply
    if reply is not None:
        closing = asyncio.get_running_loop().create_task(reply.aclose())
        _CLOSING.add(closing)
        closing.add_done_callback(_CLOSING.discard)


_CLOSING: set[asyncio.Task[None]] = set()


def trace_run(traceparent: bytes, proven_agent: str | None) -> str:
    """Return the name of the run that a trace is; empty if it is none.

    Agents of one trace have a run each, where they are known to be different.
    """
    found = _TRACEPARENT.fullmatch(traceparent.strip())
    if found is None or found.group(1) == _NO_TRACE:
        return ""
    own = "" if proven_agent is None else f"-{blake2b(proven_agent.encode(), digest_size=4).hexdigest()}"
    return f"trace-{found.group(1).decode('ascii')}{own}"
