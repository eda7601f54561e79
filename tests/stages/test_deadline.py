"""Nothing is begun for a call whose time is over."""

from __future__ import annotations

import pytest

from gateway.core.call import Call
from gateway.core.codes import Code
from gateway.core.outcome import Outcome, Rejected, Success
from gateway.stages.deadline import DeadlineStage
from gateway.telemetry import Telemetry
from tests.builders import call_of, reply_of
from tests.fakes import FakeClock


@pytest.mark.parametrize(("timeout_s", "proceeds"), [(1.0, True), (0.0, False), (-1.0, False)])
async def test_a_call_proceeds_only_while_it_has_time(timeout_s: float, proceeds: bool) -> None:
    """Regression: aws-powertools/powertools-lambda-python#4759, where zero was taken for "no limit"."""
    reached = []

    async def tool(call: Call) -> Outcome:
        reached.append(call)
        return Success(reply_of())

    clock = FakeClock()
    outcome = await DeadlineStage(clock, Telemetry())(call_of(now=clock.now(), timeout_s=timeout_s), tool)
    assert bool(reached) is proceeds
    if not proceeds:
        assert isinstance(outcome, Rejected)
        assert outcome.refusal.code is Code.DEADLINE
        assert "payments.hold" in outcome.refusal.detail
