"""Server-sent events, read piece by piece and written.

A reader keeps what has not ended yet; how much of it there may be is bounded, since an event without an end would grow for
ever. Comments (keep-alive lines) yield nothing.

Source: WHATWG HTML, section 9.2.6 "Interpreting an event stream".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["Event", "EventTooLarge", "Events", "comment", "event", "pause"]

LIMIT_BYTES: Final = 64 << 20


class EventTooLarge(ValueError):
    """An event is larger than the bound."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `id` is what the stream may be resumed from; `retry_ms` what the server asks for before that."""

    data: str
    name: str = "message"
    id: str | None = None
    retry_ms: int | None = None


class Events:
    """Reads events out of pieces of a stream."""

    __slots__ = ("_fields", "_limit", "_rest", "_size", "last_id", "retry_ms")

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.last_id: str | None = None
        self.retry_ms: int | None = None
        self._limit = limit_bytes
        self._rest = bytearray()
        self._fields: list[tuple[str, str]] = []
        self._size = 0

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that have ended with this piece.

        Raises:
            EventTooLarge: one is larger than the bound.
        """
        self._size += len(data)
        if self._size > self._limit:
            raise EventTooLarge(f"an event is larger than {self._limit} bytes")
        if b"\n" not in data:  # A long line is put together once, and not looked through again with each piece.
            self._rest += data
            return []
        *lines, rest = (bytes(self._rest) + data).replace(b"\r\n", b"\n").split(b"\n")
        self._rest = bytearray(rest)
        found: list[Event] = []
        for line in lines:
            self._line(line.rstrip(b"\r"), found)
        return found

    def _line(self, line: bytes, found: list[Event]) -> None:
        if not line:
            if (ended := self._ended()) is not None:
                found.append(ended)
            return
        name, _, value = line.decode("utf-8", "replace").partition(":")
        if name:
            self._fields.append((name, value.removeprefix(" ")))

    def _ended(self) -> Event | None:
        fields, self._fields, self._size = self._fields, [], len(self._rest)
        known = dict(fields)
        if "id" in known and "\0" not in known["id"]:
            self.last_id = known["id"]
        retry = known.get("retry", "")
        self.retry_ms = _milliseconds(retry) or self.retry_ms
        data = [value for name, value in fields if name == "data"]
        if not data and "id" not in known and not retry:
            return None
        return Event("\n".join(data), known.get("event") or "message", known.get("id"), _milliseconds(retry))


def _milliseconds(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def event(data: bytes, id: str | None = None) -> bytes:
    """Return an event that carries one line of data, and the id that the stream may be resumed from."""
    head = b"" if id is None else b"id: " + id.encode("ascii") + b"\n"
    return head + b"event: message\ndata: " + data.replace(b"\r", b"").replace(b"\n", b"") + b"\n\n"


def pause(retry_ms: int) -> bytes:
    """Return the event that says how long to wait before coming back to a stream that broke off, in milliseconds."""
    return f"retry: {retry_ms}\n\n".encode()


def comment(text: str = "keep-alive") -> bytes:
    """Return a line that says nothing and keeps the stream open."""
    return f": {text}\n\n".encode()
