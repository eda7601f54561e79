"""Did it land? What a probe's answer says, when to ask, and when a step in doubt may simply be sent again.

"It landed" is believed at once: nobody lists what is not there. "It did not land" is believed only late and twice: a
request that was given up may still be on its way for `delay_s`, and what a tool lists may lag behind what it did, so the
first such answer that counts is given after the delay and a second one must say the same. The delay counts from when the
call was, or would have been, given up by time: a connection that broke early, or a crash of our own, says nothing of how
long the tool goes on working at what it already has (apache/servicecomb-pack#346). Anything else (neither
expression holds, both do, no usable answer) is "unknown", and unknown never turns into a repeat.

Sending again settles a doubt only where the repeat can do no second harm: under a key that the tool honours, for as long as
it remembers it, or where the manifest says that the operation is idempotent. What is re-sent must arrive within the key's
window, so the last of it, as long as a call may take, is not used; past it nothing is re-sent.

Considered and left out: taking silence for absence after a long time (it turns an outage of the listing into doubles), and
asking for ever (the caller has a deadline; the background settler asks on with growing pauses).

Source: design section 1, "probe", "settle"; Gray & Reuter, "Transaction Processing", 1992, section 10.3 (testable
actions); draft-ietf-httpapi-idempotency-key-header-07 section 2.2 (keys expire).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.core.expression import Environment, Expression, ExpressionError
from gateway.core.fault import Fault
from gateway.core.tool import Operation, Probe, ToolSpec

__all__ = [
    "Answer",
    "Inquiry",
    "Verdict",
    "how_settled",
    "judge",
    "judge_gone",
    "may_resend_until",
    "still_working_s",
    "why_not_resent",
]

_NOT_LET_IN = frozenset({401, 403, 407})


class Verdict(StrEnum):
    """What a probe found."""

    LANDED = "landed"
    NOT_LANDED = "not_landed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Answer:
    """A verdict, why, and the answer that the step would have got, where the manifest says how to rebuild it.

    `can_wait` is False where asking again soon is of no use: the question never reached the tool.
    """

    verdict: Verdict
    detail: str
    result: object = None
    has_result: bool = False
    can_wait: bool = True


def judge(probe: Probe, env: Environment) -> Answer:
    """Return what a probe's answer says. `env` holds what the probe was bound from, and its `response`."""
    status = _status(env)
    if status in _NOT_LET_IN:
        return Answer(Verdict.UNKNOWN, f"the probe was refused with {status}")
    has_landed, why_not = _holds(probe.landed, env)
    is_absent, why_unclear = _holds(probe.not_landed, env)
    if has_landed and is_absent:
        return Answer(Verdict.UNKNOWN, "the probe's `landed` and `not_landed` both hold")
    if is_absent:
        return Answer(Verdict.NOT_LANDED, f"the probe answered {status} and `not_landed` holds")
    if not has_landed:
        reasons = "; ".join(filter(None, (why_not, why_unclear))) or "neither `landed` nor `not_landed` holds"
        return Answer(Verdict.UNKNOWN, f"the probe answered {status} and {reasons}")
    detail = f"the probe answered {status} and `landed` holds"
    if probe.result is None:
        return Answer(Verdict.LANDED, detail)
    try:
        return Answer(Verdict.LANDED, detail, probe.result(env), has_result=True)
    except ExpressionError as error:
        return Answer(Verdict.LANDED, f"{detail}, but its answer cannot be rebuilt: {error}")


def judge_gone(probe: Probe, env: Environment) -> bool | None:
    """Return whether an undone effect is gone, or None if the answer does not tell."""
    if probe.gone is None or _status(env) in _NOT_LET_IN:
        return None
    try:
        return probe.gone(env) is True
    except ExpressionError:
        return None


def _status(env: Environment) -> object:
    response = env.get("response")
    return response.get("status") if isinstance(response, Mapping) else None


def _holds(expression: Expression | None, env: Environment) -> tuple[bool, str | None]:
    if expression is None:
        return False, None
    try:
        return expression(env) is True, None
    except ExpressionError as error:
        return False, str(error)


@dataclass(slots=True)
class Inquiry:
    """The questions about one step, in order. `given_up` is the monotonic time since when nothing more was sent for it.

    `next_at` says when to ask next; `told` takes the answer and returns it once it is final, else None.
    """

    probe: Probe
    given_up: float
    next_at: float
    absences: int = field(default=0)

    @classmethod
    def begun(cls, probe: Probe, given_up: float, now: float) -> Inquiry:
        """Return an inquiry whose first question is asked at once."""
        return cls(probe, given_up, now)

    def told(self, answer: Answer, asked_at: float) -> Answer | None:
        """Take an answer to a question asked at `asked_at`. Returns what it is settled as, or None to ask again."""
        counts_from = self.given_up + self.probe.delay_s
        is_early = asked_at < counts_from
        match answer.verdict:
            case Verdict.LANDED:
                return answer
            case Verdict.UNKNOWN:
                self.absences = 0
                if not (is_early and answer.can_wait):
                    return answer
            case Verdict.NOT_LANDED if not is_early:
                self.absences += 1
                if self.absences > 1:
                    return answer
        self.next_at = counts_from if is_early else asked_at + self.probe.again_s
        return None


_ENDED = frozenset({Fault.TIMEOUT, Fault.SERVER})


def still_working_s(fault: str, operation: Operation) -> float:
    """Return how long, from the end of a call in doubt, the tool may work at it as if it still had its full time.

    Nothing after a time-out, which gave it that, or after an answer; else (reset, broken off, crash) a whole time-out.
    """
    return 0.0 if fault in _ENDED else operation.timeouts.first_byte


def may_resend_until(tool: ToolSpec, operation: Operation, first_sent: float) -> float | None:
    """Return until when a step in doubt may be sent again, in the clock of `first_sent`; None for never."""
    if tool.idempotency is not None:
        return first_sent + tool.idempotency.window
    return math.inf if operation.is_idempotent else None


def why_not_resent(tool: ToolSpec, operation: Operation, first_sent: float, now: float) -> str | None:
    """Return why a step in doubt may not be sent again, or None if it may."""
    until = may_resend_until(tool, operation, first_sent)
    if until is None:
        return f"{tool.name} does not say that it honours idempotency keys"
    is_late = now + operation.timeouts.total >= until
    return f"{tool.name} may have forgotten its key by the time that it arrives" if is_late else None


def how_settled(tool: ToolSpec, operation: Operation) -> str:
    """Return in words what becomes of a step of `operation` whose answer never came, for `seawall explain`."""
    ways = []
    if operation.probe is not None:
        ways.append(f"ask {operation.probe.request.source}")
    if tool.idempotency is not None:
        while_s = max(0.0, tool.idempotency.window - operation.timeouts.total)
        ways.append(f"send it again under its key for {while_s:g} s")
    elif operation.is_idempotent:
        ways.append("send it again")
    return ", else ".join(ways) or "a person decides: no probe is declared, and it may not be sent twice"
