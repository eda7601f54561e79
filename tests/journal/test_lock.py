"""One holder at a time."""

from __future__ import annotations

import pytest

from gateway.journal import JournalLocked, JournalUnavailable
from gateway.journal.lock import FolderLock


def test_a_second_holder_is_told_who_the_first_is(tmp_path):
    lock = FolderLock.take(tmp_path / "journal.lock")
    with pytest.raises(JournalLocked, match=r"in use by process \d+ on .*: stop that gateway"):
        FolderLock.take(tmp_path / "journal.lock")
    lock.release()
    lock.release()
    FolderLock.take(tmp_path / "journal.lock").release()


def test_a_lock_file_left_by_a_dead_process_is_no_obstacle(tmp_path):
    (tmp_path / "journal.lock").write_text("process 1 on here\n")
    FolderLock.take(tmp_path / "journal.lock").release()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(JournalUnavailable, match="cannot make the lock file"):
        FolderLock.take(tmp_path / "missing" / "journal.lock")
