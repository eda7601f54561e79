"""Which sessions their clients have ended: the id that a client carries opens its session for ever, unless it is told here.

The latest 16 000 or so are remembered, by a digest of their nonce, over restarts too. They lie on *pages* in numbered slots
that are filled one after the other and used again in turn, so a goodbye writes one small page and the whole is bounded.

Considered and left out: an age at which every id is worth nothing. It would bound the memory exactly, and end sessions of
desktop clients that are open for weeks.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Final

__all__ = ["EndedSessions"]

SLOTS: Final = 64
PAGE: Final = 256
_DIGEST_BYTES: Final = 16
_NUMBER_BYTES: Final = 8


class EndedSessions:
    """The latest sessions that were ended.

    Args:
        slots: pages kept.
        page: digests on a page.
    """

    def __init__(self, slots: int = SLOTS, page: int = PAGE) -> None:
        self._slots = slots
        self._size = page
        self._pages: dict[int, list[bytes]] = {0: []}
        self._known: set[bytes] = set()

    def __contains__(self, nonce: str) -> bool:
        return _digest(nonce) in self._known

    def __len__(self) -> int:
        return len(self._known)

    def add(self, nonce: str) -> tuple[int, bytes]:
        """Take a session that was ended. Returns the slot and what is to be kept there."""
        digest, number = _digest(nonce), max(self._pages)
        if digest not in self._known:
            if len(self._pages[number]) >= self._size:
                number += 1
                self._known.difference_update(self._pages.pop(number - self._slots, ()))
                self._pages[number] = []
            self._pages[number].append(digest)
            self._known.add(digest)
        return number % self._slots, number.to_bytes(_NUMBER_BYTES, "big") + b"".join(self._pages[number])

    def load(self, kept: Mapping[int, bytes]) -> None:
        """Take what was kept, by slot, in place of everything; what is no page is passed over."""
        pages: dict[int, list[bytes]] = {}
        for slot, data in kept.items():
            number, rest = int.from_bytes(data[:_NUMBER_BYTES], "big"), data[_NUMBER_BYTES:]
            if len(data) >= _NUMBER_BYTES and number % self._slots == slot and len(rest) % _DIGEST_BYTES == 0:
                pages[number] = [rest[at : at + _DIGEST_BYTES] for at in range(0, len(rest), _DIGEST_BYTES)]
        self._pages = pages or {0: []}
        self._known = {digest for page in self._pages.values() for digest in page}


def _digest(nonce: str) -> bytes:
    return sha256(nonce.encode()).digest()[:_DIGEST_BYTES]
