"""Claims: the byte format, against the page's vectors, and everything that proves nothing."""

from __future__ import annotations

import ast
import base64
import json
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import claim, seal
from gateway.core.claim import BadClaim, ClaimKey, Envelope, call_payload, canonical, sign, verify

PAGE = Path(__file__).parents[2] / "docs" / "claims.md"
SECRET = b"0123456789abcdef0123456789abcdef"
KEY = ClaimKey.of("fleet", SECRET)
ENVELOPE = Envelope("r1#1.1", "r1/3", "r1#12", "agent-a@gw", 1, "agent-b", 1_764_460_800_000)
VECTORS: list[dict[str, Any]] = json.loads(re.findall(r"```json\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[-1])


def reason(text: str, payload: bytes = b"x", keys: dict[str, ClaimKey] | None = None) -> str:
    with pytest.raises(BadClaim) as caught:
        verify(text, {"fleet": KEY} if keys is None else keys, payload)
    return caught.value.reason


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_the_vectors_of_the_page(vector: dict[str, Any]) -> None:
    envelope = verify(vector["claim"], {"fleet": KEY}, vector["payload"].encode())
    assert envelope.payload_digest == vector["payload_digest"]
    assert canonical(envelope).decode() == vector["canonical"]
    assert sign(KEY, replace(envelope, payload_digest=""), vector["payload"].encode()) == vector["claim"]


def test_the_page_shows_a_call() -> None:
    vector = next(one for one in VECTORS if one["name"] == "call")
    assert vector["payload"].encode() == call_payload("POST", b"/releases", b'{"version":"1.4"}')


def test_the_file_needs_the_standard_library_alone() -> None:
    """It is meant to be copied."""
    tree = ast.parse(Path(claim.__file__).read_text("utf-8"))
    names = {node.module.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    names |= {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    assert names <= set(sys.stdlib_module_names)


@given(st.text(max_size=20), st.text(max_size=20), st.integers(0, 2**53), st.binary(max_size=50))
def test_what_was_signed_is_believed_and_nothing_else(event: str, who: str, at: int, payload: bytes) -> None:
    envelope = replace(ENVELOPE, event_id=event, producer_id=who, issued_at=at)
    text = sign(KEY, envelope, payload)
    assert replace(verify(text, {"fleet": KEY}, payload), payload_digest="") == envelope
    assert reason(text, payload + b"!") == "wrong_digest"
    assert reason(text, payload, {"fleet": ClaimKey.of("fleet", b"another secret, another key")}) == "wrong_key"


@given(st.text(max_size=20), st.integers(0, 2**53))
def test_the_canonical_bytes_are_those_of_the_journal(text: str, number: int) -> None:
    """One envelope, one form, here and in the sealed log."""
    envelope = replace(ENVELOPE, event_id=text, session_epoch=number)
    values = asdict(envelope)
    assert canonical(envelope) == seal.canonical(**values)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "missing"),
        ("v1.fleet", "malformed"),
        ("v2.fleet.e30.e30", "malformed"),
        ("v1.other.e30.e30", "wrong_key"),
        ("v1.fleet.e30.e30", "wrong_key"),
        ("v1.fleet.*.e30", "malformed"),
        ("v1.fleet.e31.e30", "malformed"),
        ("v1." + "x" * 9000 + ".e30.e30", "malformed"),
    ],
)
def test_what_is_no_claim(text: str, word: str) -> None:
    assert reason(text) == word


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1}, {"session_epoch": "1"}, {"event_id": 7}, {"schema_version": 2}, {"issued_at": 1.5},
        {"session_epoch": True},
    ],
)  # fmt: skip
def test_an_envelope_of_another_shape_is_malformed_even_if_it_is_sealed(change: dict[str, Any]) -> None:
    values = asdict(verify(sign(KEY, ENVELOPE, b"x"), {"fleet": KEY}, b"x")) | change
    data = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
    parts = [base64.urlsafe_b64encode(one).rstrip(b"=").decode() for one in (data, claim._hmac(KEY.seal, data))]
    assert reason(f"v1.fleet.{parts[0]}.{parts[1]}") == "malformed"


def test_only_one_spelling_of_an_envelope_is_taken() -> None:
    values = asdict(verify(sign(KEY, ENVELOPE, b"x"), {"fleet": KEY}, b"x"))
    data = json.dumps(values).encode()
    parts = [base64.urlsafe_b64encode(one).rstrip(b"=").decode() for one in (data, claim._hmac(KEY.seal, data))]
    assert reason(f"v1.fleet.{parts[0]}.{parts[1]}") == "malformed"


def test_a_short_secret_is_none_and_no_key_is_printed() -> None:
    with pytest.raises(ValueError, match="at least 16 bytes"):
        ClaimKey.of("fleet", b"short")
    assert repr(KEY) == "<ClaimKey fleet>"
