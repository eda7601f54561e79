"""When a probe is believed, when it is asked, and when a step in doubt may be sent again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from gateway.core.expression import Environment, ExpressionError
from gateway.core.manifest import IdempotencySettings
from gateway.core.settle import Answer, Inquiry, Verdict, how_settled, judge, judge_gone, why_not_resent
from gateway.core.tool import BoundRequest, Probe, RequestTemplate
from tests.builders import operation_of, tool_of


@dataclass(frozen=True)
class Expr:
    """An expression as a plain function."""

    rule: Callable[[Environment], object]
    source: str = "rule"

    def __call__(self, env: Environment) -> object:
        try:
            return self.rule(env)
        except (KeyError, TypeError) as error:
            raise ExpressionError("`rule`: a member is missing") from error


def seen(env: Environment) -> list[object]:
    response = env["response"]
    assert isinstance(response, Mapping)
    found = response["json"]["data"]
    if not isinstance(found, list):
        raise TypeError
    return found


READ = RequestTemplate("GET /things", lambda env: BoundRequest("pay", "GET", "/things"))
PROBE = Probe(
    READ,
    landed=Expr(lambda env: env["key"] in seen(env)),
    not_landed=Expr(lambda env: env["key"] not in seen(env)),
    result=Expr(lambda env: {"id": env["key"]}),
    gone=Expr(lambda env: not seen(env)),
    delay_s=2.0,
    again_s=1.0,
)


def env(data: object, status: int = 200) -> dict[str, object]:
    return {"key": "k", "response": {"status": status, "json": {"data": data}}}


def test_a_step_that_is_listed_landed_and_its_answer_is_rebuilt() -> None:
    answer = judge(PROBE, env(["k"]))
    assert answer.verdict is Verdict.LANDED
    assert answer.result == {"id": "k"}
    assert answer.has_result


def test_a_step_that_is_not_listed_did_not_land() -> None:
    assert judge(PROBE, env([])).verdict is Verdict.NOT_LANDED


@pytest.mark.parametrize("status", [401, 403, 407])
def test_a_probe_that_is_not_let_in_tells_nothing(status: int) -> None:
    """An empty page for strangers is no proof of absence (BerriAI/litellm#29588: masked 401s)."""
    assert judge(PROBE, env([], status)).verdict is Verdict.UNKNOWN
    assert judge_gone(PROBE, env([], status)) is None


def test_an_answer_without_the_listing_tells_nothing() -> None:
    """An error page must never read as "not landed" (dtm-labs/dtm#545: an undocumented answer was given a meaning)."""
    answer = judge(PROBE, {"key": "k", "response": {"status": 200, "json": None}})
    assert answer.verdict is Verdict.UNKNOWN
    assert "a member is missing" in answer.detail


def test_expressions_that_contradict_each_other_tell_nothing() -> None:
    both = Probe(READ, landed=Expr(lambda env: True), not_landed=Expr(lambda env: True))
    assert judge(both, env([])).verdict is Verdict.UNKNOWN


def test_without_not_landed_absence_is_never_concluded() -> None:
    only = Probe(READ, landed=Expr(lambda env: False))
    assert judge(only, env([])).verdict is Verdict.UNKNOWN


def test_an_answer_that_cannot_be_rebuilt_still_landed() -> None:
    answer = judge(Probe(READ, landed=Expr(lambda env: True), result=Expr(lambda env: env["nothing"])), env([]))
    assert answer.verdict is Verdict.LANDED
    assert not answer.has_result


def test_gone_is_told_apart_from_unknown() -> None:
    assert judge_gone(PROBE, env([])) is True
    assert judge_gone(PROBE, env(["k"])) is False
    assert judge_gone(PROBE, env(None)) is None


LANDED = Answer(Verdict.LANDED, "")
ABSENT = Answer(Verdict.NOT_LANDED, "")
UNKNOWN = Answer(Verdict.UNKNOWN, "")


def test_landed_is_believed_at_once() -> None:
    inquiry = Inquiry.begun(PROBE, given_up=100.0, now=100.0)
    assert inquiry.next_at == 100.0
    assert inquiry.told(LANDED, 100.0) is LANDED


def test_absence_before_the_delay_does_not_count_and_after_it_needs_a_second_answer() -> None:
    """The request may still be on its way, and a listing may lag (apache/servicecomb-pack#346: forward landed late)."""
    inquiry = Inquiry.begun(PROBE, given_up=100.0, now=100.0)
    assert inquiry.told(ABSENT, 100.0) is None
    assert inquiry.next_at == 102.0
    assert inquiry.told(ABSENT, 102.0) is None
    assert inquiry.next_at == 103.0
    assert inquiry.told(ABSENT, 103.0) is ABSENT


def test_a_second_answer_that_differs_wins() -> None:
    inquiry = Inquiry.begun(PROBE, given_up=100.0, now=200.0)
    assert inquiry.told(ABSENT, 200.0) is None
    assert inquiry.told(LANDED, 201.0) is LANDED


def test_unknown_is_asked_again_only_while_the_call_may_still_land() -> None:
    inquiry = Inquiry.begun(PROBE, given_up=100.0, now=100.0)
    assert inquiry.told(UNKNOWN, 100.0) is None
    assert inquiry.told(UNKNOWN, 102.0) is UNKNOWN


def test_a_question_that_never_left_is_not_repeated() -> None:
    refused = Answer(Verdict.UNKNOWN, "the breaker is open", can_wait=False)
    assert Inquiry.begun(PROBE, given_up=100.0, now=100.0).told(refused, 100.0) is refused


def test_an_unknown_between_two_absences_breaks_the_pair() -> None:
    inquiry = Inquiry.begun(PROBE, given_up=0.0, now=100.0)
    assert inquiry.told(ABSENT, 100.0) is None
    assert inquiry.told(UNKNOWN, 101.0) is UNKNOWN


def test_a_key_may_be_sent_again_while_its_window_lasts_and_never_after() -> None:
    """No comparable system knows the callee's window; past it the same key would be a new effect."""
    tool = tool_of("pay", operation_of(), idempotency=IdempotencySettings(window=3600.0))
    operation = next(iter(tool.operations.values()))
    longest_call_s = operation.timeouts.total
    last = 1000.0 + 3600.0 - longest_call_s
    assert why_not_resent(tool, operation, 1000.0, last - 0.1) is None
    assert "may have forgotten its key" in (why_not_resent(tool, operation, 1000.0, last) or "")


def test_without_a_key_only_an_idempotent_operation_is_sent_again() -> None:
    """ComposioHQ/composio#3654: a read timeout was retried on its own and e-mails went out twice."""
    tool = tool_of("mail", operation_of("send"))
    assert "does not say that it honours" in (why_not_resent(tool, operation_of("send"), 0.0, 0.0) or "")
    assert why_not_resent(tool, operation_of("put", is_idempotent=True), 0.0, 1e9) is None


def test_what_only_a_person_can_settle_is_said_beforehand() -> None:
    """durability: missing probes are findings, not footnotes."""
    bare = operation_of("send")
    assert how_settled(tool_of("mail", bare), bare).startswith("a person decides")
    asked = operation_of("send", probe=PROBE, is_idempotent=True)
    assert how_settled(tool_of("mail", asked), asked) == "ask GET /things, else send it again"
