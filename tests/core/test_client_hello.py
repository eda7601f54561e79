"""The host in a TLS hello is read from any pieces, and rubbish is never an exception."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.client_hello import Hello, NeedMore, NotTls, read_hello


def hello(name: str | None) -> bytes:
    """Return what OpenSSL really sends."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(inward, outward, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outward.read()


@pytest.mark.parametrize(
    ("name", "read"),
    [("api.example", "api.example"), ("API.Example", "api.example"), (None, None), ("127.0.0.1", None)],
)
def test_the_name_is_read(name: str | None, read: str | None) -> None:
    assert read_hello(hello(name)) == Hello(read)


def test_every_beginning_needs_more() -> None:
    whole = hello("api.example")
    for length in range(len(whole)):
        assert read_hello(whole[:length]) == NeedMore()
    assert read_hello(whole + b"more") == Hello("api.example")


def test_a_hello_in_many_records_is_put_together() -> None:
    whole = hello("api.example")
    body = whole[5:]
    records = b"".join(
        whole[:3] + len(body[start : start + 50]).to_bytes(2, "big") + body[start : start + 50]
        for start in range(0, len(body), 50)
    )
    assert read_hello(records) == Hello("api.example")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"\x80\x2e\x01\x03\x01",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x02\x00\x00\x05hello",
        b"\x16\x03\x01\xff\xff",
        b"\x15\x03\x01\x00\x02\x02\x28",
        b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03",
    ],
)
def test_what_is_no_hello_is_told(data: bytes) -> None:
    assert isinstance(read_hello(data), NotTls)


@given(st.data(), st.integers(0, 400), st.integers(0, 255))
def test_a_bent_hello_is_never_an_exception(data: st.DataObject, at: int, value: int) -> None:
    whole = bytearray(_WHOLE)
    whole[at % len(whole)] = value
    read_hello(bytes(whole[: data.draw(st.integers(0, len(whole)))]))
    read_hello(data.draw(st.binary(max_size=200)))


_WHOLE = hello("api.example")
