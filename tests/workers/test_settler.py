"""The settler: asks on behind the agents' backs, few at a time, and hands over to a person what stays unknown."""

from __future__ import annotations

from gateway.core.codes import Code
from gateway.core.fault import Fault
from gateway.core.manifest import IdempotencySettings, Tier
from gateway.core.message import BytesBody
from gateway.core.outcome import Failed, InDoubt, Refusal
from gateway.core.tool import Catalog, ToolSpec
from gateway.core.trajectory import Phase, StepState
from gateway.telemetry import Telemetry
from gateway.workers.settler import SettlePatience, Settler
from tests.builders import catalog_of, operation_of, reply_of, tool_of
from tests.stages.saga_rig import Rig, keyed

DOUBT = InDoubt(Fault.TIMEOUT, Refusal(code=Code.OUTCOME_UNKNOWN, detail="Sent, effect unknown."))
HOLD = operation_of("hold", Tier.COMPENSABLE)


class Quiet(Telemetry):
    def __init__(self) -> None:
        super().__init__()
        self.failures: list[str] = []

    def background_failed(self, where: str, error: BaseException) -> None:
        self.failures.append(f"{where}: {error}")


class Desk:
    """A settler over the saga's rig; `tool` is what the manifest has."""

    def __init__(self, tool: ToolSpec | None = None, **patience: float) -> None:
        self.rig = Rig()
        self.tool = tool or keyed(HOLD)
        self.catalog = catalog_of(self.tool)
        self.patience = SettlePatience(**patience)  # type: ignore[arg-type]
        self.take_up()

    def take_up(self) -> None:
        self.telemetry = Quiet()
        self.settler = Settler(
            self.rig.trajectories,
            self.rig.pipeline,
            lambda: self.catalog,
            self.rig.clock,
            self.telemetry,
            self.patience,
        )

    async def doubt(self, body: bytes = b'{"n": 1}', run: str = "r1") -> None:
        self.rig.answers.append(DOUBT)
        await self.rig.call(body, tool=self.tool, operation=next(iter(self.tool.operations.values())), run=run)
        assert self.rig.state(run).in_doubt

    async def settle(self, seconds: float = 10.0) -> None:
        self.settler.run_once()
        await self.rig.clock.settle()
        await self.rig.clock.advance(seconds)


async def test_a_step_in_doubt_is_sent_again_as_it_was_and_its_result_waits_for_the_agent() -> None:
    desk = Desk()
    await desk.doubt(b'{"n": 7}')
    await desk.settle()
    first, second = desk.rig.sent
    assert (second.key, second.request.method, second.request.target) == (first.key, "POST", b"/holds")
    assert second.request.body == BytesBody(b'{"n": 7}')
    step = desk.rig.state().steps[1]
    assert step.state is StepState.COMMITTED
    assert not step.is_delivered


async def test_it_goes_on_after_a_restart_from_the_journal_alone() -> None:
    desk = Desk()
    await desk.doubt()
    desk.rig.restart()
    desk.take_up()
    await desk.rig.trajectories.recover()
    await desk.settle()
    assert desk.rig.state().steps[1].state is StepState.COMMITTED


async def test_a_large_request_is_kept_beside_the_log_and_found_again() -> None:
    desk = Desk()
    large = b'{"n": "' + b"x" * 100_000 + b'"}'
    await desk.doubt(large)
    desk.rig.restart()
    desk.take_up()
    await desk.rig.trajectories.recover()
    await desk.settle()
    assert desk.rig.sent[-1].request.body == BytesBody(large)


async def test_nothing_is_sent_again_where_no_key_is_honoured() -> None:
    desk = Desk(tool_of("pay", HOLD))
    await desk.doubt()
    await desk.settle(100.0)
    assert len(desk.rig.sent) == 1
    assert desk.rig.state().in_doubt == {1}


async def test_nothing_is_sent_again_past_the_keys_window() -> None:
    desk = Desk(keyed(HOLD, window=300.0), limit_s=1e6)
    await desk.doubt()
    await desk.rig.clock.advance(300.0)
    await desk.settle(100.0)
    assert len(desk.rig.sent) == 1


async def test_what_stays_unknown_past_its_limit_is_frozen_for_a_person() -> None:
    desk = Desk(tool_of("pay", HOLD), limit_s=60.0)
    await desk.doubt()
    await desk.settle(200.0)
    state = desk.rig.state()
    assert (state.phase, state.incident) == (Phase.FROZEN, "OUTCOME_UNKNOWN")
    assert "does not say that it honours idempotency keys" in state.reason


async def test_past_the_pivot_it_is_a_stall() -> None:
    desk = Desk(tool_of("pay", operation_of("go", Tier.PIVOT)), limit_s=60.0)
    await desk.doubt()
    await desk.settle(200.0)
    assert desk.rig.state().incident == "POST_PIVOT_STALLED"


async def test_an_operation_that_left_the_manifest_is_not_guessed_at() -> None:
    desk = Desk()
    await desk.doubt()
    desk.catalog = Catalog({}, {})
    await desk.settle(100.0)
    assert len(desk.rig.sent) == 1


async def test_a_frozen_run_is_left_alone() -> None:
    """riverqueue/river#1302: a rescuer went by its snapshot."""
    from gateway.core.saga import Freeze

    desk = Desk()
    await desk.doubt()
    desk.settler.run_once()
    run = desk.rig.trajectories.get("r1")
    assert run is not None
    await desk.rig.trajectories.decided(run, Freeze(incident="X", detail="y"))
    await desk.settle(100.0)
    assert len(desk.rig.sent) == 1


async def test_a_thousand_doubts_after_a_restart_are_no_storm() -> None:
    desk = Desk(at_once=4)
    for number in range(50):
        await desk.doubt(b'{"n": %d}' % number, run=f"r{number}")
    assert desk.settler.run_once() == 50
    assert desk.settler.run_once() == 0, "once is enough"
    await desk.settle()
    assert len(desk.rig.sent) == 100
    await desk.settler.close()


async def test_a_definite_no_ends_the_doubt() -> None:
    desk = Desk()
    await desk.doubt()
    desk.rig.answers.append(Failed(Fault.CLIENT_ERROR, reply=reply_of(422)))
    await desk.settle()
    assert desk.rig.state().steps[1].state is StepState.FAILED


async def test_the_third_bug_in_a_row_freezes_the_run() -> None:
    """dbos-inc/dbos-transact-py#805: what could not be recovered stayed pending for ever and blocked the queue."""
    desk = Desk()
    await desk.doubt()
    desk.rig.answers.extend([KeyError("a"), KeyError("b"), KeyError("c")])
    await desk.settle(300.0)
    state = desk.rig.state()
    assert state.phase is Phase.FROZEN
    assert "3 times in a row" in state.reason


def test_a_key_window_is_part_of_the_manifest() -> None:
    assert IdempotencySettings().window == 86_400.0
