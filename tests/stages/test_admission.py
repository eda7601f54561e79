"""The domain's queue around a scripted tool: whatever is cancelled, nothing stays taken."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.admission import WhenFull
from gateway.core.call import Call, Lane
from gateway.core.codes import Code
from gateway.core.fault import Fault
from gateway.core.manifest import Tier
from gateway.core.outcome import Failed, InDoubt, Outcome, Refusal, Rejected, Success
from gateway.core.tool import Domain
from gateway.stages.admission import AdmissionStage
from gateway.telemetry import Telemetry
from tests.builders import StreamBody, call_of, catalog_of, domain_of, operation_of, reply_of, tool_of
from tests.fakes import FakeClock

READ = operation_of("read", Tier.READ)


class Recorder(Telemetry):
    def __init__(self) -> None:
        self.waits: list[float] = []

    def queue_waited(self, call: Call, seconds: float) -> None:
        self.waits.append(seconds)


class Bench:
    """An admission stage before a tool that answers when told to."""

    def __init__(self, peek: Rejected | None = None, **admission: object) -> None:
        admission.setdefault("reserved", 0)
        self.clock = FakeClock()
        self.telemetry = Recorder()
        self.stage = AdmissionStage(self.clock, self.telemetry, lambda call: peek)
        self.domain: Domain = domain_of("saas", **admission)
        self.running: list[Call] = []
        self.started: list[Call] = []
        self.ends: dict[Call, asyncio.Event] = {}

    def call(self, agent: str = "agent", timeout_s: float = 60.0, lane: Lane = Lane.FORWARD) -> Call:
        tool = tool_of("payments", READ, domain=self.domain)
        return call_of(tool, now=self.clock.now(), agent=agent, timeout_s=timeout_s, lane=lane)

    async def tool(self, call: Call) -> Outcome:
        self.started.append(call)
        self.running.append(call)
        try:
            await self.ends.setdefault(call, asyncio.Event()).wait()
            return Success(reply_of())
        finally:
            self.running.remove(call)

    async def start(self, *calls: Call) -> list[asyncio.Task[Outcome]]:
        tasks = []
        for call in calls:
            tasks.append(asyncio.ensure_future(self.stage(call, self.tool)))
            await self.clock.settle()
        return tasks

    async def end(self, call: Call) -> None:
        self.ends[call].set()
        await self.clock.settle()

    def turn_loop_with_clock(self) -> None:
        """Let aiolimiter, which reads the loop's time, live by the fake clock too."""
        asyncio.get_running_loop().time = self.clock.now  # type: ignore[method-assign]

    def figure(self, name: str) -> object:
        return self.stage.statistics()["saas"][name]


def code_of(outcome: Outcome) -> Code | None:
    return outcome.refusal.code if isinstance(outcome, Rejected) else None


async def cancel(task: asyncio.Task[Outcome]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_calls_beyond_the_slots_wait_their_turn() -> None:
    bench = Bench(concurrency=2)
    calls = [bench.call() for _ in range(3)]
    await bench.start(*calls)
    assert bench.running == calls[:2]
    await bench.clock.advance(4.0)
    await bench.end(calls[0])
    assert bench.running == calls[1:]
    assert bench.telemetry.waits == [4.0]


async def test_a_call_that_the_breaker_would_refuse_does_not_queue_for_it() -> None:
    refusal = Rejected(Refusal(code=Code.CIRCUIT_OPEN, detail="Open."))
    bench = Bench(peek=refusal)
    assert await bench.stage(bench.call(), bench.tool) is refusal
    assert bench.started == []


async def test_a_full_queue_says_when_to_come_back_and_what_to_do() -> None:
    bench = Bench(concurrency=1, queue=0)
    await bench.start(bench.call())
    outcome = await bench.stage(bench.call(), bench.tool)
    assert isinstance(outcome, Rejected)
    assert outcome.refusal.code is Code.BULKHEAD_FULL
    assert outcome.refusal.retry_after_ms == 1_000
    assert outcome.refusal.dependency == "saas"
    assert "saas" in outcome.refusal.detail
    assert "fewer calls" in outcome.refusal.detail


async def test_a_waiter_whose_time_runs_out_is_refused_and_leaves() -> None:
    bench = Bench(concurrency=1)
    (held,) = await bench.start(bench.call())
    assert code_of(await bench.clock.finish(bench.stage(bench.call(timeout_s=5.0), bench.tool))) is Code.QUEUE_DEADLINE
    assert bench.figure("waiting") == 0
    assert not held.done()


async def test_compensators_get_through_a_domain_that_forward_calls_fill() -> None:
    bench = Bench(concurrency=2, reserved=1, queue=0)
    forward, ours = bench.call(), bench.call(lane=Lane.COMPENSATION)
    await bench.start(forward)
    assert code_of(await bench.stage(bench.call(), bench.tool)) is Code.BULKHEAD_FULL
    await bench.start(ours)
    assert bench.running == [forward, ours]


class TestCancelling:
    async def test_a_waiter_that_is_cancelled_leaves_no_trace(self) -> None:
        """Regression: failsafe-lib/failsafe#393."""
        bench = Bench(concurrency=1)
        first, second, third = bench.call(), bench.call(), bench.call()
        _, waiting, _ = await bench.start(first, second, third)
        await cancel(waiting)
        await bench.end(first)
        assert bench.running == [third]
        assert bench.clock.sleeping == 0

    async def test_a_grant_that_races_the_cancel_goes_to_the_next(self) -> None:
        """Regression: Netflix/concurrency-limits#179. Granted and cancelled before the waiter could run again."""
        bench = Bench(concurrency=1)
        first, second, third = bench.call(), bench.call(), bench.call()
        _, waiting, _ = await bench.start(first, second, third)
        bench.ends[first].set()
        while bench.figure("grants") == 1:
            await asyncio.sleep(0)
        waiting.cancel()
        await bench.clock.settle()
        assert second not in bench.started
        assert bench.running == [third]

    async def test_a_grant_that_races_the_deadline_is_used_or_returned(self) -> None:
        bench = Bench(concurrency=1)
        first, second = bench.call(), bench.call(timeout_s=5.0)
        _, waiting = await bench.start(first, second)
        bench.clock.turn(5.0)
        bench.ends[first].set()
        await bench.clock.advance(0.0)
        await bench.clock.advance(1.0)
        assert code_of(waiting.result()) is Code.QUEUE_DEADLINE
        assert bench.figure("in_flight") == 0

    async def test_a_running_call_that_is_cancelled_gives_its_slot_back(self) -> None:
        bench = Bench(concurrency=1)
        running, _ = await bench.start(bench.call(), after := bench.call())
        await cancel(running)
        await bench.clock.settle()
        assert bench.running == [after]

    async def test_a_bug_further_in_gives_the_slot_back(self) -> None:
        bench = Bench(concurrency=1)

        async def bug(call: Call) -> Outcome:
            raise RuntimeError

        with pytest.raises(RuntimeError):
            await bench.stage(bench.call(), bug)
        assert bench.figure("in_flight") == 0


class TestStreams:
    @pytest.mark.parametrize("kind", ["success", "failed"])
    async def test_a_streamed_answer_holds_its_slot_until_it_is_closed(self, kind: str) -> None:
        bench = Bench(concurrency=1)
        reply = reply_of(body=StreamBody())

        async def streams(call: Call) -> Outcome:
            return Success(reply) if kind == "success" else Failed(Fault.CLIENT_ERROR, reply=reply)

        await bench.stage(bench.call(), streams)
        assert bench.figure("in_flight") == 1
        await reply.aclose()
        await reply.aclose()
        assert (bench.figure("in_flight"), bench.figure("releases")) == (0, 1)

    async def test_a_captured_answer_frees_its_slot_at_once(self) -> None:
        bench = Bench(concurrency=1)

        async def captured(call: Call) -> Outcome:
            return InDoubt(Fault.SERVER, Refusal(code=Code.OUTCOME_UNKNOWN, detail="?"), reply=reply_of(500))

        await bench.stage(bench.call(), captured)
        assert bench.figure("in_flight") == 0

    async def test_closing_a_stream_serves_the_next(self) -> None:
        bench = Bench(concurrency=1)
        reply = reply_of(body=StreamBody())

        async def streams(call: Call) -> Outcome:
            return Success(reply)

        await bench.stage(bench.call(), streams)
        await bench.start(after := bench.call())
        assert bench.running == []
        await reply.aclose()
        await bench.clock.settle()
        assert bench.running == [after]


class TestRate:
    async def test_calls_start_no_faster_than_the_rate(self) -> None:
        bench = Bench(concurrency=100, queue=100, rate=(2, 1.0))
        bench.turn_loop_with_clock()
        await bench.start(*[bench.call() for _ in range(12)])
        assert len(bench.started) == 2
        await bench.clock.advance(0.6)
        assert len(bench.started) == 3
        await bench.clock.advance(4.0)
        assert len(bench.started) in (10, 11)
        await bench.clock.advance(1.0)
        assert len(bench.started) == 12
        assert bench.clock.sleeping == 0, "nobody waits, so nothing drips"

    async def test_a_rate_below_one_call_a_period_still_lets_calls_through(self) -> None:
        bench = Bench(rate=(0.5, 1.0))
        bench.turn_loop_with_clock()
        await bench.start(*[bench.call() for _ in range(2)])
        assert len(bench.started) == 1
        await bench.clock.advance(2.1)
        assert len(bench.started) == 2

    async def test_a_domain_that_refuses_when_full_names_the_rate(self) -> None:
        bench = Bench(rate=(1, 10.0), when_full=WhenFull.REFUSE)
        bench.turn_loop_with_clock()
        await bench.start(bench.call())
        outcome = await bench.stage(bench.call(), bench.tool)
        assert isinstance(outcome, Rejected)
        assert outcome.refusal.code is Code.RATE_LIMITED
        assert outcome.refusal.retry_after_ms == 10_000

    async def test_nobody_holds_a_slot_while_waiting_for_the_rate(self) -> None:
        bench = Bench(rate=(1, 10.0))
        bench.turn_loop_with_clock()
        await bench.start(bench.call(), bench.call())
        assert (bench.figure("in_flight"), bench.figure("waiting")) == (1, 1)

    async def test_a_token_of_a_grant_that_came_too_late_is_not_lost(self) -> None:
        """The token returns in the same step as the slot, so the next waiter goes at once."""
        bench = Bench(concurrency=1, rate=(2, 100.0))
        bench.turn_loop_with_clock()
        first, second, third = bench.call(), bench.call(), bench.call(timeout_s=200.0)
        _, waiting, _ = await bench.start(first, second, third)
        bench.ends[first].set()
        while bench.figure("grants") == 1:
            await asyncio.sleep(0)
        waiting.cancel()
        await bench.clock.settle()
        assert bench.running == [third]

    async def test_the_last_waiter_to_leave_ends_the_dripping(self) -> None:
        bench = Bench(rate=(1, 10.0))
        bench.turn_loop_with_clock()
        _, waiting = await bench.start(bench.call(), bench.call())
        assert bench.clock.sleeping == 2
        await cancel(waiting)
        await bench.clock.settle()
        assert bench.clock.sleeping == 0


class TestReload:
    async def test_slots_in_use_stay_counted_under_new_settings(self) -> None:
        bench = Bench(concurrency=2)
        calls = [bench.call() for _ in range(3)]
        await bench.start(*calls)
        bench.stage.reconfigure(catalog_of(tool_of("payments", domain=domain_of("saas", concurrency=1, reserved=0))))
        await bench.end(calls[0])
        assert bench.running == [calls[1]]
        await bench.end(calls[1])
        assert bench.running == [calls[2]]

    async def test_more_slots_or_a_faster_rate_serve_waiters_at_once(self) -> None:
        bench = Bench(rate=(1, 50.0))
        bench.turn_loop_with_clock()
        await bench.start(bench.call(), bench.call())
        bench.stage.reconfigure(catalog_of(tool_of("payments", domain=domain_of("saas"))))
        await bench.clock.settle()
        assert len(bench.running) == 2

    async def test_a_pool_that_is_gone_is_dropped_when_nobody_uses_it(self) -> None:
        bench = Bench()
        await bench.start(call := bench.call())
        other = catalog_of(tool_of("other", domain=domain_of("other")))
        bench.stage.reconfigure(other)
        assert set(bench.stage.statistics()) == {"saas", "other"}
        await bench.end(call)
        bench.stage.reconfigure(other)
        assert set(bench.stage.statistics()) == {"other"}
