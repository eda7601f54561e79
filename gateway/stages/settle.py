"""Finds out by its probe what became of a step in doubt; the retry stage asks before it repeats anything.

The rule is `core/settle.py`; here are the waiting and the asking. Each question is paid for from the retry budget, and the
price of one that was answered is given back: a tool at work may be asked, a tool that is down is not stormed. None is asked
that could not be answered before the call's deadline.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import orjson

from gateway.clock import Clock
from gateway.core.call import Call, Handler
from gateway.core.codes import Code, Dispatched
from gateway.core.fault import Fault
from gateway.core.message import BytesBody, Reply
from gateway.core.outcome import Failed, InDoubt, Refusal, Success
from gateway.core.settle import Answer, Inquiry, Verdict, judge
from gateway.probes import Prober, Unheard
from gateway.stages.environment import call_env

__all__ = ["Purse", "Settle", "absent", "doubtful", "landed"]


@dataclass(frozen=True, slots=True)
class Purse:
    """What questions are paid from: `charge` says whether one more can be afforded, `refund` gives its price back."""

    charge: Callable[[], bool]
    refund: Callable[[], None]


class Settle:
    """Asks probes. Keeps nothing of a call."""

    def __init__(self, probers: Mapping[str, Prober], clock: Clock) -> None:
        self._probers = probers
        self._clock = clock

    async def __call__(self, call: Call, proceed: Handler, given_up: float, purse: Purse) -> Answer:
        """Return what the probe of the call's operation says; unknown if it has none.

        `given_up` is the monotonic time since when nothing was sent for the step; `purse` pays for each question.
        """
        probe = call.operation.probe
        if probe is None:
            return Answer(Verdict.UNKNOWN, "no probe is declared")
        prober = self._probers.get(probe.kind)
        if prober is None:
            return Answer(Verdict.UNKNOWN, f"probes of the kind {probe.kind} cannot be asked here")
        env = (await call_env(call)).whole()
        inquiry = Inquiry.begun(probe, given_up, self._clock.now())
        while True:
            if inquiry.next_at >= call.deadline:
                return Answer(Verdict.UNKNOWN, "the call's time ran out before the probe could be asked again")
            if (wait_s := inquiry.next_at - self._clock.now()) > 0:
                await self._clock.sleep(wait_s)
            if not purse.charge():
                return Answer(Verdict.UNKNOWN, "the retry budget is spent, so the probe was not asked")
            asked_at = self._clock.now()
            heard = await prober.ask(probe, call, env, proceed)
            if isinstance(heard, Unheard):
                answer = Answer(Verdict.UNKNOWN, heard.detail, can_wait=heard.can_wait)
            else:
                purse.refund()
                answer = judge(probe, {**env, "response": heard})
            settled = inquiry.told(answer, asked_at)
            if settled is not None:
                return settled


def landed(call: Call, answer: Answer) -> Success:
    """Return the outcome of a step that landed; marks the call."""
    call.settled, call.is_answer_known = "probe", answer.has_result
    told = answer.result if answer.has_result else {"settled": "landed", "detail": answer.detail}
    headers = ((b"Content-Type", b"application/json"), (b"Seawall-Settled", b"landed"))
    return Success(Reply(200, b"OK", headers, BytesBody(_dumped(told))))


def absent(call: Call, fault: Fault, answer: Answer) -> Failed:
    """Return the outcome of a step that never landed."""
    code = Code.DEADLINE if fault is Fault.TIMEOUT else Code.UPSTREAM_PROTOCOL
    return Failed(
        fault,
        Refusal(
            code=code,
            dispatched=Dispatched.YES,
            dependency=call.tool.name,
            detail=f"The call {call.tool.name}.{call.operation.name} was sent and did not land: {answer.detail}, twice. "
            "It had no effect, so it may be sent again.",
        ),
    )


def doubtful(call: Call, why: str) -> InDoubt:
    """Return the outcome of a step that stays in doubt."""
    return InDoubt(
        Fault.CANCELLED,
        Refusal(
            code=Code.OUTCOME_UNKNOWN,
            dispatched=Dispatched.MAYBE,
            dependency=call.tool.name,
            detail=f"Step {call.step} ({call.operation.name}) was sent earlier and its effect is still unknown: {why}. "
            f"It will be settled as soon as {call.tool.name} tells; do not do it another way, but read the state of "
            f"{call.tool.name}, try this same call again later, or abort the run.",
        ),
    )


def _dumped(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except (TypeError, ValueError):
        return json.dumps(value, default=str).encode()
