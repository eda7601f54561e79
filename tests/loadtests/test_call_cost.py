"""The comparison of calls with and without a journal really runs both."""

from __future__ import annotations

from pathlib import Path

from loadtests.call_cost import BACKENDS, compare


async def test_each_backend_has_its_row(tmp_path: Path) -> None:
    rows = await compare(tmp_path, 0.1, 1, (2,))
    assert [(row["callers"], row["journal"]) for row in rows] == [(2, backend) for backend in BACKENDS]
    assert all(float(str(row["p50_ms"])) >= 20 for row in rows)
