"""Which outcomes give an agent the result of its step."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from gateway.core.codes import Code, Directive, Dispatched
from gateway.core.fault import Fault
from gateway.core.message import BytesBody, Reply
from gateway.core.outcome import Failed, InDoubt, Refusal, Rejected, Success, is_result

REPLY = Reply(200, b"OK", (), BytesBody(b""))


@pytest.mark.parametrize("code", list(Code))
def test_of_our_refusals_only_a_judgement_on_the_result_is_one(code: Code) -> None:
    """Else a look-up that failed would count as the delivery of what it could not find, and the repeat would do it anew."""
    assert is_result(Rejected(Refusal(code=code, detail=""))) is (code is Code.POSTCONDITION)


def test_what_the_tool_said_is_a_result_and_a_doubt_is_none() -> None:
    assert is_result(Success(REPLY))
    assert is_result(Failed(Fault.CLIENT_ERROR, reply=REPLY))
    assert not is_result(InDoubt(Fault.TIMEOUT, Refusal(code=Code.OUTCOME_UNKNOWN, detail="")))


def test_a_policys_advice_changes_nothing_else_of_a_refusal() -> None:
    """Whatever a refusal comes to say one day has to survive it."""
    refusal = Refusal(
        code=Code.CIRCUIT_OPEN, detail="x", retry_after_ms=1, dispatched=Dispatched.YES, retryable=False, dependency="t",
        location="/l", directive=Directive.FORWARD_REPAIR, extra={"reason": "open"},
    )  # fmt: skip
    assert not [one for one in fields(refusal) if getattr(refusal, one.name) in (None, "", {})]
    advised = refusal.advised(Directive.TRANSIENT_RETRY, {"gate": 1})
    assert advised == replace(
        refusal, directive=Directive.TRANSIENT_RETRY, extra={"reason": "open", "explain": {"gate": 1}}
    )
