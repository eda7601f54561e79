"""A refusal on the wire, said a second time in the plainest way there is."""

from __future__ import annotations

import math
import string

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.codes import CODES, Code, Directive, Dispatched
from gateway.core.message import Headers
from gateway.core.outcome import Refusal
from gateway.core.problem import problem

TEXT = st.text(max_size=80)
NAMES = st.text(string.ascii_lowercase + "_", min_size=1, max_size=16) | st.sampled_from(["code", "step", "trajectory"])
VALUES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20)
REFUSALS = st.builds(
    Refusal,
    code=st.sampled_from(list(Code)),
    detail=TEXT,
    retry_after_ms=st.none() | st.integers(0, 10**9),
    dispatched=st.none() | st.sampled_from(Dispatched),
    retryable=st.none() | st.booleans(),
    dependency=st.none() | TEXT,
    location=st.none() | st.text(string.ascii_letters + "/-", max_size=40),
    directive=st.none() | st.sampled_from(Directive),
    extra=st.dictionaries(NAMES, VALUES, max_size=5),
)


def plainly(
    refusal: Refusal, trajectory: str | None, step: int | None, status: int | None
) -> tuple[int, Headers, bytes]:
    row = CODES[refusal.code]
    retryable = row.retryable if refusal.retryable is None else refusal.retryable
    told = retryable or refusal.code is Code.OUTCOME_UNKNOWN
    members = {
        "type": f"urn:seawall:error:{refusal.code.value}",
        "title": row.title,
        "status": status or row.status,
        "detail": refusal.detail,
        "code": refusal.code.value,
        "class": row.error_class.value,
        "retryable": retryable,
        "retry_after_ms": refusal.retry_after_ms if told else None,
        "dispatched": (refusal.dispatched or row.dispatched).value,
        "dependency_id": refusal.dependency,
        "trajectory": trajectory,
        "step": step,
        "directive": (refusal.directive or row.directive).value,
    }
    members |= {name: value for name, value in refusal.extra.items() if name not in members}
    headers = [(b"Content-Type", b"application/problem+json")]
    if refusal.location is not None:
        headers.append((b"Location", refusal.location.encode()))
    if retryable and refusal.retry_after_ms is not None:
        headers.append((b"Retry-After", str(max(1, math.ceil(refusal.retry_after_ms / 1000))).encode()))
    if not (retryable and row.client_may_retry):
        headers.append((b"x-should-retry", b"false"))
    return status or row.status, tuple(headers), orjson.dumps(members)


@given(
    refusal=REFUSALS,
    trajectory=st.none() | TEXT,
    step=st.none() | st.integers(1, 10**6),
    status=st.none() | st.sampled_from([400, 401, 501]),
)
def test_what_a_form_says_is_what_its_row_says(
    refusal: Refusal, trajectory: str | None, step: int | None, status: int | None
) -> None:
    """Byte for byte: clients parse it, and models read it."""
    told = problem(refusal, trajectory=trajectory, step=step, status=status)
    assert (told.status, told.headers, told.body) == plainly(refusal, trajectory, step, status)


@pytest.mark.parametrize("code", list(Code))
def test_no_refusal_leaves_anything_behind_in_its_form(code: Code) -> None:
    first = problem(Refusal(code=code, detail="x"))
    problem(
        Refusal(code=code, detail="y", retry_after_ms=7, retryable=True, dispatched=Dispatched.YES, dependency="t",
                directive=Directive.FORWARD_REPAIR, extra={"more": 1}),
        trajectory="r", step=3, status=499,
    )  # fmt: skip
    assert problem(Refusal(code=code, detail="x")) == first
