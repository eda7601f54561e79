"""A refusal as the agent gets it: RFC 9457 problem JSON with the members of design section 7.

`detail` is one sentence for the model; everything else is for programs. Nothing here depends on a framework: status,
header fields and body come out as values.

Source: RFC 9457; RFC 9110 section 10.2.3 (Retry-After, whole seconds, rounded up so that it is never too early).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import orjson

from gateway.core.codes import CODES, Code
from gateway.core.message import Headers
from gateway.core.outcome import Refusal

__all__ = ["Problem", "problem"]

_TYPE = "urn:seawall:error:"


@dataclass(frozen=True, slots=True)
class Problem:
    """A refusal on the wire."""

    status: int
    headers: Headers
    body: bytes


def problem(
    refusal: Refusal, *, trajectory: str | None = None, step: int | None = None, status: int | None = None
) -> Problem:
    """Return a refusal as problem JSON.

    `trajectory` and `step` say which run and step it is about, where known; `status` overrides the code's own, for
    requests that are not even HTTP enough to reach a tool.
    """
    row = CODES[refusal.code]
    retryable = row.retryable if refusal.retryable is None else refusal.retryable
    dispatched = refusal.dispatched or row.dispatched
    members: dict[str, object] = {
        "type": _TYPE + refusal.code.value,
        "title": row.title,
        "status": status or row.status,
        "detail": refusal.detail,
        "code": refusal.code.value,
        "class": row.error_class.value,
        "retryable": retryable,
        # Not a repeat: the identical call, then, finds out what became of the one that was sent.
        "retry_after_ms": refusal.retry_after_ms if retryable or refusal.code is Code.OUTCOME_UNKNOWN else None,
        "dispatched": dispatched.value,
        "dependency_id": refusal.dependency,
        "trajectory": trajectory,
        "step": step,
        "directive": (refusal.directive or row.directive).value,
    }
    for name, value in refusal.extra.items():
        members.setdefault(name, value)
    headers: list[tuple[bytes, bytes]] = [(b"Content-Type", b"application/problem+json")]
    if refusal.location is not None:
        headers.append((b"Location", refusal.location.encode("ascii")))
    if retryable and refusal.retry_after_ms is not None:
        headers.append((b"Retry-After", b"%d" % max(1, math.ceil(refusal.retry_after_ms / 1000))))
    if not (retryable and row.client_may_retry):
        headers.append((b"x-should-retry", b"false"))
    return Problem(status or row.status, tuple(headers), orjson.dumps(members))
