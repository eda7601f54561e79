"""The breaker around a scripted tool: permits always come back, breaks of streams count, state outlives the process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from gateway.core.breaker import BreakerSettings
from gateway.core.call import Call, Lane
from gateway.core.codes import Code
from gateway.core.fault import Fault
from gateway.core.manifest import IdempotencySettings, Tier
from gateway.core.outcome import Failed, Outcome, Rejected, Success
from gateway.core.tool import BoundRequest, Probe, RequestTemplate, ToolSpec
from gateway.egress import StreamBroken
from gateway.stages.breaker import BreakerStage
from gateway.telemetry import Telemetry
from tests.builders import StreamBody, call_of, catalog_of, operation_of, reply_of, tool_of
from tests.fakes import FakeClock

READ = operation_of("read", Tier.READ)


class Recorder(Telemetry):
    def __init__(self) -> None:
        self.moves: list[tuple[str, str, str, float]] = []
        self.failures: list[str] = []

    def breaker_changed(self, tool: str, state: str, cause: str, cooldown_s: float) -> None:
        self.moves.append((tool, state, cause, cooldown_s))

    def background_failed(self, where: str, error: BaseException) -> None:
        self.failures.append(where)


class Bench:
    """A breaker stage, its clock, what it reported and what it remembered."""

    def __init__(self, tool: ToolSpec | None = None) -> None:
        self.clock = FakeClock()
        self.telemetry = Recorder()
        self.memory: dict[str, bytes] = {}
        self.tool = tool or tool_of("payments", READ)
        self.stage = BreakerStage(self.clock, self.telemetry, self.memory.__setitem__)
        self.dispatched = 0

    def call(self, **fields: object) -> Call:
        return call_of(self.tool, now=self.clock.now(), **fields)  # type: ignore[arg-type]

    async def send(self, outcome: Outcome | Callable[[Call], Outcome], call: Call | None = None) -> Outcome:
        async def tool(call: Call) -> Outcome:
            self.dispatched += 1
            return outcome(call) if callable(outcome) else outcome

        return await self.stage(call or self.call(), tool)

    async def open(self) -> None:
        for _ in range(3):
            await self.send(Failed(Fault.CONNECT))

    @property
    def state(self) -> object:
        return self.stage.statistics()[self.tool.name]["state"]


def code_of(outcome: Outcome | None) -> Code | None:
    return outcome.refusal.code if isinstance(outcome, Rejected) else None


async def test_a_failing_tool_is_left_alone_and_heals_by_one_canary() -> None:
    bench = Bench()
    await bench.open()
    assert code_of(await bench.send(Success(reply_of()))) is Code.CIRCUIT_OPEN
    assert bench.dispatched == 3
    await bench.clock.advance(30.0)
    assert isinstance(await bench.send(Success(reply_of())), Success)
    assert [move[1:3] for move in bench.telemetry.moves] == [
        ("open", "consecutive"), ("half_open", "cooldown_over"), ("closed", "healed")
    ]  # fmt: skip


async def test_the_refusal_says_how_long_to_wait_and_what_to_do() -> None:
    bench = Bench()
    await bench.open()
    await bench.clock.advance(12.5)
    for refused in (bench.stage.peek(bench.call()), await bench.send(Success(reply_of()))):
        assert isinstance(refused, Rejected)
        assert refused.refusal.retry_after_ms == 17_500
        assert refused.refusal.dependency == "payments"
        assert "17.5 s" in refused.refusal.detail


async def test_a_thousand_calls_released_at_once_make_one_canary() -> None:
    """Regression: resilience4j/resilience4j#1432."""
    bench, gate, dispatched = Bench(), asyncio.Event(), 0
    await bench.open()
    await bench.clock.advance(30.0)

    async def tool(call: Call) -> Outcome:
        nonlocal dispatched
        dispatched += 1
        await gate.wait()
        return Success(reply_of())

    calls = [asyncio.ensure_future(bench.stage(bench.call(), tool)) for _ in range(1_000)]
    await bench.clock.settle()
    assert dispatched == 1
    gate.set()
    outcomes = await asyncio.gather(*calls)
    assert sum(code_of(outcome) is Code.CIRCUIT_OPEN for outcome in outcomes) == 999


async def test_a_cancelled_canary_gives_its_permit_back_and_says_nothing() -> None:
    """Regression: App-vNext/Polly#1979, wshobson/maverick-mcp#272."""
    bench = Bench()
    await bench.open()
    await bench.clock.advance(30.0)

    async def hangs(call: Call) -> Outcome:
        await bench.clock.sleep(1_000)
        raise AssertionError

    canary = asyncio.ensure_future(bench.stage(bench.call(), hangs))
    await bench.clock.settle()
    assert code_of(await bench.send(Success(reply_of()))) is Code.CIRCUIT_OPEN
    canary.cancel()
    await asyncio.gather(canary, return_exceptions=True)
    assert bench.state == "half_open"
    await bench.clock.advance(0.25)
    assert isinstance(await bench.send(Success(reply_of())), Success)


async def test_a_bug_further_in_gives_the_permit_back_too() -> None:
    bench = Bench()
    await bench.open()
    await bench.clock.advance(30.0)

    def bug(call: Call) -> Outcome:
        raise RuntimeError("bug")

    with pytest.raises(RuntimeError):
        await bench.send(bug)
    await bench.clock.advance(0.25)
    assert isinstance(await bench.send(Success(reply_of())), Success)


async def test_a_refusal_further_in_is_no_verdict() -> None:
    """A journal that cannot write says nothing about the tool. Regression: bagowix/interlock#194."""
    bench, inner = Bench(), Bench()
    await inner.open()
    refusal = await inner.send(Success(reply_of()))
    for _ in range(20):
        await bench.send(refusal)
    assert bench.state == "closed"


@pytest.mark.parametrize("tier", list(Tier))
@pytest.mark.parametrize("is_idempotent", [False, True])
async def test_any_call_but_an_irreversible_one_is_a_canary(tier: Tier, is_idempotent: bool) -> None:
    """A tool that is only ever written to must be able to heal; no pivot is ever an experiment."""
    operation = operation_of("op", tier, is_idempotent=is_idempotent)
    bench = Bench(tool_of("payments", operation))
    await bench.open()
    await bench.clock.advance(30.0)
    outcome = await bench.send(Success(reply_of()), bench.call())
    assert isinstance(outcome, Success) is (tier is not Tier.PIVOT)
    if tier is Tier.PIVOT:
        assert code_of(outcome) is Code.CIRCUIT_OPEN
        assert bench.dispatched == 3


async def test_an_irreversible_call_in_doubt_may_be_the_canary_under_its_key() -> None:
    """Found by the simulation: nobody else came, so the doubt could never be settled and the run froze."""
    pivot = operation_of("go", Tier.PIVOT)
    keyed = Bench(tool_of("payments", pivot, idempotency=IdempotencySettings()))
    await keyed.open()
    await keyed.clock.advance(30.0)
    assert isinstance(await keyed.send(Success(reply_of()), keyed.call(is_in_doubt=True)), Success)
    keyless = Bench(tool_of("payments", pivot))
    await keyless.open()
    await keyless.clock.advance(30.0)
    assert code_of(await keyless.send(Success(reply_of()), keyless.call(is_in_doubt=True))) is Code.CIRCUIT_OPEN


async def test_an_irreversible_call_that_a_run_owes_may_be_the_canary_where_a_doubt_could_be_settled() -> None:
    """Found by the simulation: a notice past the pivot waited for a harmless call, and none ever came (ADR 0100)."""
    probe = Probe(RequestTemplate("GET /notices", lambda env: BoundRequest("payments", "GET", "/")))
    plain, probed = (operation_of("notice", Tier.PIVOT, is_staged=True, probe=each) for each in (None, probe))
    for tool, may in (
        (tool_of("payments", plain, idempotency=IdempotencySettings()), True),
        (tool_of("payments", probed), True),
        (tool_of("payments", plain), False),
    ):
        bench = Bench(tool)
        await bench.open()
        await bench.clock.advance(30.0)
        outcome = await bench.send(Success(reply_of()), bench.call(lane=Lane.FINALIZATION))
        assert isinstance(outcome, Success) is may


async def read_through(outcome: Outcome) -> None:
    assert isinstance(outcome, Success)
    async for _ in outcome.reply.body.chunks():
        pass


async def test_a_stream_is_judged_by_its_head_and_again_when_it_breaks() -> None:
    bench = Bench()
    streams = [
        await bench.send(Success(reply_of(body=StreamBody([b"a"], error=StreamBroken("reset"))))) for _ in range(3)
    ]
    assert bench.state == "closed"
    for stream in streams:
        with pytest.raises(StreamBroken):
            await read_through(stream)
    assert bench.state == "open"


async def test_a_stream_that_the_agent_leaves_early_is_not_the_tools_fault() -> None:
    bench = Bench()
    for _ in range(10):
        body = StreamBody([b"a", b"b"], error=StreamBroken("never reached"))
        outcome = await bench.send(Success(reply_of(body=body)))
        assert isinstance(outcome, Success)
        chunks = outcome.reply.body.chunks()
        assert await anext(chunks) == b"a"
        await chunks.aclose()  # type: ignore[attr-defined]
        await outcome.reply.aclose()
        assert body.is_closed
    assert bench.state == "closed"


async def test_slowness_is_the_tools_own_time_where_dispatch_measured_it() -> None:
    """A slow disk of ours must not open the breakers of every tool."""
    bench = Bench(tool_of("payments", READ, breaker=BreakerSettings(slow_after=1.0)))

    def quick_tool_slow_journal(call: Call) -> Outcome:
        call.exchange_s = 0.1
        bench.clock.turn(5.0)
        return Success(reply_of())

    for _ in range(20):
        await bench.send(quick_tool_slow_journal)
    assert bench.state == "closed"


class TestRestart:
    async def test_an_open_breaker_is_still_open_after_a_restart(self) -> None:
        before, after = Bench(), Bench()
        await before.open()
        after.stage.restore(before.memory)
        after.stage.reconfigure(catalog_of(after.tool))
        refused = after.stage.peek(after.call())
        assert isinstance(refused, Rejected)
        assert refused.refusal.retry_after_ms == 30_000

    async def test_a_wall_clock_that_jumped_cannot_lengthen_the_cooldown(self) -> None:
        before, after = Bench(), Bench()
        await before.open()
        after.clock.shift_wall_clock(-86_400)
        after.stage.restore(before.memory)
        refused = after.stage.peek(after.call())
        assert isinstance(refused, Rejected)
        assert refused.refusal.retry_after_ms == 30_000

    @pytest.mark.parametrize("value", [b"", b"[]", b"\xff", b"{}", b'{"version": 9}'])
    async def test_what_cannot_be_read_is_reported_and_begun_anew(self, value: bytes) -> None:
        bench = Bench()
        bench.stage.restore({"breaker/payments": value})
        assert isinstance(await bench.send(Success(reply_of())), Success)
        assert bench.telemetry.failures == ["restoring the breaker of payments"]

    async def test_only_plain_values_are_remembered_and_no_secret(self) -> None:
        bench = Bench(tool_of("payments", READ, credential=(b"Authorization", b"Bearer hunter2")))
        await bench.open()
        assert list(bench.memory) == ["breaker/payments"]
        assert json.loads(bench.memory["breaker/payments"])["state"] == "open"
        assert b"hunter2" not in bench.memory["breaker/payments"]


class TestReload:
    async def test_state_outlives_a_reload_also_under_new_settings(self) -> None:
        bench = Bench()
        await bench.open()
        bench.stage.reconfigure(catalog_of(bench.tool))
        assert bench.state == "open"
        bench.stage.reconfigure(catalog_of(tool_of("payments", READ, breaker=BreakerSettings(cooldown=5))))
        assert bench.state == "open"

    async def test_breakers_of_tools_that_are_gone_are_dropped(self) -> None:
        bench = Bench()
        await bench.open()
        bench.stage.reconfigure(catalog_of(tool_of("other", READ)))
        assert list(bench.stage.statistics()) == ["other"]

    async def test_a_call_in_flight_over_a_reload_settles_its_own_breaker(self) -> None:
        bench = Bench()

        def reloads(call: Call) -> Outcome:
            bench.stage.reconfigure(catalog_of(tool_of("other", READ)))
            return Failed(Fault.RESET)

        await bench.send(reloads)
        assert list(bench.stage.statistics()) == ["other"]

    async def test_tools_that_share_origin_and_credential_share_a_breaker(self) -> None:
        bench = Bench(tool_of("a", READ, breaker_key="origin"))
        bench.stage.reconfigure(catalog_of(bench.tool, tool_of("b", READ, breaker_key="origin")))
        await bench.open()
        assert list(bench.stage.statistics()) == ["a, b"]
        assert [move[0] for move in bench.telemetry.moves] == ["a", "b"]
