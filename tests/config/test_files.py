"""What was read is remembered by its bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.config.files import FileLog, stamp_of


def test_the_stamp_is_of_what_was_read(tmp_path: Path) -> None:
    """A change after reading is a difference, however small the moment was."""
    path = tmp_path / "a"
    path.write_text("1")
    log = FileLog()
    assert log.read(path) == b"1"
    assert log.list(tmp_path) == ["a"]
    assert stamp_of(log.paths) == log.stamp()
    path.write_text("2")
    assert stamp_of(log.paths) != log.stamp()


def test_missing_files_are_remembered_too(tmp_path: Path) -> None:
    """When one appears, that is a change."""
    log = FileLog()
    with pytest.raises(FileNotFoundError):
        log.read(tmp_path / "a")
    before = log.stamp()
    assert stamp_of(log.paths) == before
    (tmp_path / "a").write_text("")
    assert stamp_of(log.paths) != before


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000])
def test_a_name_that_cannot_be_a_path_is_an_os_error(tmp_path: Path, name: str) -> None:
    """It comes from a manifest, so it is a problem to report and not a crash."""
    with pytest.raises(OSError):
        FileLog().read(tmp_path / name)


def test_at_most_one_byte_more_than_allowed_is_read(tmp_path: Path) -> None:
    """Whoever points an include at a device or a dump does not fill the memory."""
    assert len(FileLog().read(Path("/dev/zero"))) == (4 << 20) + 1


def test_a_large_file_is_read_whole_where_that_is_allowed_and_its_change_is_seen(tmp_path: Path) -> None:
    """Its end is not read again and again: its size and its time tell."""
    path = tmp_path / "a"
    path.write_bytes(b"x" * (5 << 20))
    log = FileLog()
    assert len(log.read(path, 8 << 20)) == 5 << 20
    assert stamp_of(log.paths) == log.stamp()
    os.utime(path, ns=(1, 1))
    assert stamp_of(log.paths) != log.stamp()
