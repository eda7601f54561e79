"""Addresses: what a listener may be told."""

from __future__ import annotations

import pytest

from gateway.core.server import Address, ServerSettings


@pytest.mark.parametrize(
    ("text", "is_local"),
    [
        ("127.0.0.1:8080", True), ("localhost:80", True), ("[::1]:8080", True), ("unix:/run/x.sock", True),
        ("0.0.0.0:80", False), (":8080", False), ("[::]:80", False), ("example.com:80", False),
    ],
)  # fmt: skip
def test_an_address_is_read_and_written_back(text: str, is_local: bool) -> None:
    """Beyond loopback needs authentication, so it has to be told apart."""
    address = Address.parse(text)
    assert str(address) == text
    assert address.is_local is is_local


@pytest.mark.parametrize(
    "text", ["", "80", "host", "host:", "host:x", "host:99999", "::1:80", "unix:", "a/b:80", "u@h:80"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """Before anything listens."""
    with pytest.raises(ValueError):
        Address.parse(text)


def test_the_defaults_are_local() -> None:
    """A fresh gateway is not reachable from outside."""
    settings = ServerSettings()
    assert settings.listen_address.is_local
    assert settings.control_address.is_local
