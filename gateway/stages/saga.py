"""Is this step legal now, and what became of it: the saga's part of a call.

Before: a step that the run does not admit is refused before it costs a queue place. After: the outcome is recorded, with
the compensator bound from what was asked and answered, and is durable before the answer goes on. The intent itself is
written innermost, by `stages/journal.py`, where the same question is asked once more with nothing in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, assert_never

from gateway.core.call import FINALIZATION, FORWARD, Call, Handler, Lane, Passable
from gateway.core.codes import Code, Dispatched
from gateway.core.coding import decoded
from gateway.core.environment import EVALUATED_LIMIT, response_env
from gateway.core.expression import Environment, Expression, ExpressionError
from gateway.core.fault import Fault
from gateway.core.manifest import JournalMode
from gateway.core.message import Body, BytesBody, Reply, body_bytes
from gateway.core.outbox import outcome_records
from gateway.core.outcome import Failed, InDoubt, Outcome, Refusal, Rejected, Success
from gateway.core.records import (
    Record,
    RecordedReply,
    StepCommitted,
    StepDeferred,
    StepFailed,
    StepInDoubt,
)
from gateway.core.retry import conclude
from gateway.core.saga import Doubt, admits, admits_settling
from gateway.core.sparse import NONE
from gateway.core.tool import BoundRequest, Operation
from gateway.core.trajectory import UNSENT_FAULT
from gateway.journal import Conflict, Journal, JournalUnavailable, tellable
from gateway.journal.trajectories import Run, Trajectories
from gateway.stages.environment import CallEnv, call_env
from gateway.stages.idempotency import postcondition_refusal
from gateway.stages.lease import lease_of
from gateway.stages.watchdog import answer_hash, wanted
from gateway.telemetry import Telemetry

__all__ = ["SagaStage"]

# Members that every call is compared with, looked up once (docs/adr/0092).
_LAZY: Final = JournalMode.LAZY

INLINE_LIMIT = 64 * 1024
"""Answers up to this many bytes lie in the log itself; larger ones are kept beside it."""

_PARTIAL = frozenset({Fault.CLIENT_ERROR, Fault.SERVER})
"""Failures that a tool may have answered half-way through its work."""


class SagaStage(Passable):
    """Asks before, records after."""

    def __init__(self, trajectories: Trajectories, journal: Journal, telemetry: Telemetry) -> None:
        self.trajectories = trajectories
        self._journal = journal
        self._telemetry = telemetry

    async def __call__(self, call: Call, proceed: Handler) -> Outcome:
        """Refuse what is not legal; record what happened."""
        if call.lane not in (FORWARD, FINALIZATION):
            return await proceed(call)
        run = self.trajectories.get(call.trajectory) or await self.trajectories.find(call.trajectory)
        if run is None:
            raise RuntimeError(f"run {call.trajectory} was resolved and is gone")
        is_settling = call.step is not None
        was_in_doubt = is_settling and call.step in run.state.in_doubt
        refusal = admits_settling(run.state) if is_settling else admits(run.state, call.operation)
        if refusal is not None:
            return Rejected(refusal)
        if call.operation.is_read:
            outcome = await proceed(call)
            self.observe(run, call, outcome)
            return outcome
        try:
            outcome = await proceed(call)
        except BaseException as error:
            if not was_in_doubt:
                self.broken_off(run, call, error)
            raise
        else:
            if call.step is None or (call.operation.is_staged and not is_settling):
                return outcome
            if was_in_doubt and call.is_in_doubt:
                outcome = await _concluded(call, outcome)
            return await self.record(run, call, outcome)
        finally:
            self.let_go(run, call)

    def broken_off(self, run: Run, call: Call, error: BaseException) -> None:
        """Note that a call was torn out of the pipeline: if its intent was written, its effect is unknown."""
        if call.step is not None:
            self._note_broken_off(self._home(run, call) if run.is_lost else run, call, error)

    def let_go(self, run: Run, call: Call) -> None:
        """The call's step, if it came to be one, is on its way no more."""
        if call.step is None:
            return
        if run.is_lost:
            run = self._home(run, call)
        if run.busy:
            run.busy.discard(call.step)
            run.busy = run.busy or NONE
        run.notify()

    def lets_pass(self, call: Call) -> bool:
        """Whether a fresh step is legal in the run at hand."""
        run = self.trajectories.at_hand(call)
        return run is not None and admits(run.state, call.operation) is None

    def _home(self, run: Run, call: Call) -> Run:
        """Return the run that the call's step lies in, in place of one that is lost: while the call waited (for people, in a
        queue) a write of its run may have failed, and its step was intended in the run read anew."""
        current = self.trajectories.get(call.trajectory)
        step = None if current is None or call.step is None else current.state.steps.get(call.step)
        return current if current is not None and step is not None and step.key == call.key else run

    async def record(self, run: Run, call: Call, outcome: Outcome) -> Outcome:
        """Record what became of a call whose intent was written; return what the agent gets, once that is durable."""
        if run.is_lost:
            run = self._home(run, call)
        if run.flying and (flight := run.flying.get(call)) is not None:
            flight.answer = outcome
        record: StepCommitted | StepFailed | StepInDoubt | None
        answer: Outcome
        try:
            if isinstance(outcome, Success):
                record = self._committed_at_hand(call, outcome.reply) or await self._committed(call, outcome.reply)
                is_plain = record.bad is None and record.unbound is None
                answer = outcome if is_plain else await _with_a_but(call, outcome, record)
            else:
                record, answer = await self._without_success(call, outcome)
        except Exception as error:
            self._note_broken_off(run, call, error)
            raise
        if record is None or not (records := self._amounts_to(run, call, record)):
            return answer
        future = self.trajectories.record(run, records)
        self._telemetry.step_reached(call, record.step, _STATE[type(records[0])])
        if call.operation.journal is _LAZY:
            return answer
        try:
            await future
        except (JournalUnavailable, Conflict) as error:
            return _unrecorded(call, answer, error)
        return answer

    def _amounts_to(self, run: Run, call: Call, record: StepCommitted | StepFailed | StepInDoubt) -> Sequence[Record]:
        """In a run that is past its pivot a failure is not the end of a step."""
        state = run.state
        if run.is_lost or record.step not in state.steps or not state.is_past_pivot:
            return [record]
        is_ours = call.lane is Lane.FINALIZATION or call.is_settling_only
        return outcome_records(state, record, is_ours=is_ours)

    async def _without_success(
        self, call: Call, outcome: Failed | InDoubt | Rejected
    ) -> tuple[StepFailed | StepInDoubt | None, Outcome]:
        """Return the record of such an outcome, and what the agent gets."""
        number = call.step or 0
        match outcome:
            case Failed():
                return await self._failed(call, outcome), outcome
            case InDoubt():
                status = None if outcome.reply is None else outcome.reply.status
                record_ = StepInDoubt(
                    step=number, fault=outcome.fault.value, detail=outcome.refusal.detail, status=status
                )
                return (None if self._is_in_doubt(call) else record_), outcome
            case Rejected(refusal):
                fault = UNSENT_FAULT if call.attempt <= 1 and not self._is_in_doubt(call) else Fault.NONE.value
                return StepFailed(step=number, fault=fault, detail=refusal.detail), outcome
            case _ as never:
                assert_never(never)

    async def _failed(self, call: Call, failed: Failed) -> StepFailed:
        """The record of a failure, with the undo of what it may have left behind where the manifest expects such."""
        reply, declared = failed.reply, call.operation.compensator
        compensator, unbound = None, None
        if reply is not None and declared is not None and declared.is_for_partial and failed.fault in _PARTIAL:
            data = await body_bytes(reply.body, EVALUATED_LIMIT) or b""
            compensator, unbound = _bind(call, _with_answer(await call_env(call), call, reply, data))
        status = None if reply is None else reply.status
        detail = failed.refusal.detail if failed.refusal is not None else f"{call.tool.name} answered {status}"
        return StepFailed(
            step=call.step or 0,
            fault=failed.fault.value,
            detail=detail,
            status=status,
            compensator=compensator,
            unbound=unbound,
            answer=_answer(call, failed),
        )

    def _is_in_doubt(self, call: Call) -> bool:
        run = self.trajectories.get(call.trajectory)
        return run is not None and call.step in run.state.in_doubt

    def _committed_at_hand(self, call: Call, reply: Reply) -> StepCommitted | None:
        """Return what `_committed` returns, where it takes no reading to know."""
        body = reply.body
        if type(body) is not BytesBody or len(body.data) > INLINE_LIMIT:
            return None
        if not _is_evaluated(call.operation):
            return self._commit(call, reply, body.data, {})
        asked = _env_at_hand(call)
        if asked is None:
            return None
        return self._commit(call, reply, body.data, _with_answer(asked, call, reply, body.data))

    async def _committed(self, call: Call, reply: Reply) -> StepCommitted:
        body = reply.body
        whole = await body_bytes(body, EVALUATED_LIMIT)
        stored = whole if whole is not None and len(whole) <= INLINE_LIMIT else await self._keep(body)
        env: Environment = {}
        if _is_evaluated(call.operation):
            asked = _env_at_hand(call)
            env = _with_answer(await call_env(call) if asked is None else asked, call, reply, whole or b"")
        return self._commit(call, reply, stored, env)

    def _commit(self, call: Call, reply: Reply, stored: bytes | str, env: Environment) -> StepCommitted:
        operation = call.operation
        bad = _unmet(operation.postcondition, env) if call.is_answer_known else None
        compensator, unbound = _bind(call, env)
        lease, lease_until = lease_of(call, env, self.trajectories.at()) if operation.lease else (None, None)
        leak = operation.leak
        return StepCommitted(
            call.step or 0,
            RecordedReply.of(reply.status, reply.reason, reply.headers, stored),
            compensator,
            unbound,
            bad,
            call.settled,
            lease,
            lease_until,
            None if leak is None else (leak.what, leak.amount, leak.per, leak.currency),
        )

    async def _keep(self, body: Body) -> bytes | str:
        """Keep a large answer. If that fails its effect is recorded all the same, and only a repeat of it comes empty."""
        try:
            return await self._journal.keep(body)
        except JournalUnavailable as error:
            self._telemetry.background_failed("keeping a large answer", error)
            return b""

    def observe(self, run: Run, call: Call, outcome: Outcome) -> None:
        """Record what became of a read."""
        status: int | None
        if type(outcome) is Success:
            said, status = "success", outcome.reply.status
        elif isinstance(outcome, Rejected):
            return
        else:
            reply = outcome.reply if isinstance(outcome, Failed) else None
            said, status = _OBSERVED[type(outcome)], None if reply is None else reply.status
        request = call.request
        path = request.target.partition(b"?")[0].decode("latin-1")
        self.trajectories.note_read(run, (call.tool.name, call.operation.name, request.method, path, said, status))
        if run.flying and (flight := run.flying.get(call)) is not None:
            flight.taken.pop("calls", None)  # from here on the run's records tell of it

    def _note_broken_off(self, run: Run, call: Call, error: BaseException) -> None:
        """A call that was torn out of the pipeline after its intent: its effect is unknown."""
        detail = f"the call was broken off in the gateway ({type(error).__name__}) after its intent was written"
        self.trajectories.decide(run, Doubt(step=call.step or 0, fault=Fault.CANCELLED.value, detail=detail))


async def _concluded(call: Call, last: Outcome) -> Outcome:
    """What sending a step in doubt again amounts to: only a definite answer takes the doubt away."""
    doubt = InDoubt(
        Fault.CANCELLED,
        Refusal(
            code=Code.OUTCOME_UNKNOWN,
            dispatched=Dispatched.MAYBE,
            dependency=call.tool.name,
            detail=f"Step {call.step} ({call.operation.name}) was sent earlier and its effect is still unknown: sending it "
            f"again to {call.tool.name} under the same key did not settle it. Try that again later, or abort the run.",
        ),
    )
    concluded = conclude(doubt, last, has_key=call.tool.idempotency is not None)
    reply = None if isinstance(last, Rejected) else last.reply
    if reply is not None and (isinstance(concluded, Rejected) or concluded.reply is not reply):
        await reply.aclose()
    return concluded


def _answer(call: Call, failed: Failed) -> str:
    """The hash by which an equal no is recognised, also after a restart."""
    if failed.fault is not Fault.CLIENT_ERROR or failed.reply is None or not wanted(call.tool):
        return ""
    return f"{answer_hash(call, failed.reply):016x}"


_OBSERVED: dict[type, str] = {Success: "success", Failed: "failed", InDoubt: "indoubt"}


_STATE: dict[type, str] = {
    StepCommitted: "committed",
    StepFailed: "failed",
    StepInDoubt: "in_doubt",
    StepDeferred: "deferred",
}


def _is_evaluated(operation: Operation) -> bool:
    """Whether anything of a successful answer is put into an expression."""
    return operation.compensator is not None or operation.postcondition is not None or operation.lease is not None


def _env_at_hand(call: Call) -> CallEnv | None:
    """Return what `call_env` returns, where it takes no reading to know."""
    asked = call.request.body
    if type(asked) is BytesBody and len(asked.data) <= EVALUATED_LIMIT:
        return CallEnv(call, asked.data)
    return None


def _with_answer(env: CallEnv, call: Call, reply: Reply, data: bytes) -> CallEnv:
    if call.is_answer_known:
        env["response"] = response_env(reply.status, reply.headers, decoded(reply.headers, data, EVALUATED_LIMIT))
    return env


def _unmet(postcondition: Expression | None, env: Environment) -> str | None:
    if postcondition is None:
        return None
    try:
        holds = postcondition(env)
    except ExpressionError as error:
        return f"its postcondition cannot be evaluated: {error}"
    return None if holds is True else f"its postcondition does not hold: {postcondition.source}"


def _bind(call: Call, env: Environment) -> tuple[BoundRequest | None, str | None]:
    declared = call.operation.compensator
    if declared is None:
        return None, None
    try:
        return declared.request.bind(env), None
    except ExpressionError as error:
        return None, str(error)


async def _with_a_but(call: Call, outcome: Success, record: StepCommitted) -> Outcome:
    """What the agent gets of a success that does not hold what was declared, or that cannot be undone.

    The latter it is told at once, beside the tool's own answer.
    """
    reply, unbound = outcome.reply, record.unbound
    if record.bad is not None:
        await reply.aclose()
        return Rejected(postcondition_refusal(call, record.bad))
    text = f"cannot be undone: {unbound}".encode("ascii", "replace").replace(b"\n", b" ").replace(b"\r", b" ")
    reply.headers = (*reply.headers, (b"Seawall-Warning", text))
    return outcome


def _unrecorded(call: Call, answer: Outcome, error: Exception) -> Outcome:
    """The effect is known to us and not yet to the disk: the agent may not see the answer before it is."""
    if isinstance(answer, Failed):
        return answer
    return Rejected(
        Refusal(
            code=Code.OUTCOME_UNKNOWN,
            dispatched=Dispatched.YES,
            dependency=call.tool.name,
            detail=f"{call.tool.name} answered, but the outcome could not be recorded ({tellable(error)}). It is kept and "
            "will be recorded as soon as the journal works; send the identical call again then to collect the answer.",
            retry_after_ms=2000,
        )
    )
