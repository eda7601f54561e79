"""What would replace the method of a read does not leave, whether its body is here or still comes."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gateway.core.message import BytesBody
from gateway.core.override import lookout
from gateway.ingress.lookout import Watched, names_method, watched
from gateway.ingress.request import IncomingRequest, UploadBroken
from tests.fuzz.rig import Pieces

FORM = "application/x-www-form-urlencoded"


class Asked:
    """As much of a request as is looked at."""

    def __init__(self, method: str, *pieces: bytes) -> None:
        self.method = method
        self.pieces = pieces
        self.body = Pieces(pieces)

    def in_one_piece(self) -> bytes | None:
        return self.pieces[0] if len(self.pieces) == 1 else None

    def stream(self) -> Pieces:
        return self.body


def asked(method: str, *pieces: bytes) -> IncomingRequest:
    return cast(Any, Asked(method, *pieces))


async def test_a_body_that_is_here_is_looked_through_beforehand() -> None:
    assert watched(asked("POST", b"a=1&_method=PUT"), FORM) is None
    assert type(watched(asked("POST", b"a=1"), FORM)) is Pieces


async def test_the_bodies_of_methods_without_one_are_nobodys_parameters() -> None:
    assert type(watched(asked("GET", b"_method=PUT"), FORM)) is Pieces
    assert type(watched(asked("POST", b"_method=PUT"), "text/plain")) is Pieces


async def test_a_body_that_still_comes_breaks_off_before_the_piece_that_names_a_method() -> None:
    body = watched(asked("POST", b"a=1&_me", b"thod=PUT", b"&b=2"), FORM)
    assert isinstance(body, Watched)
    assert (body.size, body.is_replayable) == (None, False)
    pieces = aiter(body.chunks())
    assert await anext(pieces) == b"a=1&_me"
    with pytest.raises(UploadBroken):
        await anext(pieces)
    assert body.has_named
    await body.aclose()


async def test_a_body_that_names_none_passes_as_it_is() -> None:
    body = watched(asked("POST", b"a=1", b"&b=2"), FORM)
    assert isinstance(body, Watched)
    assert [piece async for piece in body.chunks()] == [b"a=1", b"&b=2"]
    assert not body.has_named


async def test_what_is_on_disk_is_looked_through_in_pieces() -> None:
    assert await names_method(FORM, BytesBody(b"_method=PUT"))
    assert await names_method(FORM, Pieces((b"a=1", b"&_met", b"hod=PUT")))
    assert not await names_method(FORM, Pieces((b"a=1",)))
    assert not await names_method("text/plain", BytesBody(b"_method=PUT"))


def test_a_lookout_is_for_one_body() -> None:
    assert lookout(FORM) is not lookout(FORM)
