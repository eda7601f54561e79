"""Where secrets come from, in which order, and what is said when they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.errors import Position
from gateway.config.files import FileLog
from gateway.config.loader import Entry
from gateway.config.nodes import Map
from gateway.config.secrets import SecretProblem, SecretSource
from gateway.core.manifest import SecretSettings


def entry(folder: Path, **settings: str) -> Entry[SecretSettings]:
    return Entry(SecretSettings(**settings), Map(Position("m.yaml")), folder)


def test_the_entry_wins_over_the_variable_and_that_over_the_folder(tmp_path: Path) -> None:
    """The nearest declaration is what its author meant."""
    (tmp_path / "pay").write_text("from-folder\n")
    (tmp_path / "other").write_text("from-file\r\n")
    environ = {"SEAWALL_SECRET_PAY": "from-variable", "MINE": "from-mine"}
    source = SecretSource(tmp_path, environ, FileLog())
    assert source.read("pay", entry(tmp_path, file="other")).reveal() == "from-file"
    assert source.read("pay", entry(tmp_path, env="MINE")).reveal() == "from-mine"
    assert source.read("pay", None).reveal() == "from-variable"
    assert SecretSource(tmp_path, {}, FileLog()).read("pay", None).reveal() == "from-folder"


def test_one_line_break_is_dropped_and_no_more(tmp_path: Path) -> None:
    """`echo secret > file` adds one; a second is a mistake that would split a header."""
    (tmp_path / "a").write_text("x\n\n")
    with pytest.raises(SecretProblem, match="line break"):
        SecretSource(tmp_path, {}, FileLog()).read("a", None)


@pytest.mark.parametrize("value", ["", "\n", "a\0b", "a\rb", "x" * 10_000, "\udcff"])
def test_what_cannot_stand_in_a_header_is_refused_without_being_shown(value: str) -> None:
    """At load, not at the first call."""
    with pytest.raises(SecretProblem) as caught:
        SecretSource(None, {"SEAWALL_SECRET_A": value}, FileLog()).read("a", None)
    assert not value.strip() or value not in str(caught.value)


def test_a_missing_secret_says_how_to_provide_it(tmp_path: Path) -> None:
    """Each way names its own next step."""
    with pytest.raises(SecretProblem) as caught:
        SecretSource(None, {}, FileLog()).read("pay-1", None)
    assert "SEAWALL_SECRET_PAY_1" in caught.value.hint
    with pytest.raises(SecretProblem) as caught:
        SecretSource(tmp_path, {}, FileLog()).read("pay", None)
    assert str(tmp_path / "pay") in caught.value.hint
    with pytest.raises(SecretProblem, match="MINE is not set"):
        SecretSource(None, {}, FileLog()).read("pay", entry(tmp_path, env="MINE"))


def test_files_are_remembered_for_the_watch(tmp_path: Path) -> None:
    """A rotated secret is a reason to load again, and so is one that appears."""
    files = FileLog()
    with pytest.raises(SecretProblem):
        SecretSource(tmp_path, {}, files).read("pay", None)
    assert files.paths == {tmp_path / "pay"}
