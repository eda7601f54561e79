"""A refusal as the agent gets it: RFC 9457 problem JSON with the members of design section 7.

`detail` is one sentence for the model; everything else is for programs. Nothing here depends on a framework: status,
header fields and body come out as values.

Source: RFC 9457; RFC 9110 section 10.2.3 (Retry-After, whole seconds, rounded up so that it is never too early).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import orjson

from gateway.core.codes import CODES, Code, CodeRow
from gateway.core.message import Headers
from gateway.core.outcome import Refusal
from gateway.core.value import frozen

__all__ = ["Problem", "problem"]

_TYPE = "urn:seawall:error:"


_CONTENT_TYPE: Final = (b"Content-Type", b"application/problem+json")
_SHOULD_NOT_RETRY: Final = (b"x-should-retry", b"false")
_OUTCOME_UNKNOWN: Final = Code.OUTCOME_UNKNOWN


@frozen(kw_only=False)
class Problem:
    """A refusal on the wire."""

    status: int
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class _Form:
    """What all refusals of a code have in common, made once: the members in their order, to be filled in on a copy."""

    members: dict[str, object]
    status: int
    is_retryable: bool
    client_may_retry: bool


def _form(code: Code, row: CodeRow) -> _Form:
    members: dict[str, object] = {
        "type": _TYPE + code.value,
        "title": row.title,
        "status": row.status,
        "detail": "",
        "code": code.value,
        "class": row.error_class.value,
        "retryable": row.retryable,
        "retry_after_ms": None,
        "dispatched": row.dispatched.value,
        "dependency_id": None,
        "trajectory": None,
        "step": None,
        "directive": row.directive.value,
    }
    return _Form(members, row.status, row.retryable, row.client_may_retry)


_FORMS: Final = {code: _form(code, row) for code, row in CODES.items()}


def problem(
    refusal: Refusal, *, trajectory: str | None = None, step: int | None = None, status: int | None = None
) -> Problem:
    """Return a refusal as problem JSON.

    `trajectory` and `step` say which run and step it is about, where known; `status` overrides the code's own, for
    requests that are not even HTTP enough to reach a tool.
    """
    code, retry_after_ms = refusal.code, refusal.retry_after_ms
    form = _FORMS[code]
    members, is_retryable = form.members.copy(), form.is_retryable
    members["detail"] = refusal.detail
    members["dependency_id"] = refusal.dependency
    members["trajectory"] = trajectory
    members["step"] = step
    if refusal.retryable is not None:
        members["retryable"] = is_retryable = refusal.retryable
    if is_retryable or code is _OUTCOME_UNKNOWN:
        # Of an unknown outcome it is not a repeat: the identical call, then, finds out what became of the one that was sent.
        members["retry_after_ms"] = retry_after_ms
    if status:
        members["status"] = status
    if refusal.dispatched:
        members["dispatched"] = refusal.dispatched.value
    if refusal.directive:
        members["directive"] = refusal.directive.value
    for name, value in refusal.extra.items():
        members.setdefault(name, value)
    return Problem(status or form.status, _headers(refusal, form, is_retryable), orjson.dumps(members))


def _headers(refusal: Refusal, form: _Form, is_retryable: bool) -> Headers:
    headers: Headers = (_CONTENT_TYPE,)
    if refusal.location is not None:
        headers = (*headers, (b"Location", refusal.location.encode("ascii")))
    if is_retryable and refusal.retry_after_ms is not None:
        seconds = -(-refusal.retry_after_ms // 1000)
        headers = (*headers, (b"Retry-After", b"%d" % (seconds if seconds > 1 else 1)))
    return headers if is_retryable and form.client_may_retry else (*headers, _SHOULD_NOT_RETRY)
