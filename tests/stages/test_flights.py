"""Calls under way: none leaves after severing, and those that are cut say what became of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.call import Call
from gateway.core.codes import Code, Dispatched
from gateway.core.containment import Containment, QuarantineSet, apply
from gateway.core.fault import Broken
from gateway.core.manifest import Tier
from gateway.core.message import Reply, Request
from gateway.core.outcome import Failed, InDoubt, Rejected
from gateway.core.tool import ToolSpec
from gateway.egress import Timings
from gateway.stages.dispatch import Dispatch
from gateway.stages.flights import Flights
from gateway.telemetry import Telemetry
from tests.builders import StreamBody, call_of, operation_of, reply_of, tool_of
from tests.fakes import FakeClock


class Held:
    """An egress that answers when it is told to."""

    def __init__(self) -> None:
        self.sent = 0
        self.answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    async def send(self, tool: ToolSpec, request: Request, timings: Timings) -> Reply | Broken:
        self.sent += 1
        return await asyncio.shield(self.answer)

    async def close(self) -> None: ...


class Rig:
    def __init__(self) -> None:
        self.state, self.egress = Containment(), Held()
        self.flights = Flights(self.state)
        self.dispatch = Dispatch(self.egress, FakeClock(), Telemetry(), (), self.flights)

    def call(self, tier: Tier = Tier.COMPENSABLE, run: str = "bad") -> Call:
        operation = operation_of("hold", tier)
        return call_of(tool_of("pay", operation), operation, trajectory=run)

    def sever(self, run: str = "bad", **fields: Any) -> int:
        apply(self.state, QuarantineSet(quarantine="q1", trigger="rule", by="", reason="", run=run, **fields), 1)
        return self.flights.cut(lambda call: self.state.holds(call.trajectory, call.agent) is not None)


async def test_nothing_of_a_severed_run_leaves() -> None:
    rig = Rig()
    rig.sever()
    refused = await rig.dispatch(rig.call())
    assert isinstance(refused, Rejected)
    assert (refused.refusal.code, refused.refusal.dispatched) == (Code.QUARANTINED, Dispatched.NO)
    assert rig.egress.sent == 0
    rig.egress.answer.set_result(reply_of())
    await rig.dispatch(rig.call(run="good"))
    assert rig.egress.sent == 1


@pytest.mark.parametrize(("tier", "kind"), [(Tier.COMPENSABLE, InDoubt), (Tier.PIVOT, InDoubt), (Tier.READ, Failed)])
async def test_a_call_that_is_cut_may_have_had_its_effect_unless_it_reads(tier: Tier, kind: type) -> None:
    rig = Rig()
    flying = asyncio.ensure_future(rig.dispatch(rig.call(tier)))
    other = asyncio.ensure_future(rig.dispatch(rig.call(run="good")))
    await asyncio.sleep(0)
    assert rig.sever() == 1
    outcome = await flying
    assert isinstance(outcome, kind)
    assert outcome.refusal.code is Code.QUARANTINED  # type: ignore[union-attr]
    assert flying.cancelling() == 0
    assert not other.done()
    rig.egress.answer.set_result(reply_of())
    await other
    assert len(rig.flights) == 0


async def test_an_agent_that_leaves_at_the_same_time_is_not_answered() -> None:
    """Its own cancellation must not be swallowed with ours."""
    rig = Rig()
    flying = asyncio.ensure_future(rig.dispatch(rig.call()))
    await asyncio.sleep(0)
    rig.sever()
    flying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flying
    assert len(rig.flights) == 0


async def test_a_stream_is_cut_and_forgotten_with_its_body() -> None:
    class Body(StreamBody):
        was_cut = 0

        def cut(self) -> None:
            self.was_cut += 1

    rig, body = Rig(), Body()
    rig.egress.answer.set_result(reply_of(body=body))
    outcome = await rig.dispatch(rig.call(Tier.READ))
    assert rig.sever() == 1
    assert body.was_cut == 1
    del outcome, body
    rig.egress.answer = asyncio.get_running_loop().create_future()
    import gc

    gc.collect()
    assert rig.flights.cut(lambda call: True) == 0


async def test_an_agent_is_severed_with_all_its_runs() -> None:
    rig = Rig()
    rig.sever("", agent="agent")
    assert isinstance(await rig.dispatch(rig.call(run="any")), Rejected)
