"""The key ring: made once, never lost silently, one active key."""

from __future__ import annotations

import json
import os

import pytest

from gateway.journal.keyring import KeyRing, KeyRingError, default_ring


def test_a_ring_is_made_for_its_owner_alone_and_read_back(tmp_path):
    ring = KeyRing.make(tmp_path / "keys", 7)
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o600
    assert KeyRing.load(tmp_path / "keys") == ring
    assert [key.made_at for key in ring.keys] == [7]
    assert os.listdir(tmp_path) == ["keys"]


def test_a_ring_that_is_there_is_not_made_again(tmp_path):
    """Two starts at once: the second must not seal with a key that nobody kept."""
    ring = KeyRing.make(tmp_path / "keys", 7)
    assert KeyRing.make(tmp_path / "keys", 8) == ring


def test_a_rotation_makes_one_fresh_active_key_and_keeps_the_old_for_verifying(tmp_path):
    old = KeyRing.make(tmp_path / "keys", 7)
    new = old.rotate(8)
    assert KeyRing.load(tmp_path / "keys") == new
    assert new.active.id != old.active.id
    assert new.find(old.active.id) == old.active
    assert [key.is_active for key in new.keys] == [False, True]


def test_secrets_do_not_show(tmp_path):
    ring = KeyRing.make(tmp_path / "keys", 7)
    secret = json.loads((tmp_path / "keys").read_text())["keys"][0]["secret"]
    assert secret not in repr(ring)
    assert repr(ring.keys[0].secret) not in repr(ring)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[]", "is no key ring"),
        ('{"keys": []}', "exactly one active"),
        ('{"keys": [{"id": "a", "secret": "c2hvcnQ=", "made_at": 1, "state": "active"}]}', "shorter than 32"),
        ('{"keys": [{"id": "a", "secret": "!", "made_at": 1, "state": "active"}]}', "is no key ring"),
    ],
)
def test_a_file_that_is_no_ring_is_refused(tmp_path, text, what):
    (tmp_path / "keys").write_text(text)
    with pytest.raises(KeyRingError, match=what):
        KeyRing.load(tmp_path / "keys")


def test_two_active_keys_or_two_of_one_id_are_refused(tmp_path):
    ring = KeyRing.make(tmp_path / "keys", 7)
    with pytest.raises(KeyRingError, match="the same id"):
        KeyRing.of(ring.path, (*ring.rotate(1).keys[:1], *ring.keys))


def test_a_missing_ring_says_what_to_do(tmp_path):
    with pytest.raises(KeyRingError, match="--journal-keys"):
        KeyRing.load(tmp_path / "none")


def test_a_ring_that_cannot_be_made_says_why(tmp_path):
    with pytest.raises(KeyRingError, match="cannot be made"):
        KeyRing.make(tmp_path / "none" / "keys", 1)


def test_the_ring_lies_beside_the_data_folder(tmp_path):
    """Whoever copies or restores the folder alone does not get the keys."""
    (tmp_path / "data").mkdir()
    assert default_ring(tmp_path / "data") == tmp_path / "data.keys"
    ring = KeyRing.make(tmp_path / "data.keys", 1)
    assert ring.is_apart(tmp_path / "data")


def test_the_ring_lies_in_a_folder_that_is_a_mount_of_its_own(tmp_path, monkeypatch):
    """A file beside a container's volume is gone with the container, and the journal could never be opened again."""
    mount = tmp_path / "data"
    mount.mkdir()
    real = type(mount).stat

    def stat(path, **options):
        found = real(path, **options)
        return os.stat_result((*found[:2], 99, *found[3:])) if path == mount else found

    monkeypatch.setattr(type(mount), "stat", stat)
    assert default_ring(mount) == mount / "journal.keys"
    assert not KeyRing.make(mount / "journal.keys", 1).is_apart(mount)
    monkeypatch.undo()
    assert default_ring(mount) == mount / "journal.keys"
