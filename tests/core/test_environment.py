"""What expressions see: plain values, never an exception."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.environment import request_env, response_env

JSON = ((b"Content-Type", b"application/json"),)


def test_a_request_is_seen_with_all_its_parts() -> None:
    """Compensators are bound from these names."""
    env = request_env("POST", "/v1/x?a=1&b=%20", JSON, b'{"n": 1}', {"id": "7"})
    assert env.whole() == {
        "method": "POST",
        "path": "/v1/x",
        "query": {"a": "1", "b": " "},
        "headers": {"content-type": "application/json"},
        "params": {"id": "7"},
        "json": {"n": 1},
        "form": None,
        "text": '{"n": 1}',
    }


def test_of_repeated_parameters_the_first_counts_and_headers_are_joined() -> None:
    """One rule, so that expressions have one type to deal with."""
    env = request_env("GET", "/?a=1&a=2", ((b"X", b"1"), (b"x", b"2")), b"")
    assert env["query"] == {"a": "1"}
    assert env["headers"] == {"x": "1, 2"}


def test_a_form_is_seen_decoded() -> None:
    """Stripe's API takes forms."""
    headers = ((b"content-type", b"application/x-www-form-urlencoded"),)
    assert request_env("POST", "/", headers, b"amount=5&note=a+b")["form"] == {"amount": "5", "note": "a b"}


def test_long_integers_keep_their_digits() -> None:
    """orjson reads integers beyond 64 bits as floats; such an id would name something else."""
    env = response_env(200, JSON, b'{"id": 123456789012345678901234567890}')
    assert env["json"] == {"id": 123456789012345678901234567890}


def test_what_is_not_json_is_null() -> None:
    """An expression that needs it fails where it stands; the call does not."""
    assert response_env(200, (), b'{"a":1}')["json"] is None
    assert response_env(200, JSON, b"{broken")["json"] is None
    assert response_env(200, JSON, b"\xff")["text"] is None


@given(
    st.binary(max_size=100),
    st.text(max_size=50),
    st.sampled_from([b"application/json", b"application/x-www-form-urlencoded"]),
)
def test_no_bytes_raise(body: bytes, target: str, content_type: bytes) -> None:
    """Whatever an agent or a tool sends."""
    headers = ((b"content-type", content_type), (b"\xff", b"\x00"))
    request_env("POST", target, headers, body)
    response_env(200, headers, body)
