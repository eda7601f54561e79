"""One reading of an outcome for metrics, spans, logs and events, so that all four use the same words."""

from __future__ import annotations

import functools
from asyncio import CancelledError
from typing import NamedTuple

from gateway.core.codes import Code
from gateway.core.fault import Fault
from gateway.core.outcome import InDoubt, Outcome, Rejected, Success

__all__ = ["ATTEMPT_FAULTS", "OUTCOMES", "Verdict", "judge"]

OUTCOMES = ("success", "replayed", "rejected", "failed", "in_doubt", "cancelled", "error")
REFUSED, BUG = "refused", "error"
ATTEMPT_FAULTS = (*(fault.value for fault in Fault), REFUSED, BUG)


class Verdict(NamedTuple):
    """An outcome in labels.

    Attributes:
        outcome: one of `OUTCOMES`.
        fault: one of `ATTEMPT_FAULTS`; `refused` and `error` are ours, not the tool's.
        code: of the refusal that the agent reads, if it reads one.
        status: of the tool's own answer, if there was one.
        error_type: `error.type` of a span: code, else fault, else the exception's class; None for a success.
    """

    outcome: str
    fault: str
    code: Code | None = None
    status: int | None = None
    error_type: str | None = None


_CANCELLED = Verdict("cancelled", Fault.CANCELLED, error_type="cancelled")
_REFUSALS = {code: Verdict("rejected", REFUSED, code, None, code) for code in Code}


def judge(outcome: Outcome | BaseException) -> Verdict:
    """Return what to call an outcome. An exception is a bug, or a cancellation."""
    if isinstance(outcome, Success):
        return _success(outcome.is_replay, outcome.reply.status)
    if isinstance(outcome, Rejected):
        return _REFUSALS[outcome.refusal.code]
    if isinstance(outcome, BaseException):
        return _CANCELLED if isinstance(outcome, CancelledError) else _bug(outcome)
    name = "in_doubt" if isinstance(outcome, InDoubt) else "failed"
    refused = None if outcome.refusal is None else outcome.refusal.code
    status = None if outcome.reply is None else outcome.reply.status
    return Verdict(name, outcome.fault, refused, status, refused or outcome.fault)


@functools.lru_cache(maxsize=64)
def _success(is_replay: bool, status: int) -> Verdict:
    return Verdict("replayed" if is_replay else "success", Fault.NONE, status=status)


def _bug(error: BaseException) -> Verdict:
    return Verdict("error", BUG, error_type=type(error).__qualname__)
