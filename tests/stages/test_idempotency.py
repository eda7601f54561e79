"""At most one effect per step, and every repeat gets the answer of the first."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.call import Call
from gateway.core.codes import Code, Dispatched
from gateway.core.fault import Fault
from gateway.core.manifest import Tier
from gateway.core.message import BytesBody, Reply
from gateway.core.outcome import Failed, InDoubt, Outcome, Refusal, Rejected, Success
from gateway.core.trajectory import StepState
from tests.builders import operation_of
from tests.stages.saga_rig import Rig, keyed, ok

TIMED_OUT = InDoubt(Fault.TIMEOUT, Refusal(code=Code.OUTCOME_UNKNOWN, detail="no answer", dispatched=Dispatched.MAYBE))
HOLD = operation_of("hold", Tier.COMPENSABLE)


def code(outcome: Outcome) -> Code:
    assert isinstance(outcome, Rejected), outcome
    return outcome.refusal.code


def body(outcome: Outcome) -> bytes:
    assert isinstance(outcome, Success), outcome
    assert isinstance(outcome.reply.body, BytesBody)
    return outcome.reply.body.data


async def test_an_undelivered_result_is_delivered_to_the_next_identical_call() -> None:
    rig = Rig()
    rig.answers = [ok(b'{"id": "first"}')]
    await rig.call()
    again = await rig.call()
    assert body(again) == b'{"id": "first"}'
    assert isinstance(again, Success)
    assert again.is_replay
    assert len(rig.sent) == 1


async def test_it_is_delivered_after_a_crash_too() -> None:
    rig = Rig()
    rig.answers = [ok(b'{"id": "first"}')]
    await rig.call()
    rig.restart()
    await rig.trajectories.recover()
    assert body(await rig.call()) == b'{"id": "first"}'
    assert len(rig.sent) == 1


async def test_the_same_action_after_delivery_is_a_new_step_with_a_new_key() -> None:
    """A legitimate second identical call passes."""
    rig = Rig()
    await rig.call()
    rig.deliver(1)
    await rig.call()
    assert [call.step for call in rig.sent] == [1, 2]
    assert rig.sent[0].key != rig.sent[1].key


async def test_identical_calls_in_flight_are_one_call() -> None:
    rig = Rig()
    gate = asyncio.Event()

    async def slow(call: Call) -> Outcome:
        await gate.wait()
        return ok(b'{"id": "shared"}')

    rig.answers = [slow]
    calls = [rig.start() for _ in range(10)]
    await asyncio.sleep(0)
    gate.set()
    outcomes = await asyncio.gather(*calls)
    assert {body(outcome) for outcome in outcomes} == {b'{"id": "shared"}'}
    assert len(rig.sent) == 1
    assert sum(outcome.is_replay for outcome in outcomes if isinstance(outcome, Success)) == 9


async def test_a_joined_call_is_not_sent_anew_when_the_first_was_delivered_meanwhile() -> None:
    """The answer is too large to share in memory and already delivered when the joined caller looks again."""
    rig = Rig()
    gate = asyncio.Event()

    class OnDisk(BytesBody):
        """Not a plain `BytesBody` to the stage that shares."""

    async def slow(call: Call) -> Outcome:
        await gate.wait()
        return Success(Reply(200, b"OK", (), _Opaque(b"large")))

    rig.answers = [slow]
    first, second = rig.start(), rig.start()
    await asyncio.sleep(0)
    first.add_done_callback(lambda _: rig.deliver(1))
    gate.set()
    await first
    assert body(await second) == b"large"
    assert len(rig.sent) == 1


class _Opaque:
    """A replayable body that is not in memory as one piece."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size(self) -> int:
        return len(self._data)

    is_replayable = True

    async def chunks(self):  # type: ignore[no-untyped-def]
        yield self._data

    async def aclose(self) -> None:
        pass


async def test_a_caller_who_leaves_before_anything_was_sent_lets_the_next_one_lead() -> None:
    rig = Rig()
    rig.journal.hold = asyncio.Event()
    rig.answers = [ok(b"1"), ok(b"2")]
    first = rig.start(run="")
    await asyncio.sleep(0)
    second = rig.start(run="")
    await asyncio.sleep(0)
    first.cancel()
    rig.journal.hold.set()
    assert body(await second)
    assert len(rig.sent) == 1


async def test_a_joined_call_waits_no_longer_than_its_own_deadline() -> None:
    rig = Rig()
    hung = asyncio.Event()

    async def hang(call: Call) -> Outcome:
        await hung.wait()
        return ok()

    rig.answers = [hang]
    first = rig.start()
    await asyncio.sleep(0)
    refused = await rig.call(timeout_s=0.0)
    assert code(refused) is Code.IDEMPOTENCY_CONFLICT
    hung.set()
    await first


async def test_a_failed_step_may_be_tried_again_under_a_new_key() -> None:
    """Tools pin failed answers to a key."""
    rig = Rig()
    rig.answers = [Failed(Fault.CLIENT_ERROR, reply=Reply(402, b"", (), BytesBody(b"declined"))), ok()]
    await rig.call()
    await rig.call()
    assert rig.sent[0].key != rig.sent[1].key
    assert rig.state().steps[1].state is StepState.FAILED


async def test_a_callers_key_is_replayed_for_ever_also_from_a_closed_run() -> None:
    rig = Rig()
    rig.answers = [ok(b'{"id": "k"}')]
    await rig.call(key="order-7")
    rig.deliver(1)
    assert body(await rig.call(key="order-7")) == b'{"id": "k"}'
    assert body(await rig.call(key="order-7", run="r2")) == b'{"id": "k"}'
    rig.restart()
    assert body(await rig.call(key="order-7", run="r3")) == b'{"id": "k"}'
    assert [call.key for call in rig.sent] == ["order-7"]


async def test_a_callers_key_with_other_content_is_refused() -> None:
    rig = Rig()
    await rig.call(b"1", key="order-7")
    assert code(await rig.call(b"2", key="order-7")) is Code.IDEMPOTENCY_MISMATCH
    assert len(rig.sent) == 1


async def test_two_agents_may_use_the_same_key() -> None:
    rig = Rig()
    await rig.call(key="k", run="", agent="ann")
    await rig.call(key="k", run="", agent="bob")
    assert len(rig.sent) == 2


async def test_a_step_in_doubt_is_never_sent_again_where_the_tool_honours_no_keys() -> None:
    """ComposioHQ/composio#3654: a read timeout was retried and the mail went out twice."""
    rig = Rig()
    rig.answers = [TIMED_OUT]
    await rig.call()
    again = await rig.call()
    assert code(again) is Code.OUTCOME_UNKNOWN
    assert len(rig.sent) == 1


async def test_a_step_in_doubt_is_settled_under_its_own_key_where_the_tool_honours_keys() -> None:
    rig = Rig()
    rig.answers = [TIMED_OUT, ok(b'{"id": "landed"}')]
    tool = keyed(HOLD)
    await rig.call(tool=tool)
    assert rig.state().steps[1].state is StepState.IN_DOUBT
    assert body(await rig.call(tool=tool)) == b'{"id": "landed"}'
    assert rig.sent[0].key == rig.sent[1].key
    assert rig.state().steps[1].state is StepState.COMMITTED
    assert len(rig.state().steps) == 1


async def test_a_key_is_not_trusted_beyond_the_tools_window() -> None:
    rig = Rig()
    rig.answers = [TIMED_OUT]
    tool = keyed(HOLD, window=60.0)
    await rig.call(tool=tool)
    await rig.clock.advance(61.0)
    assert code(await rig.call(tool=tool)) is Code.OUTCOME_UNKNOWN
    assert len(rig.sent) == 1


@pytest.mark.parametrize(
    ("second", "settles"),
    [
        (Failed(Fault.CONNECT, Refusal(code=Code.UPSTREAM_CONNECT, detail="refused")), False),
        (Rejected(Refusal(code=Code.CIRCUIT_OPEN, detail="open", retry_after_ms=10)), False),
        (TIMED_OUT, False),
        (Failed(Fault.CLIENT_ERROR, reply=Reply(409, b"", (), BytesBody())), False),
        (Failed(Fault.CLIENT_ERROR, reply=Reply(402, b"", (), BytesBody())), True),
    ],
)
async def test_only_a_definite_answer_takes_a_doubt_away(second: Outcome, settles: bool) -> None:
    """A repeat that was never let in says nothing about the first attempt."""
    rig = Rig()
    rig.answers = [TIMED_OUT, second]
    tool = keyed(HOLD)
    await rig.call(tool=tool)
    await rig.call(tool=tool)
    expected = StepState.FAILED if settles else StepState.IN_DOUBT
    assert rig.state().steps[1].state is expected


async def test_a_pivot_is_never_taken_twice() -> None:
    rig = Rig()
    payout = operation_of("payout", Tier.PIVOT)
    rig.answers = [ok(b"paid")]
    await rig.call(operation=payout)
    rig.deliver(1)
    assert body(await rig.call(operation=payout)) == b"paid"
    assert len(rig.sent) == 1


async def test_a_doubt_of_an_earlier_implicit_run_is_not_executed_again_in_a_later_one() -> None:
    """The agent's run moved on after its pivot; the doubt did not."""
    rig = Rig()
    payout = operation_of("payout", Tier.PIVOT)
    rig.answers = [TIMED_OUT]
    await rig.call(b"payout", operation=payout, run="")
    await rig.call(b"other", run="")
    assert rig.sent[0].trajectory != rig.sent[1].trajectory
    again = await rig.call(b"payout", operation=payout, run="")
    assert code(again) is Code.OUTCOME_UNKNOWN
    assert len(rig.sent) == 2


async def test_a_key_of_an_undone_step_is_refused() -> None:
    rig = Rig()
    await rig.call(key="k")
    from gateway.core.saga import Abort, FinishUnwinding, SkipCompensation

    run = rig.trajectories.get("r1")
    assert run is not None
    await rig.trajectories.decided(run, Abort(reason="x"))
    await rig.trajectories.decided(run, SkipCompensation(step=1, reason="r"))
    await rig.trajectories.decided(run, FinishUnwinding())
    assert code(await rig.call(key="k", run="r2")) is Code.TRAJECTORY_CLOSED
    assert len(rig.sent) == 1


async def test_reads_are_not_deduplicated() -> None:
    rig = Rig()
    read = operation_of("list", Tier.READ)
    await rig.call(operation=read)
    await rig.call(operation=read)
    assert len(rig.sent) == 2
    assert all(call.step is None for call in rig.sent)
