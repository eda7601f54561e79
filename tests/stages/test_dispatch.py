"""The end of the pipeline: what comes back is judged by the table of `core/verdict.py`, quickly or not."""

from __future__ import annotations

import pytest

from gateway.core.manifest import Tier
from gateway.core.message import Reply, Request
from gateway.core.tool import Operation, ToolSpec
from gateway.core.verdict import classify
from gateway.egress import Timings
from gateway.stages.dispatch import Dispatch
from gateway.telemetry import Telemetry
from tests.builders import call_of, operation_of, reply_of, tool_of
from tests.fakes import FakeClock

READ, PUT = operation_of("read", Tier.READ), operation_of("put", Tier.REVERSIBLE)
TOOL = tool_of("a", READ, PUT)


class _Egress:
    def __init__(self, reply: Reply) -> None:
        self.reply = reply

    async def send(self, tool: ToolSpec, request: Request, timings: Timings) -> Reply:
        return self.reply

    async def close(self) -> None: ...


@pytest.mark.parametrize("operation", [READ, PUT])
async def test_every_status_is_what_the_table_says(operation: Operation) -> None:
    """Answers that are a success are told without the table."""
    clock = FakeClock()
    for status in range(100, 700):
        reply = reply_of(status)
        outcome = await Dispatch(_Egress(reply), clock, Telemetry())(call_of(TOOL, operation))
        assert outcome == classify(reply, TOOL, operation, clock.at())


@pytest.mark.parametrize("is_watched", [True, False])
async def test_attempts_are_counted_whether_or_not_anybody_watches(is_watched: bool) -> None:
    telemetry = Telemetry(keep_events=9 if is_watched else 0)
    for status in (200, 200, 404):
        await Dispatch(_Egress(reply_of(status)), FakeClock(), telemetry)(call_of(TOOL, READ))
    page = telemetry.render().decode()
    assert 'gateway_attempts_total{fault="none",tool="a"} 2.0' in page
    assert 'gateway_attempts_total{fault="client_error",tool="a"} 1.0' in page
    assert len(telemetry.timeline.recent()) == (6 if is_watched else 0)
