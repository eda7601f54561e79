"""Which fields pass through, and what a head on the wire may look like."""

import pytest

from gateway.core.headers import (
    HOP_BY_HOP,
    Sieve,
    answer_fields,
    field_lines,
    protected_option,
    replace_fields,
    request_fields,
    request_head,
)

KEPT = ((b"X-A", b"1"), (b"x-a", b"caf\xe9"), (b"Authorization", b"t"), (b"X-A", b""), (b"Content-Type", b"x/y"))


@pytest.mark.parametrize("name", sorted(HOP_BY_HOP))
@pytest.mark.parametrize("spell", [bytes.lower, bytes.title, bytes.upper])
def test_hop_by_hop_fields_pass_in_neither_direction(name: bytes, spell: object) -> None:
    """RFC 9110 section 7.6.1: they belong to one connection."""
    headers = (*KEPT, (spell(name), b"x-unrelated"))  # type: ignore[operator]
    assert request_fields(headers) == KEPT
    assert answer_fields(headers) == KEPT


@pytest.mark.parametrize("name", [b"Host", b"Content-Length", b"Expect", b"Seawall-Trajectory", b"SEAWALL-anything"])
def test_fields_that_are_ours_do_not_reach_the_tool(name: bytes) -> None:
    assert request_fields((*KEPT, (name, b"x"))) == KEPT


@pytest.mark.parametrize("name", [b"Content_Length", b"keep_alive", b"SEAWALL_Trajectory", b"Transfer_Encoding"])
def test_what_reaches_no_tool_does_not_in_another_spelling(name: bytes) -> None:
    """WSGI, CGI and PHP take `_` and `-` for the same; agents do not."""
    assert request_fields((*KEPT, (name, b"x"))) == KEPT
    assert answer_fields((*KEPT, (name, b"x"))) == (*KEPT, (name, b"x"))
    keyed = Sieve({b"connection", b"x-api_key"})
    assert keyed(((b"X_Api_Key", b"1"), (b"x-api-key", b"2"), (b"X_Other", b"3"))) == ((b"X_Other", b"3"),)


def test_end_to_end_fields_keep_order_spelling_repeats_and_bytes() -> None:
    """aiohttp's client merges `x-foo` and `X-FOO`, and its writer deletes bytes that are no UTF-8."""
    assert request_fields(KEPT) == KEPT
    assert answer_fields(KEPT) == KEPT


def test_fields_named_by_connection_are_dropped() -> None:
    headers = (
        (b"X-Hop", b"1"),
        (b"connection", b"close, x-HOP"),
        *KEPT,
        (b"Connection", b" x-other ,"),
        (b"X-Other", b""),
    )
    assert request_fields(headers) == KEPT
    assert answer_fields(headers) == KEPT


@pytest.mark.parametrize(
    "name", [b"Authorization", b"Cookie", b"Host", b"Content-Type", b"Content-Digest", b"Idempotency-Key", b"Seawall-X"]
)
def test_a_peer_cannot_name_a_field_away_that_matters(name: bytes) -> None:
    """Dropping an idempotency key or a credential at the peer's wish would change what the call does."""
    headers = ((b"Connection", b"close"), (b"connection", b"foo , " + name), (name, b"v"))
    assert protected_option(headers) == name.lower()
    if name not in (b"Host", b"Seawall-X"):
        assert request_fields(headers) == ((name, b"v"),)


def test_an_innocent_connection_field_names_nothing_protected() -> None:
    assert protected_option(((b"Connection", b"keep-alive, Upgrade"),)) is None
    assert protected_option(KEPT) is None


def test_a_tool_cannot_pose_as_the_gateway() -> None:
    assert answer_fields(((b"Seawall-Step", b"7"), *KEPT)) == KEPT


def test_the_tools_content_length_stays_with_the_answer() -> None:
    """Of a HEAD or 304 answer it tells about a body that is not there."""
    assert answer_fields(((b"Content-Length", b"10"),)) == ((b"Content-Length", b"10"),)


def test_a_replaced_field_stands_once() -> None:
    headers = ((b"Traceparent", b"a"), (b"X", b"1"), (b"traceparent", b"b"), (b"TraceState", b"c"))
    replaced = replace_fields(headers, {b"traceparent": b"new", b"tracestate": None})
    assert replaced == ((b"X", b"1"), (b"traceparent", b"new"))


def test_a_head_is_written_byte_for_byte() -> None:
    lines = field_lines(((b"Host", b"a:1"), *KEPT))
    head = request_head("POST", b"/a%2Fb//c?x=%zz&y=[]?", lines)
    assert head == (
        b"POST /a%2Fb//c?x=%zz&y=[]? HTTP/1.1\r\nHost: a:1\r\nX-A: 1\r\nx-a: caf\xe9\r\n"
        b"Authorization: t\r\nX-A: \r\nContent-Type: x/y\r\n\r\n"
    )


@pytest.mark.parametrize(
    "field",
    [
        (b"X", b"a\r\nY: b"),
        (b"X", b"a\nb"),
        (b"X", b"a\rb"),
        (b"X", b"\0"),
        (b"X: a", b"b"),
        (b"X Y", b""),
        (b"", b"a"),
        (b"X\r\nY", b"1"),
        (b"X-\xe9", b"1"),
    ],
)
def test_a_field_cannot_smuggle_another(field: tuple[bytes, bytes]) -> None:
    """Values come from templates too. The message names the field but not its value, which may be a secret."""
    with pytest.raises(ValueError, match="header field") as caught:
        field_lines((*KEPT, field))
    assert "Y: b" not in str(caught.value)


@pytest.mark.parametrize("method", ["", "GET /x", "GET\r\nX", "GÉT"])
def test_a_method_cannot_change_the_shape_of_the_head(method: str) -> None:
    with pytest.raises(ValueError, match="method"):
        request_head(method, b"/", b"")


@pytest.mark.parametrize(
    "target", [b"", b"x", b"http://a/", b"/a b", b"/a\r\nX: 1", b"/a\n", b"/\0", b"/\x7f", b"/\xff", b"/ "]
)
def test_a_target_cannot_change_the_shape_of_the_head(target: bytes) -> None:
    with pytest.raises(ValueError, match="target"):
        request_head("GET", target, b"")
