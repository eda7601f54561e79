"""Storms against the four stages together, seen from outside only: what reaches the tool, and what is left afterwards.

The order is the pipeline's: deadline, retry, admission, breaker. Time is virtual, chance is seeded.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest

from gateway.core.breaker import Breaker, BreakerSettings, Permit
from gateway.core.call import Call, Handler
from gateway.core.fault import Fault
from gateway.core.manifest import Tier
from gateway.core.outcome import Failed, Outcome, Rejected, Success
from gateway.core.retry import RetrySettings
from gateway.core.tool import ToolSpec
from gateway.stages.admission import AdmissionStage
from gateway.stages.breaker import BreakerStage
from gateway.stages.deadline import DeadlineStage
from gateway.stages.retry import RetryStage
from gateway.telemetry import Telemetry
from tests.builders import StreamBody, call_of, domain_of, operation_of, reply_of, tool_of
from tests.fakes import FakeClock

READ = operation_of("read", Tier.READ)
# A breaker that never opens, so that the retry budget has to hold alone.
NEVER = BreakerSettings(consecutive=10**9, minimum=10**9, window=10_000)


class Tool:
    """What calls end at. Counts attempts, and how many of them were made while the breaker was half-open."""

    def __init__(self, clock: FakeClock, seed: int = 0) -> None:
        self.clock = clock
        self.random = random.Random(seed)
        self.is_down = False
        self.streams = False
        self.attempts = 0
        self.latency_s = 0.05

    async def __call__(self, call: Call) -> Outcome:
        self.attempts += 1
        await self.clock.sleep(self.latency_s * (0.5 + self.random.random()))
        if self.is_down:
            return Failed(self.random.choice([Fault.CONNECT, Fault.TIMEOUT, Fault.RESET]))
        return Success(reply_of(body=StreamBody() if self.streams else b"{}"))


class Storm:
    """The composed stages around a tool."""

    def __init__(self, spec: ToolSpec, seed: int = 0) -> None:
        self.clock = FakeClock(seed=seed)
        self.spec = spec
        self.tool = Tool(self.clock, seed)
        telemetry = Telemetry()
        self.breaker = BreakerStage(self.clock, telemetry, lambda name, value: None)
        self.admission = AdmissionStage(self.clock, telemetry, self.breaker.peek)
        self.retry = RetryStage(self.clock, telemetry)
        self.handler: Handler = self.tool
        for stage in (self.breaker, self.admission, self.retry, DeadlineStage(self.clock, telemetry)):
            self.handler = partial(_through, stage, self.handler)

    async def send(self, agent: str, action: int, timeout_s: float = 60.0) -> Outcome:
        outcome = await self.handler(
            call_of(self.spec, now=self.clock.now(), timeout_s=timeout_s, agent=agent, action=action.to_bytes(4))
        )
        if not isinstance(outcome, Rejected) and outcome.reply is not None:
            await outcome.reply.aclose()
        return outcome

    def figure(self, name: str) -> object:
        return self.admission.statistics()["saas"][name]


async def _through(stage: object, inner: Handler, call: Call) -> Outcome:
    return await stage(call, inner)  # type: ignore[operator, no-any-return]


async def stubborn_agent(storm: Storm, name: str, actions: int, repeats: int) -> int:
    """Make each action, and on failure again and again without reading the advice; return the calls made."""
    calls = 0
    for action in range(actions):
        for _ in range(repeats):
            calls += 1
            if isinstance(await storm.send(name, action), Success):
                break
    return calls


@pytest.mark.parametrize("breaker", [BreakerSettings(), NEVER], ids=["with_breaker", "budget_alone"])
async def test_attempts_at_a_dead_tool_stay_within_the_budget_agents_repeats_included(breaker: BreakerSettings) -> None:
    """Regression: awslabs/aws-sdk-rust#1234, where the budget existed and was not wired in."""
    storm = Storm(tool_of("payments", READ, domain=domain_of("saas", concurrency=32), breaker=breaker))
    storm.tool.is_down = True
    storm.tool.latency_s = 0.001
    began = storm.clock.now()
    agents = [stubborn_agent(storm, f"agent-{number}", actions=20, repeats=5) for number in range(20)]
    calls = sum(await storm.clock.finish(asyncio.gather(*agents)))
    floor = 3.0 + (storm.clock.now() - began)
    assert calls == 2_000
    first_tries = 20 * 20
    assert storm.tool.attempts <= 1.1 * first_tries + floor + 1, "repeats of agents earn nothing"
    assert storm.tool.attempts <= 1.1 * calls + 3


async def test_a_healthy_tool_is_neither_slowed_nor_refused() -> None:
    storm = Storm(tool_of("payments", READ, domain=domain_of("saas", concurrency=32, queue=500)))
    calls = [storm.send(f"agent-{number % 10}", number) for number in range(300)]
    outcomes = await storm.clock.finish(asyncio.gather(*calls))
    assert all(isinstance(outcome, Success) for outcome in outcomes)
    assert storm.tool.attempts == 300


async def test_at_most_one_canary_is_ever_out() -> None:
    """A tool that goes down and comes back, under constant load, cancels included: seen at every dispatch."""
    storm = Storm(
        tool_of(
            "payments", READ, domain=domain_of("saas", concurrency=64, queue=500), breaker=BreakerSettings(cooldown=1)
        )
    )
    half_open_in_flight = most = canaries = 0
    inner = storm.tool

    async def watched(call: Call) -> Outcome:
        nonlocal half_open_in_flight, most, canaries
        if storm.breaker.statistics()["payments"]["state"] != "half_open":
            return await inner(call)
        half_open_in_flight += 1
        canaries += 1
        most = max(most, half_open_in_flight)
        try:
            return await inner(call)
        finally:
            half_open_in_flight -= 1

    storm.handler = watched
    for stage in (storm.breaker, storm.admission, storm.retry):
        storm.handler = partial(_through, stage, storm.handler)
    source, tasks = random.Random(7), []
    for number in range(3_000):
        storm.tool.is_down = (number // 500) % 2 == 0
        tasks.append(asyncio.ensure_future(storm.send(f"agent-{number % 9}", number, timeout_s=5.0)))
        if source.random() < 0.3:
            source.choice(tasks).cancel()
        await storm.clock.advance(0.02)
    await storm.clock.finish(asyncio.gather(*tasks, return_exceptions=True))
    assert canaries > 5
    assert most == 1


async def test_ten_thousand_random_cancels_lose_no_permit_and_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled in the queue, on the grant, in flight, in backoff, or while the answer streams: all comes back."""
    permits: list[Permit] = []
    acquire = Breaker.acquire

    def recorded(breaker: Breaker, now: float, *, may_be_canary: bool, lease_s: float) -> object:
        answer = acquire(breaker, now, may_be_canary=may_be_canary, lease_s=lease_s)
        if isinstance(answer, Permit):
            permits.append(answer)
        return answer

    monkeypatch.setattr(Breaker, "acquire", recorded)
    storm = Storm(
        tool_of(
            "payments",
            READ,
            domain=domain_of("saas", concurrency=8, reserved=0, queue=64),
            breaker=BreakerSettings(cooldown=0.5, max_cooldown=1.0),
            retry=RetrySettings(base=0.01, cap=0.1, budget_floor=1_000.0),
        )
    )
    storm.tool.streams = True
    source, cancelled = random.Random(42), 0
    while cancelled < 10_000:
        storm.tool.is_down = source.random() < 0.1
        tasks = [asyncio.ensure_future(storm.send(f"agent-{n % 5}", n, timeout_s=2.0)) for n in range(48)]
        for _ in range(source.randrange(12)):
            await asyncio.sleep(0)
        victims = source.sample(tasks, 40)
        for victim in victims:
            if source.random() < 0.3:
                storm.clock.turn(0.001)
                await asyncio.sleep(0)
            if source.random() < 0.03:
                await storm.clock.advance(source.random() * 0.05)
            cancelled += victim.cancel()
        await storm.clock.finish(asyncio.gather(*tasks, return_exceptions=True))
        assert storm.figure("in_flight") == 0
        assert storm.figure("waiting") == 0
    assert storm.figure("grants") == storm.figure("releases")
    assert all(permit.is_settled for permit in permits)
    assert storm.clock.sleeping == 0
    storm.tool.is_down = False
    await storm.clock.advance(5.0)
    await storm.clock.finish(storm.send("agent", 1))
    outcomes = await storm.clock.finish(asyncio.gather(*(storm.send("agent", n) for n in range(8))))
    assert all(isinstance(outcome, Success) for outcome in outcomes), "full capacity is usable again"
