"""Where things lie."""

from __future__ import annotations

from gateway.journal.place import Place


def test_a_folder_or_a_file_may_be_named(tmp_path):
    assert Place.of(tmp_path / "data").file == tmp_path / "data" / "journal.db"
    assert Place.of(str(tmp_path / "x.db")).folder == tmp_path
    (tmp_path / "folder.db").mkdir()
    assert Place.of(tmp_path / "folder.db").file == tmp_path / "folder.db" / "journal.db"


def test_the_lock_is_one_for_the_folder(tmp_path):
    """Two journals side by side would share the folder of bodies, and its clean-up."""
    assert Place.of(tmp_path / "a.db").lock == Place.of(tmp_path / "b.db").lock


def test_figures_of_what_is_not_there_are_zero(tmp_path):
    figures = Place.of(tmp_path / "none").figures()
    assert (figures["file_bytes"], figures["wal_bytes"]) == (0, 0)
