"""What became of a call, read off what came back: the one table from exchange to outcome.

Certainty is the whole point. An answer of the tool is believed where HTTP or the manifest gives it a meaning; everything
else about a call that may change something is in doubt:

    answer                       read                   write
    2xx, 3xx                     Success                Success
    408                          Failed client_error    InDoubt timeout   (the tool stopped reading, or not)
    429                          Failed throttled       Failed throttled  (a clean refusal)
    501, 505                     Failed client_error    Failed client_error  (it cannot do such a thing)
    other 4xx                    Failed client_error    Failed client_error  (the agent gets it unchanged)
    503 with Retry-After         Failed throttled       Failed throttled  (a clean refusal)
    other 5xx                    Failed server          InDoubt server, or Failed server if `fails_cleanly`
    101 that was asked for       Success                (of reads only)
    1xx or beyond 599            Failed protocol        InDoubt protocol
    broken, nothing was sent     Failed                 Failed
    broken otherwise             Failed                 InDoubt

Source: RFC 9110 sections 9.2.1 and 15; dtm-labs/dtm#545 (an undocumented status meant "retry for ever").
"""

from __future__ import annotations

from gateway.core.codes import Code, Dispatched
from gateway.core.fault import Broken, Fault
from gateway.core.message import Reply, first_header
from gateway.core.outcome import Failed, InDoubt, Outcome, Refusal, Success
from gateway.core.retry import parse_retry_after
from gateway.core.tool import Operation, ToolSpec

__all__ = ["classify"]

_CANNOT = frozenset({501, 505})


def classify(exchange: Reply | Broken, tool: ToolSpec, operation: Operation, at: int) -> Outcome:
    """Return what became of a call of `operation`; `at` is UTC milliseconds, for dates in Retry-After.

    The caller closes a reply that the outcome does not carry (one with an impossible status to a read).
    """
    if isinstance(exchange, Broken):
        return _of_broken(exchange, tool, operation)
    return _of_reply(exchange, tool, operation, at)


def _of_reply(reply: Reply, tool: ToolSpec, operation: Operation, at: int) -> Outcome:
    status = reply.status
    if 200 <= status < 400 or reply.switched is not None:
        return Success(reply)
    asked_ms = parse_retry_after(reply.headers, at)
    if status == 429 or (status == 503 and first_header(reply.headers, b"retry-after") is not None):
        return Failed(Fault.THROTTLED, reply=reply, retry_after_ms=asked_ms)
    if status in _CANNOT or (400 <= status < 500 and not (status == 408 and not operation.is_read)):
        return Failed(Fault.CLIENT_ERROR, reply=reply)
    if status == 408:
        return _in_doubt(Fault.TIMEOUT, f"it answered {status}", tool, operation, reply, asked_ms)
    if not 500 <= status < 600:
        detail = f"it answered with the status {status}, which is not a final one"
        return _of_broken(Broken(Fault.PROTOCOL, Dispatched.YES, detail), tool, operation, reply)
    if operation.is_read or operation.fails_cleanly:
        return Failed(Fault.SERVER, reply=reply, retry_after_ms=asked_ms)
    return _in_doubt(Fault.SERVER, f"it answered {status}", tool, operation, reply, asked_ms)


def _of_broken(broken: Broken, tool: ToolSpec, operation: Operation, reply: Reply | None = None) -> Outcome:
    if broken.dispatched is not Dispatched.NO and not operation.is_read:
        return _in_doubt(broken.fault, broken.detail, tool, operation, reply, None)
    code = _code_of(broken)
    return Failed(
        broken.fault, refusal=_refusal(code, _FAILED[code], broken.detail, tool, operation, broken.dispatched)
    )


def _code_of(broken: Broken) -> Code:
    if broken.fault is Fault.TIMEOUT:
        return Code.DEADLINE
    if broken.fault in (Fault.CONNECT, Fault.CONNECT_TIMEOUT) or broken.dispatched is Dispatched.NO:
        return Code.UPSTREAM_CONNECT
    return Code.UPSTREAM_PROTOCOL


def _in_doubt(
    fault: Fault, detail: str, tool: ToolSpec, operation: Operation, reply: Reply | None, asked_ms: int | None
) -> InDoubt:
    dispatched = Dispatched.YES if reply is not None else Dispatched.MAYBE
    refusal = _refusal(Code.OUTCOME_UNKNOWN, _UNKNOWN, detail, tool, operation, dispatched)
    return InDoubt(fault, refusal, reply=reply, retry_after_ms=asked_ms)


_FAILED = {
    Code.UPSTREAM_CONNECT: "{what} was not sent: {detail}; nothing happened, so it may be sent again later.",
    Code.DEADLINE: "{what} ran out of time: {detail}; it had no effect, so it may be sent again with more time.",
    Code.UPSTREAM_PROTOCOL: "{what} got a broken answer: {detail}; it had no effect, so it may be sent again.",
}
_UNKNOWN = (
    "{what} was sent and its effect is unknown: {detail}; do not repeat it under another name or key, "
    "but read the state of {tool} to find out, or abort the run."
)


def _refusal(
    code: Code, text: str, detail: str, tool: ToolSpec, operation: Operation, dispatched: Dispatched
) -> Refusal:
    what = f"The call {tool.name}.{operation.name}"
    sentence = text.format(what=what, detail=detail.rstrip(". "), tool=tool.name)
    return Refusal(code=code, detail=sentence, dispatched=dispatched, dependency=tool.name)
