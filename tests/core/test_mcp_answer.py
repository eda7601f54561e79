"""What an MCP answer means for a step."""

import json

import pytest

from gateway.core.codes import Code
from gateway.core.mcp import error_message, parse, result_message
from gateway.core.mcp_answer import PROBLEM_KEY, is_error, refusal_result, reply_of, status_of
from gateway.core.outcome import Refusal


@pytest.mark.parametrize(
    ("result", "status"),
    [
        ('{"content":[]}', 200),
        ('{"content":[],"isError":false}', 200),
        ('{"content":[],"isError":true}', 422),
        ('{"resultType":"input_required","requestState":"x"}', 428),
        ('{"resultType":"complete"}', 200),
    ],
)
def test_results(result: str, status: int) -> None:
    """A tool that says no is no fault; one that asks has not begun."""
    assert status_of(parse(result_message("1", result))) == status


@pytest.mark.parametrize(
    ("code", "status"), [(-32601, 404), (-32602, 422), (-32603, 500), (-32000, 500), (-32021, 422)]
)
def test_errors(code: int, status: int) -> None:
    """Only those that say that nothing was begun are a definite no."""
    answer = parse(error_message("1", code, "x"))
    reply = reply_of(answer)
    assert (reply.status, is_error(reply)) == (status, True)
    assert not is_error(reply_of(parse(result_message("1", "{}"))))


def test_a_refusal_is_read_by_models_and_by_programs() -> None:
    """The sentence is the text, the object is there twice."""
    result = json.loads(
        refusal_result(Refusal(code=Code.CIRCUIT_OPEN, detail="Wait.", retry_after_ms=5), trajectory="r")
    )
    assert result["content"] == [{"type": "text", "text": "Wait."}]
    assert result["isError"] is True
    assert result["structuredContent"] == result["_meta"][PROBLEM_KEY]
    assert (result["structuredContent"]["code"], result["structuredContent"]["trajectory"]) == ("ERR_CIRCUIT_OPEN", "r")


def test_a_held_call_is_no_error_and_says_how_to_ask() -> None:
    """A model that reads "error" gives up; this one has only to wait."""
    result = json.loads(refusal_result(Refusal(code=Code.HELD_FOR_APPROVAL, detail="It waits for a person.")))
    assert result["isError"] is False
    assert result["content"][0]["text"].startswith("It waits for a person. Make the identical call again")
    assert result["structuredContent"]["code"] == "HELD_FOR_APPROVAL"
