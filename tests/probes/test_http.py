"""The HTTP probe: a read on its own lane, whose every failure is silence and never a verdict."""

from __future__ import annotations

import pytest

from gateway.core.call import Call, Lane
from gateway.core.codes import Code
from gateway.core.expression import Environment, ExpressionError
from gateway.core.fault import Fault
from gateway.core.outcome import Failed, InDoubt, Outcome, Refusal, Rejected, Success
from gateway.core.tool import BoundRequest, Probe, RequestTemplate
from gateway.probes import Unheard
from gateway.probes.http import HttpProbe
from tests.builders import call_of, catalog_of, reply_of, tool_of
from tests.fakes import FakeClock

PAY = tool_of("pay")
JSON = ((b"Content-Type", b"application/json"),)
REFUSED = Refusal(code=Code.CIRCUIT_OPEN, detail="The breaker is open.")


def probe(tool: str = "pay", header: str = "v") -> Probe:
    return Probe(RequestTemplate("GET /x", lambda env: BoundRequest(tool, "GET", "/x?a=1", (("X-A", header),))))


def unbound(env: Environment) -> BoundRequest:
    raise ExpressionError("`request.json.ref` is missing")


async def ask(outcome: Outcome, asked: Probe | None = None) -> tuple[object, list[Call]]:
    sent: list[Call] = []

    async def tool(call: Call) -> Outcome:
        sent.append(call)
        return outcome

    clock = FakeClock()
    prober = HttpProbe(lambda: catalog_of(PAY), clock)
    heard = await prober.ask(asked or probe(), call_of(PAY, now=clock.now(), timeout_s=7.0), {}, tool)
    return heard, sent


async def test_the_answer_is_what_expressions_see() -> None:
    heard, (sent,) = await ask(Success(reply_of(200, b'{"data": []}', JSON)))
    assert isinstance(heard, dict)
    assert (heard["status"], heard["json"]) == (200, {"data": []})
    assert sent.lane is Lane.PROBE
    assert sent.operation.is_read
    assert sent.deadline <= call_of(PAY, now=1000.0, timeout_s=7.0).deadline
    assert (b"X-A", b"v") in sent.request.headers


async def test_an_absence_that_the_tool_states_is_an_answer() -> None:
    heard, _ = await ask(Failed(Fault.CLIENT_ERROR, reply=reply_of(404, b"{}", JSON)))
    assert isinstance(heard, dict)
    assert heard["status"] == 404


@pytest.mark.parametrize(
    "outcome",
    [
        Failed(Fault.SERVER, reply=reply_of(500)),
        Failed(Fault.THROTTLED, reply=reply_of(429)),
        Failed(Fault.TIMEOUT),
        InDoubt(Fault.RESET, REFUSED),
    ],
    ids=["500", "429", "timeout", "reset"],
)
async def test_a_tool_that_does_not_answer_properly_says_nothing(outcome: Outcome) -> None:
    heard, _ = await ask(outcome)
    assert isinstance(heard, Unheard)
    assert heard.can_wait


async def test_a_question_that_we_refused_ourselves_is_not_worth_waiting_for() -> None:
    heard, _ = await ask(Rejected(REFUSED))
    assert isinstance(heard, Unheard)
    assert not heard.can_wait


async def test_a_probe_that_cannot_be_bound_is_not_sent() -> None:
    heard, sent = await ask(Success(reply_of()), Probe(RequestTemplate("GET /x", unbound)))
    assert isinstance(heard, Unheard)
    assert "`request.json.ref` is missing" in heard.detail
    assert sent == []


@pytest.mark.parametrize("asked", [probe("gone"), probe(header="${secret:none}")], ids=["tool", "secret"])
async def test_what_the_manifest_no_longer_has_is_named(asked: Probe) -> None:
    heard, sent = await ask(Success(reply_of()), asked)
    assert isinstance(heard, Unheard)
    assert sent == []
