"""Legality before, outcome after: what the agent sees is on disk first."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.call import Call
from gateway.core.codes import Code, Dispatched
from gateway.core.expression import Environment, ExpressionError
from gateway.core.fault import Fault
from gateway.core.manifest import JournalMode, Tier
from gateway.core.message import BytesBody, Reply
from gateway.core.outcome import Failed, Outcome, Rejected, Success
from gateway.core.records import StepCommitted, decode
from gateway.core.tool import BoundRequest, Compensator, RequestTemplate
from gateway.core.trajectory import StepState
from tests.builders import operation_of
from tests.stages.saga_rig import Rig, ok


def bind(env: Environment) -> BoundRequest:
    response = env["response"]
    assert isinstance(response, dict)
    answer = response["json"]
    if not isinstance(answer, dict) or "id" not in answer:
        raise ExpressionError("response.json.id is missing")
    return BoundRequest("pay", "POST", f"/holds/{answer['id']}/cancel")


UNDO = Compensator(RequestTemplate("POST /holds/${response.json.id}/cancel", bind))
HOLD = operation_of("hold", Tier.COMPENSABLE, compensator=UNDO)


class Holds:
    """A postcondition that is a plain function."""

    source = "response.json.status != 'failed'"

    def __call__(self, env: Environment) -> object:
        response = env["response"]
        assert isinstance(response, dict)
        return response["json"].get("status") != "failed"


async def test_the_compensator_is_durable_before_the_answer_is_released() -> None:
    """Invariant 3."""
    rig = Rig()
    rig.answers = [ok(b'{"id": "pi_1"}')]
    outcome = await rig.call(operation=HOLD)
    assert isinstance(outcome, Success)
    entry = (await rig.journal.read("r1"))[-1]
    record = decode(entry.kind, entry.data)
    assert isinstance(record, StepCommitted)
    assert record.compensator == BoundRequest("pay", "POST", "/holds/pi_1/cancel")


async def test_the_answer_waits_for_the_disk() -> None:
    rig = Rig()
    hold = asyncio.Event()
    hold.set()
    rig.journal.hold, answered = hold, asyncio.Event()

    async def answer(call: Call) -> Outcome:
        hold.clear()
        answered.set()
        return ok()

    rig.answers = [answer]
    call = rig.start()
    await answered.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not call.done()
    hold.set()
    assert isinstance(await call, Success)


async def test_a_compensator_that_cannot_be_bound_is_reported_with_the_answer() -> None:
    rig = Rig()
    rig.answers = [ok(b'{"other": 1}')]
    outcome = await rig.call(operation=HOLD)
    assert isinstance(outcome, Success)
    assert (b"Seawall-Warning", b"cannot be undone: response.json.id is missing") in outcome.reply.headers
    assert rig.state().unbound == {1}
    pivot = await rig.call(b"p", operation=operation_of("payout", Tier.PIVOT))
    assert isinstance(pivot, Rejected)
    assert pivot.refusal.code is Code.PIVOT_GATE


async def test_a_bad_postcondition_is_a_refusal_and_the_step_is_undone_on_abort() -> None:
    rig = Rig()
    operation = operation_of("hold", Tier.COMPENSABLE, compensator=UNDO, postcondition=Holds())
    rig.answers = [ok(b'{"id": "x", "status": "failed"}')]
    outcome = await rig.call(operation=operation)
    assert isinstance(outcome, Rejected)
    assert outcome.refusal.code is Code.POSTCONDITION
    assert rig.state().steps[1].state is StepState.COMMITTED
    assert rig.state().steps[1].compensator is not None


async def test_an_answer_that_could_not_be_recorded_is_not_shown_and_not_lost() -> None:
    """Invariants 1 to 3 with a disk that fills up between intent and outcome."""
    rig = Rig()

    async def answer_then_full(call: Call) -> Outcome:
        rig.journal.break_down()
        return ok(b'{"id": "pi_1"}')

    rig.answers = [answer_then_full]
    outcome = await rig.call(operation=HOLD)
    assert isinstance(outcome, Rejected)
    assert outcome.refusal.code is Code.OUTCOME_UNKNOWN
    assert outcome.refusal.dispatched is Dispatched.YES
    rig.journal.mend()
    await rig.trajectories.write_aside()
    again = await rig.call(operation=HOLD)
    assert isinstance(again, Success)
    assert isinstance(again.reply.body, BytesBody)
    assert again.reply.body.data == b'{"id": "pi_1"}'
    assert rig.state().steps[1].compensator is not None
    assert len(rig.sent) == 1


async def test_an_illegal_step_never_reaches_the_journal() -> None:
    rig = Rig()
    await rig.call(b"p", operation=operation_of("payout", Tier.PIVOT))
    appends = len(rig.journal.appends)
    outcome = await rig.call(b"q", operation=operation_of("payout", Tier.PIVOT))
    assert isinstance(outcome, Rejected)
    assert outcome.refusal.code is Code.PIVOT_ORDER
    assert len(rig.journal.appends) == appends
    assert len(rig.sent) == 1


async def test_a_bug_after_the_intent_leaves_the_step_in_doubt() -> None:
    rig = Rig()
    rig.answers = [RuntimeError("bug")]
    with pytest.raises(RuntimeError):
        await rig.call()
    assert rig.state().steps[1].state is StepState.IN_DOUBT


async def test_a_cancelled_call_leaves_the_step_in_doubt_and_not_in_flight() -> None:
    rig = Rig()
    call = rig.start()
    hung = asyncio.Event()

    async def hang(call: Call) -> Outcome:
        await hung.wait()
        return ok()

    rig.answers = [hang]
    while not rig.sent:
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert rig.state().steps[1].state is StepState.IN_DOUBT
    assert not rig.state().in_flight


async def test_the_tools_own_no_passes_unchanged_and_the_step_failed() -> None:
    rig = Rig()
    rig.answers = [Failed(Fault.CLIENT_ERROR, reply=Reply(409, b"Conflict", (), BytesBody(b"taken")))]
    outcome = await rig.call()
    assert isinstance(outcome, Failed)
    assert outcome.reply is not None
    assert outcome.reply.status == 409
    assert rig.state().steps[1].state is StepState.FAILED


async def test_a_large_answer_lies_beside_the_log_and_is_delivered_from_there() -> None:
    rig = Rig()
    large = b"x" * 100_000
    rig.answers = [ok(large)]
    await rig.call()
    again = await rig.call()
    assert isinstance(again, Success)
    assert b"".join([chunk async for chunk in again.reply.body.chunks()]) == large
    assert max(len(entry.data) for entry in await rig.journal.read("r1")) < 10_000


async def test_a_lazy_step_does_not_wait_for_the_disk() -> None:
    rig = Rig()
    rig.journal.hold = asyncio.Event()
    outcome = await rig.call(operation=operation_of("note", Tier.REVERSIBLE, journal=JournalMode.LAZY))
    assert isinstance(outcome, Success)
    rig.journal.hold.set()


async def test_reads_are_journaled_lazily() -> None:
    rig = Rig()
    await rig.call(operation=operation_of("list", Tier.READ))
    await rig.journal.flush()
    kinds = [entry.kind for entry in await rig.journal.read("r1")]
    assert kinds == ["TrajectoryOpened", "ReadObserved"]


async def test_answers_in_a_coding_are_read_by_expressions() -> None:
    import gzip

    rig = Rig()
    headers = ((b"Content-Type", b"application/json"), (b"Content-Encoding", b"gzip"))
    rig.answers = [Success(Reply(200, b"", headers, BytesBody(gzip.compress(b'{"id": "z"}'))))]
    await rig.call(operation=HOLD)
    assert rig.state().steps[1].compensator.target == "/holds/z/cancel"
