"""A refusal at once is the refusal that the road would have come to, and leaves the same behind."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.core.admission import WhenFull
from gateway.core.breaker import BreakerSettings
from gateway.core.call import Call, Handler
from gateway.core.codes import Code
from gateway.core.fault import Fault
from gateway.core.manifest import Tier
from gateway.core.message import BytesBody
from gateway.core.outcome import Failed, InDoubt, Outcome, Refusal, Rejected, Success
from gateway.core.recovery import RecoveryMode, RecoverySettings
from gateway.core.retry import RetrySettings
from gateway.core.saga import Abort, Freeze
from gateway.core.tool import Operation
from gateway.journal import trajectories
from gateway.journal.memory import MemoryJournal
from gateway.journal.trajectories import Trajectories
from gateway.pipeline import Stages
from gateway.stages.admission import AdmissionStage
from gateway.stages.breaker import BreakerStage
from gateway.stages.budget import BudgetStage
from gateway.stages.deadline import DeadlineStage
from gateway.stages.idempotency import IdempotencyStage
from gateway.stages.journal import JournalStage
from gateway.stages.recovery import RecoveryStage
from gateway.stages.retry import RetryStage
from gateway.stages.saga import SagaStage
from gateway.stages.telemetry import TelemetryStage
from gateway.stages.watchdog import WatchdogStage
from gateway.telemetry import Telemetry
from tests.builders import call_of, catalog_of, domain_of, operation_of, reply_of, tool_of
from tests.fakes import FakeClock

READ, PUT = operation_of("read", Tier.READ), operation_of("put", Tier.REVERSIBLE)
PAY, GATED = operation_of("pay", Tier.PIVOT), operation_of("gated", Tier.PIVOT, is_staged=True)
NARROW = domain_of("narrow", concurrency=1, reserved=0, queue=0, when_full=WhenFull.REFUSE)
RATED = domain_of("rated", concurrency=2, reserved=1, queue=1, rate=(2, 1.0))
BRITTLE = BreakerSettings(consecutive=2, cooldown=10.0)
ONCE = RetrySettings(attempts=1, budget_floor=1.0)
ENFORCED = RecoverySettings(mode=RecoveryMode.ENFORCE)
TOOLS = (
    tool_of("a", READ, PUT, PAY, GATED, domain=NARROW, breaker=BRITTLE, retry=ONCE),
    tool_of("b", READ, PUT, PAY, domain=NARROW, breaker=BRITTLE, retry=ONCE, recovery=ENFORCED),
    tool_of("c", READ, PUT, PAY, domain=RATED, breaker=BRITTLE, retry=ONCE),
)
ANSWERS: Final[dict[str, Outcome]] = {
    "down": Failed(Fault.CONNECT, Refusal(code=Code.UPSTREAM_CONNECT, detail="Down.")),
    "no": Failed(Fault.CLIENT_ERROR, reply=reply_of(422, b"no")),
    "doubt": InDoubt(Fault.TIMEOUT, Refusal(code=Code.OUTCOME_UNKNOWN, detail="Sent.")),
}


@pytest.fixture(scope="module", autouse=True)
def _nothing_by_the_real_clock() -> Iterator[None]:
    """Reads are written together after a while of the loop's time, which may come between two twins."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trajectories, "READS_S", 3600.0)
        yield


class Clock(FakeClock):
    """Chance does not depend on how often somebody asked for it before."""

    def __init__(self) -> None:
        super().__init__()
        self._tokens = itertools.count()

    def draw(self) -> float:
        return 0.5

    def token(self) -> str:
        return f"{next(self._tokens):032x}"


class _PassOn:
    async def __call__(self, call: Call, proceed: Handler) -> Outcome:
        return await proceed(call)


class Twin:
    """All stages around a scripted tool. `is_quick`: whether it is asked for refusals at once."""

    def __init__(self, *, is_quick: bool, has_budgets: bool = False) -> None:
        self.is_quick = is_quick
        self.at_once = 0
        self.answer = "ok"
        self.clock, self.journal = Clock(), MemoryJournal()
        self.telemetry = Telemetry(self.clock, keep_events=10_000)
        self.memory: dict[str, bytes] = {}
        self.held: list[asyncio.Future[None]] = []
        self.calls: list[tuple[Call, asyncio.Task[Outcome]]] = []
        clock, telemetry, passing = self.clock, self.telemetry, _PassOn()
        self.runs = runs = Trajectories(self.journal, clock, telemetry, salt=b"s" * 32)
        runs.has_budgets = has_budgets
        catalog = catalog_of(*TOOLS)
        self.breaker = BreakerStage(clock, telemetry, self.memory.__setitem__)
        self.admission = AdmissionStage(clock, telemetry, self.breaker.peek)
        self.retry = RetryStage(clock, telemetry)
        self.pipeline = Stages(
            telemetry=TelemetryStage(clock, telemetry),
            recovery=RecoveryStage(runs, clock, telemetry, self.memory.__setitem__, lambda: catalog),
            budget=BudgetStage(runs, clock),
            watchdog=WatchdogStage(runs, lambda: catalog, clock, telemetry),
            idempotency=IdempotencyStage(runs, self.journal, clock),
            saga=SagaStage(runs, self.journal, telemetry),
            deadline=DeadlineStage(clock, telemetry),
            retry=self.retry,
            admission=self.admission,
            breaker=self.breaker,
            journal=JournalStage(runs, clock, telemetry),
            dispatch=self._tool,  # type: ignore[arg-type]
            **dict.fromkeys(("quarantine", "hold", "policy", "approval", "outbox"), passing),  # type: ignore[arg-type]
        ).pipeline()
        for stage in (self.breaker, self.admission, self.retry):
            stage.reconfigure(catalog)

    async def _tool(self, call: Call) -> Outcome:
        answer = self.answer
        if answer == "hang":
            held = asyncio.get_running_loop().create_future()
            self.held.append(held)
            await held
        return ANSWERS[answer] if answer in ANSWERS else Success(reply_of())

    def send(self, tool: int, operation: Operation, answer: str = "ok", **fields: Any) -> Call:
        self.answer = answer
        body = fields.pop("body", b"1")
        call = call_of(
            TOOLS[tool], operation, now=self.clock.now(), body=None if operation.is_read else BytesBody(body),
            action=f"{tool}{operation.name}".encode() + body, fingerprint=body, **fields,
        )  # fmt: skip
        call.is_run_named = bool(call.trajectory)
        self.calls.append((call, asyncio.ensure_future(self._made(call))))
        return call

    async def _made(self, call: Call) -> Outcome:
        rejected = self.pipeline.refused_at_once(call) if self.is_quick else None
        if rejected is None:
            return await self.pipeline(call)
        self.at_once += 1
        return rejected

    def do(self, what: str, *told: Any, **more: Any) -> None:
        match what:
            case "send":
                self.send(*told, **more)
            case "turn":
                self.clock.turn(*told)
            case "release" if self.held:
                self.held.pop(0).set_result(None)
            case "abort" | "freeze" if (run := self.runs.get(told[0])) is not None and run.state.version:
                freeze = Freeze(incident="QUARANTINED", detail="said so")
                self.runs.decide(run, Abort(reason="said so", by="op") if what == "abort" else freeze)
            case "deliver" if (run := self.runs.get(told[0])) is not None:
                for step in list(run.state.undelivered):
                    self.runs.delivered(told[0], step)
            case _:
                pass

    def seen(self) -> dict[str, object]:
        """All that anybody could see."""
        return {
            "outcomes": [task.result() if task.done() else None for _, task in self.calls],
            "calls": [(call.trajectory, call.step, call.key, call.attempt) for call, _ in self.calls],
            "events": self.telemetry.timeline.recent(),
            "metrics": self.telemetry.render(),
            "breakers": self.breaker.statistics(),
            "domains": self.admission.statistics(),
            "budgets": {
                name: round(float(str(one["balance"])), 5) for name, one in self.retry.statistics().items()
            },
            "memory": self.memory,
            "runs": {
                run.state.id: (asdict(run.state), run.touched_s, None if run.watch is None else run.watch.view())
                for run in self.runs.live()
            },
        }  # fmt: skip

    async def close(self) -> None:
        for _, task in self.calls:
            task.cancel()
        await asyncio.gather(*(task for _, task in self.calls), return_exceptions=True)


SENDS = st.builds(
    lambda tool, operation, answer, run, body, key, agent, proven, budget: (
        "send", (tool, operation, answer),
        {"trajectory": run, "body": body, "caller_key": key, "agent": agent, "is_agent_proven": proven, "budget": budget},
    ),
    st.integers(0, 2), st.sampled_from([READ, PUT, PUT, PAY]),
    st.sampled_from(["down", "down", "ok", "no", "doubt", "hang"]),
    st.sampled_from(["", "r1", "r1", "r2"]), st.sampled_from([b"1", b"1", b"2"]), st.sampled_from([None, None, "key"]),
    st.sampled_from(["ann", "ann", "bob"]), st.booleans(), st.sampled_from([None, None, None, {"calls": 3.0}]),
)  # fmt: skip
OTHERS = st.one_of(
    st.tuples(st.just("turn"), st.tuples(st.sampled_from([0.2, 1.0, 5.0, 11.0])), st.just({})),
    st.tuples(st.just("release"), st.just(()), st.just({})),
    st.tuples(st.sampled_from(["abort", "freeze", "deliver", "deliver"]), st.just(("r2",)), st.just({})),
)


RUNS = ("", "r1")
PRELUDES = {
    "well": (),
    "dead": [("send", (tool, PUT, "down"), {"trajectory": run, "body": body})
             for tool in (0, 2) for body in (b"8", b"9") for run in RUNS],
    "full": [("send", (tool, PUT, "hang"), {"trajectory": run, "body": body})
             for tool in (1, 2) for body in (b"8", b"9") for run in RUNS],
}  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(before=st.sampled_from(list(PRELUDES)), commands=st.lists(SENDS | SENDS | OTHERS, min_size=6, max_size=30))
@example("dead", [("send", (0, PUT, "ok"), {"trajectory": "r1", "body": b"0"})] * 9)
@example("full", [("send", (0, READ, "ok"), {"trajectory": "r1"}), ("turn", (1.0,), {})] * 9)
def test_with_and_without_the_short_cut_everybody_sees_the_same(
    before: str, commands: list[tuple[str, Any, Any]]
) -> None:
    """Outcomes word for word, events in order, metrics, breakers, queues, budgets, runs and their watchdogs."""

    async def play() -> None:
        quick, plain = Twin(is_quick=True), Twin(is_quick=False)
        for what, told, more in [*PRELUDES[before], *commands]:
            for twin in (quick, plain):
                twin.do(what, *told, **more)
                await twin.clock.settle()
            assert quick.seen() == plain.seen()
        await quick.close()
        await plain.close()

    asyncio.run(play())


async def opened(run: str = "", **fields: Any) -> Twin:
    """A twin whose first tool is left alone, and an agent that has heard so once in its run."""
    twin = Twin(is_quick=True, **fields)
    for body in (b"3", b"4"):
        twin.send(0, PUT, "down", trajectory=run, body=body)
        await twin.clock.settle()
    twin.send(0, PUT, trajectory=run, body=b"5")
    await twin.clock.settle()
    return twin


def last(twin: Twin) -> Refusal:
    outcome = twin.calls[-1][1].result()
    assert isinstance(outcome, Rejected)
    return outcome.refusal


@pytest.mark.parametrize("run", ["", "r1"])
@pytest.mark.parametrize("operation", [READ, PUT, PAY])
@pytest.mark.parametrize("body", [b"3", b"9"])
async def test_the_second_call_to_a_dead_tool_is_refused_at_once(run: str, operation: Operation, body: bytes) -> None:
    """The storm's main case: a new call, or the very one that has failed, in a run that is known or in nobody's."""
    twin = await opened(run)
    before = twin.at_once
    twin.clock.turn(1.25)
    twin.send(0, operation, trajectory=run, body=body)
    await twin.clock.settle()
    assert twin.at_once == before + 1
    assert last(twin).code is Code.CIRCUIT_OPEN
    assert last(twin).retry_after_ms == 8750
    await twin.close()


async def test_a_full_domain_refuses_at_once() -> None:
    twin = Twin(is_quick=True)
    twin.send(1, PUT, "hang", trajectory="r1")
    for body in (b"2", b"3"):
        await twin.clock.settle()
        twin.send(0, PUT, trajectory="r1", body=body)
    await twin.clock.settle()
    assert (twin.at_once, last(twin).code) == (1, Code.BULKHEAD_FULL)
    assert twin.admission.statistics()["narrow"]["refusals"] == 2
    await twin.close()


async def test_a_recorded_answer_is_given_though_the_tool_is_dead() -> None:
    """A repeat costs the tool nothing, so an open breaker is no reason to refuse it."""
    twin = Twin(is_quick=True)
    twin.send(0, PUT, "ok", trajectory="r1", body=b"1")
    await twin.clock.settle()
    for body in (b"3", b"4"):
        twin.send(0, PUT, "down", trajectory="r1", body=body)
        await twin.clock.settle()
    twin.send(0, PUT, trajectory="r1", body=b"1")
    await twin.clock.settle()
    outcome = twin.calls[-1][1].result()
    assert isinstance(outcome, Success)
    assert outcome.is_replay
    await twin.close()


async def test_what_a_stage_in_front_would_say_is_left_to_it_to_say() -> None:
    """A repeat that the agent cannot afford, a frozen run, a key whose owner has to be looked up, another agent's run."""
    twin = await opened("r1")
    run = twin.runs.get("r1")
    assert run is not None
    refused = twin.at_once
    twin.send(0, PUT, trajectory="r1", body=b"9", caller_key="k")
    twin.send(0, PUT, trajectory="r1", body=b"9", agent="bob", is_agent_proven=True)
    twin.send(0, PUT, trajectory="unheard-of", body=b"9")
    twin.send(0, PUT, trajectory="r1", body=b"9", budget={"calls": 9.0})
    twin.send(0, GATED, trajectory="r1", body=b"9")
    twin.send(0, PUT, trajectory="r1", body=b"9", timeout_s=0.0)
    await twin.clock.settle()
    twin.runs.decide(run, Freeze(incident="QUARANTINED", detail="said so"))
    twin.send(0, PUT, trajectory="r1", body=b"9")
    await twin.clock.settle()
    assert twin.at_once == refused
    assert last(twin).code is Code.QUARANTINED
    await twin.close()
