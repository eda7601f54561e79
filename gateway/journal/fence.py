"""Which streams may not be appended to because an earlier append to them failed.

A writer may append again before it knows what became of its previous append. If that one fails, the next may still find the
version it expects (another writer put it there) and would then be stored on top of entries its writer has never seen. So
a failed append puts a fence on its stream, and every append fails until somebody has read the stream again.
The version check stays in force in any case; the fence covers the one hole it leaves.
"""

from __future__ import annotations

from gateway.journal import JournalError

__all__ = ["Fences", "follow_up"]


class Fences:
    """Fenced streams, at most `capacity` of them: the oldest fence is forgotten first."""

    def __init__(self, capacity: int = 65_536) -> None:
        self._capacity = capacity
        self._errors: dict[str, JournalError] = {}

    def put(self, stream: str, error: JournalError) -> None:
        """Fence a stream because an append to it failed with `error`."""
        self._errors.setdefault(stream, error)
        if len(self._errors) > self._capacity:
            del self._errors[next(iter(self._errors))]

    def find(self, stream: str) -> JournalError | None:
        """Return the error that fenced a stream, or None."""
        return self._errors.get(stream)

    def refusal(self, stream: str) -> JournalError | None:
        """Return the error for an append to a fenced stream, of the same class as the first one, or None."""
        if not self._errors or (error := self._errors.get(stream)) is None:
            return None
        return follow_up(stream, error)

    def lift(self, stream: str, error: JournalError | None) -> None:
        """Take the fence away if it is still the one that stood there when the reading of the stream began."""
        if error is not None and self._errors.get(stream) is error:
            del self._errors[stream]


def follow_up(stream: str, error: JournalError) -> JournalError:
    """Return the error of an append that came after one that failed with `error`."""
    said = f"an earlier append to run {stream!r} failed, read the run again first: {error}"
    return type(error)(said).as_discreet_as(error)
