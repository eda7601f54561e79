"""A key names one step for as long as its journal lives, so the way it is made may never change."""

import base64
import hashlib
import hmac

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.keys import derive_key, hmac_sha256, undo_key


@given(st.binary(min_size=1, max_size=70), st.lists(st.text(max_size=20), max_size=4))
def test_a_key_is_the_base32_of_an_hmac_whatever_makes_it_fast(salt: bytes, parts: list[str]) -> None:
    text = b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in parts)
    slow = base64.b32encode(hmac.digest(salt, text, hashlib.sha256)[:20]).decode().lower()
    assert derive_key(salt, *parts) == slow


def test_parts_cannot_be_shifted_into_each_other() -> None:
    assert derive_key(b"s", "ab", "c") != derive_key(b"s", "a", "bc")


def test_a_compensator_keeps_its_key() -> None:
    assert undo_key(b"s", "run", 1) == undo_key(b"s", "run", 1) != undo_key(b"s", "run", 2)


@given(st.binary(max_size=200), st.binary(max_size=300))
def test_the_fast_hmac_is_the_hmac(key: bytes, message: bytes) -> None:
    assert hmac_sha256(key, message) == hmac.digest(key, message, "sha256")
