"""`seawall key`: rings are listed and rotated, and no secret is ever printed."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.journal.keyring import KeyRing


@pytest.fixture
def ring(tmp_path):
    (tmp_path / "data").mkdir()
    return KeyRing.make(tmp_path / "data.keys", 0)


def run(tmp_path, *arguments):
    return CliRunner().invoke(main, ["key", *arguments, "--data", str(tmp_path / "data")])


def test_keys_are_listed_without_their_secrets(tmp_path, ring):
    run(tmp_path, "rotate")
    result = run(tmp_path, "ls")
    assert result.exit_code == 0
    rows = [line.split("\t") for line in result.output.splitlines()]
    assert [(row[0] == ring.active.id, row[1]) for row in rows] == [(True, "verify only"), (False, "active")]
    for key in json.loads(ring.path.read_text())["keys"]:
        assert key["secret"] not in result.output


def test_a_rotation_says_what_is_active(tmp_path, ring):
    result = run(tmp_path, "rotate")
    assert f"{KeyRing.load(ring.path).active.id} is active, 1 kept" in result.output


def test_no_ring_is_one_line(tmp_path):
    (tmp_path / "data").mkdir()
    result = run(tmp_path, "ls")
    assert (result.exit_code, "there is no key ring" in result.output) == (1, True)


def test_a_ring_is_made_where_there_is_none_and_never_over_another(tmp_path):
    (tmp_path / "data").mkdir()
    assert run(tmp_path, "make").exit_code == 0
    before = (tmp_path / "data.keys").read_text()
    result = run(tmp_path, "make")
    assert (result.exit_code, "is there already" in result.output) == (1, True)
    assert (tmp_path / "data.keys").read_text() == before
    elsewhere = tmp_path / "secret"
    assert run(tmp_path, "make", "--keys", str(elsewhere)).exit_code == 0
    assert len(KeyRing.load(elsewhere).keys) == 1
