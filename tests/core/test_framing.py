"""An answer's end is told once, rightly, and in the way that fits its kind."""

import pytest

from gateway.core.framing import Framing, frame_answer
from gateway.core.message import Headers

TYPE = (b"Content-Type", b"a/b")
CHUNKED = (b"Transfer-Encoding", b"chunked")


def length(value: int) -> tuple[bytes, bytes]:
    return (b"Content-Length", b"%d" % value)


@pytest.mark.parametrize(
    ("method", "status", "headers", "size", "expected"),
    [
        ("GET", 200, (length(3), TYPE), 3, Framing((length(3), TYPE))),
        ("GET", 200, (TYPE,), 3, Framing((TYPE, length(3)))),
        ("GET", 200, (length(77), TYPE), 3, Framing((TYPE, length(3)))),
        ("GET", 200, ((b"content-length", b"3"), length(3)), 3, Framing((length(3),))),
        ("GET", 200, ((b"content-length", b"03"),), 3, Framing((length(3),))),
        ("POST", 500, (), 0, Framing((length(0),))),
        ("GET", 200, (length(9), TYPE), None, Framing((TYPE, CHUNKED), is_chunked=True)),
        ("HEAD", 200, (length(1234),), 0, Framing((length(1234),), is_bodiless=True)),
        ("HEAD", 200, (), 5, Framing((length(5),), is_bodiless=True)),
        ("HEAD", 200, (TYPE,), None, Framing((TYPE,), is_bodiless=True)),
        ("GET", 304, (length(1234),), 0, Framing((length(1234),), is_bodiless=True)),
        ("GET", 304, (), 5, Framing((), is_bodiless=True)),
        ("GET", 204, (length(0), TYPE), 0, Framing((TYPE,), is_bodiless=True)),
        ("HEAD", 204, (length(0),), 0, Framing((), is_bodiless=True)),
    ],
)
def test_framing_fits_the_answer(
    method: str, status: int, headers: Headers, size: int | None, expected: Framing
) -> None:
    assert frame_answer(method, status, headers, size) == expected


def test_http_1_0_knows_no_chunks() -> None:
    """RFC 9112 section 6.1: never send Transfer-Encoding to an HTTP/1.0 peer."""
    assert frame_answer("GET", 200, (length(9), TYPE), None, is_http_1_0=True) == Framing((TYPE,), ends_by_closing=True)
    assert frame_answer("GET", 200, (TYPE,), 2, is_http_1_0=True) == Framing((TYPE, length(2)))
