"""Handshakes, and where frames end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from gateway.core.message import Headers
from gateway.core.websocket import Frames, accept_for, answer_problem, close_frame, is_websocket, request_problem

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
ASKED: Headers = (
    (b"Connection", b"keep-alive, Upgrade"),
    (b"Upgrade", b"websocket"),
    (b"Sec-WebSocket-Version", b"13"),
    (b"Sec-WebSocket-Key", KEY),
)
ANSWERED: Headers = ((b"Upgrade", b"WebSocket"), (b"Sec-WebSocket-Accept", b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="))


def judged(headers: Headers, method: str = "GET", *, is_http_1_1: bool = True, has_body: bool = False) -> int | None:
    found = request_problem(
        method, headers, is_http_1_1=is_http_1_1, has_body=has_body, origins=("https://app.example",)
    )
    return None if found is None else found[0]


def without(name: bytes, *instead: tuple[bytes, bytes]) -> Headers:
    return (*(field for field in ASKED if field[0] != name), *instead)


@pytest.mark.parametrize("upgrade", [b"websocket", b"WebSocket", b"h2c, websocket", b"websocket/13"])
def test_what_asks_for_a_websocket(upgrade: bytes) -> None:
    assert is_websocket(upgrade)


@pytest.mark.parametrize("upgrade", [b"h2c", b"TLS/1.0", b"notwebsocket", b""])
def test_other_upgrades_are_none(upgrade: bytes) -> None:
    """Java's client offers h2c with every request; a server may go on in HTTP/1.1 (RFC 9110 section 7.8)."""
    assert not is_websocket(upgrade)


def test_a_good_handshake() -> None:
    """The example of RFC 6455 section 1.3."""
    assert judged(ASKED) is None
    assert accept_for(KEY) == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert answer_problem(ANSWERED, KEY) == ""


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (without(b"Connection"), 400),
        (without(b"Connection", (b"Connection", b"close")), 400),
        (without(b"Sec-WebSocket-Version"), 426),
        (without(b"Sec-WebSocket-Version", (b"Sec-WebSocket-Version", b"8")), 426),
        (without(b"Sec-WebSocket-Key"), 400),
        (without(b"Sec-WebSocket-Key", (b"Sec-WebSocket-Key", b"c2hvcnQ=")), 400),
        (without(b"Sec-WebSocket-Key", (b"Sec-WebSocket-Key", b"not base64")), 400),
        ((*ASKED, (b"Sec-WebSocket-Key", KEY)), 400),
        ((*ASKED, (b"Origin", b"https://evil.example")), 403),
        ((*ASKED, (b"Origin", b"null")), 403),
        ((*ASKED, (b"Origin", b"https://app.example"), (b"Origin", b"https://evil.example")), 403),
        ((*ASKED, (b"Origin", b"https://app.example")), None),
    ],
)
def test_a_handshake_is_whole_or_refused(headers: Headers, status: int | None) -> None:
    assert judged(headers) == status


def test_a_handshake_is_a_get_of_http_1_1_without_a_body() -> None:
    assert judged(ASKED, "POST") == 400
    assert judged(ASKED, is_http_1_1=False) == 400
    assert judged(ASKED, has_body=True) == 400


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ANSWERED[1:],
        ((b"Upgrade", b"h2c"), ANSWERED[1]),
        ANSWERED[:1],
        (ANSWERED[0], (b"Sec-WebSocket-Accept", b"nonsense")),
        (*ANSWERED, ANSWERED[1]),
    ],
)
def test_a_tool_that_has_not_switched_is_found_out(headers: Headers) -> None:
    assert answer_problem(headers, KEY)


frames = st.lists(
    st.builds(
        lambda opcode, data, fin, mask: Frame(opcode, data, fin).serialize(mask=mask),
        st.sampled_from([Opcode.CONT, Opcode.TEXT, Opcode.BINARY]),
        st.one_of(st.binary(max_size=300), st.sampled_from([b"x" * 125, b"x" * 126, b"x" * 65_535, b"x" * 65_536])),
        st.booleans(),
        st.booleans(),
    ),
    max_size=6,
)


@given(frames, st.lists(st.integers(1, 5000), max_size=50))
def test_frames_end_where_they_end_however_the_bytes_come(made: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(made)
    ends = {sum(map(len, made[: index + 1])) for index in range(len(made))}
    follow, at = Frames(), 0
    for cut in [*cuts, len(stream) + 1]:
        piece = stream[at : at + cut]
        if not piece:
            break
        ended = follow.feed(piece)
        inside = [end for end in ends if at < end <= at + len(piece)]
        assert ended == (max(inside) - at if inside else 0)
        at += len(piece)
        assert follow.is_between is (at in ends)
    assert not follow.is_closing


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=30))
def test_any_bytes_can_be_followed(pieces: list[bytes]) -> None:
    follow = Frames()
    for piece in pieces:
        assert 0 <= follow.feed(piece) <= len(piece)


def test_a_closing_frame_is_seen() -> None:
    follow = Frames()
    follow.feed(close_frame(1000, "bye", b"mask")[:1])
    assert not follow.is_closing
    follow.feed(close_frame(1000, "bye", b"mask")[1:])
    assert follow.is_closing
    assert follow.is_between


def test_a_closing_frame_is_a_control_frame() -> None:
    """At most 125 bytes of payload (RFC 6455 section 5.5), cut between characters."""
    assert close_frame(1001, "why") == b"\x88\x05\x03\xe9why"
    assert close_frame(1001, "why", b"\0\0\0\0") == b"\x88\x85\0\0\0\0\x03\xe9why"
    assert close_frame(1001, "a", b"\xff\xff\xff\xff") == b"\x88\x83\xff\xff\xff\xff\xfc\x16\x9e"
    long = close_frame(1001, "é" * 100)
    assert long[1] == len(long) - 2 <= 125
    long[4:].decode()
