"""How long a gateway needs from opening its journal to knowing every open run: against history, and against open runs.

Finished runs must not matter (the open ones are found through an index, the seal is checked at the end only), open ones cost
in proportion. The journals are made of the records of real calls, on the disk that holds `--dir`. `loadtests.start` measures
the whole process.

    python -m loadtests.recovery --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.clock import SystemClock
from gateway.core.records import (
    Record,
    RecordedReply,
    RecordedRequest,
    StepCommitted,
    StepDeferred,
    StepIntended,
    TrajectoryCommitted,
    TrajectoryFrozen,
    TrajectoryOpened,
    UnwindingStarted,
    encode,
)
from gateway.core.tool import BoundRequest
from gateway.journal import Append, Entry
from gateway.journal.sqlite import SqliteJournal
from gateway.journal.trajectories import Trajectories
from gateway.telemetry import Telemetry

__all__ = ["FINISHING", "FROZEN", "IN_FLIGHT", "UNDOING", "WAITING", "Shape", "fill", "measure", "recover", "show"]

STEPS = 3
_TOGETHER = 400
SIZES = ((0, 1_000), (10_000, 1_000), (100_000, 1_000), (10_000, 0), (10_000, 100), (10_000, 4_000))


@dataclass(frozen=True, slots=True)
class Shape:
    """Runs that stand alike: the state that the journal's index knows them by, and their records."""

    state: str
    records: list[Record]
    is_open: bool = True


def _intent(step: int, operation: str = "hold", tier: str = "compensable") -> StepIntended:
    return StepIntended(
        step=step,
        tool="pay",
        operation=operation,
        tier=tier,
        action=f"{step:032x}",
        fingerprint=f"{step:032x}",
        occurrence=1,
        key=f"{step:032x}",
        method="POST",
        target=f"/v1/{operation}s",
        is_idempotent=True,
        request=RecordedRequest(headers=[["Content-Type", "application/json"]], text='{"amount": 10}'),
    )


def _done(step: int) -> StepCommitted:
    reply = RecordedReply(status=201, headers=[["Content-Type", "application/json"]], text='{"id": "h1"}' * 20)
    undo = BoundRequest(tool="pay", method="POST", target="/v1/holds/h1/cancel")
    return StepCommitted(step=step, reply=reply, compensator=undo)


def _steps(count: int) -> list[Record]:
    return [record for step in range(1, count + 1) for record in (_intent(step), _done(step))]


_BEGUN = TrajectoryOpened(agent="agent")
_PIVOT: list[Record] = [_intent(STEPS + 1, "payout", "pivot"), _done(STEPS + 1)]
FINISHED = Shape("succeeded", [_BEGUN, *_steps(STEPS), TrajectoryCommitted()], is_open=False)
IN_FLIGHT = Shape("preparing", [_BEGUN, *_steps(STEPS - 1), _intent(STEPS)])
WAITING = Shape("preparing", [_BEGUN, *_steps(STEPS)])
UNDOING = Shape("compensating", [_BEGUN, *_steps(STEPS), UnwindingStarted(reason="enough")])
FINISHING = Shape(
    "finalizing",
    [
        _BEGUN,
        *_steps(STEPS),
        *_PIVOT,
        _intent(STEPS + 2),
        StepDeferred(step=STEPS + 2, fault="connect", detail="refused"),
    ],
)
FROZEN = Shape("frozen", [_BEGUN, *_steps(STEPS), TrajectoryFrozen(incident="OUTCOME_UNKNOWN", detail="nobody knows")])


async def fill(folder: Path, finished: int, unfinished: int, shapes: Sequence[Shape] = (IN_FLIGHT,)) -> int:
    """Write a journal with so many finished and open runs, the open ones of each shape in turn; return its records."""
    journal = await SqliteJournal.open(folder)
    count = 0
    runs = [FINISHED] * finished + [shapes[number % len(shapes)] for number in range(unfinished)]
    entries = {id(shape): entries_of(shape) for shape in (FINISHED, *shapes)}
    for start in range(0, len(runs), _TOGETHER):
        futures = []
        for number, shape in enumerate(runs[start : start + _TOGETHER], start):
            futures.append(
                journal.append(
                    Append(
                        stream=f"{shape.state}-{number:08d}",
                        expected=0,
                        entries=entries[id(shape)],
                        state=shape.state,
                        is_open=shape.is_open,
                        agent="agent",
                    )
                )
            )
            count += len(entries[id(shape)])
        await asyncio.gather(*futures)
    await journal.close()
    return count


def entries_of(shape: Shape, at: int = 1_700_000_000_000) -> list[Entry]:
    return [Entry(kind, at, data) for kind, data in map(encode, shape.records)]


async def recover(folder: Path) -> tuple[float, float, int]:
    """Open the journal as a gateway does; return the seconds to open and to fold the open runs, and how many they are."""
    started = time.perf_counter()
    journal = await SqliteJournal.open(folder)
    opened = time.perf_counter()
    clock = SystemClock()
    runs = await Trajectories(journal, clock, Telemetry(clock), salt=b"s" * 32).recover()
    done = time.perf_counter()
    await journal.close()
    return opened - started, done - opened, len(runs)


async def measure(base: Path, finished: int, unfinished: int, rounds: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory(dir=base) as folder:
        data = Path(folder) / "data"
        records = await fill(data, finished, unfinished)
        opening, folding = [], []
        for _ in range(rounds):
            open_s, fold_s, found = await recover(data)
            assert found == unfinished
            opening.append(open_s)
            folding.append(fold_s)
        size = (data / "journal.db").stat().st_size
    # The first recovery also writes down that what was in flight is in doubt; later ones find that done.
    return {
        "finished_runs": finished,
        "open_runs": unfinished,
        "records": records,
        "file_mib": round(size / (1 << 20), 1),
        "open_ms": round(sorted(opening)[rounds // 2] * 1e3, 1),
        "first_recovery_ms": round(folding[0] * 1e3, 1),
        "recovery_ms": round(sorted(folding)[rounds // 2] * 1e3, 1),
    }


def show(rows: list[dict[str, object]]) -> None:
    names = list(rows[0])
    print("  ".join(f"{name:>17}" for name in names))
    for row in rows:
        print("  ".join(f"{row[name]!s:>17}" for name in names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=Path(), help="a folder on the disk to measure")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [asyncio.run(measure(options.dir, *sizes, options.rounds)) for sizes in SIZES]
    print(json.dumps(rows, indent=2)) if options.json else show(rows)


if __name__ == "__main__":
    main()
