"""What the agent reads after a failure, what is learnt from repairs, and what is seen to."""

from __future__ import annotations

from typing import Any

from gateway.core.call import Call, Lane
from gateway.core.codes import Code, Directive
from gateway.core.fault import Fault
from gateway.core.manifest import Tier
from gateway.core.message import first_header
from gateway.core.outcome import Failed, Outcome, Refusal, Rejected, Success
from gateway.core.records import RecordedReply
from gateway.core.recovery import RecoveryMode, RecoverySettings
from gateway.core.saga import Begin, Complete, Open
from gateway.core.tool import BoundRequest
from gateway.core.trajectory import Phase
from gateway.journal.memory import MemoryJournal
from gateway.journal.trajectories import Run, Trajectories
from gateway.stages.recovery import REPAIRS, RecoveryStage
from gateway.telemetry import Telemetry
from tests.builders import call_of, operation_of, reply_of, tool_of
from tests.fakes import FakeClock


class Bench:
    """A recovery stage around a scripted outcome, in a run with committed steps."""

    def __init__(self, mode: RecoveryMode = RecoveryMode.ADVISE) -> None:
        self.clock = FakeClock()
        self.journal = MemoryJournal()
        self.runs = Trajectories(self.journal, self.clock, Telemetry(), salt=b"s" * 32)
        self.operation = operation_of("hold", Tier.COMPENSABLE)
        self.tool = tool_of("pay", self.operation, recovery=RecoverySettings(mode=mode, repair_cost=0.5))
        self.remembered: dict[str, bytes] = {}
        self.stage = self.make()

    def make(self) -> RecoveryStage:
        return RecoveryStage(self.runs, self.clock, Telemetry(), self.remembered.__setitem__)

    async def run(self, *, steps: int = 0, pivot: bool = False) -> Run:
        run = await self.runs.named("r1", Open(agent="ann"))
        assert isinstance(run, Run)
        for number in range(1, steps + 1):
            await self.take(run, number, Tier.COMPENSABLE)
        if pivot:
            await self.take(run, steps + 1, Tier.PIVOT)
        return run

    async def take(self, run: Run, number: int, tier: Tier) -> None:
        begin = Begin(
            tool="pay", operation=operation_of("hold", tier), action=f"a{number}", fingerprint="f", method="POST",
            target="/", salt=b"s",
        )  # fmt: skip
        undo = BoundRequest("pay", "POST", "/undo") if tier is Tier.COMPENSABLE else None
        assert await self.runs.decided(run, begin) is None
        assert (
            await self.runs.decided(run, Complete(step=number, reply=RecordedReply(status=200), compensator=undo))
            is None
        )

    async def send(self, outcome: Outcome, seconds: float = 1.0, **fields: Any) -> Outcome:
        async def tool(call: Call) -> Outcome:
            await self.clock.advance(seconds)
            return outcome

        call = call_of(self.tool, self.operation, now=self.clock.now(), trajectory="r1", is_run_named=True, **fields)
        return await self.stage(call, tool)


def no(text: bytes = b"port must be a number", status: int = 422) -> Failed:
    return Failed(Fault.CLIENT_ERROR, reply=reply_of(status, text))


def directive(outcome: Outcome) -> str:
    if isinstance(outcome, Failed) and outcome.reply is not None:
        return (first_header(outcome.reply.headers, b"seawall-directive") or b"").decode()
    assert not isinstance(outcome, Success)
    assert outcome.refusal is not None
    assert outcome.refusal.directive is not None
    assert outcome.refusal.extra["explain"]
    return outcome.refusal.directive.value


async def test_the_tools_own_answer_stays_and_the_directive_stands_beside_it() -> None:
    bench = Bench()
    await bench.run(steps=3)
    outcome = await bench.send(no())
    assert directive(outcome) == Directive.FORWARD_REPAIR
    assert isinstance(outcome, Failed)
    assert outcome.reply is not None
    assert outcome.reply.status == 422


async def test_an_error_that_comes_back_ends_repairing() -> None:
    """The four-iteration trace of seed 000."""
    bench = Bench()
    await bench.run(steps=3)
    errors = [b"cannot import AsyncSession", b"no attribute sync_engine", b"NoneType is not a number"]
    assert [directive(await bench.send(no(text))) for text in errors] == [Directive.FORWARD_REPAIR] * 3
    assert directive(await bench.send(no(errors[0]))) == Directive.BACKWARD_ROLLBACK


async def test_transient_trouble_is_retried_and_a_fatal_one_is_not() -> None:
    bench = Bench()
    await bench.run(steps=1)
    refused = Rejected(Refusal(code=Code.CIRCUIT_OPEN, detail="open", retry_after_ms=10))
    assert directive(await bench.send(refused)) == Directive.TRANSIENT_RETRY
    assert directive(await bench.send(no(status=403))) == Directive.BACKWARD_ROLLBACK


async def test_past_the_pivot_a_fatal_failure_is_for_a_person() -> None:
    bench = Bench()
    await bench.run(steps=1, pivot=True)
    assert directive(await bench.send(no(status=401))) == Directive.OPERATOR_ESCALATE


async def test_repairs_that_never_work_are_no_longer_proposed() -> None:
    """p is measured, and what was remembered before a restart counts."""
    bench = Bench()
    await bench.run(steps=1)
    for seconds in (10.0, 10.0):
        await bench.send(Success(reply_of()), seconds)
    assert directive(await bench.send(no(b"first"))) == Directive.FORWARD_REPAIR
    bench.stage.restore({REPAIRS + "pay.hold/422": b"0,4000"})
    assert directive(await bench.send(no(b"another"))) == Directive.BACKWARD_ROLLBACK


async def test_what_becomes_of_repairs_is_learnt() -> None:
    bench = Bench()
    await bench.run(steps=1)
    await bench.send(no(b"first"))
    await bench.send(no(b"second"))
    await bench.send(Success(reply_of()))
    assert bench.stage.statistics() == {"pay.hold/422": {"worked": 1, "failed": 1, "chance": 0.5}}
    assert bench.remembered == {"repairs/pay.hold/422": b"1,1"}
    again = bench.make()
    again.restore(bench.remembered | {REPAIRS + "odd": b"?"})
    assert again.statistics() == bench.stage.statistics()


async def test_enforcing_aborts_a_named_run_and_leaves_others_alone() -> None:
    bench = Bench(RecoveryMode.ENFORCE)
    run = await bench.run(steps=2)
    await bench.send(no(status=403))
    assert run.state.phase is Phase.COMPENSATING
    assert "no other arguments" in run.state.reason


async def test_advising_aborts_nothing() -> None:
    """langchain4j/langchain4j#5823: rollback fired on errors that the model then repaired."""
    bench = Bench()
    run = await bench.run(steps=2)
    await bench.send(no(status=403))
    assert run.state.phase is Phase.PREPARING


async def test_enforcing_freezes_past_the_pivot() -> None:
    bench = Bench(RecoveryMode.ENFORCE)
    run = await bench.run(steps=1, pivot=True)
    await bench.send(no(status=401))
    assert run.state.phase is Phase.FROZEN
    assert run.state.incident == "POST_PIVOT_STALLED"


async def test_compensators_and_reads_are_only_timed() -> None:
    bench = Bench()
    await bench.run(steps=1)
    outcome = await bench.send(no(), lane=Lane.COMPENSATION)
    assert isinstance(outcome, Failed)
    assert outcome.reply is not None
    assert first_header(outcome.reply.headers, b"seawall-directive") is None


async def test_memory_is_bounded() -> None:
    bench = Bench()
    for number in range(5000):
        call = call_of(bench.tool, bench.operation, now=bench.clock.now(), trajectory=f"r{number}", is_run_named=True)

        async def tool(call: Call) -> Outcome:
            return no()

        await bench.stage(call, tool)
    assert len(bench.stage._spins) <= 4096
    assert len(bench.stage._trouble) <= 4096
