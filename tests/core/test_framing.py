"""An answer's end is told once, rightly, and in the way that fits its kind."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core import framing
from gateway.core.framing import Framing, frame_answer, ordinary_answer
from gateway.core.headers import field_lines
from gateway.core.message import Headers
from gateway.core.remembered import MOST

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


NAMES = (b"Content-Length", b"content-length", b"Date", b"Connection", b"X-A", b"X A", b"", b"Content-Type")
VALUES = (b"3", b"4", b"", b"close", b"a\r\nB: c", b"a\nb", b"a\rb", b"a\0b", b"caf\xe9")


def plainly(status: int, reason: bytes, headers: Headers, data: bytes) -> bytes:
    """The long way to an answer on a connection that goes on."""
    framed = frame_answer("GET", status, headers, len(data))
    dated = framed.headers if b"date" in framed.names else (*framed.headers, (b"Date", b"now"))
    return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (status, reason, field_lines(dated), data)


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=4), st.sampled_from([b"abc", b""]))
@example([(b"X-A", b"1"), (b"content-length", b"3"), (b"date", b"then")], b"abc")
def test_an_answer_in_one_step_is_the_one_that_the_long_way_comes_to(
    fields: list[tuple[bytes, bytes]], data: bytes
) -> None:
    headers = tuple(fields)
    for _ in range(2):
        quick = ordinary_answer(200, b"OK", headers, data, b"now")
        assert quick is None or quick == plainly(200, b"OK", headers, data)


def test_what_takes_more_than_a_look_is_no_ordinary_answer() -> None:
    usual = ((b"X-A", b"1"), (b"Content-Length", b"3"))
    assert ordinary_answer(200, b"OK", usual, b"abc", b"now") is not None
    assert ordinary_answer(200, b"OK", usual[:1], b"abc", b"now") is not None
    for headers in (
        (), (*usual, (b"Connection", b"x")), (*usual, (b"content-length", b"3")), (*usual, (b"X B", b"1")),
        (*usual, (b"X", b"a\r\nY: b")), (*usual, (b"X", b"\0")), ((b"X", b"a\n"), (b"Y\r", b"b")),
        (usual[0], (b"Content-Length", b"4")),
    ):  # fmt: skip
        assert ordinary_answer(200, b"OK", headers, b"abc", b"now") is None
    assert ordinary_answer(200, b"O\rK", usual, b"abc", b"now") is None
    assert ordinary_answer(200, b"O\nK", usual, b"abc", b"now") is None


def test_few_sets_of_names_are_remembered() -> None:
    for number in range(3 * MOST):
        assert ordinary_answer(200, b"OK", ((b"X-%d" % number, b"1"),), b"", b"now") is not None
        assert 0 < len(framing._SHAPES) <= MOST
    framing._SHAPES.clear()
    assert ordinary_answer(200, b"OK", ((b"X" * 2000, b"1"),), b"", b"now") is not None
    assert not framing._SHAPES
