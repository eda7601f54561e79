"""Journals recorded by earlier releases fold to the same states for ever, verify, and can be gone on with.

Temporal replays recorded histories at every build (service/worker/workerdeployment/replaytester); so do we.
"""

from __future__ import annotations

import json
import shutil

import pytest

from gateway.core.records import Record
from gateway.journal.offline import verify_folder
from gateway.journal.sqlite import SqliteJournal
from gateway.journal.trajectories import Trajectories
from gateway.journal.verification import Verdict
from gateway.telemetry import Telemetry
from tests.fakes import FakeClock
from tests.journal.record_golden import GOLDEN, record, told

RELEASES = sorted(folder.name for folder in GOLDEN.iterdir() if folder.is_dir())


@pytest.fixture
def data(request, tmp_path):
    source = GOLDEN / request.param
    (tmp_path / "data").mkdir()
    shutil.copy(source / "journal.db", tmp_path / "data")
    shutil.copy(source / "ring.json", tmp_path / "data.keys")
    return tmp_path / "data", json.loads((source / "folds.json").read_text())


@pytest.mark.parametrize("data", RELEASES, indirect=True)
async def test_a_recorded_journal_folds_to_the_same_states(data):
    """A later field has a default and a later kind is new; what an old record means never changes."""
    folder, expected = data
    found = await told(folder)
    assert json.loads(json.dumps(found)) == expected
    verified = verify_folder(folder)
    assert verified.verdict is Verdict.OK
    assert verified.rows - verified.own == sum(run["version"] for run in expected.values())


@pytest.mark.parametrize("data", RELEASES, indirect=True)
async def test_a_recorded_journal_is_recovered_and_gone_on_with(data):
    """The open runs of an upgrade: found, in the phase they had, and able to take records."""
    folder, expected = data
    journal = await SqliteJournal.open(folder)
    clock = FakeClock()
    runs = Trajectories(journal, clock, Telemetry(clock), salt=b"s" * 32)
    found = {run.state.id: run.state.phase.value for run in await runs.recover()}
    assert found == {name: run["phase"] for name, run in expected.items() if run["open"]}
    await journal.close()
    assert verify_folder(folder).verdict is Verdict.OK


async def test_the_recorder_still_works(tmp_path):
    """The next release is recorded with it; it must not have rotted by then."""
    await record(tmp_path)
    runs = await told(tmp_path / "data")
    assert {run["phase"] for run in runs.values()} >= {"preparing", "succeeded", "aborted_clean", "frozen"}
    assert len(Record.__args__) >= 15
