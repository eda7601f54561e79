"""Taking up what the process before left: bounded by what is open, the same twice, nothing dropped."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from gateway.core.codes import Code
from gateway.core.fault import Fault
from gateway.core.manifest import Tier
from gateway.core.outcome import InDoubt, Refusal
from gateway.core.records import (
    RecordedReply,
    StepCommitted,
    StepIntended,
    TrajectoryCommitted,
    TrajectoryOpened,
    encode,
)
from gateway.core.restart import Standing
from gateway.core.tool import Catalog
from gateway.journal import Append, Entry
from gateway.journal.sqlite import SqliteJournal
from gateway.journal.trajectories import Trajectories
from gateway.telemetry import Telemetry
from gateway.workers.restart import recover
from tests.builders import catalog_of, operation_of
from tests.fakes import FakeClock
from tests.stages.saga_rig import Rig, keyed

DOUBT = InDoubt(Fault.TIMEOUT, Refusal(code=Code.OUTCOME_UNKNOWN, detail="Sent, effect unknown."))
HOLD = operation_of("hold", Tier.COMPENSABLE)
PAY = keyed(HOLD)


async def test_running_it_twice_changes_nothing() -> None:
    """camunda/camunda#415: a command was carried out again when its log was processed again."""
    rig = Rig()
    await rig.call(tool=PAY, operation=HOLD)
    rig.answers.append(DOUBT)
    await rig.call(b'{"n": 2}', tool=PAY, operation=HOLD, run="r2")
    for _ in range(3):
        rig.restart()
        found = await recover(rig.trajectories, catalog_of(PAY))
        assert found == {Standing.WAITING: 1, Standing.SETTLING: 1}
        await recover(rig.trajectories, catalog_of(PAY))
    head = await rig.journal.head("r2")
    assert head is not None
    assert head.version == 3, "opened, intended, in doubt"


async def test_runs_whose_tool_left_the_manifest_are_frozen_once() -> None:
    """riverqueue/river#1105: a worker that lacked a job's kind discarded it."""
    rig = Rig()
    rig.answers.append(DOUBT)
    await rig.call(tool=PAY, operation=HOLD)
    rig.restart()
    assert await recover(rig.trajectories, Catalog({}, {})) == {Standing.FROZEN: 1}
    assert rig.state().incident == "MANIFEST_DRIFT"
    assert "pay.hold" in rig.state().reason
    version = rig.state().version
    rig.restart()
    assert await recover(rig.trajectories, Catalog({}, {})) == {Standing.FROZEN: 1}
    assert rig.state().version == version


async def test_more_runs_than_the_journal_queues_are_frozen_together(tmp_path: Path) -> None:
    """A tool that left the manifest may freeze every open run: neither one wait for the disk each, nor all in one go."""
    step = StepIntended(
        step=1, tool="gone", operation="hold", tier="compensable", action="a", fingerprint="f", occurrence=1, key="k",
        method="POST", target="/holds",
    )  # fmt: skip
    journal = await SqliteJournal.open(tmp_path)
    count = 4_200
    for start in range(0, count, 100):
        appends = [
            Append(
                stream=f"r{n}",
                expected=0,
                entries=entries(TrajectoryOpened(agent="a"), step),
                state="preparing",
                is_open=True,
                agent="a",
            )
            for n in range(start, start + 100)
        ]
        await asyncio.gather(*map(journal.append, appends))
    commits = (await journal.stats()).commits
    trajectories = Trajectories(journal, clock := FakeClock(), Telemetry(clock), salt=b"s")
    assert await recover(trajectories, catalog_of(PAY)) == {Standing.FROZEN: count}
    heads = await journal.heads(limit=10_000, state="frozen")
    assert len(heads) == count
    assert (await journal.stats()).commits - commits < count / 4
    await journal.close()


def entries(*records: object) -> list[Entry]:
    return [Entry(kind, 1, data) for kind, data in map(encode, records)]  # type: ignore[arg-type]


async def test_finished_runs_cost_a_restart_nothing(tmp_path: Path) -> None:
    """`python -m loadtests.start` measures the real sizes: 100,000 finished and 1,000 open runs."""
    opened = TrajectoryOpened(agent="a")
    step = StepIntended(
        step=1, tool="pay", operation="hold", tier="compensable", action="a", fingerprint="f", occurrence=1, key="k",
        method="POST", target="/holds",
    )  # fmt: skip
    done = StepCommitted(step=1, reply=RecordedReply(status=200))
    journal = await SqliteJournal.open(tmp_path)
    for number in range(3000):
        journal.append(Append(
            stream=f"f{number}", expected=0, entries=entries(opened, step, done, TrajectoryCommitted()),
            state="succeeded", is_open=False, agent="a"))  # fmt: skip
    for number in range(100):
        journal.append(Append(
            stream=f"o{number}", expected=0, entries=entries(opened, step, done), state="preparing", is_open=True,
            agent="a"))  # fmt: skip
    await journal.flush()
    runs = Trajectories(journal, FakeClock(), Telemetry(), salt=b"s" * 32)
    began = time.monotonic()
    assert await recover(runs, catalog_of(PAY)) == {Standing.WAITING: 100}
    assert time.monotonic() - began < 5.0
    assert len(runs) == 100, "finished runs are not even looked at"
    await journal.close()
