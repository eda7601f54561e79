"""One breaker per tool origin and credential: asked before the queue, its permit taken at dispatch, always settled."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Final

from gateway.clock import Clock
from gateway.core.breaker import Breaker, BreakerRefusal, Permit, Reason, State, Transition, Verdict, verdict_of
from gateway.core.call import Call, Handler, Lane
from gateway.core.codes import Code
from gateway.core.manifest import Tier
from gateway.core.message import Body, Reply
from gateway.core.outcome import Outcome, Refusal, Rejected, streamed_reply
from gateway.core.tool import Catalog, ToolSpec
from gateway.egress import StreamBroken, StreamCut
from gateway.telemetry import Telemetry

__all__ = ["LEASE_SLACK_S", "REMEMBERED", "BreakerStage", "Guard"]

# Members that every call is compared with, looked up once (docs/adr/0092).
_CLOSED, _NEUTRAL, _PIVOT, _CIRCUIT_OPEN = State.CLOSED, Verdict.NEUTRAL, Tier.PIVOT, Code.CIRCUIT_OPEN

# Breakers are remembered in the journal under this prefix.
REMEMBERED = "breaker/"
# A canary is lost this long after the deadline of its call: time enough to notice the time-out and say so.
LEASE_SLACK_S = 1.0


class BreakerStage:
    """Keeps calls from a tool that fails, and remembers which those are.

    `remember(name, value)` keeps the latest value under a name, lazily (`Journal.remember`).
    """

    def __init__(self, clock: Clock, telemetry: Telemetry, remember: Callable[[str, bytes], None]) -> None:
        self._clock = clock
        self._telemetry = telemetry
        self._remember = remember
        self._guards: dict[str, Guard] = {}
        self._recalled: dict[str, bytes] = {}

    async def __call__(self, call: Call, proceed: Handler) -> Outcome:
        """Return the outcome of the call made under a permit, or ERR_CIRCUIT_OPEN."""
        guard = self.guard(call.tool)
        breaker, sent = guard.breaker, self._clock.now()
        may_be_canary = _may_be_canary(call)
        left_s = call.deadline - sent
        lease_s = (left_s if left_s > 0.0 else 0.0) + LEASE_SLACK_S
        answer = breaker.acquire(sent, may_be_canary=may_be_canary, lease_s=lease_s)
        del left_s, lease_s  # the call may wait for long
        if answer.transitions:
            self.report(guard, answer.transitions)
        if isinstance(answer, BreakerRefusal):
            return Rejected(_refusal(call, answer))
        call.exchange_s = None
        verdict = _NEUTRAL
        try:
            outcome = await proceed(call)
            verdict = verdict_of(outcome, call.tool.breaker)
        finally:
            now = self._clock.now()
            elapsed_s = now - sent if call.exchange_s is None else call.exchange_s
            moves = breaker.settle(answer, verdict, now, elapsed_s)
            if moves:
                self.report(guard, moves)
        if (reply := streamed_reply(outcome)) is not None:
            self.watch_body(reply, guard, answer)
        return outcome

    def watch_body(self, reply: Reply, guard: Guard, permit: Permit) -> None:
        """Have an answer that breaks after its head count against the tool. No closure: waiting calls would keep cells."""
        reply.body = _WatchedBody(reply.body, partial(self._broke, guard, permit))

    def peek(self, call: Call) -> Rejected | None:
        """Return the refusal that the call would meet now, or None; takes no permit.

        For admission: a call that will be refused should not wait in a queue for it.
        """
        guard = self.guard(call.tool)
        if guard.breaker.state is _CLOSED:
            return None
        refusal = guard.breaker.peek(self._clock.now())
        if refusal is None:
            return None
        if refusal.transitions:
            self.report(guard, refusal.transitions)
        return Rejected(_refusal(call, refusal))

    def restore(self, recalled: Mapping[str, bytes]) -> None:
        """Take up what `Journal.recall(REMEMBERED)` returned; before `reconfigure` and the first call."""
        self._recalled = {name.removeprefix(REMEMBERED): value for name, value in recalled.items()}

    def reconfigure(self, catalog: Catalog) -> None:
        """Have one breaker for each tool of the catalog. Those already there keep their state, also under new settings.

        Tools that share origin and credential share the breaker, under the settings of the first by name. Breakers of
        tools that are gone are dropped; calls in flight keep theirs to the end.
        """
        tools: dict[str, list[ToolSpec]] = {}
        for _, tool in sorted(catalog.tools.items()):
            tools.setdefault(_key(tool), []).append(tool)
        self._guards = {key: guard for key, guard in self._guards.items() if key in tools}
        for sharing in tools.values():
            guard = self.guard(sharing[0])
            guard.tools = tuple(tool.name for tool in sharing)
            guard.breaker.reconfigure(sharing[0].breaker, self._clock.now())
        self._recalled = {}

    def statistics(self) -> dict[str, dict[str, object]]:
        """Return a look inside each breaker, by the names of the tools that share it."""
        now = self._clock.now()
        return {", ".join(guard.tools): asdict(guard.breaker.statistics(now)) for guard in self._guards.values()}

    def guard(self, tool: ToolSpec) -> Guard:
        """Return the breaker of a tool with what belongs to it, made where there is none yet."""
        guard = self._guards.get(tool.breaker_key or tool.name)
        return self._new_guard(_key(tool), tool) if guard is None else guard

    def _new_guard(self, key: str, tool: ToolSpec) -> Guard:
        guard = self._guards[key] = Guard(key, (tool.name,), self._recall(key, tool))
        return guard

    def _recall(self, key: str, tool: ToolSpec) -> Breaker:
        """Return the breaker as remembered; a fresh one if there is none, or nothing that can be read."""
        remembered = self._recalled.pop(key, None)
        if remembered is None:
            return Breaker(tool.breaker)
        try:
            snapshot = json.loads(remembered)
            if not isinstance(snapshot, dict):
                raise ValueError("a breaker's snapshot is not an object")
            return Breaker.restore(tool.breaker, snapshot, self._clock.now(), self._clock.at())
        except ValueError as error:
            self._telemetry.background_failed(f"restoring the breaker of {tool.name}", error)
            return Breaker(tool.breaker)

    def report(self, guard: Guard, transitions: tuple[Transition, ...]) -> None:
        """Tell of a breaker's moves, and remember where it stands."""
        for transition in transitions:
            for tool in guard.tools:
                self._telemetry.breaker_changed(tool, transition.after, transition.cause, transition.cooldown_s)
        if transitions:
            snapshot = guard.breaker.snapshot(self._clock.now(), self._clock.at())
            self._remember(REMEMBERED + guard.key, json.dumps(snapshot).encode())

    def _broke(self, guard: Guard, permit: Permit) -> None:
        self.report(guard, guard.breaker.observe(permit, Verdict.FAILURE, self._clock.now()))


class Guard:
    """A breaker, the key it is remembered by, and the tools it stands for."""

    __slots__ = ("breaker", "key", "tools")

    def __init__(self, key: str, tools: tuple[str, ...], breaker: Breaker) -> None:
        self.key = key
        self.tools = tools
        self.breaker = breaker


class _WatchedBody:
    """A streamed body that says when it breaks. A reader who leaves early is not the tool's fault."""

    __slots__ = ("_body", "_broke")

    def __init__(self, body: Body, broke: Callable[[], None]) -> None:
        self._body = body
        self._broke = broke

    @property
    def size(self) -> int | None:
        return self._body.size

    @property
    def is_replayable(self) -> bool:
        return self._body.is_replayable

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._body.chunks():
                yield chunk
        except StreamBroken as error:
            if not isinstance(error, StreamCut):
                self._broke()
            raise

    async def aclose(self) -> None:
        await self._body.aclose()


def _key(tool: ToolSpec) -> str:
    return tool.breaker_key or tool.name


def _may_be_canary(call: Call) -> bool:
    """Whether the call may be the experiment: anything but an irreversible one.

    Writes that can be undone may, and those of unmanaged tools too: a tool that is only ever written to would else never
    be found healed (docs/adr/0007-canaries.md). An irreversible call that was sent already and is in doubt may, under a
    key that the tool honours: sending it again is how the doubt is settled, and nobody else may come who could try. So may
    one that a run past its pivot has to send, where a doubt about it could be settled (docs/adr/0100-owed-canaries.md).
    """
    if call.operation.tier is not _PIVOT:
        return True
    if call.lane is Lane.FINALIZATION:
        return call.tool.idempotency is not None or call.operation.probe is not None
    return call.is_in_doubt and call.tool.idempotency is not None


_DETAILS: Final = {
    Reason.OPEN: "The tool %s keeps failing and is left alone for another %.1f s; wait so long, or go on with work that "
    "does not need it.",
    Reason.CANARY_OUT: "The tool %s was failing and is being tried with one call; wait %.1f s for its result, then send "
    "this call again.",
    Reason.NO_ELIGIBLE_CANARY: "The tool %s was failing and must answer a call that can do no harm first; read from it, "
    "or wait %.1f s, then send this call again.",
}
_EXTRAS: Final[Mapping[Reason, Mapping[str, object]]] = {reason: {"reason": reason.value} for reason in Reason}


def _refusal(call: Call, refusal: BreakerRefusal) -> Refusal:
    name, seconds = call.tool.name, refusal.retry_after_s
    return Refusal(
        code=_CIRCUIT_OPEN,
        detail=_DETAILS[refusal.reason] % (name, seconds),
        retry_after_ms=math.ceil(seconds * 1000),
        dependency=name,
        extra=_EXTRAS[refusal.reason],
    )
