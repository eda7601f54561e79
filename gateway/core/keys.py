"""Idempotency keys of our own making.

A key names one step of one run for as long as the journal lives: it is the same on every attempt, after any restart, and
for whoever takes the run over. It holds nothing of the arguments that could be read back.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

__all__ = ["derive_key", "undo_key"]


def derive_key(salt: bytes, *parts: str) -> str:
    """Return an idempotency key: 32 characters of base32 that nobody without the salt can guess or collide with.

    The same parts give the same key, on any attempt, after any restart. Parts are length-prefixed, so that no two
    different lists look alike.

    Source: RFC 2104 (HMAC), RFC 4648 section 6 (base32).
    """
    text = b"".join(len(part := p.encode()).to_bytes(4, "big") + part for p in parts)
    return base64.b32encode(hmac.digest(salt, text, hashlib.sha256)[:20]).decode().lower()


def undo_key(salt: bytes, trajectory: str, step: int, turn: int = 1) -> str:
    """Return the key of the compensator of a step, the same for every attempt of a turn; the second turn has its own."""
    return derive_key(salt, trajectory, str(step), "undo" if turn == 1 else f"undo {turn}")
