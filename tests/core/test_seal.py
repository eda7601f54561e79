"""Seals: every bit of an envelope, of its payload and of its place counts."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.seal import BadCheckpoint, Checkpoint, Envelope, SealKey, chain_digest, payload_digest

KEY = SealKey.of("k-1", b"s" * 32)
OTHER = SealKey.of("k-2", b"t" * 32)
SALT = bytes(16)


def envelope(**changes):
    fields = {
        "event_id": "run#1",
        "effect_id": "run/1",
        "log_id": "boot/7",
        "producer_id": "agent",
        "schema_version": 1,
        "session_epoch": 3,
        "destination": "pay.hold",
        "route_status": "preparing/open",
        "issued_at": 1_000,
        "payload_digest": "00",
    }
    return Envelope(**{**fields, **changes})


def test_an_envelope_has_the_ten_fields():
    assert [field.name for field in dataclasses.fields(Envelope)] == [
        "event_id", "effect_id", "log_id", "producer_id", "schema_version", "session_epoch", "destination", "route_status",
        "issued_at", "payload_digest",
    ]  # fmt: skip


def test_the_canonical_form_never_changes():
    """Seals of journals in the field were made over these very bytes."""
    assert envelope(event_id='a"#1').canonical() == (
        b'{"destination":"pay.hold","effect_id":"run/1","event_id":"a\\"#1","issued_at":1000,"log_id":"boot/7",'
        b'"payload_digest":"00","producer_id":"agent","route_status":"preparing/open","schema_version":1,"session_epoch":3}'
    )


def test_a_seal_is_what_it_always_was():
    digest = payload_digest(KEY, SALT, "StepIntended", b"{}").hex()
    assert digest == "4b301e93ab95fe83b9496ff881faff7a36c7ec41a41e047796d1230d628523ac"
    assert (
        chain_digest(KEY, bytes(32), envelope().canonical()).hex()
        == "aed7504a13311f83443fbc73b2debfd8ec7b30bc56a6db371d1c7f8175b38c87"
    )


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Envelope)])
def test_every_field_is_sealed(field):
    before = envelope()
    value = getattr(before, field)
    after = dataclasses.replace(before, **{field: value + 1 if isinstance(value, int) else value + "x"})
    assert chain_digest(KEY, bytes(32), before.canonical()) != chain_digest(KEY, bytes(32), after.canonical())


def test_a_seal_depends_on_key_and_place():
    body = envelope().canonical()
    assert len({chain_digest(key, before, body) for key in (KEY, OTHER) for before in (bytes(32), b"x" * 32)}) == 4


@given(st.tuples(st.text(), st.binary()), st.tuples(st.text(), st.binary()))
def test_a_payload_digest_is_of_kind_and_data(one, two):
    if "\0" in one[0] + two[0]:
        return
    same = payload_digest(KEY, SALT, *one) == payload_digest(KEY, SALT, *two)
    assert same == (one == two)


def test_a_payload_digest_depends_on_key_and_salt():
    """Else a short payload could be found out by trying after it was erased."""
    made = {payload_digest(key, salt, "k", b"yes") for key in (KEY, OTHER) for salt in (SALT, b"s" * 16)}
    assert len(made) == 4


def test_a_key_does_not_show_in_its_repr():
    assert repr(KEY) == "<SealKey k-1>"


def test_a_checkpoint_is_text_that_can_be_read_back():
    made = Checkpoint(origin="seawall/boot", size=90, root=b"r" * 32, at=5)
    note = made.note(KEY)
    assert note.split("\n")[:3] == ["seawall/boot", "90", "cnJycnJycnJycnJycnJycnJycnJycnJycnJycnJycnI="]
    read, key, signature = Checkpoint.parse(note)
    assert (read, key) == (made, "k-1")
    assert read.is_signed(KEY, signature)
    assert not read.is_signed(OTHER, signature)
    forged, _, signature = Checkpoint.parse(note.replace("\n90\n", "\n91\n"))
    assert not forged.is_signed(KEY, signature)


@pytest.mark.parametrize("text", ["", "a\nb\nc", "o\nx\ncg==\nissued 1\n\n— k s\n", "o\n1\ncg==\nissued 1\n\n"])
def test_other_text_is_no_checkpoint(text):
    with pytest.raises(BadCheckpoint, match="expected four lines"):
        Checkpoint.parse(text)
