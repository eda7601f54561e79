"""The durable intent, innermost: nothing leaves that is not on disk.

Whether the step is legal is decided here for good, on the state the append is made to; nothing can come between. A second
attempt of the same step has its intent already and passes. Reads pass.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.clock import Alarms, Clock
from gateway.core.call import COMPENSATION, Call, Handler
from gateway.core.codes import Code
from gateway.core.idempotency import caller_digest
from gateway.core.keys import derive_key
from gateway.core.manifest import JournalMode
from gateway.core.message import Body, BytesBody, body_bytes
from gateway.core.outcome import Outcome, Refusal, Rejected
from gateway.core.records import CompensationIntended, RecordedRequest, StepFailed, StepIntended, StepReleased
from gateway.core.saga import Begin, IntendCompensation, admits_repeat, admits_settling, decide
from gateway.core.settle import why_not_resent
from gateway.core.sparse import excluding, including
from gateway.core.trajectory import UNSENT_FAULT, StepState
from gateway.journal import Conflict, JournalUnavailable
from gateway.journal.trajectories import Run, Trajectories
from gateway.stages.outbox import claims_of
from gateway.telemetry import Telemetry

__all__ = ["JournalStage"]

# Members that every call is compared with, looked up once (docs/adr/0092).
_LAZY: Final = JournalMode.LAZY

_LEAST_S: Final = 0.05
"""A call that is nearly out of time waits for the disk this long all the same."""

INLINE_REQUEST_LIMIT = 16 * 1024
"""Requests up to this many bytes lie in the log itself; larger ones are kept beside it, once per content."""


class JournalStage:
    """Writes intents."""

    def __init__(self, trajectories: Trajectories, clock: Clock, telemetry: Telemetry) -> None:
        self._trajectories = trajectories
        self._clock = clock
        self._telemetry = telemetry
        self._alarms: Alarms | None = None

    async def __call__(self, call: Call, proceed: Handler) -> Outcome:
        """Make the intent durable, then go on."""
        if call.operation.is_read and call.lane is not COMPENSATION:
            return await proceed(call)
        run = self._trajectories.get(call.trajectory)
        if run is None or run.is_lost:
            return _unavailable(call, f"run {call.trajectory} has to be read again")
        if call.lane is COMPENSATION:
            refusal = admits_settling(run.state) or await self._intend_compensation(run, call)
        elif call.step is None:
            refusal = await self.intend(run, call)
        else:
            refusal = self._may_repeat(run, call) or await self._again(run, call, call.step)
        return Rejected(refusal) if refusal is not None else await proceed(call)

    def _may_repeat(self, run: Run, call: Call) -> Refusal | None:
        """Return why a step that has its intent may not be sent (again) just now, or None."""
        refusal = admits_repeat(run.state, is_in_doubt=call.is_in_doubt)
        if refusal is not None or not call.is_in_doubt or call.first_sent is None:
            return refusal
        why = why_not_resent(call.tool, call.operation, call.first_sent, self._clock.now())
        if why is None:
            return None
        return Refusal(
            code=Code.OUTCOME_UNKNOWN,
            dependency=call.tool.name,
            detail=f"Step {call.step} ({call.operation.name}) is not sent again, because {why}.",
        )

    async def _again(self, run: Run, call: Call, number: int) -> Refusal | None:
        """Another attempt of a step that has its intent; one that was staged or deferred is released first."""
        run.busy = including(run.busy, number)
        call.is_committed_to_send = True
        if run.state.steps[number].state not in (StepState.STAGED, StepState.DEFERRED):
            return None
        future = self._trajectories.record(run, [StepReleased(step=number)])
        self._telemetry.step_changed(
            run.state.id, number, call.operation.name, "released", call.operation.tier, call.tool.name
        )
        try:
            await asyncio.shield(future)
        except (JournalUnavailable, Conflict) as error:
            return _unavailable(call, error.told).refusal
        return None

    async def intend(self, run: Run, call: Call) -> Refusal | None:
        """Make a call a step of its run, and wait until its intent is durable. Returns why it may not leave, or None."""
        operation, asked, salt = call.operation, call.request, self._trajectories.salt
        try:
            request = _recorded(call) if _is_at_hand(asked.body) else await self._kept(call)
        except JournalUnavailable as error:
            return _unavailable(call, error.told).refusal
        caller = None if call.caller_key is None else caller_digest(call.agent, call.tool.name, call.caller_key)
        at = self._clock.at()
        begin = Begin(
            call.tool.name,
            operation,
            call.action.hex(),
            call.fingerprint.hex(),
            asked.method,
            asked.target.decode("latin-1"),
            salt,
            None,
            caller,
            None if caller is None else _key_at_tool(call, salt),
            request,
            call.stage,
            at,
        )
        records = decide(run.state, begin)
        if isinstance(records, Refusal):
            return records
        intent = records[-1]
        assert isinstance(intent, StepIntended)
        number = intent.step
        call.step, call.key, call.is_committed_to_send = number, intent.key, True
        if run.busy:
            run.busy.add(number)
        else:
            run.busy = {number}
        is_lazy = operation.journal is _LAZY
        claims = () if caller is None else claims_of(call, caller, number, at)
        future = self._trajectories.record(run, records, lazy=is_lazy, claims=claims)
        self._telemetry.step_reached(call, number, "intended")
        why = None if is_lazy else await self._durable(run, call, future)
        if why is None:
            return None
        run.busy = excluding(run.busy, number)
        call.step, call.key, call.is_committed_to_send = None, None, False
        return _unavailable(call, why).refusal

    async def _durable(self, run: Run, call: Call, future: asyncio.Future[None]) -> str | None:
        """Wait for the disk, until the call's deadline. Returns why it may not be relied on, or None."""
        alarms = self._alarms
        if alarms is None:
            alarms = self._alarms = Alarms(future.get_loop())
        bound = alarms.bound(future, max(_LEAST_S, call.deadline - self._clock.now()))
        try:
            await future
        except asyncio.CancelledError:
            self._withdraw(run, call)
            raise
        except TimeoutError:
            self._withdraw(run, call)
            return "the disk did not answer in time"
        except (JournalUnavailable, Conflict) as error:
            return error.told
        finally:
            alarms.give_up(bound)
        return None

    async def _kept(self, call: Call) -> RecordedRequest | None:
        """What `_recorded` returns, of a request whose body is large or lies elsewhere."""
        body = call.request.body
        if body is None or not _is_of_use(call) or not body.is_replayable:
            return None
        data = await body_bytes(body, INLINE_REQUEST_LIMIT)
        kept = await self._trajectories.journal.keep(body) if data is None else data
        return RecordedRequest.of(call.request.headers, call.params, kept)

    def _withdraw(self, run: Run, call: Call) -> None:
        """The intent may reach the disk yet, but nothing was sent and nothing will be."""
        never = StepFailed(
            step=call.step or 0, fault=UNSENT_FAULT, detail="never sent: given up while its intent was written"
        )
        self._trajectories.record(run, [never])

    async def _intend_compensation(self, run: Run, call: Call) -> Refusal | None:
        intend = IntendCompensation(
            step=call.step or 0, salt=self._trajectories.salt, compensator=call.compensation, turn=call.undo_turn
        )
        records = decide(run.state, intend)
        if isinstance(records, Refusal):
            return records
        if not records and run.state.steps[call.step or 0].state is not StepState.COMPENSATING:
            return _not_undoing(run, call)
        if records:
            future = self._trajectories.record(run, records)
            for record in records:
                if isinstance(record, CompensationIntended):
                    self._telemetry.step_changed(
                        run.state.id,
                        record.step,
                        call.operation.name,
                        "compensating",
                        call.operation.tier,
                        call.tool.name,
                    )
            try:
                await asyncio.shield(future)
            except (JournalUnavailable, Conflict) as error:
                return _unavailable(call, error.told).refusal
        call.is_committed_to_send = True
        return None


def _is_of_use(call: Call) -> bool:
    """Whether anything could be done with the request of a step that has to be settled or undone."""
    operation = call.operation
    return bool(operation.compensator or operation.probe or call.tool.idempotency or operation.is_idempotent)


def _is_at_hand(body: Body | None) -> bool:
    """Whether a request's body, if it has one, can go into the log as it is."""
    return body is None or (type(body) is BytesBody and len(body.data) <= INLINE_REQUEST_LIMIT)


def _recorded(call: Call) -> RecordedRequest | None:
    """What settling or undoing the step may need of its request; None where nothing could be done with it."""
    if not _is_of_use(call):
        return None
    request = call.request
    data = request.body.data if isinstance(request.body, BytesBody) else None
    return RecordedRequest.of(request.headers, call.params, data)


def _not_undoing(run: Run, call: Call) -> Refusal:
    return Refusal(
        code=Code.TRAJECTORY_CLOSED,
        detail=f"Step {call.step} of run {run.state.id} is not to be undone (any more); nothing was sent.",
    )


def _key_at_tool(call: Call, salt: bytes) -> str | None:
    """Return the agent's own key, if it gave one, as the tool gets it.

    Tools know our credential, not our agents: where agents are proven, equal keys of two of them must stay two keys there,
    or one would be given the other's answer.
    """
    if call.caller_key is None or not call.is_agent_proven:
        return call.caller_key
    return derive_key(salt, "caller", call.agent, call.tool.name, call.caller_key)


def _unavailable(call: Call, why: str) -> Rejected:
    return Rejected(
        Refusal(
            code=Code.JOURNAL_UNAVAILABLE,
            dependency=call.tool.name,
            detail=f"The intent of this call could not be written ({why}), so nothing was sent to {call.tool.name}. "
            "Try again later.",
            retry_after_ms=1000,
        )
    )
