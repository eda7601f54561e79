"""Which outcomes give an agent the result of its step."""

from __future__ import annotations

import pytest

from gateway.core.codes import Code
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
