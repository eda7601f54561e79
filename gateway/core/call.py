"""One call on its way through the pipeline, and the shape of a stage.

Ingress (or the unwinder) makes it, stages read it and fill in what they decide, nobody else keeps it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

from gateway.core.message import Request
from gateway.core.outcome import Outcome, Rejected
from gateway.core.tool import BoundRequest, Operation, ToolSpec

__all__ = ["COMPENSATION", "FINALIZATION", "FORWARD", "Call", "Foreseeing", "Handler", "Lane", "Passable", "Stage"]


class Lane(StrEnum):
    """Why the call is made. All but forward calls are ours: they use reserved slots.

    Compensators and probes have keys of their own; a finalization sends a step of the run that has its key already.
    """

    FORWARD = "forward"
    COMPENSATION = "compensation"
    PROBE = "probe"
    FINALIZATION = "finalization"


# Looking a member up on its class costs as much as a call (docs/adr/0092), and nearly every stage asks for the lane.
FORWARD: Final = Lane.FORWARD
COMPENSATION: Final = Lane.COMPENSATION
FINALIZATION: Final = Lane.FINALIZATION


@dataclass(slots=True, eq=False)
class Call:
    """One call. What ingress knows of nearly every one comes first: it is made by position there (docs/adr/0165).

    Attributes:
        tool, operation, params: what the manifest says of it.
        request: what egress will send, without key and credential.
        agent: who calls, for fairness and implicit runs.
        is_agent_proven: by a token; the call may then use that agent's runs only.
        trajectory: name of the run; empty for the agent's implicit run until the saga stage has found it.
        is_run_named: the agent named the run; else the run closes itself.
        lane: forward, compensation, probe or finalization.
        started: monotonic seconds when the call was accepted.
        deadline: monotonic seconds after which nothing new is begun for it.
        caller_key: the agent's own idempotency key.
        action: digest of operation and canonical arguments; equal digests are the same action.
        fingerprint: digest of the exact content, to tell a reused key from a repeat.
        step: number of the step in its run, once it has one; of a compensation, the step that it undoes.
        key: idempotency key of the step, stable over attempts, restarts and repeats.
        attempt: attempts made so far; the first is 1.
        is_committed_to_send: the intent is on its way to disk: from here the call is finished even if the agent leaves.
        first_sent: monotonic seconds when the call may first have been sent under its key; the retry stage sets it, a
            recovered call brings it along, so that nothing is re-sent once the tool has forgotten the key.
        is_in_doubt: an earlier attempt may have had its effect: this attempt's outcome is judged with `retry.conclude`.
        given_up: monotonic seconds since when nothing more was sent of a call that is settled later on; None while it runs.
        is_settling_only: find out what became of the step, but do not do it anew where it turns out not to have landed.
        settled: how the step was found to have landed, where its answer never came; the answer then says so.
        is_answer_known: False where the step landed and nothing of its answer can be known.
        stage: name of the part of its run that the call belongs to; the first call of a new one takes a savepoint.
        exchange_s: seconds from dispatch to the answer's head of the latest attempt, once dispatch has set it.
        budget: caps that came with the call (`Seawall-Budget`).
        attempts_most: attempts that the run's budget leaves; None without a cap.
        notice: budgets that are nearly spent, for the answer's `Seawall-Budget`.
        wait_s: how long the agent is ready to wait for people, beyond the deadline (`Prefer: wait`).
        compensation: what to send, on the compensation lane.
        undo_turn: 2 for the one repeat of a compensator, under a key of its own, whose effect did not last.
        traceparent, tracestate: W3C trace context to send to the tool, once telemetry has set it; before, what ingress
            found apart from the request's headers, and empty if it looked and there is none.
        trace: telemetry's own handle on the call's open span, if its trace is sampled; nobody else looks into it.
    """

    tool: ToolSpec
    operation: Operation
    request: Request
    agent: str
    started: float
    deadline: float
    trajectory: str = ""
    is_run_named: bool = False
    is_agent_proven: bool = False
    lane: Lane = FORWARD
    params: Mapping[str, str] = field(default_factory=dict)
    caller_key: str | None = None
    action: bytes = b""
    fingerprint: bytes = b""
    step: int | None = None
    key: str | None = None
    attempt: int = 0
    first_sent: float | None = None
    is_in_doubt: bool = False
    given_up: float | None = None
    is_settling_only: bool = False
    settled: str | None = None
    is_answer_known: bool = True
    stage: str = ""
    exchange_s: float | None = None
    is_committed_to_send: bool = False
    wait_s: float = 0.0
    budget: Mapping[str, float] | None = None
    attempts_most: int | None = None
    notice: str = ""
    compensation: BoundRequest | None = None
    undo_turn: int = 1
    traceparent: bytes | None = None
    tracestate: bytes | None = None
    trace: object = field(default=None, repr=False)


Handler = Callable[[Call], Awaitable[Outcome]]


class Stage(Protocol):
    """One rule around the rest of the pipeline: calls `proceed` once, many times (retry) or not at all (breaker)."""

    def __call__(self, call: Call, proceed: Handler) -> Awaitable[Outcome]:
        """Return the outcome. Gives back in `finally` whatever it took.

        Usually `async def`; a stage that has nothing to do after the call may return `proceed(call)` itself.
        """


@runtime_checkable
class Foreseeing(Protocol):
    """A stage that knows at any time whether it would refuse a call: the queue, and through it the breaker."""

    def foresee(self, call: Call) -> Rejected | None:
        """Return the refusal that the call would meet here now, or None. Takes nothing."""

    def refused(self, call: Call, outcome: Rejected) -> Rejected:
        """Do what is done here with a call that is refused so, and return what becomes of the refusal."""


class Passable:
    """A stage that a call which is refused further in can pass at once, with nobody waiting for anything.

    Together the three methods do what `__call__` does to a fresh forward call whose `proceed` returns that refusal.
    """

    def lets_pass(self, call: Call) -> bool:
        """Return whether the stage, asked now, would hand the call on and wait for nothing before that.

        False, too, where it takes more than a look to tell. Nobody notices that it was asked. A stage that stops nobody need
        not say so, and is not asked.
        """
        return True

    def passed(self, call: Call) -> None:
        """Do what is done here before a call is handed on, now that every stage lets it pass.

        Nothing, where a stage does not say otherwise; it is not even told then.
        """

    def refused(self, call: Call, outcome: Rejected) -> Rejected:
        """Do what is done here with a call that was let pass and came back refused, and return what becomes of it.

        Nothing, where a stage does not say otherwise; it is not even asked then.
        """
        return outcome
