"""Nobody reads an answer otherwise than we do: where we take one, an independent parser sees the same status and body."""

from __future__ import annotations

import asyncio

import h11
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.egress.test_connection import TOKENS, result

WHOLE = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n2\r\nde\r\n0\r\nT: 1\r\n\r\n",
    b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n\r\nuntil the end",
    b"HTTP/1.1 204 No\r\nX: 1\r\n\r\n",
]


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """An answer, perhaps tampered with."""
    data = draw(st.sampled_from(WHOLE))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        piece = draw(st.one_of(st.sampled_from(TOKENS), st.binary(max_size=3), st.just(b"")))
        data = data[:at] + piece + data[at + draw(st.sampled_from([0, 0, 1, 2])) :]
    return data


def theirs(data: bytes) -> tuple[int, bytes] | None:
    """Return status and body as h11 reads them; None where it refuses."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 16)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
    connection.send(h11.EndOfMessage())
    status, body = 0, b""
    try:
        connection.receive_data(data)
        is_over = False
        while True:
            match connection.next_event():
                case h11.Response(status_code=code):
                    status = code
                case h11.Data(data=piece):
                    body += bytes(piece)
                case h11.EndOfMessage():
                    return status, body
                case h11.NEED_DATA:
                    if is_over:
                        return None
                    connection.receive_data(b"")
                    is_over = True
                case h11.InformationalResponse():
                    continue
                case _:
                    return None
    except h11.RemoteProtocolError:
        return None


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(answers(), st.lists(st.integers(1, 150), max_size=3))
def test_two_readers_see_the_same_answer(data: bytes, cuts: list[int]) -> None:
    said, body, _ = asyncio.run(result(data, cuts))
    other = theirs(data)
    if isinstance(said, int) and other is not None:
        assert (said, body) == other
