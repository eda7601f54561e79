"""The way of the calls that no stage stops: what the stages do to such a call, in one frame and that of its attempt.

Nearly all calls are of this kind. Their run is at hand and takes the step, its watchdog has nothing to say, nobody budgets
them, they repeat nothing, the breaker is closed and a slot is free. Each of these is a look that takes nothing, and no stage
waits for anything before the attempt; so the looks are made one after the other, and only then is anything done.

A call that is let pass by all has its first attempt here. Whatever comes of it: what is not a success goes on in the very
methods of the stages that their own calls use. Every other call takes the road of the stages (`rest`), of which this is a
short form and nothing more: `tests/test_ordinary.py` holds the two together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, cast

from gateway.core.admission import Holding, Ticket, TicketState
from gateway.core.breaker import Permit, Verdict, verdict_of
from gateway.core.call import FORWARD, Call, Handler, Stage
from gateway.core.message import BytesBody, Reply
from gateway.core.outcome import Outcome, Rejected, Success, streamed_reply
from gateway.core.saga import admits
from gateway.core.tool import Operation, ToolSpec
from gateway.journal.trajectories import Run
from gateway.stages.admission import AdmissionStage
from gateway.stages.breaker import BreakerStage
from gateway.stages.budget import BudgetStage
from gateway.stages.deadline import DeadlineStage
from gateway.stages.idempotency import Flight, IdempotencyStage
from gateway.stages.journal import JournalStage
from gateway.stages.recovery import RecoveryStage
from gateway.stages.retry import RetryStage
from gateway.stages.saga import SagaStage
from gateway.stages.telemetry import TelemetryStage
from gateway.stages.watchdog import WatchdogStage

__all__ = ["ordinary"]

_SUCCESS: Final = Verdict.SUCCESS
_NEUTRAL: Final = Verdict.NEUTRAL
_GRANTED: Final = TicketState.GRANTED

_OF_READS: Final = (
    TelemetryStage, BudgetStage, WatchdogStage, IdempotencyStage, SagaStage, DeadlineStage, RetryStage, AdmissionStage,
    BreakerStage,
)  # fmt: skip
_OF_WRITES: Final = (
    TelemetryStage, RecoveryStage, BudgetStage, WatchdogStage, IdempotencyStage, SagaStage, DeadlineStage, RetryStage,
    AdmissionStage, BreakerStage, JournalStage,
)  # fmt: skip


def ordinary(
    stages: Sequence[Stage],
    innermost: Handler,
    tool: ToolSpec,
    operation: Operation,
    compose: Callable[[Sequence[Stage], Handler], Handler],
) -> Handler | None:
    """Return the handler of an operation's forward calls that takes the ordinary ones the short way.

    None where another stage has something to say about each of them: then there are no ordinary ones.
    """
    road = tuple(map(type, stages))
    if operation.usage is not None or road != (_OF_READS if operation.is_read else _OF_WRITES):
        return None
    rest = compose(stages[1:], innermost)
    again = compose(stages[road.index(AdmissionStage) :], innermost)
    if operation.is_read:
        return None if operation.watch is not None else _Read(stages, innermost, tool, operation, rest, again)
    return None if tool.state is not None else _Write(stages, innermost, tool, operation, rest, again)


Passed = tuple[Run, Holding, int]
"""What a call that all let pass has: its run, its slot, the generation of the closed breaker."""


class _Ordinary:
    """What reads and writes have in common: the telemetry around all, the attempt within."""

    def __init__(
        self,
        stages: Sequence[Stage],
        innermost: Handler,
        tool: ToolSpec,
        operation: Operation,
        rest: Handler,
        again: Handler,
    ) -> None:
        of = {type(stage): stage for stage in stages}
        self._outermost = cast(TelemetryStage, of[TelemetryStage])
        self._watchdog = cast(WatchdogStage, of[WatchdogStage])
        self._flights = cast(IdempotencyStage, of[IdempotencyStage]).flights
        self._saga = cast(SagaStage, of[SagaStage])
        self._recovery = cast(RecoveryStage, of.get(RecoveryStage))
        self._retry = cast(RetryStage, of[RetryStage])
        self._breaking = cast(BreakerStage, of[BreakerStage])
        self._trajectories = self._saga.trajectories
        self._telemetry = self._outermost.telemetry
        self._now = self._outermost.clock.now
        self._tool = tool
        self._operation = operation
        self._told = self._telemetry.told_of(tool, operation)
        self._ratio = tool.retry.budget_ratio
        self._recent = self._retry.recent
        self._admission = cast(AdmissionStage, of[AdmissionStage])
        self._is_bound = False
        self._send = innermost
        self._journal = cast(JournalStage | None, of.get(JournalStage))
        self._rest = rest
        self._again = again

    def _bind(self) -> None:
        """Look up what calls of the operation share, at the first that comes so far: stages make it no sooner either."""
        self._budget = self._retry.budget(self._tool, FORWARD)
        self._pool = self._admission.pool(self._tool.domain)
        self._guard = self._breaking.guard(self._tool)
        self._breaker = self._guard.breaker
        self._is_bound = True

    async def _attempt(self, call: Call, run: Run, now: float, slot: Holding, generation: int) -> Outcome:
        """Return what became of the first attempt, which has its slot and goes through the closed breaker of a generation.

        The same in the same order as admission, breaker and journal around `send`.
        """
        call.attempt += 1
        if call.first_sent is None:
            call.first_sent = now
        call.exchange_s = None
        verdict, is_streaming, ended = _NEUTRAL, False, now
        try:
            try:
                refusal = None if self._journal is None else await self._journal.intend(run, call)
                outcome = await self._send(call) if refusal is None else Rejected(refusal)
                verdict = _SUCCESS if type(outcome) is Success else verdict_of(outcome, self._tool.breaker)
            finally:
                ended, exchange_s = self._now(), call.exchange_s
                elapsed_s = ended - now if exchange_s is None else exchange_s
                moves = self._breaker.settle_at_once(generation, verdict, ended, elapsed_s)
                if moves:
                    self._breaking.report(self._guard, moves)
            if type(outcome) is Success and type(outcome.reply.body) is BytesBody:
                return outcome
            if (reply := streamed_reply(outcome)) is not None:
                is_streaming = True
                self._streams(reply, call, now, generation)
            return outcome
        finally:
            if not is_streaming:
                self._pool.return_slot(slot, now, ended)

    def _streams(self, reply: Reply, call: Call, now: float, generation: int) -> None:
        """Have an answer that is passed on as it comes hold its slot to the end, and count if it breaks."""
        self._breaking.watch_body(reply, self._guard, Permit(0, generation, False, now, is_settled=True))
        ticket = Ticket(call.agent, False, 0, now, call.deadline, _GRANTED, now)
        reply.on_close(lambda: self._pool.give_back(ticket))

    def _worked(self, call: Call) -> None:
        """The first attempt was a success."""
        self._budget.deposit(self._ratio, self._now())
        if self._recent.failed:
            self._recent.forget((call.agent, call.action))

    async def _go_on(self, call: Call, outcome: Outcome) -> Outcome:
        """The first attempt was none."""
        if not isinstance(outcome, Rejected):
            self._budget.deposit(self._ratio, self._now())
        return await self._retry.go_on(call, self._again, self._budget, outcome, outcome)

    def _slot(self, call: Call, run: Run, now: float) -> Passed | None:
        """Let a call pass for whose run alone nothing stands against it, if it repeats no failure and can leave at once."""
        dog, state = run.watch, run.state
        if dog is None or state.circles is not None or dog.may_object(call.action):
            return None
        if admits(state, self._operation) is not None:
            return None
        if self._recent.failed and self._recent.is_repeat((call.agent, call.action), now):
            return None
        if not self._is_bound:
            if now >= call.deadline:
                return None
            self._bind()
        generation = self._breaker.acquire_at_once()
        slot = None if generation is None else self._pool.take_slot(call.agent, now, call.deadline)
        return None if generation is None or slot is None else (run, slot, generation)


class _Read(_Ordinary):
    """The way of reads."""

    async def __call__(self, call: Call) -> Outcome:
        """Return the outcome."""
        telemetry = self._telemetry
        handle = telemetry.call_started(call)
        try:
            now = self._now()
            passed = self._passed(call, now)
            if passed is None:
                outcome = await self._rest(call)
            else:
                run, slot, generation = passed
                call.trajectory, run.touched_s = run.state.id, now
                outcome = await self._attempt(call, run, now, slot, generation)
                if type(outcome) is Success:
                    self._worked(call)
                else:
                    outcome = await self._go_on(call, outcome)
                self._saga.observe(run, call, outcome)
                self._watchdog.hear(run, call, outcome)
        except asyncio.CancelledError as error:
            telemetry.call_finished(handle, call, error, self._now() - call.started)
            raise
        except Exception as error:
            return self._outermost.failed(handle, call, error)
        telemetry.call_ended(handle, call, outcome, self._now() - call.started, self._told)
        return outcome

    def _passed(self, call: Call, now: float) -> Passed | None:
        """Return what the call passes with, or None, and nothing done, where a stage does not let it pass at once."""
        trajectories = self._trajectories
        if call.step is not None:
            return None
        if not call.trajectory:
            run = trajectories.standing(call.agent)
        elif trajectories.has_budgets or call.budget is not None:
            return None
        else:
            run = trajectories.get(call.trajectory)
        if run is None or run.is_lost or (call.is_agent_proven and run.state.agent != call.agent):
            return None
        return self._slot(call, run, now)


class _Write(_Ordinary):
    """The way of writes."""

    async def __call__(self, call: Call) -> Outcome:
        """Return the outcome."""
        telemetry = self._telemetry
        handle = telemetry.call_started(call)
        try:
            now = self._now()
            passed = self._passed(call, now)
            outcome = await (self._rest(call) if passed is None else self._step(call, now, *passed))
        except asyncio.CancelledError as error:
            telemetry.call_finished(handle, call, error, self._now() - call.started)
            raise
        except Exception as error:
            return self._outermost.failed(handle, call, error)
        telemetry.call_ended(handle, call, outcome, self._now() - call.started, self._told)
        return outcome

    def _passed(self, call: Call, now: float) -> Passed | None:
        """Return what the call passes with, or None, and nothing done, where a stage does not let it pass at once."""
        trajectories = self._trajectories
        if call.step is not None or call.caller_key is not None:
            return None
        if not call.trajectory:
            run = self._implicit(call)
        elif trajectories.has_budgets or call.budget is not None:
            return None
        else:
            run = trajectories.get(call.trajectory)
        if run is None or run.is_lost or (call.is_agent_proven and run.state.agent != call.agent):
            return None
        state = run.state
        if state.blocked or call.action.hex() in state.actions:
            return None
        if (state.id, call.action) in self._flights or state.id in self._watchdog.asking:
            return None
        return self._slot(call, run, now)

    def _implicit(self, call: Call) -> Run | None:
        """Return the run of a call that names none, if it is a new step there and none of an earlier one."""
        action = call.action.hex()
        if any(action in one.state.actions for one in self._trajectories.implicit(call.agent)):
            return None
        return self._trajectories.standing(call.agent)

    async def _step(self, call: Call, now: float, run: Run, slot: Holding, generation: int) -> Outcome:
        """Return the outcome of a write that is a new step of its run; repeats that come meanwhile wait for it."""
        call.trajectory, run.touched_s = run.state.id, now
        flight_key, flight = (call.trajectory, call.action), Flight()
        self._flights[flight_key] = flight
        try:
            try:
                try:
                    outcome = await self._attempt(call, run, now, slot, generation)
                    if type(outcome) is Success:
                        self._worked(call)
                    else:
                        outcome = await self._go_on(call, outcome)
                except BaseException as error:
                    self._saga.broken_off(run, call, error)
                    raise
                if call.step is not None:
                    outcome = await self._saga.record(run, call, outcome)
            finally:
                self._saga.let_go(run, call)
            if flight.shared is not None:
                flight.shared.set_result((outcome, call.step))
        finally:
            del self._flights[flight_key]
            if flight.shared is not None:
                flight.shared.cancel()
        self._watchdog.hear(run, call, outcome)
        if not isinstance(outcome, Success):
            return await self._recovery.advise(call, outcome)
        self._recovery.took(call, self._now() - now)
        return outcome
