"""Repeats: join the one in flight, deliver what is recorded, settle what is in doubt, refuse what does not fit.

What a call is, `core/idempotency.py` decides; here its run is found, the flights of this process are kept, and recorded
answers are brought back from the journal. A call that is new, or that settles a step in doubt, goes on; whoever repeats it
meanwhile waits for its outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import assert_never

import orjson

from gateway.clock import Clock
from gateway.core.call import FORWARD, Call, Handler, Passable
from gateway.core.codes import Code, Dispatched
from gateway.core.idempotency import (
    Deferred,
    Deliver,
    Doubtful,
    Join,
    Mismatch,
    New,
    Recalled,
    Staged,
    Undone,
    caller_digest,
    recall,
)
from gateway.core.message import BytesBody, Reply
from gateway.core.outcome import Failed, InDoubt, Outcome, Refusal, Rejected, Success
from gateway.core.records import StepCommitted, decode
from gateway.core.saga import Open
from gateway.core.settle import still_working_s, why_not_resent
from gateway.core.sparse import NOTHING, excluding, including
from gateway.core.trajectory import Step, StepState
from gateway.journal import Journal, JournalCorrupt, JournalUnavailable, tellable
from gateway.journal.trajectories import Run, Trajectories
from gateway.stages.outbox import staged_answer

__all__ = ["Flight", "IdempotencyStage"]

FlightKey = tuple[str, str | bytes]
"""The run, and the digest of the agent's own key or of the action."""


class Flight:
    """A step on its way. Most are waited for by nobody, so the future is made by the first who does."""

    __slots__ = ("shared",)

    def __init__(self) -> None:
        self.shared: asyncio.Future[tuple[Outcome, int | None]] | None = None

    def joined(self) -> asyncio.Future[tuple[Outcome, int | None]]:
        """Return what is done with the outcome and the step's number, or cancelled where there is none to share."""
        if self.shared is None:
            self.shared = asyncio.get_running_loop().create_future()
        return self.shared


class IdempotencyStage(Passable):
    """Lets each action through once at a time."""

    def __init__(self, trajectories: Trajectories, journal: Journal, clock: Clock) -> None:
        self._trajectories = trajectories
        self._journal = journal
        self._clock = clock
        self.flights: dict[FlightKey, Flight] = {}

    def __call__(self, call: Call, proceed: Handler) -> Awaitable[Outcome]:
        """Find the call's run; for a write, find out what it repeats. A read whose run is at hand is passed on as it is."""
        if call.lane is not FORWARD:
            return proceed(call)
        if call.step is not None:
            return self._resume(call, proceed, call.step)
        if not call.operation.is_read:
            return self._lead(call, proceed)
        run = self._at_hand(call) if call.trajectory else self._trajectories.current(call.agent)
        if not isinstance(run, Run):
            return self._read(call, proceed)
        call.trajectory, run.touched_s = run.state.id, self._clock.now()
        return proceed(call)

    def _at_hand(self, call: Call) -> Run | None:
        """Return the run that a call names, if it is in memory and nothing stands against its use."""
        run = self._trajectories.get(call.trajectory)
        if run is None or run.is_lost or (call.is_agent_proven and run.state.agent != call.agent):
            return None
        return run

    async def _read(self, call: Call, proceed: Handler) -> Outcome:
        """A read whose run has to be looked up, or may not be used."""
        refused = await self._look_up(call)
        return await proceed(call) if refused is None else refused

    async def _look_up(self, call: Call) -> Rejected | None:
        try:
            found = await self._find(call, "", "", None)
        except JournalUnavailable as error:
            return _unavailable(call, error)
        if isinstance(found, Refusal):
            return Rejected(found)
        run, _ = found
        call.trajectory, run.touched_s = run.state.id, self._clock.now()
        return None

    async def _meet(self, call: Call, proceed: Handler) -> Outcome | FlightKey:
        """Return the outcome of a write that repeats another, or, if it is new, the key under which others may join it.

        What it takes to find that out is let go of before the call goes on, which may wait for long.
        """
        caller = None if call.caller_key is None else caller_digest(call.agent, call.tool.name, call.caller_key)
        action, content = call.action.hex(), call.fingerprint.hex()
        joined: int | None = None
        while True:
            at_hand = None if caller is not None else self._at_hand(call)
            if at_hand is not None:
                run, recalled = at_hand, recall(at_hand.state, action=action, fingerprint=content, caller=None)
            else:
                try:
                    found = await self._find(call, action, content, caller)
                except JournalUnavailable as error:
                    return _unavailable(call, error)
                if isinstance(found, Refusal):
                    return Rejected(found)
                run, recalled = found
            call.trajectory = run.state.id
            run.touched_s = self._clock.now()
            flight_key = (run.state.id, caller or call.action)
            flight = self.flights.get(flight_key)
            if flight is None and joined is not None and isinstance(recalled, New):
                # Its answer reached another caller while this one was waiting for the same step.
                recalled = _ended(run, joined)
            if flight is None:
                if isinstance(recalled, New):
                    return flight_key
                return await self._act(call, proceed, run, recalled, flight_key)
            shared, joined = await self._wait(call, flight)
            if shared is not None:
                return shared

    def lets_pass(self, call: Call) -> bool:
        """Whether it is a read or a new step, in a run at hand. Whose key a caller's own is, the journal has to be asked."""
        trajectories = self._trajectories
        run = self._at_hand(call) if call.trajectory else trajectories.standing(call.agent)
        if run is None:
            return False
        if call.operation.is_read:
            return True
        if call.caller_key is not None:
            return False
        action = call.action.hex()
        if (run.state.id, call.action) in self.flights:
            return False
        if call.trajectory and action not in run.state.actions:
            return True
        # Of an agent's implicit runs there are none while one of them has to be read again.
        candidates = (run,) if call.trajectory else trajectories.implicit(call.agent)
        content = call.fingerprint.hex()
        return bool(candidates) and all(
            isinstance(recall(one.state, action=action, fingerprint=content, caller=None), New) for one in candidates
        )

    def refused(self, call: Call, outcome: Rejected) -> Rejected:
        """The call has found its run, and touched it."""
        run = self._trajectories.at_hand(call)
        if run is not None:
            call.trajectory = run.state.id
            run.touched_s = self._clock.now()
        return outcome

    async def _resume(self, call: Call, proceed: Handler, number: int) -> Outcome:
        """A step that the gateway settles on its own: the agent's identical repeat waits for it, or it for that one."""
        run = await self._trajectories.find(call.trajectory)
        step = None if run is None else run.state.steps.get(number)
        if run is None or step is None or step.state is not StepState.IN_DOUBT:
            return _conflict(call, step)
        flight_key = (run.state.id, step.caller or call.action)
        flight = self.flights.get(flight_key)
        if flight is None:
            return await self._act(call, proceed, run, Doubtful(step), flight_key)
        shared, _ = await self._wait(call, flight)
        return shared or _conflict(call, step)

    # --- which run, which step

    async def _find(self, call: Call, action: str, content: str, caller: str | None) -> tuple[Run, Recalled] | Refusal:
        is_read = call.operation.is_read
        if call.trajectory:
            live = self._trajectories.get(call.trajectory)
            if live is not None and not live.is_lost:
                run: Run | Refusal = live
            else:
                opening = Open(
                    agent=call.agent,
                    is_implicit=not call.is_run_named,
                    budget=NOTHING if call.budget is None else dict(call.budget),
                )
                run = await self._trajectories.named(call.trajectory, opening)
            if isinstance(run, Run) and call.is_agent_proven and run.state.agent != call.agent:
                return _foreign(call)
            if isinstance(run, Refusal) or is_read:
                return run if isinstance(run, Refusal) else (run, New())
            recalled = recall(run.state, action=action, fingerprint=content, caller=caller)
        elif is_read:
            current = self._trajectories.current(call.agent)
            return current if isinstance(current, Refusal) else (current, New())
        else:
            await self._trajectories.reload_lost(call.agent)
            for candidate in self._trajectories.implicit(call.agent):
                recalled = recall(candidate.state, action=action, fingerprint=content, caller=caller)
                if not isinstance(recalled, New):
                    return candidate, recalled
            current = self._trajectories.current(call.agent)
            if isinstance(current, Refusal):
                return current
            run, recalled = current, New()
        if caller is not None and isinstance(recalled, New):
            owner = await self._journal.find_key(bytes.fromhex(caller), self._clock.at())
            if owner is not None and owner.stream != run.state.id:
                other = await self._trajectories.find(owner.stream)
                if other is not None:
                    known = recall(other.state, action=action, fingerprint=content, caller=caller)
                    if not isinstance(known, New):
                        return other, known
        return run, recalled

    # --- what to do with it

    async def _act(self, call: Call, proceed: Handler, run: Run, recalled: Recalled, flight_key: FlightKey) -> Outcome:
        match recalled:
            case New():
                return await self._lead(call, proceed, flight_key)
            case Join(step):
                # In flight by the journal, but not in this process: the write of its outcome is pending.
                return _conflict(call, step)
            case Deliver(step):
                return await self._deliver(call, run, step)
            case Doubtful(step):
                refusal = self._cannot_settle(call, step)
                if refusal is not None:
                    return Rejected(refusal)
                call.step, call.key, call.is_in_doubt = step.number, step.key, True
                call.first_sent = self._clock.now() - max(0, self._clock.at() - step.intended_at) / 1000
                doubted = self._clock.now() - max(0, self._clock.at() - step.doubted_at) / 1000
                call.given_up = doubted + still_working_s(step.doubt, call.operation)
                return await self._lead(call, proceed, flight_key)
            case Staged(step):
                call.step, call.key = step.number, step.key
                return staged_answer(call)
            case Deferred(step):
                if step.number in run.busy:
                    return _conflict(call, step)
                run.busy = including(run.busy, step.number)
                call.step, call.key = step.number, step.key
                try:
                    return await self._lead(call, proceed, flight_key)
                finally:
                    run.busy = excluding(run.busy, step.number)
                    run.notify()
            case Mismatch(step):
                return Rejected(Refusal(
                    code=Code.IDEMPOTENCY_MISMATCH, dependency=call.tool.name,
                    detail=f"This idempotency key was used for step {step.number} ({step.operation}) with other content. "
                    "Use a new key for a new call, or repeat the first one unchanged."))  # fmt: skip
            case Undone(step):
                return Rejected(Refusal(
                    code=Code.TRAJECTORY_CLOSED, dependency=call.tool.name,
                    detail=f"The call that this idempotency key names (step {step.number} of run {run.state.id}) was "
                    "undone. Use a new key to do it again."))  # fmt: skip
            case _ as never:
                assert_never(never)

    async def _lead(self, call: Call, proceed: Handler, flight_key: FlightKey | None = None) -> Outcome:
        """Let a call go on while its repeats wait for it; without a key, find out first whether it is one itself."""
        if flight_key is None:
            met = await self._meet(call, proceed)
            if not isinstance(met, tuple):
                return met
            flight_key = met
        flight = self.flights[flight_key] = Flight()
        try:
            outcome = await proceed(call)
            if flight.shared is not None:
                flight.shared.set_result((outcome, call.step))
            return outcome
        finally:
            del self.flights[flight_key]
            if flight.shared is not None:
                flight.shared.cancel()

    async def _wait(self, call: Call, flight: Flight) -> tuple[Outcome | None, int | None]:
        """Return the outcome to share (None if it has to be looked up) and the number of the step it belongs to."""
        shared = flight.joined()
        await asyncio.wait((shared,), timeout=max(0.0, call.deadline - self._clock.now()))
        if not shared.done():
            return _conflict(call, None), None
        if shared.cancelled():
            return None, None
        outcome, number = shared.result()
        call.step = number
        return _share(outcome), number

    def _cannot_settle(self, call: Call, step: Step) -> Refusal | None:
        """Return why the step in doubt can be neither asked about nor sent again under its key, or None."""
        why = None
        if step.fingerprint != call.fingerprint.hex():
            why = "this call differs from the one that was sent"
        elif call.operation.probe is None:
            why = why_not_resent(call.tool, call.operation, step.intended_at / 1000, self._clock.at() / 1000)
        if why is None:
            return None
        return Refusal(
            code=Code.OUTCOME_UNKNOWN,
            dispatched=Dispatched.MAYBE,
            dependency=call.tool.name,
            detail=f"Step {step.number} ({step.operation}) was sent and its effect is unknown ({step.detail}). It is not "
            f"sent again, because {why}. Read the tool's state to find out what happened, or abort the run.",
            extra={"trajectory": call.trajectory, "step": step.number},
        )

    async def _deliver(self, call: Call, run: Run, step: Step) -> Outcome:
        call.step, call.key = step.number, step.key
        try:
            recorded = await self._recorded(run, step.number)
        except JournalUnavailable as error:
            return _unavailable(call, error)
        if recorded is None:
            return _landed_by_hand(step)
        if recorded.bad is not None:
            return Rejected(postcondition_refusal(call, recorded.bad))
        inline = recorded.reply.inline_body()
        body = BytesBody(inline) if inline is not None else await self._journal.kept(recorded.reply.blob or "")
        reply = Reply(
            recorded.reply.status, recorded.reply.reason.encode("latin-1"), recorded.reply.raw_headers(), body
        )
        return Success(reply, is_replay=True)

    async def _recorded(self, run: Run, number: int) -> StepCommitted | None:
        """Return the record of a step's outcome; None where a person found out that it landed, and nobody has its answer."""
        for pending in list(run.pending):
            await asyncio.wait((pending,))
            if not pending.cancelled() and pending.exception() is not None:
                raise JournalUnavailable(f"run {run.state.id} has to be read again after a failed write")
        for entry in reversed(await self._journal.read(run.state.id)):
            if entry.kind == StepCommitted.__name__:
                record = decode(entry.kind, entry.data)
                if isinstance(record, StepCommitted) and record.step == number:
                    return record
        if run.is_lost:
            raise JournalUnavailable(f"run {run.state.id} has to be read again after a failed write")
        if run.state.steps[number].resolved is not None:
            return None
        raise JournalCorrupt(f"run {run.state.id} has no record of the outcome of step {number}")

    def statistics(self) -> dict[str, int]:
        """Return how many distinct calls are in flight."""
        return {"flights": len(self.flights)}


def _landed_by_hand(step: Step) -> Success:
    """Return what a repeat of a call gets that a person says has landed."""
    told = {"settled": "landed", "detail": step.detail}
    headers = ((b"Content-Type", b"application/json"), (b"Seawall-Settled", b"landed"))
    return Success(Reply(200, b"OK", headers, BytesBody(orjson.dumps(told))), is_replay=True)


def _ended(run: Run, number: int) -> Recalled:
    step = run.state.steps.get(number)
    return Deliver(step) if step is not None and step.state is StepState.COMMITTED else New()


def postcondition_refusal(call: Call, bad: str) -> Refusal:
    """Return the refusal of an answer whose declared postcondition does not hold."""
    return Refusal(
        code=Code.POSTCONDITION,
        dependency=call.tool.name,
        detail=f"{call.tool.name} answered, but {bad}. The step counts as done with a bad result and is undone on abort; "
        "do not repeat it as it is.",
    )


def _foreign(call: Call) -> Refusal:
    return Refusal(
        code=Code.FOREIGN_TRAJECTORY,
        dependency=call.tool.name,
        detail=f"Run {call.trajectory} belongs to another agent; nothing was sent. Choose another name for your run.",
    )


def _unavailable(call: Call, error: Exception) -> Rejected:
    return Rejected(
        Refusal(
            code=Code.JOURNAL_UNAVAILABLE,
            dependency=call.tool.name,
            detail=f"The journal cannot be used ({tellable(error)}), so nothing was sent to {call.tool.name}. "
            "Try again later.",
            retry_after_ms=1000,
        )
    )


def _conflict(call: Call, step: Step | None) -> Rejected:
    which = "An identical call" if step is None else f"Step {step.number}, which is this same call,"
    return Rejected(
        Refusal(
            code=Code.IDEMPOTENCY_CONFLICT,
            dependency=call.tool.name,
            detail=f"{which} is still in flight. Wait, then send the identical call again to collect its result.",
            retry_after_ms=1000,
        )
    )


def _share(outcome: Outcome) -> Outcome | None:
    """Return what a joined caller gets of the leader's outcome, or None where the journal has to be asked."""
    match outcome:
        case Rejected() | InDoubt():
            return outcome
        case Success(reply) if isinstance(reply.body, BytesBody):
            return Success(_copy(reply), is_replay=True)
        case Failed(reply=reply) if reply is not None and isinstance(reply.body, BytesBody):
            return Failed(outcome.fault, outcome.refusal, _copy(reply), outcome.retry_after_ms)
        case Failed(reply=None):
            return outcome
        case _:
            return None


def _copy(reply: Reply) -> Reply:
    return Reply(reply.status, reply.reason, reply.headers, reply.body)
