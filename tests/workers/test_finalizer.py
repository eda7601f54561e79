"""Finishing runs: patience, order, what cannot be finished, and work that breaks off."""

from __future__ import annotations

import asyncio
from unittest import mock

from gateway.core.breaker import Reason
from gateway.core.call import Call
from gateway.core.codes import Code
from gateway.core.fault import Fault
from gateway.core.incident import freeze, release
from gateway.core.manifest import Tier
from gateway.core.outcome import Failed, Outcome, Refusal, Rejected, Success
from gateway.core.records import StepIntended
from gateway.core.saga import Commit
from gateway.core.tool import Catalog, Operation
from gateway.core.trajectory import Phase, StepState
from gateway.journal import JournalUnavailable
from gateway.journal.trajectories import Run
from gateway.workers.finalizer import Finalizer
from gateway.workers.unwinder import Patience
from tests.builders import catalog_of, operation_of, tool_of
from tests.stages.gate_rig import GateRig
from tests.stages.saga_rig import ok

PIVOT = operation_of("payout", Tier.PIVOT)
NOTICE = operation_of("notice", Tier.PIVOT, is_staged=True)
IDEM = operation_of("register", Tier.REVERSIBLE, is_idempotent=True)
TOOL = tool_of("pay", PIVOT, NOTICE, IDEM)


class Rig(GateRig):
    """A finalizer beside the pipeline."""

    catalog: Catalog = catalog_of(TOOL)

    def finalizer(self, elapsed_s: float = 60.0) -> Finalizer:
        return Finalizer(
            self.trajectories, self.pipeline, lambda: self.catalog, self.clock, self.telemetry,
            Patience(elapsed_s=elapsed_s, base_s=1.0, cap_s=4.0))  # fmt: skip

    async def act(self, operation: Operation, body: bytes = b"") -> Outcome:
        return await self.call(body or operation.name.encode(), operation=operation, tool=TOOL)

    async def until(self, phase: Phase) -> None:
        for _ in range(10_000):
            run = await self.trajectories.find("r1")
            assert run is not None
            if run.state.phase is phase:
                return
            await self.clock.advance(0.5)
        raise AssertionError(f"never {phase}")


def down() -> Failed:
    return Failed(Fault.SERVER, Refusal(code=Code.UPSTREAM_CONNECT, detail="down"))


def refused() -> Rejected:
    return Rejected(Refusal(code=Code.CIRCUIT_OPEN, detail="open", retry_after_ms=30_000))


async def test_what_was_staged_is_sent_in_order_with_its_own_body_and_keys() -> None:
    rig = Rig()
    for body in (b"first", b"second", b"third"):
        await rig.act(NOTICE, body)
    await rig.act(PIVOT)
    assert rig.finalizer().run_once() == 1
    await rig.clock.settle()
    sent = [call.request.body.data for call in rig.sent[1:]]  # type: ignore[union-attr]
    assert sent == [b"first", b"second", b"third"]
    assert len({call.key for call in rig.sent}) == 4


async def test_nothing_is_sent_before_the_pivot_or_after_an_abort() -> None:
    rig = Rig()
    await rig.act(NOTICE)
    assert rig.finalizer().run_once() == 0
    assert rig.sent == []


async def test_an_open_breaker_costs_no_patience_and_a_failing_tool_does() -> None:
    rig = Rig()
    await rig.act(NOTICE)
    await rig.act(PIVOT)
    rig.answers = [refused()] * 10
    rig.finalizer(elapsed_s=5.0).run_once()
    await rig.clock.advance(290.0)
    assert rig.state().phase is Phase.FINALIZING, "ten waits of half a minute are no failure"
    await rig.clock.advance(60.0)
    assert rig.state().steps[1].state is StepState.COMMITTED
    other = Rig()
    await other.act(NOTICE)
    await other.act(PIVOT)
    other.answers = [down() for _ in range(100)]
    other.finalizer(elapsed_s=5.0).run_once()
    await other.until(Phase.FROZEN)
    assert other.state().incident == "POST_PIVOT_STALLED"
    assert "given up" in other.state().reason


async def test_a_deferred_step_is_finished_without_the_agent_and_its_repeat_has_the_answer() -> None:
    rig = Rig()
    await rig.act(PIVOT)
    rig.answers = [down()]
    await rig.act(IDEM, b"x")
    assert rig.state().steps[2].state is StepState.DEFERRED
    rig.finalizer().run_once()
    await rig.clock.settle()
    assert rig.state().steps[2].state is StepState.COMMITTED
    again = await rig.act(IDEM, b"x")
    assert isinstance(again, Success)
    assert again.is_replay
    assert len({call.key for call in rig.sent[1:]}) == 1


async def test_an_agent_that_comes_back_first_takes_the_deferred_step_itself() -> None:
    rig = Rig()
    await rig.act(PIVOT)
    rig.answers = [down()]
    await rig.act(IDEM, b"x")
    answer = await rig.act(IDEM, b"x")
    assert isinstance(answer, Success)
    assert not answer.is_replay
    assert len(rig.state().steps) == 2, "the same step, not a new one"


async def test_a_tool_that_left_the_manifest_freezes_the_run_as_drift() -> None:
    rig = Rig()
    await rig.act(NOTICE)
    await rig.act(PIVOT)
    rig.catalog = Catalog({}, {})
    rig.finalizer().run_once()
    await rig.until(Phase.FROZEN)
    assert rig.state().incident == "MANIFEST_DRIFT"
    assert len(rig.sent) == 1


async def test_a_run_frozen_between_two_attempts_sends_no_second_one() -> None:
    """Freezing stops what has begun too, not only what is new."""
    rig = Rig()
    await rig.act(NOTICE)
    await rig.act(PIVOT)
    rig.answers = [down() for _ in range(100)]
    rig.finalizer().run_once()
    await rig.clock.settle()
    sent = len(rig.sent)
    assert sent > 1
    run = await rig.trajectories.find("r1")
    assert run is not None
    await rig.trajectories.recorded(run, freeze(run.state, "OPERATOR_FREEZE", "stop", "ann"))
    await rig.clock.advance(120.0)
    assert len(rig.sent) == sent


async def test_work_that_breaks_off_three_times_in_a_row_is_for_a_person() -> None:
    rig = Rig()
    await rig.act(NOTICE)
    await rig.act(PIVOT)
    finalizer = rig.finalizer()

    async def broken(run: object, step: object) -> bool:
        raise RuntimeError("a bug")

    finalizer._send = broken  # type: ignore[method-assign, assignment]
    for _ in range(3):
        finalizer.run_once()
        await rig.clock.settle()
    assert rig.state().phase is Phase.FROZEN
    assert "3 times in a row" in rig.state().reason


async def test_a_closing_run_is_committed_once_nothing_is_left() -> None:
    rig = Rig()
    await rig.act(NOTICE)
    run = await rig.trajectories.find("r1")
    assert run is not None
    await rig.trajectories.decided(run, Commit())
    assert run.state.phase is Phase.FINALIZING
    rig.finalizer().run_once()
    await rig.until(Phase.SUCCEEDED)
    assert len(rig.sent) == 1


async def deferred(rig: Rig) -> Run:
    """A run past its pivot with one step that is owed."""
    await rig.act(PIVOT)
    rig.answers = [down()]
    await rig.act(IDEM, b"x")
    run = await rig.trajectories.find("r1")
    assert run is not None
    assert run.state.steps[2].state is StepState.DEFERRED
    return run


async def test_the_agent_and_the_finalizer_never_send_the_same_step_at_once() -> None:
    """Found by the simulation: the agent came back while the finalizer was reading what it had to send."""
    rig = Rig()
    run = await deferred(rig)
    finalizer, at_once = rig.finalizer(), []

    async def answer(call: Call) -> Outcome:
        at_once.append(call.key)
        await rig.clock.sleep(1.0)
        at_once.remove(call.key)
        assert not at_once
        return ok()

    async def slowly(found: Run, number: int) -> StepIntended:
        await rig.clock.sleep(0.5)
        return await real(found, number)

    rig.answers = [answer, answer]
    real, rig.trajectories.intent = rig.trajectories.intent, slowly  # type: ignore[method-assign]
    finalizer.run_once()
    await rig.clock.settle()
    again = rig.start(b"x", operation=IDEM, tool=TOOL)
    await rig.clock.advance(5.0)
    assert isinstance(await again, Success)
    assert len(rig.sent) == 3, "the pivot, the one that failed, and one more"
    assert run.state.steps[2].state is StepState.COMMITTED


async def test_a_repeat_that_a_frozen_run_refuses_does_not_keep_the_step_for_itself() -> None:
    """It stayed taken for good: after the release of the run nobody could finish it."""
    rig = Rig()
    run = await deferred(rig)
    await rig.trajectories.recorded(run, freeze(run.state, "OPERATOR_FREEZE", "stop", "ann"))
    assert isinstance(await rig.act(IDEM, b"x"), Rejected)
    assert not run.busy
    await rig.trajectories.recorded(run, release(run.state, None, "ann", "go on"))
    rig.finalizer().run_once()
    await rig.clock.settle()
    assert run.state.steps[2].state is StepState.COMMITTED


async def test_a_step_that_only_a_harmless_call_could_try_out_is_for_a_person_in_the_end() -> None:
    """A breaker's cooldown ends by itself, and costs no patience; a wait for somebody else's call may not (ADR 0100)."""
    rig = Rig()
    await rig.act(NOTICE)
    await rig.act(PIVOT)
    nobody = {"reason": Reason.NO_ELIGIBLE_CANARY.value}
    refusal = Refusal(code=Code.CIRCUIT_OPEN, detail="try another call", retry_after_ms=1000, extra=nobody)
    rig.answers = [Rejected(refusal) for _ in range(100)]
    rig.finalizer(elapsed_s=20.0).run_once()
    await rig.until(Phase.FROZEN)
    assert rig.state().incident == "POST_PIVOT_STALLED"


async def test_a_journal_that_refuses_at_once_is_not_asked_again_at_once() -> None:
    """While the disk hangs, every write is refused without a wait: the finalizer went round and round."""
    rig = Rig()
    await rig.act(NOTICE)
    await rig.act(PIVOT)
    tries = 0

    def refused_append(*args: object, **more: object) -> asyncio.Future[None]:
        nonlocal tries
        tries += 1
        future = asyncio.get_running_loop().create_future()
        future.set_exception(JournalUnavailable("the disk hangs"))
        return future

    with mock.patch.object(rig.journal, "append", refused_append):
        finalizer = rig.finalizer()
        finalizer.run_once()
        await rig.clock.advance(10.0)
        assert 1 < tries < 30
    await rig.clock.advance(2.0)
    assert rig.state().steps[1].state is StepState.COMMITTED
