"""What is contained holds at once, is written as soon as it can be, and is there again after a restart."""

from __future__ import annotations

import pytest

from gateway.core.containment import STREAM, ArtifactsTouched, QuarantineSet
from gateway.journal import JournalCorrupt
from gateway.journal.containment import ContainmentLog
from gateway.telemetry import Telemetry
from tests.fakes import FakeClock
from tests.journal.faulty import FaultyJournal


def tombstone(run: str) -> QuarantineSet:
    return QuarantineSet(quarantine=f"q-{run}", trigger="operator", by="ann", reason="", run=run)


def touched(run: str, *names: str, epoch: int = 1) -> ArtifactsTouched:
    return ArtifactsTouched(run=run, agent="a", step=1, operation="f.put", writes=list(names), epoch=epoch)


async def opened(journal: FaultyJournal, clock: FakeClock) -> ContainmentLog:
    log = ContainmentLog(journal, clock, Telemetry())
    await log.load()
    return log


async def test_what_was_recorded_is_there_after_a_restart() -> None:
    journal, clock = FaultyJournal(), FakeClock()
    log = await opened(journal, clock)
    await log.record([touched("r1", "a"), tombstone("r1")])
    again = await opened(journal, clock)
    assert again.state.holds("r1", "") == "q-r1"
    assert again.state.lineage.artifacts["a"].taint.value == "tainted"
    assert (log.epoch, again.epoch) == (1, 2)


@pytest.mark.parametrize("takes_effect", [True, False])
async def test_a_quarantine_holds_while_the_disk_is_full_and_is_written_once_it_is_not(takes_effect: bool) -> None:
    """A failed append may have been written all the same: nothing is written twice, nothing is left out."""
    journal, clock = FaultyJournal(), FakeClock()
    log = await opened(journal, clock)
    await log.record([tombstone("r0")])
    journal.break_down(takes_effect=takes_effect)
    first, second = log.record([tombstone("r1")]), log.record([tombstone("r2")])
    assert log.state.holds("r1", "") == "q-r1"
    await clock.advance(0.5)
    third = log.record([tombstone("r3")])
    await clock.advance(3.0)
    assert takes_effect or not any(done.done() for done in (first, second, third))
    journal.mend()
    await clock.advance(3.0)
    assert all(done.done() for done in (first, second, third))
    await log.record([tombstone("r4")])
    written = [entry.data for entry in await journal.read(STREAM)]
    assert len(written) == 5
    again = await opened(journal, clock)
    assert sorted(again.state.runs) == ["r0", "r1", "r2", "r3", "r4"]
    await log.close()


async def test_a_record_that_cannot_be_read_keeps_the_gateway_from_starting() -> None:
    from gateway.journal import Append, Entry

    journal = FaultyJournal()
    entry = Entry("Unheard", 1, b"{}")
    await journal.append(Append(stream=STREAM, expected=0, entries=[entry], state="", is_open=True, agent=""))
    with pytest.raises(JournalCorrupt, match=r"record 1 of ~containment"):
        await opened(journal, FakeClock())
