"""A reply is given back once, whoever gives it back and however often."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.core.message import Body, BytesBody, Reply


class Held:
    """A body that holds something."""

    size = None
    is_replayable = False

    def __init__(self, *, breaks: bool = False) -> None:
        self.breaks = breaks
        self.closed = 0

    async def chunks(self) -> AsyncIterator[bytes]:
        for _ in ():
            yield b""

    async def aclose(self) -> None:
        self.closed += 1
        if self.breaks:
            raise OSError("no disk")


@pytest.mark.parametrize("body", [BytesBody(b"x"), Held()])
async def test_who_waits_for_the_end_of_a_reply_is_told_once(body: Body) -> None:
    reply, told = Reply(200, b"OK", (), body), list[int]()
    reply.on_close(lambda: told.append(1))
    reply.on_close(lambda: told.append(2))
    for _ in range(2):
        await reply.aclose()
    assert told == [1, 2]
    reply.on_close(lambda: told.append(3))
    assert told == [1, 2, 3]
    assert not isinstance(body, Held) or body.closed == 1


async def test_who_waits_is_told_though_the_body_could_not_be_given_back() -> None:
    reply, told = Reply(200, b"OK", (), Held(breaks=True)), list[int]()
    reply.on_close(lambda: told.append(1))
    with pytest.raises(OSError, match="no disk"):
        await reply.aclose()
    assert told == [1]


def test_for_a_body_in_memory_nobody_has_to_wait() -> None:
    reply, told = Reply(200, b"OK", (), BytesBody(b"x")), list[int]()
    reply.on_close(lambda: told.append(1))
    for _ in range(2):
        reply.end()
    assert told == [1]
