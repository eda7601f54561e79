"""Records a golden journal: what this release writes, to be folded by every later one for ever.

    python -m tests.journal.record_golden 0.1.0        # writes tests/journal/golden/0.1.0

Run once for each release, before it is tagged; never again for the same version. The runs go through a whole gateway and a
scripted tool, so the records are what users' journals hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from gateway.core.records import decode
from gateway.core.trajectory import Trajectory, fold
from gateway.journal.sqlite import SqliteJournal
from tests.gateway.harness import serving
from tests.origin import Answer, Drop, Origin

__all__ = ["GOLDEN", "told"]

GOLDEN = Path(__file__).parent / "golden"


async def told(data: Path, **places: Any) -> dict[str, Any]:
    """Return what every run of a journal folds to."""
    journal = await SqliteJournal.open(data, **places)
    try:
        runs = {}
        for head in await journal.heads(limit=10_000):
            entries = await journal.read(head.stream)
            state = fold(head.stream, [(decode(entry.kind, entry.data), entry.at) for entry in entries])
            runs[head.stream] = {"open": head.is_open, "head": head.state, **_state(state)}
        return dict(sorted(runs.items()))
    finally:
        await journal.close()


def _state(state: Trajectory) -> dict[str, Any]:
    steps = [
        [
            step.number,
            step.tool,
            step.operation,
            step.tier.value,
            step.state.value,
            step.key,
            step.compensator is not None,
        ]
        for step in state.steps.values()
    ]
    return {
        "phase": state.phase.value,
        "version": state.version,
        "agent": state.agent,
        "implicit": state.is_implicit,
        "incident": state.incident,
        "pivot": state.pivot,
        "in_doubt": sorted(state.in_doubt),
        "reads": state.reads,
        "steps": steps,
    }


async def record(data_parent: Path) -> None:
    """Drive a gateway through every kind of end that a run can have."""
    async with Origin() as origin:
        origin.on("POST /holds", Answer(201, b'{"id": "h1"}', ((b"Content-Type", b"application/json"),)))
        origin.on("POST /payouts", Answer(201, b"{}"))
        async with serving(data_parent, origin.port) as serving_:
            agent, operator = serving_.agent, serving_.operator
            await agent.send("POST", "/pay/holds", {"n": 1}, run="committed", key="caller-1")
            await agent.send("GET", "/pay/holds/h1", run="committed")
            await agent.send("POST", "/pay/payouts", {"n": 1}, run="committed")
            await agent.send("POST", "/seawall/v1/trajectories/committed/commit", {})
            await agent.send("POST", "/pay/holds", {"n": 2}, run="aborted")
            await agent.send("DELETE", "/pay/holds/h1", run="aborted")
            await agent.send("POST", "/seawall/v1/trajectories/aborted/abort", {"reason": "changed my mind"})
            origin.on("POST /holds", Answer(409, b'{"error": "no"}'))
            await agent.send("POST", "/pay/holds", {"n": 3}, run="failed")
            origin.on("POST /holds", Drop(applies=True))
            await agent.send("POST", "/keyless/holds", {"n": 4}, run="in-doubt")
            origin.on("POST /holds", Answer(201, b'{"id": "h2"}', ((b"Content-Type", b"application/json"),)))
            origin.on("POST /holds/h2/cancel", Answer(422, b"{}"))
            await agent.send("POST", "/pay/holds", {"n": 5}, run="frozen")
            await agent.send("POST", "/seawall/v1/trajectories/frozen/abort", {"reason": "try"})
            await agent.send("POST", "/pay/holds", {"n": 6}, run="open")
            await agent.send("POST", "/plain/x", {"n": 7})
            await operator.send("GET", "/readyz")
            await _settled(operator, "frozen")


async def _settled(operator: Any, run: str) -> None:
    while (await operator.send("GET", f"/api/v1/trajectories/{run}")).json["state"] == "compensating":
        await asyncio.sleep(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version")
    folder = GOLDEN / parser.parse_args().version
    if folder.exists():
        raise SystemExit(f"{folder} exists: a golden journal is never recorded again")
    with tempfile.TemporaryDirectory() as base:
        asyncio.run(record(Path(base)))
        raw = sqlite3.connect(Path(base) / "data" / "journal.db")
        raw.execute("PRAGMA journal_mode = DELETE").fetchall()
        raw.execute("VACUUM")
        raw.close()
        folder.mkdir(parents=True)
        shutil.copy(Path(base) / "data" / "journal.db", folder / "journal.db")
        shutil.copy(Path(base) / "data.keys", folder / "ring.json")
        runs = asyncio.run(told(Path(base) / "data"))
    (folder / "folds.json").write_text(json.dumps(runs, indent=1) + "\n")
    print(f"{folder}: {len(runs)} runs, {sum(run['version'] for run in runs.values())} records")


if __name__ == "__main__":
    main()
