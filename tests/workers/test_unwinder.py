"""The unwinder over the saga's rig: patience that stands while a breaker is open, classes of refusal, bugs, restarts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.codes import Code
from gateway.core.expression import Environment
from gateway.core.fault import Fault
from gateway.core.manifest import Tier
from gateway.core.outcome import Failed, InDoubt, Outcome, Refusal, Rejected, Success
from gateway.core.saga import Abort
from gateway.core.tool import BoundRequest, Compensator, RequestTemplate
from gateway.core.trajectory import Phase, StepState
from gateway.workers.settler import Settler
from gateway.workers.unwinder import Patience, Unwinder
from tests.builders import catalog_of, operation_of, reply_of, tool_of
from tests.stages.saga_rig import Rig, ok
from tests.workers.test_settler import Quiet

UNDO = RequestTemplate("POST /cancel", lambda env: BoundRequest("pay", "POST", "/cancel"))
OPEN = Rejected(Refusal(code=Code.CIRCUIT_OPEN, detail="Open.", retry_after_ms=600_000))
DOUBT = InDoubt(Fault.TIMEOUT, Refusal(code=Code.OUTCOME_UNKNOWN, detail="Sent, effect unknown."))


class Holds:
    source = "response.status == 202"

    def __call__(self, env: Environment) -> object:
        response = env["response"]
        assert isinstance(response, dict)
        return response["status"] == 202


class Desk:
    """One committed hold, an unwinder, and what its compensators are answered."""

    def __init__(self, compensator: Compensator | None = None, **patience: float) -> None:
        self.rig = Rig()
        self.operation = operation_of("hold", Tier.COMPENSABLE, compensator=compensator or Compensator(UNDO))
        self.tool = tool_of("pay", self.operation)
        self.telemetry = Quiet()
        self.patience = Patience(**patience)
        self.take_up()

    def take_up(self) -> None:
        rig, catalog = self.rig, catalog_of(self.tool)
        settler = Settler(rig.trajectories, rig.pipeline, lambda: catalog, rig.clock, self.telemetry)
        self.unwinder = Unwinder(
            rig.trajectories, rig.pipeline, lambda: catalog, rig.clock, self.telemetry, settler, {}, self.patience
        )

    async def abort(self, *answers: Outcome | BaseException, seconds: float = 10.0) -> None:
        await self.rig.call(tool=self.tool, operation=self.operation)
        run = self.rig.trajectories.get("r1")
        assert run is not None
        self.rig.answers.extend(answers)
        await self.rig.trajectories.decided(run, Abort(reason="x"))
        self.unwinder.run_once()
        await self.rig.clock.settle()
        await self.rig.clock.advance(seconds)

    @property
    def undone(self) -> int:
        return len(self.rig.sent) - 1

    async def phase(self) -> Phase:
        run = await self.rig.trajectories.find("r1")
        assert run is not None
        return run.state.phase


async def test_the_clock_of_its_patience_stands_while_the_breaker_is_open() -> None:
    """apache/incubator-seata#5077, dtm-labs/dtm#306: an endless or a hasty compensation; waiting is not failing."""
    desk = Desk(elapsed_s=60.0)
    await desk.abort(*[OPEN] * 6, seconds=4000.0)
    assert await desk.phase() is Phase.ABORTED_CLEAN
    assert desk.undone == 7


async def test_a_tool_that_keeps_failing_uses_its_patience_up() -> None:
    desk = Desk(elapsed_s=60.0)
    desk.rig.answers = []
    await desk.abort(*[DOUBT] * 50, seconds=500.0)
    assert await desk.phase() is Phase.FROZEN
    assert desk.undone < 50


@pytest.mark.parametrize(
    ("status", "is_final"), [(400, True), (403, True), (404, True), (409, True), (422, True), (425, False)]
)
async def test_a_refusal_is_for_good_unless_it_says_not_yet(status: int, is_final: bool) -> None:
    """eventuate-tram/eventuate-tram-sagas#75: a refused compensator broke the saga instead of freezing it."""
    desk = Desk()
    await desk.abort(Failed(Fault.CLIENT_ERROR, reply=reply_of(status)))
    assert await desk.phase() is (Phase.FROZEN if is_final else Phase.ABORTED_CLEAN)


@pytest.mark.parametrize("outcome", [Failed(Fault.THROTTLED, reply=reply_of(429)), DOUBT, Failed(Fault.CONNECT)])
async def test_what_passes_is_waited_out(outcome: Outcome) -> None:
    desk = Desk()
    await desk.abort(outcome)
    assert await desk.phase() is Phase.ABORTED_CLEAN
    assert len({call.key for call in desk.rig.sent[1:]}) == 1, "one key for every attempt"


async def test_a_compensators_own_postcondition_decides() -> None:
    desk = Desk(Compensator(UNDO, postcondition=Holds()))
    await desk.abort(ok(status=202))
    assert await desk.phase() is Phase.ABORTED_CLEAN
    strict = Desk(Compensator(UNDO, postcondition=Holds()))
    await strict.abort(ok(status=200))
    assert await strict.phase() is Phase.FROZEN


async def test_it_goes_on_after_a_restart_under_the_same_key() -> None:
    desk = Desk()
    await desk.abort(DOUBT, seconds=0.0)
    key = desk.rig.sent[1].key
    await desk.unwinder.close()
    desk.rig.restart()
    desk.take_up()
    await desk.rig.trajectories.recover()
    desk.unwinder.run_once()
    await desk.rig.clock.settle()
    await desk.rig.clock.advance(10.0)
    assert await desk.phase() is Phase.ABORTED_CLEAN
    assert {call.key for call in desk.rig.sent[1:]} == {key}


async def test_the_third_bug_in_a_row_freezes_the_run() -> None:
    desk = Desk()
    await desk.abort(KeyError("a"), KeyError("b"), KeyError("c"), seconds=60.0)
    assert await desk.phase() is Phase.FROZEN
    assert len(desk.telemetry.failures) == 3


async def test_a_step_whose_undo_is_safe_is_undone_though_nothing_is_known_of_it() -> None:
    desk = Desk(replace(Compensator(UNDO), is_safe_if_absent=True))
    desk.rig.answers = [DOUBT, Success(reply_of())]
    await desk.abort()
    state = desk.rig.trajectories.get("r1")
    assert state is None, "the run is over"
    run = await desk.rig.trajectories.find("r1")
    assert run is not None
    assert run.state.steps[1].state is StepState.COMPENSATED


async def test_a_step_that_nobody_can_settle_stops_the_unwinding() -> None:
    desk = Desk()
    desk.rig.answers = [DOUBT]
    await desk.abort()
    assert await desk.phase() is Phase.FROZEN
    assert desk.undone == 0
