"""Generated pages are fresh, and the check says so when they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway import docs
from gateway.core.codes import Code


def test_the_pages_in_the_repository_are_fresh() -> None:
    """A page that lies is worse than none."""
    assert docs.main(["--check"]) == 0


def test_a_stale_page_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the file and the remedy; writing repairs it."""
    monkeypatch.setattr(docs, "DOCS", tmp_path / "docs")
    assert docs.main(["--check"]) == 1
    assert "docs/errors.md is stale; run `make docs`" in capsys.readouterr().err
    assert docs.main([]) == 0
    assert docs.main(["--check"]) == 0
    assert docs.main(["--chek"]) == 2


def test_every_code_has_its_section() -> None:
    """Refusals link to it."""
    page = docs.errors_page()
    assert all(f"\n## {code.value}\n" in page for code in Code)
