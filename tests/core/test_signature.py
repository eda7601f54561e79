"""The same error, met again, is the same signature; another error is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.signature import error_signature, normalise


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("row 17 of 250 failed", "row 99 of 1000 failed"),
        ("request req_8fK2xQ failed", "request req_7aB1yZ failed"),
        ("at 2026-11-29T20:41:06.123Z: no such file", "at 2025-01-01 00:00: no such file"),
        ("no such file: /home/ann/build/x.py", "no such file: /tmp/b17/y.py"),
        ("cannot reach 10.0.0.7:8080", "cannot reach 192.168.3.4"),
        ("object at 0x7f59e7e7cd50 is gone", "object at 0x1 is gone"),
        ("id 550e8400-e29b-41d4-a716-446655440000 is taken", "id 123e4567-e89b-12d3-a456-426614174000 is taken"),
        ("took   3.5s\n too long", "took 12.25s too long"),
        ("quota at 87%", "quota at 100%"),
        ("GET https://api.example.com/v1/x failed", "GET https://other.example.org/v2/y?z=1 failed"),
    ],
)
def test_accidents_do_not_count(first: str, second: str) -> None:
    assert normalise(first) == normalise(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("cannot import name 'AsyncSession'", "has no attribute 'sync_engine'"),
        ("port must be a number", "port must be a text"),
        ("name is missing", "name is taken"),
    ],
)
def test_substance_counts(first: str, second: str) -> None:
    assert error_signature("t", "s", first) != error_signature("t", "s", second)


def test_type_and_source_count() -> None:
    base = error_signature("422", "pay.hold", "bad")
    assert base != error_signature("409", "pay.hold", "bad")
    assert base != error_signature("422", "pay.take", "bad")
    assert error_signature("ab", "c", "") != error_signature("a", "bc", "")


@given(st.text())
def test_any_text_has_a_signature_and_normalising_ends(text: str) -> None:
    assert len(error_signature("k", "s", text)) == 64


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_numbers_never_count(a: int, b: int) -> None:
    assert normalise(f"item {a} is bad") == normalise(f"item {b} is bad")
