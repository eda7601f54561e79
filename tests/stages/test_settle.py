"""A step in doubt before a scripted tool and a scripted probe: asked, believed, repeated, or left unknown."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core.call import Call, Handler
from gateway.core.codes import Code, Dispatched
from gateway.core.expression import Environment
from gateway.core.fault import Fault
from gateway.core.manifest import IdempotencySettings, Tier
from gateway.core.outcome import Failed, InDoubt, Outcome, Refusal, Success
from gateway.core.retry import RetrySettings
from gateway.core.tool import BoundRequest, Probe, RequestTemplate, ToolSpec
from gateway.probes import Unheard
from gateway.stages.retry import RetryStage
from gateway.stages.settle import Settle
from gateway.telemetry import Telemetry
from tests.builders import call_of, operation_of, reply_of, tool_of
from tests.fakes import FakeClock

DOUBT = InDoubt(Fault.TIMEOUT, Refusal(code=Code.OUTCOME_UNKNOWN, detail="Sent, effect unknown."))
RESET = InDoubt(Fault.RESET, Refusal(code=Code.OUTCOME_UNKNOWN, detail="Cut off."))
READ = RequestTemplate("GET /x", lambda env: BoundRequest("pay", "GET", "/x"))


class Rule:
    """An expression over the scripted answers."""

    def __init__(self, wanted: str) -> None:
        self.source = self.wanted = wanted

    def __call__(self, env: Environment) -> object:
        response = env["response"]
        assert isinstance(response, Mapping)
        return response["says"] == self.wanted


class Result:
    source = "result"

    def __call__(self, env: Environment) -> object:
        return {"id": "h1"}


PROBE = Probe(READ, Rule("landed"), Rule("absent"), Result(), delay_s=2.0, again_s=1.0, kind="script")


class Bench:
    """`asked` are the times of the questions, `sent` those of the attempts; the last line of each script repeats."""

    def __init__(self, script: list[Outcome], says: list[str], tool: ToolSpec | None = None) -> None:
        self.clock = FakeClock()
        self.tool_spec = tool or tool_of(
            "pay", operation_of("hold", probe=PROBE), retry=RetrySettings(base=0.1, cap=0.1)
        )
        self.script, self.says = script, says
        self.sent: list[float] = []
        self.asked: list[float] = []
        self.stage = RetryStage(self.clock, Telemetry(), Settle({"script": self}, self.clock))

    async def ask(self, probe: Probe, call: Call, env: Environment, proceed: Handler) -> Mapping[str, object] | Unheard:
        self.asked.append(self.clock.now() - 1000.0)
        says = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        return Unheard("the breaker is open", can_wait=False) if says == "unheard" else {"says": says, "status": 200}

    async def tool(self, call: Call) -> Outcome:
        self.sent.append(self.clock.now() - 1000.0)
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]

    def call(self, **fields: object) -> Call:
        fields.setdefault("key", "k1")
        return call_of(self.tool_spec, now=self.clock.now(), **fields)  # type: ignore[arg-type]

    async def send(self, call: Call | None = None) -> Outcome:
        return await self.clock.finish(self.stage(call or self.call(), self.tool), within_s=200)


async def test_what_landed_is_not_sent_again_and_its_answer_is_rebuilt() -> None:
    """ComposioHQ/composio#3654: a read timeout was retried on its own and the e-mail went out twice."""
    bench = Bench([DOUBT], ["landed"])
    call = bench.call()
    outcome = await bench.send(call)
    assert isinstance(outcome, Success)
    assert (bench.sent, bench.asked) == ([0.0], [0.0])
    assert (call.settled, call.is_answer_known, call.is_in_doubt) == ("probe", True, False)


async def test_what_did_not_land_is_repeated_only_after_two_late_answers() -> None:
    bench = Bench([DOUBT, Success(reply_of())], ["absent"])
    assert isinstance(await bench.send(), Success)
    assert bench.asked == [0.0, 2.0, 3.0]
    assert bench.sent[1] >= 3.0


async def test_a_broken_connection_leaves_the_tool_its_whole_time_to_work() -> None:
    """apache/servicecomb-pack#346: compensated while the forward call was still at work."""
    bench = Bench([RESET, Success(reply_of())], ["absent"])
    assert isinstance(await bench.send(), Success)
    first_byte_s = bench.call().operation.timeouts.first_byte
    assert bench.asked == [0.0, first_byte_s + 2.0, first_byte_s + 3.0]


async def test_unknown_without_a_key_is_never_repeated() -> None:
    bench = Bench([DOUBT], ["neither"])
    outcome = await bench.send()
    assert isinstance(outcome, InDoubt)
    assert len(bench.sent) == 1


async def test_unknown_with_a_key_is_settled_by_sending_it_again() -> None:
    keyed = tool_of("pay", operation_of("hold", probe=PROBE), idempotency=IdempotencySettings(window=3600))
    bench = Bench([DOUBT, Success(reply_of())], ["unheard"], keyed)
    assert isinstance(await bench.send(), Success)
    assert len(bench.sent) == 2
    assert len(bench.asked) == 1


async def test_a_call_that_comes_in_doubt_is_asked_about_before_anything_is_sent() -> None:
    bench = Bench([Success(reply_of())], ["landed"])
    call = bench.call(step=1, is_in_doubt=True, first_sent=1000.0, given_up=1000.0)
    assert isinstance(await bench.send(call), Success)
    assert bench.sent == []


async def test_settling_alone_does_not_do_anew_what_never_landed() -> None:
    """The agent may have gone another way since; only its own repeat may do it again."""
    bench = Bench([Success(reply_of())], ["absent"])
    call = bench.call(step=1, is_in_doubt=True, first_sent=1000.0, given_up=1000.0, is_settling_only=True)
    outcome = await bench.send(call)
    assert isinstance(outcome, Failed)
    assert bench.sent == []
    assert not call.is_in_doubt


async def test_a_doubt_older_than_the_keys_window_is_not_sent_again() -> None:
    keyed = tool_of("pay", operation_of("hold"), idempotency=IdempotencySettings(window=3600))
    bench = Bench([Success(reply_of())], ["neither"], keyed)
    outcome = await bench.send(bench.call(step=1, is_in_doubt=True, first_sent=1000.0 - 3600.0))
    assert isinstance(outcome, InDoubt)
    assert "may have forgotten its key" in outcome.refusal.detail
    assert bench.sent == []


async def test_without_a_key_a_refusal_of_the_repeat_proves_nothing() -> None:
    """The second DELETE of a pair is answered 404 because the first one landed."""
    tool = tool_of("pay", operation_of("drop", Tier.REVERSIBLE, is_idempotent=True))
    gone = Failed(Fault.CLIENT_ERROR, reply=reply_of(404))
    bench = Bench([DOUBT, gone], ["neither"], tool)
    assert isinstance(await bench.send(), InDoubt)


async def test_questions_that_nobody_answers_are_paid_from_the_retry_budget() -> None:
    """Settling must not storm a tool that is down (design section 2, rule 9)."""
    bench = Bench([DOUBT], ["unheard"])
    for _ in range(20):
        await bench.send()
    assert len(bench.asked) <= 3 + 0.1 * 20 + (bench.clock.now() - 1000.0) + 1


async def test_nothing_is_asked_that_could_not_be_answered_in_time() -> None:
    bench = Bench([DOUBT], ["absent"])
    call = bench.call(timeout_s=1.5)
    outcome = await bench.send(call)
    assert isinstance(outcome, InDoubt)
    assert bench.clock.now() < call.deadline


async def test_an_operation_without_a_probe_is_never_asked_about() -> None:
    bench = Bench([DOUBT], ["landed"], tool_of("pay", operation_of("hold")))
    assert isinstance(await bench.send(), InDoubt)
    assert bench.asked == []


def test_a_doubt_says_what_to_do_next() -> None:
    from gateway.stages.settle import doubtful

    doubt = doubtful(call_of(step=3), "the probe was not answered")
    assert doubt.refusal.code is Code.OUTCOME_UNKNOWN
    assert doubt.refusal.dispatched is Dispatched.MAYBE
    assert "try this same call again later, or abort the run" in doubt.refusal.detail
