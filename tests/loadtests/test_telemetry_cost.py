"""Spans and metrics are cheap enough to stay on: counted in instructions, against a gateway that tells nothing."""

from __future__ import annotations

import pytest

from loadtests.telemetry_cost import LIMIT, SAMPLED, count


@pytest.mark.parametrize("workload", ["read", "write"])
async def test_spans_of_one_call_in_ten_and_metrics_cost_less_than_they_may(workload: str) -> None:
    nothing, sampled, all_of_them = [await count(workload, share) for share in (None, SAMPLED, 1.0)]
    assert sampled <= LIMIT * nothing, sampled / nothing
    assert all_of_them > sampled > nothing, "the sampling is real"
