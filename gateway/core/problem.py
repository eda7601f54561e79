"""A refusal as the agent gets it: RFC 9457 problem JSON with the members of design section 7.

`detail` is one sentence for the model; everything else is for programs. Nothing here depends on a framework: status,
header fields and body come out as values.

Source: RFC 9457; RFC 9110 section 10.2.3 (Retry-After, whole seconds, rounded up so that it is never too early).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from gateway.core.codes import CODES, Code, CodeRow, Directive
from gateway.core.message import Headers
from gateway.core.outcome import Refusal
from gateway.core.value import frozen

__all__ = ["Problem", "problem"]

_TYPE = "urn:seawall:error:"


_CONTENT_TYPE: Final = (b"Content-Type", b"application/problem+json")
_TOLD: Headers = (_CONTENT_TYPE,)
_SHOULD_NOT_RETRY: Headers = ((b"x-should-retry", b"false"),)
_DIRECTIVES: Final = {directive: directive.value for directive in Directive}
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
_NAMES: Final = frozenset(_FORMS[Code.INTERNAL].members)


def problem(
    refusal: Refusal,
    *,
    trajectory: str | None = None,
    step: int | None = None,
    status: int | None = None,
    marks: Headers = (),
) -> Problem:
    """Return a refusal as problem JSON.

    `trajectory` and `step` say which run and step it is about, where known; `status` overrides the code's own, for
    requests that are not even HTTP enough to reach a tool. `marks` are further fields, behind its own.
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
    if refusal.directive is not None:
        members["directive"] = _DIRECTIVES[refusal.directive]
    extra = refusal.extra
    if extra:
        members.update(extra if _NAMES.isdisjoint(extra) else _further(extra))
    headers = _TOLD if refusal.location is None else (_CONTENT_TYPE, (b"Location", refusal.location.encode("ascii")))
    if is_retryable and retry_after_ms is not None:
        seconds = -(-retry_after_ms // 1000)
        headers += ((b"Retry-After", b"%d" % (seconds if seconds > 1 else 1)),)
    if not (is_retryable and form.client_may_retry):
        headers += _SHOULD_NOT_RETRY
    return Problem(status or form.status, headers + marks, orjson.dumps(members))


def _further(extra: Mapping[str, object]) -> dict[str, object]:
    """Return the members that are not the contract's own, which no refusal can say otherwise."""
    return {name: value for name, value in extra.items() if name not in _NAMES}
