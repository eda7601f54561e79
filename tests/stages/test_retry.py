"""Retry around a scripted tool: safe, patient, paid for, and clean when cancelled."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.call import Call, Lane
from gateway.core.codes import Code, Dispatched
from gateway.core.fault import Fault
from gateway.core.manifest import IdempotencySettings, Tier
from gateway.core.outcome import Failed, InDoubt, Outcome, Refusal, Rejected, Success
from gateway.core.retry import RetrySettings
from gateway.core.tool import ToolSpec
from gateway.stages.retry import RetryStage
from gateway.telemetry import Telemetry
from tests.builders import StreamBody, call_of, catalog_of, domain_of, operation_of, reply_of, tool_of
from tests.fakes import FakeClock

READ = operation_of("read", Tier.READ)
DOWN = Failed(Fault.CONNECT)
DOUBT = InDoubt(Fault.TIMEOUT, Refusal(code=Code.OUTCOME_UNKNOWN, detail="Sent, effect unknown."))
OPEN = Rejected(Refusal(code=Code.CIRCUIT_OPEN, detail="Open.", retry_after_ms=900))
KEYED = tool_of("bank", operation_of("pay", Tier.PIVOT), idempotency=IdempotencySettings(window=100.0))


class Recorder(Telemetry):
    def __init__(self) -> None:
        self.delays: list[float] = []

    def retry_scheduled(self, call: Call, fault: Fault, delay_s: float) -> None:
        self.delays.append(delay_s)


class Bench:
    """A retry stage before a tool that answers from a script; the last line repeats."""

    def __init__(self, *script: Outcome, tool: ToolSpec | None = None) -> None:
        self.clock = FakeClock()
        self.telemetry = Recorder()
        self.stage = RetryStage(self.clock, self.telemetry)
        self.tool_spec = tool or tool_of("payments", READ)
        self.script = list(script)
        self.attempts: list[tuple[int, bool]] = []

    def call(self, **fields: object) -> Call:
        return call_of(self.tool_spec, now=self.clock.now(), **fields)  # type: ignore[arg-type]

    async def tool(self, call: Call) -> Outcome:
        self.attempts.append((call.attempt, call.is_in_doubt))
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]

    async def send(self, call: Call | None = None) -> Outcome:
        return await self.clock.finish(self.stage(call or self.call(), self.tool))

    def balance(self, name: str = "saas") -> object:
        return self.stage.statistics()[name]["balance"]


async def test_a_transient_failure_is_repeated_and_the_attempts_are_counted() -> None:
    bench = Bench(DOWN, DOWN, success := Success(reply_of()))
    assert await bench.send() is success
    assert bench.attempts == [(1, False), (2, False), (3, False)]
    assert len(bench.telemetry.delays) == 2


async def test_a_success_is_final() -> None:
    """Never after the first byte reached the agent: from here on the answer is streaming."""
    bench = Bench(Success(reply_of(body=StreamBody())), DOWN)
    await bench.send()
    assert len(bench.attempts) == 1


async def test_a_discarded_answer_is_closed_before_the_wait() -> None:
    """Else its slot would be held through the backoff, and a pool of discarded answers would starve the domain."""
    reply, closed_at = reply_of(503, body=StreamBody()), []
    bench = Bench(Failed(Fault.SERVER, reply=reply), Success(reply_of()))
    reply.on_close(lambda: closed_at.append(bench.clock.now()))
    await bench.send()
    assert closed_at == [1_000.0]


async def test_the_last_answer_reaches_the_agent_unclosed() -> None:
    body = StreamBody()
    bench = Bench(failed := Failed(Fault.SERVER, reply=reply_of(500, body=body)), tool=tool_of(
        "payments", READ, retry=RetrySettings(attempts=1)))  # fmt: skip
    assert await bench.send() is failed
    assert not body.is_closed


async def test_the_wait_that_the_tool_asks_for_is_kept() -> None:
    bench = Bench(Failed(Fault.THROTTLED, reply=reply_of(429), retry_after_ms=7_000), Success(reply_of()))
    await bench.send()
    assert 1_007.0 <= bench.clock.now() < 1_007.2


async def test_no_attempt_is_begun_that_cannot_end_in_time() -> None:
    bench = Bench(Failed(Fault.THROTTLED, retry_after_ms=7_000))
    await bench.send(bench.call(timeout_s=5.0))
    assert len(bench.attempts) == 1


class TestDoubt:
    async def test_an_effect_in_doubt_is_not_repeated(self) -> None:
        """Regression: aws-powertools/powertools-lambda-python#8049."""
        bench = Bench(DOUBT, tool=tool_of("bank", operation_of("pay", Tier.PIVOT)))
        assert await bench.send(bench.call(key="k")) is DOUBT
        assert len(bench.attempts) == 1

    async def test_sending_again_under_a_key_that_the_tool_honours_settles_it(self) -> None:
        bench = Bench(DOUBT, success := Success(reply_of()), tool=KEYED)
        assert await bench.send(bench.call(key="k")) is success
        assert bench.attempts == [(1, False), (2, True)]

    async def test_nothing_is_sent_again_once_the_key_is_forgotten(self) -> None:
        bench = Bench(DOUBT, tool=KEYED)
        await bench.send(bench.call(key="k", first_sent=bench.clock.now() - 100.0))
        assert len(bench.attempts) == 1

    @pytest.mark.parametrize("later", [OPEN, DOWN, Failed(Fault.CLIENT_ERROR, reply=reply_of(409))])
    async def test_a_repeat_that_fails_for_certain_does_not_take_the_doubt_away(self, later: Outcome) -> None:
        """The first attempt may have landed all the same."""
        bench = Bench(DOUBT, later, tool=KEYED)
        outcome = await bench.send(bench.call(key="k"))
        assert isinstance(outcome, InDoubt)
        assert outcome.refusal.code is Code.OUTCOME_UNKNOWN

    async def test_an_answer_that_does_not_settle_the_doubt_is_closed(self) -> None:
        body = StreamBody()
        bench = Bench(DOUBT, Failed(Fault.CLIENT_ERROR, reply=reply_of(409, body=body)), tool=KEYED)
        await bench.send(bench.call(key="k"))
        assert body.is_closed

    async def test_a_refusal_of_our_own_ends_it_at_once(self) -> None:
        bench = Bench(DOUBT, OPEN, tool=KEYED)
        await bench.send(bench.call(key="k"))
        assert len(bench.attempts) == 2


async def test_a_breaker_that_opens_between_attempts_is_told_as_what_it_is() -> None:
    bench = Bench(Failed(Fault.RESET), OPEN)
    outcome = await bench.send()
    assert isinstance(outcome, Failed)
    assert outcome.refusal is not None
    assert (outcome.refusal.code, outcome.refusal.dispatched) == (Code.CIRCUIT_OPEN, Dispatched.YES)
    assert len(bench.attempts) == 2


class TestBudget:
    async def test_repeats_that_wait_are_charged_when_they_are_scheduled(self) -> None:
        """Regression: envoyproxy/envoy#30205, where a hundred repeats in backoff were nobody's."""
        bench = Bench(DOWN, tool=tool_of("payments", READ, retry=RetrySettings(base=1e6, cap=10.0)))
        calls = [asyncio.ensure_future(bench.stage(bench.call(action=bytes([n])), bench.tool)) for n in range(100)]
        await bench.clock.settle()
        assert bench.clock.sleeping <= 3 + 10
        await bench.clock.finish(asyncio.gather(*calls))

    async def test_a_repeat_cancelled_while_it_waits_is_refunded(self) -> None:
        bench = Bench(DOWN)
        call = asyncio.ensure_future(bench.stage(bench.call(), bench.tool))
        await bench.clock.settle()
        assert bench.balance() == pytest.approx(2.1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert bench.balance() == pytest.approx(3.1)
        assert len(bench.attempts) == 1, "a cancelled call is never repeated (jd/tenacity#529)"

    async def test_a_repeat_that_finds_the_tool_at_work_is_refunded(self) -> None:
        """Regression: aws/aws-sdk-go-v2#3186."""
        for answer in (Success(reply_of()), Failed(Fault.CLIENT_ERROR, reply=reply_of(404))):
            bench = Bench(DOWN, answer)
            await bench.send()
            assert bench.balance() == pytest.approx(3.1)

    async def test_calls_earn_their_ratio_once_however_many_attempts_they_take(self) -> None:
        """Regression: twitter/finagle#956."""
        bench = Bench(Success(reply_of()))
        for _ in range(10):
            await bench.send()
        assert bench.balance() == pytest.approx(4.0)

    async def test_calls_that_we_refused_earn_nothing(self) -> None:
        bench = Bench(OPEN)
        for _ in range(10):
            await bench.send()
        assert bench.balance() == 3.0

    async def test_compensators_have_a_budget_of_their_own(self) -> None:
        bench = Bench(DOWN)
        for number in range(20):
            await bench.send(bench.call(action=bytes([number])))
        bench.attempts.clear()
        await bench.send(bench.call(lane=Lane.COMPENSATION))
        assert len(bench.attempts) == 3
        assert bench.balance("saas/compensation") < 3.0  # type: ignore[operator]

    async def test_a_reload_keeps_balances_and_drops_domains_that_are_gone(self) -> None:
        bench = Bench(DOWN)
        await bench.send()
        balance = bench.balance()
        bench.stage.reconfigure(catalog_of(bench.tool_spec))
        assert bench.balance() == balance
        bench.stage.reconfigure(catalog_of(tool_of("other", domain=domain_of("other"))))
        assert bench.stage.statistics() == {}


ONCE = tool_of("payments", READ, retry=RetrySettings(attempts=1))


class TestAgentsRepeats:
    async def test_an_agent_that_repeats_what_failed_pays_from_the_same_budget(self) -> None:
        bench = Bench(DOWN, tool=ONCE)
        outcomes = [await bench.send() for _ in range(6)]
        assert [isinstance(outcome, Rejected) for outcome in outcomes] == [False] * 4 + [True] * 2
        refused = outcomes[-1]
        assert isinstance(refused, Rejected)
        assert refused.refusal.code is Code.RETRY_BUDGET
        assert refused.refusal.retry_after_ms == 900
        assert "payments.read" in refused.refusal.detail
        assert len(bench.attempts) == 4

    async def test_waiting_as_told_lets_the_repeat_through(self) -> None:
        bench = Bench(DOWN, tool=ONCE)
        while not isinstance(outcome := await bench.send(), Rejected):
            pass
        await bench.clock.advance((outcome.refusal.retry_after_ms or 0) / 1000)
        assert not isinstance(await bench.send(), Rejected)

    async def test_another_agent_or_another_action_is_no_repeat(self) -> None:
        bench = Bench(DOWN, tool=ONCE)
        for number in range(20):
            assert not isinstance(await bench.send(bench.call(agent=f"agent-{number}")), Rejected)
            assert not isinstance(await bench.send(bench.call(action=bytes([number]))), Rejected)

    async def test_after_a_minute_or_a_success_it_is_a_new_call(self) -> None:
        bench = Bench(DOWN, Success(reply_of()), tool=ONCE)
        await bench.send()
        await bench.send()
        assert bench.balance() == pytest.approx(3.1), "the repeat that worked was refunded"
        await bench.send()
        assert bench.balance() == pytest.approx(3.2)

    async def test_a_repeat_that_we_refused_costs_nothing(self) -> None:
        bench = Bench(DOWN, OPEN, tool=ONCE)
        for _ in range(20):
            await bench.send()
        assert bench.balance() == pytest.approx(3.1)

    async def test_an_error_of_the_application_is_not_a_failing_tool(self) -> None:
        bench = Bench(Failed(Fault.CLIENT_ERROR, reply=reply_of(404)), tool=ONCE)
        for _ in range(20):
            assert not isinstance(await bench.send(), Rejected)
