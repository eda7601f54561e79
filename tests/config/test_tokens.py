"""The file of tokens: changed in one step, readable by its owner alone, followed while the gateway runs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gateway.config.tokens import TokenFile, TokenFileError
from gateway.core.tokens import Scope


def test_no_file_means_no_tokens(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    assert file.read().entries == ()
    assert not file.has_changed()


def test_what_is_issued_elsewhere_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tokens.json"
    file = TokenFile(path)
    file.read()
    text, entry = TokenFile(path).issue(Scope.AGENT, "a", 1_000)
    assert file.has_changed()
    assert file.read().holder(text, 2_000) == entry
    assert not file.has_changed()
    assert TokenFile(path).revoke("a", 3_000)[0].id == entry.id
    assert file.has_changed()
    assert file.read().holder(text, 4_000) is None


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    TokenFile(tmp_path / "tokens.json").issue(Scope.AGENT, "a", 1)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    threads = [
        threading.Thread(target=TokenFile(path).issue, args=(Scope.AGENT, f"a{number}", 1)) for number in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {entry.name for entry in TokenFile(path).read().entries} == {f"a{number}" for number in range(12)}
    assert sorted(one.name for one in tmp_path.iterdir()) == ["tokens.json", "tokens.json.lock"]


def test_a_broken_file_is_reported_and_the_tokens_in_force_stay(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    file = TokenFile(path)
    text, entry = file.issue(Scope.AGENT, "a", 1)
    path.write_text("{")
    with pytest.raises(TokenFileError, match=r"tokens\.json is no file of tokens: it is not JSON"):
        file.read()
    assert file.tokens.holder(text, 2) == entry
    assert not file.has_changed(), "the same broken file is reported once"
    with pytest.raises(TokenFileError):
        TokenFile(path).issue(Scope.AGENT, "b", 1)
    assert path.read_text() == "{", "a broken file is not written over"


def test_a_file_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(TokenFileError, match="cannot be written"):
        TokenFile(blocked / "tokens.json").issue(Scope.AGENT, "a", 1)
