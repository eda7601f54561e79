"""What crosses the seams between ingress, the pipeline and egress: bytes and bodies, never a framework's objects.

Header names and values are raw bytes in the order they came, repeated fields included (RFC 9110 section 5.3), because a
proxy may not guess which of them may be merged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Container, Iterable
from dataclasses import dataclass
from typing import Protocol

from gateway.core.value import frozen

__all__ = ["Body", "BytesBody", "Headers", "Reply", "Request", "body_bytes", "first_header", "without_headers"]

Headers = tuple[tuple[bytes, bytes], ...]


class Body(Protocol):
    """Bytes on their way. Either replayable (may be read again from the start) or not."""

    @property
    def size(self) -> int | None:
        """Length in bytes, or None where only the end tells."""

    @property
    def is_replayable(self) -> bool:
        """Whether `chunks` may be called more than once."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the bytes, in pieces as they come."""

    async def aclose(self) -> None:
        """Give back what the body holds (file, connection). May be repeated."""


@frozen(kw_only=False)
class BytesBody:
    """A body held in memory."""

    data: bytes = b""

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self.data)

    @property
    def is_replayable(self) -> bool:
        """Always."""
        return True

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield everything at once."""
        if self.data:
            yield self.data

    async def aclose(self) -> None:
        """Nothing to give back."""


async def body_bytes(body: Body, limit: int) -> bytes | None:
    """Return a replayable body's bytes, or None if there are more than `limit`."""
    if isinstance(body, BytesBody):
        return body.data if len(body.data) <= limit else None
    if body.size is None or body.size > limit:
        return None
    return b"".join([chunk async for chunk in body.chunks()])


@dataclass(slots=True)
class Request:
    """One request to a tool, as egress sends it.

    Attributes:
        method: as the agent wrote it.
        target: raw path and query below the tool's upstream, percent-encoding untouched; egress puts the upstream's
            own prefix in front.
        headers: end-to-end fields only; Host and framing fields are egress's own business.
        body: replayable if the call may be attempted twice; None sends no body at all.
        has_side_effects: False for reads; decides whether a broken exchange is `Failed` or `InDoubt`.
        capture_answer: read the whole answer before returning (writes) instead of streaming it (reads).
        fresh_connection: never use a kept connection, which the tool may be closing just now (pivots: a stale one
            costs a call in doubt, a new one a round trip).
        exchange: what ingress and egress of one protocol say to each other beside the message (progress, questions to
            the agent); no stage looks into it. Dispatch puts the run's name here where there is none.
        is_sifted: what may not pass has been taken out of the headers already.
        upgrade: the protocol to switch to, if the agent asks for one and the tool may be asked.
    """

    method: str
    target: bytes
    headers: Headers
    body: Body | None = None
    has_side_effects: bool = True
    capture_answer: bool = True
    fresh_connection: bool = False
    exchange: object | None = None
    is_sifted: bool = False
    upgrade: bytes = b""


@dataclass(slots=True)
class Reply:
    """A tool's answer.

    `on_close` callbacks run once, when the body was read to its end, broke, or was given up: that is when a slot goes
    back. `await reply.aclose()` may be repeated. `switched` is egress's own, for whom the answer is the last of HTTP on
    its connection (101); closing the reply closes that connection.
    """

    status: int
    reason: bytes
    headers: Headers
    body: Body
    switched: object | None = None
    _on_close: tuple[Callable[[], None], ...] = ()
    _closed: bool = False

    def on_close(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when the body is done with; at once if it already is."""
        if self._closed:
            callback()
        else:
            self._on_close += (callback,)

    async def aclose(self) -> None:
        """Release the body and run the callbacks, also if releasing fails."""
        if self._closed:
            return
        if type(self.body) is BytesBody:
            self.end()
            return
        self._closed = True
        try:
            await self.body.aclose()
        finally:
            self._call_back()

    def end(self) -> None:
        """Do the same for an answer whose body is a `BytesBody`, which nobody has to wait for."""
        if not self._closed:
            self._closed = True
            if self._on_close:
                self._call_back()

    def _call_back(self) -> None:
        callbacks, self._on_close = self._on_close, ()
        for callback in callbacks:
            callback()


def first_header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Return the value of the first field called `name` (given in lower case), or None."""
    size = len(name)
    for key, value in headers:
        if len(key) == size and key.lower() == name:
            return value
    return None


def without_headers(headers: Iterable[tuple[bytes, bytes]], names: Container[bytes]) -> Headers:
    """Return the fields whose lower-case name is not in `names`, order kept."""
    return tuple([field for field in headers if field[0].lower() not in names])
