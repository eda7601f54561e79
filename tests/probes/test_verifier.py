"""A verifier is closed by default: every way of not getting the expected answer says why, and opens nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.core.call import Call, Lane
from gateway.core.codes import Code
from gateway.core.expression import Environment, ExpressionError
from gateway.core.fault import Fault
from gateway.core.message import BytesBody
from gateway.core.outcome import Failed, Outcome, Refusal, Rejected, Success
from gateway.core.tool import BoundRequest, RequestTemplate, Verifier
from gateway.egress import StreamBroken
from gateway.probes.verifier import HttpVerifier
from tests.builders import StreamBody, catalog_of, reply_of, tool_of
from tests.fakes import FakeClock

JSON = ((b"Content-Type", b"application/json"),)


class Expect:
    source = "response.json.ok == true"

    def __call__(self, env: Environment) -> object:
        response = env["response"]
        assert isinstance(response, dict)
        if response["json"] is None:
            raise ExpressionError("`ok` is missing")
        return response["json"]["ok"]


def binding(header: tuple[str, str] | None = None) -> Callable[[Environment], BoundRequest]:
    def bind(env: Environment) -> BoundRequest:
        if "missing" in env:
            raise ExpressionError("`labels.build` is missing")
        return BoundRequest("ci", "GET", "/status", () if header is None else (header,))

    return bind


async def ask(
    outcome: Outcome, *, tool: str = "ci", env: Environment | None = None, header: tuple[str, str] | None = None
) -> str | None:
    sent: list[Call] = []

    async def pipeline(call: Call) -> Outcome:
        sent.append(call)
        return outcome

    clock = FakeClock()
    verifier = HttpVerifier(lambda: pipeline, lambda: catalog_of(tool_of("ci")), clock)
    asked = Verifier(tool, RequestTemplate("GET /status", binding(header)), Expect())
    said = await verifier.ask(asked, env or {}, agent="bot", run="r1", deadline=clock.now() + 5.0)
    for call in sent:
        assert (call.lane, call.operation.is_read, call.deadline) == (Lane.PROBE, True, clock.now() + 5.0)
    return said


async def test_the_expected_answer_opens_it() -> None:
    assert await ask(Success(reply_of(200, b'{"ok": true}', JSON))) is None


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Success(reply_of(200, b'{"ok": false}', JSON)), "not as expected"),
        (Success(reply_of(200, b'{"ok": "true"}', JSON)), "not as expected"),
        (Success(reply_of(200, b"yes")), "cannot be evaluated"),
        (Success(reply_of(200, BytesBody(b"x" * (1 << 21)))), "more than"),
        (Success(reply_of(200, StreamBody((b"{",), StreamBroken("reset")))), "broke its answer off"),
        (Failed(Fault.SERVER, reply=reply_of(500, b'{"ok": 1}', JSON)), "answered 500"),
        (Failed(Fault.CONNECT, Refusal(code=Code.UPSTREAM_CONNECT, detail="refused")), "gave no answer: refused"),
        (Rejected(Refusal(code=Code.CIRCUIT_OPEN, detail="its breaker is open")), "its breaker is open"),
    ],
)
async def test_anything_else_keeps_it_closed_and_says_why(outcome: Outcome, said: str) -> None:
    assert said in (await ask(outcome) or "")


async def test_a_question_that_cannot_be_asked_is_a_no() -> None:
    fine = Success(reply_of(200, b'{"ok": true}', JSON))
    assert "not in the manifest" in (await ask(fine, tool="gone") or "")
    assert "cannot be made" in (await ask(fine, env={"missing": 1}) or "")
    assert "secret" in (await ask(fine, header=("Authorization", "Bearer ${secret:gone}")) or "")
