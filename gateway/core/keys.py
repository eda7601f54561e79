"""Idempotency keys of our own making.

A key names one step of one run for as long as the journal lives: it is the same on every attempt, after any restart, and
for whoever takes the run over. It holds nothing of the arguments that could be read back.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache
from typing import Final

__all__ = ["derive_key", "undo_key"]

_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz234567"
_PAIRS: Final = [first + second for first in _ALPHABET for second in _ALPHABET]
"""Ten bits as two characters of base32: a sixth of the time that `base64.b32encode` takes."""


def derive_key(salt: bytes, *parts: str) -> str:
    """Return an idempotency key: 32 characters of base32 that nobody without the salt can guess or collide with.

    The same parts give the same key, on any attempt, after any restart. Parts are length-prefixed, so that no two
    different lists look alike.

    Source: RFC 2104 (HMAC), RFC 4648 section 6 (base32).
    """
    text = b"".join([len(part := p.encode()).to_bytes(4, "big") + part for p in parts])
    keyed = _keyed(salt).copy()
    keyed.update(text)
    bits = int.from_bytes(keyed.digest()[:20], "big")
    return "".join([_PAIRS[bits >> shift & 1023] for shift in range(150, -1, -10)])


def undo_key(salt: bytes, trajectory: str, step: int, turn: int = 1) -> str:
    """Return the key of the compensator of a step, the same for every attempt of a turn; the second turn has its own."""
    return derive_key(salt, trajectory, str(step), "undo" if turn == 1 else f"undo {turn}")


@lru_cache(maxsize=8)
def _keyed(salt: bytes) -> hmac.HMAC:
    return hmac.new(salt, digestmod=hashlib.sha256)
