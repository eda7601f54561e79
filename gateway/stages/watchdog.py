"""Stops loops before they spend: asks the run's watchdog before a call, and tells it afterwards what became of the call.

What counts as a loop, `core/watchdog.py` decides; what it leads to, `core/interrupt.py`. Here is what both rest on: which
noes are final and which only say "not yet", the hash of what was answered, the state of the world where a tool declares how
to read it, figures of progress, and what the run's own steps amount to. A repeat that only collects or settles what was sent
already is never held back.

The watchdog lies on the run itself and goes with it; one that is missing is built from the run's records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from gateway.clock import Clock, wait_until
from gateway.core.call import FORWARD, Call, Handler, Passable
from gateway.core.codes import Code
from gateway.core.coding import decoded
from gateway.core.environment import EVALUATED_LIMIT, response_env
from gateway.core.expression import Environment, ExpressionError
from gateway.core.fault import Fault
from gateway.core.interrupt import deadlocked, interrupt, restored
from gateway.core.message import BytesBody, Reply, first_header
from gateway.core.outcome import Failed, InDoubt, Outcome, Refusal, Rejected, Success
from gateway.core.policy import Effect
from gateway.core.records import MetricsReported, StateReported
from gateway.core.statehash import no_hash, result_hash, state_hash
from gateway.core.tool import Catalog, Operation, Probe, StateProbe, ToolSpec
from gateway.core.trajectory import Phase
from gateway.core.watchdog import Ended, Loop, Verdict, Watchdog, WatchdogMode, action_hash, inverse, says_nothing
from gateway.journal import Conflict, JournalUnavailable, tellable
from gateway.journal.trajectories import Run, Trajectories
from gateway.probes import Prober, Unheard
from gateway.stages.environment import call_env
from gateway.telemetry import Telemetry

__all__ = ["WatchdogStage", "answer_hash", "wanted", "watched"]

# Members that every call is compared with, looked up once (docs/adr/0092).
_DONE: Final = Ended.DONE

NOT_YET_READ = frozenset({404, 408, 409, 423, 425, 428, 429})
NOT_YET_WRITE = frozenset({408, 423, 425, 428, 429})
"""Noes that may be another answer soon: what is read may come to be; nobody knows that of a write's conflict."""

_NOES = frozenset({
    Code.POSTCONDITION, Code.PIVOT_ORDER, Code.POLICY_DENIED, Code.ARTIFACT_QUARANTINED, Code.INVALID_ARGUMENTS,
    Code.IDEMPOTENCY_MISMATCH, Code.UNKNOWN_TOOL,
})  # fmt: skip
"""Refusals of ours that are the same whoever asks again. All others pass by themselves or say how to go on."""

_ENTROPY_EVERY = 16
"""Actions of a run between two figures of its entropy in the metrics."""

_NET = "net effect"
_OPEN = (Phase.PREPARING, Phase.FINALIZING)


def wanted(tool: ToolSpec) -> bool:
    """Whether calls to a tool pass this stage at all."""
    return tool.watchdog.mode is not WatchdogMode.OFF


def answer_hash(call: Call, reply: Reply) -> int:
    """Return a hash of a tool's no; of one that streams, of its status and length."""
    if isinstance(reply.body, BytesBody):
        return no_hash(reply.status, reply.body.data, call.tool.watchdog.volatile)
    return result_hash(reply.status, first_header(reply.headers, b"content-length") or b"")


def watched(tool: ToolSpec, operation: Operation) -> bool:
    """Whether this stage has anything to do for calls of an operation."""
    return wanted(tool)


class WatchdogStage(Passable):
    """Holds the watchdogs of runs to what happens in them.

    `revoke` is called with the name of a run that is stopped for good: its credentials end with it. `asking` holds the
    questions for the state of a tool's world that are under way, by run.
    """

    def __init__(
        self,
        trajectories: Trajectories,
        catalog: Callable[[], Catalog],
        clock: Clock,
        telemetry: Telemetry,
        prober: Prober | None = None,
        pipeline: Callable[[], Handler] | None = None,
        in_shadow: Callable[[Call, str, Effect], None] | None = None,
    ) -> None:
        """`in_shadow`: nothing is held back, and it is told what would have been."""
        self._in_shadow = in_shadow
        self._trajectories = trajectories
        self._catalog = catalog
        self._clock = clock
        self._telemetry = telemetry
        self._prober = prober
        self._pipeline = pipeline
        self.asking: dict[str, asyncio.Task[None]] = {}
        self.revoke: Callable[[str], object] = lambda name: None

    async def __call__(self, call: Call, proceed: Handler) -> Outcome:
        """Refuse what would go on with a loop; tell the watchdog what became of everything else."""
        if call.lane is not FORWARD or call.step is not None:
            return await proceed(call)
        trajectories, is_read = self._trajectories, call.operation.is_read
        run = trajectories.at_hand(call)
        if run is not None and run.is_lost and not is_read:
            try:
                run = await self._trajectories.find(run.state.id)
            except JournalUnavailable as error:
                return Rejected(_unread(call, error))
        first = None
        if run is not None:
            # Most calls are actions that are new to the run, and for those there is nothing to ask.
            if self._must_ask(run, call, is_read=is_read) and (refusal := await self._before(run, call)) is not None:
                return Rejected(refusal)
        elif call.tool.state is not None and not is_read:
            first = await self._look(call, call.tool.state, await call_env(call))
        if is_read and call.operation.watch is not None:
            call.request.capture_answer = True
        outcome = await proceed(call)
        if run is None or run.is_lost or run.state.id != call.trajectory:
            run = self._trajectories.get(call.trajectory)
            if run is None or run.is_lost:
                return outcome
        if first is not None and run.watch is None and self._first(run, call) is not None:
            self.reported(run, first, call.tool.name, lazy=True)
        dog = run.watch or self._first(run, call)
        if dog is None:
            return outcome
        is_step = self._hear(run, dog, call, outcome)
        if is_step and call.tool.state is not None:
            await self._ask_state(run, dog, call, call.tool.state)
        self._show_entropy(call, dog)
        return outcome

    def hear(self, run: Run, call: Call, outcome: Outcome) -> None:
        """Tell the watchdog of a run, that had one before the call, what became of a call to a tool without a state."""
        if run.is_lost or run.state.id != call.trajectory:
            current = self._trajectories.get(call.trajectory)
            if current is None or current.is_lost:
                return
            run = current
        dog = run.watch or self._first(run, call)
        if dog is None:
            return
        if call.operation.is_read and type(outcome) is Success:
            self._was_read(run, dog, call, outcome.reply)
        else:
            self._hear(run, dog, call, outcome)
        if call.trace is not None or not dog.step % _ENTROPY_EVERY:
            self._telemetry.entropy_seen(call, dog.entropy_bits)

    def _hear(self, run: Run, dog: Watchdog, call: Call, outcome: Outcome) -> bool:
        """Tell it; return whether a step of the run was done."""
        if not isinstance(outcome, Success):
            self._after(run, dog, call, outcome)
        elif call.operation.is_read:
            self._was_read(run, dog, call, outcome.reply)
        elif not outcome.is_replay:
            return self._was_done(run, dog, call, outcome.reply)
        return False

    def lets_pass(self, call: Call) -> bool:
        """Whether there is a watchdog at hand that has nothing to say about this call, and no state to hear of first."""
        run, is_read = self._trajectories.at_hand(call), call.operation.is_read
        dog = None if run is None else run.watch
        if run is None or dog is None or run.is_lost or run.state.circles is not None:
            return False
        if not is_read and (call.tool.state is not None or run.state.id in self.asking):
            return False
        return not dog.may_object(call.action) or dog.check(call.action, is_read=is_read) is None

    def refused(self, call: Call, outcome: Rejected) -> Rejected:
        """Tell the watchdog of it."""
        run = self._trajectories.get(call.trajectory)
        dog = None if run is None else run.watch
        if run is not None and dog is not None:
            if outcome.refusal.code in _NOES:
                self._after(run, dog, call, outcome)
            self._show_entropy(call, dog)
        return outcome

    def _show_entropy(self, call: Call, dog: Watchdog) -> None:
        if call.trace is not None or not dog.step % _ENTROPY_EVERY:
            self._telemetry.entropy_seen(call, dog.entropy_bits)

    def _must_ask(self, run: Run, call: Call, *, is_read: bool) -> bool:
        dog, circles = run.watch, run.state.circles
        if dog is None or circles is not None or dog.may_object(call.action):
            return True
        return not is_read and (call.tool.state is not None or run.state.id in self.asking)

    async def close(self) -> None:
        """Stop asking tools for their state."""
        tasks = list(self.asking.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def dog(self, run: Run) -> Watchdog:
        """Return the watchdog of a run."""
        circles = run.state.circles
        if run.watch is None or (circles is not None and circles.since != run.watch.since):
            run.watch = restored(self._catalog().watchdog, run.state)
        return run.watch

    # --- before

    async def _before(self, run: Run, call: Call) -> Refusal | None:
        state = run.state
        if state.circles is not None and state.circles.is_deadlocked:
            return deadlocked(state)
        if state.phase not in _OPEN:
            return None
        dog = self.dog(run)
        if not call.operation.is_read and (call.tool.state is not None or state.id in self.asking):
            await self._know_state(run, dog, call)
        loop = dog.check(call.action, is_read=call.operation.is_read)
        if loop is None or state.collects(call.action.hex()):
            return None
        if run.is_lost:
            # What is decided on it would be lost with it, and what its watchdog objects to may not leave.
            return _unread(call, JournalUnavailable("what its watchdog has to say could not be recorded"))
        return await self._interrupt(run, dog, call, loop)

    async def _interrupt(self, run: Run, dog: Watchdog, call: Call, loop: Loop) -> Refusal | None:
        mode = call.tool.watchdog.mode
        if self._in_shadow is not None:
            mode = WatchdogMode.OBSERVE
            self._in_shadow(call, "(watchdog)", Effect.DENY)
        if mode is WatchdogMode.OBSERVE or call.started <= dog.heard_s:
            # Nobody heeds what he has not heard yet: calls that left together meet one interrupt.
            loop = replace(loop, verdict=Verdict.INTERRUPT)
        told = interrupt(
            run.state, loop, tool=call.tool.name, operation=call.operation.name, action=call.action.hex(), mode=mode,
            is_named=call.is_run_named and not run.state.is_implicit)  # fmt: skip
        done = "observed" if mode is WatchdogMode.OBSERVE else told.done
        self._telemetry.loop_found(call, loop.pattern.value, done, dog.entropy_bits)
        dog.interrupted(loop, call.action)
        dog.heard_s = self._clock.now()
        if mode is WatchdogMode.OBSERVE:
            return None
        future = self._trajectories.record(run, told.records, lazy=done in ("interrupt", "mask"))
        if done == "deadlock":
            # Before anybody knows whether it is on disk: a lease that was taken for nothing is only taken anew.
            self.revoke(run.state.id)
        if done not in ("rewind", "deadlock"):
            return told.refusal
        try:
            await asyncio.shield(future)
        except (JournalUnavailable, Conflict) as error:
            return Refusal(
                code=Code.JOURNAL_UNAVAILABLE,
                detail=f"The run goes in circles, and that could not be recorded ({tellable(error)}); nothing was sent.",
                retry_after_ms=1000,
            )
        if done == "rewind":
            await self._taken_back(run, call.deadline)
        dog.heard_s = self._clock.now()
        return told.refusal

    async def _taken_back(self, run: Run, deadline: float) -> None:
        """Wait until the run can go on from its savepoint, but not beyond the call's time."""
        while run.state.phase is Phase.COMPENSATING and not run.is_lost and self._clock.now() < deadline:
            await wait_until(self._clock, run.changed(), deadline)

    # --- after

    def _first(self, run: Run, call: Call) -> Watchdog | None:
        """Return the watchdog of a run that had none before this call; None if it knows of the call already."""
        known = run.state.steps.keys() - {call.step}
        if not known and run.state.circles is None:
            run.watch = Watchdog(self._catalog().watchdog, is_gentle=run.state.is_implicit)
            return run.watch
        dog = self.dog(run)
        return dog if call.step is None else None

    def _after(self, run: Run, dog: Watchdog, call: Call, outcome: Failed | Rejected | InDoubt) -> None:
        match outcome:
            case Failed(fault=fault, reply=reply):
                self._was_refused(run, dog, call, fault, reply)
            case Rejected(refusal):
                if refusal.code in _NOES:
                    result = result_hash(0, refusal.code.encode())
                    dog.acted(call.action, result, Ended.NO, number=call.step, cap=_cap(call))
            case InDoubt():
                dog.acted(call.action, None, Ended.NOT_YET, number=call.step)

    def _was_read(self, run: Run, dog: Watchdog, call: Call, reply: Reply) -> None:
        action, body, watched = call.action, reply.body, call.operation.watch
        result = result_hash(reply.status, body.data) if isinstance(body, BytesBody) else None
        if watched is None:
            dog.acted(action, result, Ended.DONE)
            dog.effects.looked(hash(action) ^ (result or 0))
            return
        dog.acted(action, result, Ended.DONE, cap=watched.poll)
        dog.effects.looked(dog.step if watched.poll is not None else hash(action) ^ (result or 0))
        self._measure(run, dog, call, reply)

    def _was_done(self, run: Run, dog: Watchdog, call: Call, reply: Reply) -> bool:
        action, number = call.action, call.step
        dog.acted(action, None, _DONE, is_change=True, number=number)
        step = None if number is None else run.state.steps.get(number)
        if step is None or number is None:
            return False
        undo = None if step.compensator is None else inverse(step.compensator)
        dog.state_is(dog.effects.changed(_own(call), undo, action_hash(action), number), _NET, laps=2)
        if call.operation.watch is not None:
            self._measure(run, dog, call, reply)
        return True

    def _was_refused(self, run: Run, dog: Watchdog, call: Call, fault: Fault, reply: Reply | None) -> None:
        action, is_read = call.action, call.operation.is_read
        if fault is not Fault.CLIENT_ERROR or reply is None:
            dog.acted(action, result_hash(0, fault.value.encode()), Ended.NOT_YET, number=call.step, cap=_cap(call))
            return
        step = None if call.step is None else run.state.steps.get(call.step)
        result = int(step.answer, 16) if step is not None and step.answer else answer_hash(call, reply)
        patient = NOT_YET_READ if is_read else NOT_YET_WRITE
        is_no = reply.status not in patient and _cap(call) is None
        dog.acted(action, result, Ended.NO if is_no else Ended.NOT_YET, number=call.step, cap=_cap(call))

    # --- progress

    def _measure(self, run: Run, dog: Watchdog, call: Call, reply: Reply) -> None:
        watched = call.operation.watch
        if watched is None or not watched.metrics or not isinstance(reply.body, BytesBody):
            return
        data = decoded(reply.headers, reply.body.data, EVALUATED_LIMIT)
        env: dict[str, object] = {"response": response_env(reply.status, reply.headers, data)}
        values: dict[str, float] = {}
        for name, metric in watched.metrics:
            try:
                value = metric(env)
            except ExpressionError:
                continue
            if isinstance(value, int | float) and not isinstance(value, bool):
                values[name] = float(value)
        if values:
            self.measured(run, values, lazy=True)

    def measured(self, run: Run, values: Mapping[str, float], *, lazy: bool = False) -> asyncio.Future[None]:
        """Take figures of progress; the future is done when they are durable."""
        self.dog(run).measured(values)
        return self._trajectories.record(run, [MetricsReported(values=dict(values))], lazy=lazy)

    def reported(self, run: Run, state: int, source: str = "agent", *, lazy: bool = False) -> asyncio.Future[None]:
        """Take the state of the world after a change; the future is done when it is durable."""
        self.dog(run).state_is(state, source)
        return self._trajectories.record(run, [StateReported(state=f"{state:016x}", source=source)], lazy=lazy)

    # --- the state of a tool's world

    async def _know_state(self, run: Run, dog: Watchdog, call: Call) -> None:
        """Before a change: hear what was asked after the last one, and, before the first, what there is to begin with."""
        asking = self.asking.get(run.state.id)
        if asking is not None:
            await asyncio.wait((asking,), timeout=max(0.0, call.deadline - self._clock.now()))
        if call.tool.state is not None and not dog.has_states_of(call.tool.name):
            await self._ask_state(run, dog, call, call.tool.state)
            if (asking := self.asking.get(run.state.id)) is not None:
                await asyncio.wait((asking,), timeout=max(0.0, call.deadline - self._clock.now()))

    async def _ask_state(self, run: Run, dog: Watchdog, call: Call, state: StateProbe) -> None:
        if run.state.id in self.asking:
            return
        env = await call_env(call)
        task = asyncio.get_running_loop().create_task(self._ask(run, call, state, env), name=f"state of {run.state.id}")
        self.asking[run.state.id] = task
        task.add_done_callback(partial(self._asked, run.state.id))

    async def _ask(self, run: Run, call: Call, state: StateProbe, env: Environment) -> None:
        value = await self._look(call, state, env)
        if value is not None and not run.is_lost and run.state.is_open:
            self.reported(run, value, call.tool.name, lazy=True)

    async def _look(self, call: Call, state: StateProbe, env: Environment) -> int | None:
        """Return the state of a tool's world, or None where it cannot be seen just now."""
        if self._prober is None or self._pipeline is None:
            return None
        heard = await self._prober.ask(Probe(state.request), call, env, self._pipeline())
        if isinstance(heard, Unheard):
            return None
        shown: object = heard["json"] if heard["json"] is not None else heard["text"]
        try:
            if state.select is not None:
                shown = state.select({"response": heard})
            if shown is None:
                return None  # what cannot be seen is no state, and least of all the same one again
            return state_hash(shown, frozenset(name.lower() for name in call.tool.watchdog.volatile))
        except (ExpressionError, TypeError):
            return None

    def _asked(self, name: str, task: asyncio.Task[None]) -> None:
        self.asking.pop(name, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._telemetry.background_failed("asking for a tool's state", error)


def _unread(call: Call, error: Exception) -> Refusal:
    """What was taken away from a run is not known before the run is read again: fail closed."""
    return Refusal(
        code=Code.JOURNAL_UNAVAILABLE,
        dependency=call.tool.name,
        detail=f"The run has to be read again after a failed write, and cannot be ({tellable(error)}); nothing was sent to "
        f"{call.tool.name}. Try again later.",
        retry_after_ms=1000,
    )


def _own(call: Call) -> tuple[str, str, str, bytes]:
    """What the call is, as the compensator of an earlier step would name it."""
    body, request = call.request.body, call.request
    is_plain = body is None or (isinstance(body, BytesBody) and says_nothing(body.data))
    return call.tool.name, request.method, request.target.decode("latin-1"), b"" if is_plain else call.fingerprint


def _cap(call: Call) -> int | None:
    return None if call.operation.watch is None else call.operation.watch.poll
