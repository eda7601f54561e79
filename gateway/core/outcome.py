"""What became of a call: four answers, each carrying the one fact that makes a repeat safe or not.

    Success    the tool did it and said so
    Rejected   we refused; nothing was sent, and it says nothing about the tool
    Failed     certainly no effect: never sent, or the tool said no, or it was a read
    InDoubt    sent, and the effect is unknown

Match on them with `assert_never` at the end. Errors that we expect are these values; exceptions are for bugs.

Source: App-vNext/Polly `Outcome` (errors as values); Garcia-Molina & Salem 1987 (a step without a record is in doubt).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Final, assert_never

from gateway.core.codes import Code, Directive, Dispatched
from gateway.core.fault import Fault
from gateway.core.message import BytesBody, Reply
from gateway.core.value import frozen

__all__ = [
    "RESULTS",
    "Failed",
    "InDoubt",
    "Outcome",
    "Refusal",
    "Rejected",
    "Success",
    "is_result",
    "streamed_reply",
]


@frozen
class Refusal:
    """A refusal before it becomes problem JSON.

    Attributes:
        code: the row of `core/codes.py`.
        detail: one sentence written for the model: what happened, to which tool, what to do next.
        retry_after_ms: when a repeat makes sense, or, of an unknown outcome, when the identical call may find it out; None
            where neither does.
        dispatched: overrides the row's fact where we know better.
        retryable: overrides the row's advice where we know better.
        dependency: the tool or domain that the refusal is about.
        location: where to ask later, for the `Location` field.
        directive: what the run should do next, where a policy knows better than the code's row.
        extra: further members of the problem object, JSON-compatible.
    """

    code: Code
    detail: str
    retry_after_ms: int | None = None
    dispatched: Dispatched | None = None
    retryable: bool | None = None
    dependency: str | None = None
    location: str | None = None
    directive: Directive | None = None
    extra: Mapping[str, object] = field(default_factory=dict)

    def advised(self, directive: Directive, explain: Mapping[str, object]) -> Refusal:
        """Return the same refusal with what a policy says that the run should do next, and why (`explain`)."""
        return Refusal(
            code=self.code,
            detail=self.detail,
            retry_after_ms=self.retry_after_ms,
            dispatched=self.dispatched,
            retryable=self.retryable,
            dependency=self.dependency,
            location=self.location,
            directive=directive,
            extra={**self.extra, "explain": explain},
        )


@frozen(kw_only=False)
class Success:
    """The tool did it; `reply` is its answer. `is_replay` marks one that was delivered from the journal."""

    reply: Reply
    is_replay: bool = False


@frozen(kw_only=False)
class Rejected:
    """We refused. Nothing was sent."""

    refusal: Refusal


@frozen(kw_only=False)
class Failed:
    """Certainly no effect.

    Attributes:
        fault: how it went wrong.
        refusal: what the agent reads when there is no answer of the tool's own.
        reply: the tool's own answer, which the agent gets unchanged.
        retry_after_ms: the tool's own hint.
    """

    fault: Fault
    refusal: Refusal | None = None
    reply: Reply | None = None
    retry_after_ms: int | None = None


@frozen(kw_only=False)
class InDoubt:
    """Sent, effect unknown.

    Attributes:
        fault: how it went wrong.
        refusal: what the agent reads.
        reply: the tool's answer where there was one (a 5xx); evidence for settling, never shown as a plain answer.
    """

    fault: Fault
    refusal: Refusal
    reply: Reply | None = None
    retry_after_ms: int | None = None


Outcome = Success | Rejected | Failed | InDoubt

RESULTS: Final = frozenset({Code.POSTCONDITION})
"""Refusals of ours that are a step's result all the same: judgements on what the tool has answered."""


def streamed_reply(outcome: Outcome) -> Reply | None:
    """Return the reply whose body still comes from the tool, if there is one."""
    if isinstance(outcome, Rejected):
        return None
    reply = outcome.reply
    return None if reply is None or type(reply.body) is BytesBody or reply.body.is_replayable else reply


def is_result(outcome: Outcome) -> bool:
    """Return whether an agent that reads this has the result of its step, so that its next identical call is a new one.

    A refusal of ours says nothing of what the step did, even where it names it: its result is still to be collected. The one
    exception is a result that we pass judgement on, `ERR_POSTCONDITION`.
    """
    match outcome:
        case Success() | Failed():
            return True
        case Rejected(refusal):
            return refusal.code in RESULTS
        case InDoubt():
            return False
        case _ as never:
            assert_never(never)
