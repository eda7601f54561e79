"""Memory of calls in flight is read while they are in flight, and every one of them is answered."""

from pathlib import Path

import pytest

from loadtests.inflight import measure, table
from loadtests.systems import SYSTEMS


@pytest.mark.parametrize(("system", "workload"), [("bare-asyncio", "read"), ("seawall", "write")])
async def test_all_calls_are_in_flight_at_once(tmp_path: Path, system: str, workload: str) -> None:
    found = await measure(SYSTEMS[system], workload, 300, tmp_path, warm_up=100)
    assert found.before > 2**20
    assert 0 < found.kib_per_call < 200
    assert f"| {system} | {workload}s | 300 |" in table([found])
