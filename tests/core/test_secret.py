"""Secrets do not print, and placeholders are filled at the last moment."""

from __future__ import annotations

import pickle

import pytest

from gateway.core.secret import Secret, SecretBox, SecretMissing


def test_a_secret_prints_as_nothing() -> None:
    """Logs, tracebacks and f-strings print whatever they are given."""
    secret = Secret("sk_live_1")
    box = SecretBox({"payments": secret})
    for shown in (repr(secret), str(secret), f"{secret}", repr([secret]), repr(box)):
        assert "sk_live_1" not in shown
    with pytest.raises(TypeError):
        pickle.dumps(secret)


def test_headers_are_resolved_when_they_are_sent() -> None:
    """The journal holds the placeholder; a rotated secret is used in its new form."""
    box = SecretBox({"a": Secret("1")})
    assert box.resolve_headers([("X", "k=${secret:a}; ${ secret:a }")]) == (("X", "k=1; 1"),)


def test_a_secret_that_is_gone_is_named() -> None:
    """A compensator may be older than the manifest."""
    with pytest.raises(SecretMissing, match="'b' is not in the manifest"):
        SecretBox().resolve("${secret:b}")
