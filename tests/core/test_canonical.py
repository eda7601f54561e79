"""Equal calls get equal digests; different calls never do, whatever JSON parsers make of them."""

from __future__ import annotations

import json
import re
import time
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.canonical import (
    _looks_lossy,
    action_digest,
    action_namer,
    ambiguity,
    canonical_body,
    digests,
    fingerprint,
    is_json,
)

JSON = "application/json"


def digest(body: bytes, content_type: str = JSON) -> bytes:
    return action_digest("hold", "POST", "/v1/x", content_type, body)


def test_spacing_and_key_order_do_not_make_another_action() -> None:
    """A model writes its arguments afresh on each repeat."""
    assert digest(b'{"a": 1, "b": [true, null]}') == digest(b'{"b":[true,null],\n"a":1}')


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"id": 12345678901234567890}', b'{"id": 12345678901234567891}'),
        (b'{"id": 1.0}', b'{"id": 1}'),
        (b'{"id": 1e3}', b'{"id": 1000}'),
        (b'{"a": 1, "a": 2}', b'{"a": 2}'),
        (b'{"a": -0}', b'{"a": 0}'),
        (b'{"a": NaN}', b'{"a": null}'),
        (b'{"a": "1"}', b'{"a": 1}'),
        (b'{"a": "\\ud800"}', b'{"a": "?"}'),
    ],
)
def test_what_parsers_read_differently_stays_apart(one: bytes, other: bytes) -> None:
    """orjson takes the last of two equal keys and turns long integers into floats; a tool may not."""
    assert digest(one) != digest(other)


def test_long_digits_inside_text_are_no_numbers() -> None:
    """Card numbers and ids in quotes keep all their digits, so they need no raw comparison."""
    assert digest(b'{"a":"12345678901234567890", "b":"1.5e3"}') == digest(b'{"b":"1.5e3","a":"12345678901234567890"}')


def test_bodies_that_are_not_json_are_compared_as_they_are() -> None:
    """Some tools obey the order of form fields."""
    form = "application/x-www-form-urlencoded"
    assert digest(b"a=1&b=2", form) != digest(b"b=2&a=1", form)
    assert canonical_body("text/plain", b'{"b": 1, "a": 2}') == b'{"b": 1, "a": 2}'


def test_parts_cannot_flow_into_each_other() -> None:
    """Digests of concatenations must not meet."""
    assert action_digest("ab", "c", "/", "", b"") != action_digest("a", "bc", "/", "", b"")
    assert fingerprint("POST", "/a", "", b"b") != fingerprint("POST", "/ab", "", b"")
    assert len(fingerprint("POST", "/a", "", b"b")) == 16


def test_an_unclosed_string_does_not_cost_quadratic_time() -> None:
    """A body is an agent's to choose; its digest may not hold up the loop."""
    body = b'"' + b'\\"' * 100_000
    start = time.perf_counter()
    canonical_body(JSON, body)
    assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize("depth", [254, 255, 300, 1_000, 1_025, 100_000])
def test_deep_nesting_is_compared_as_it_is(depth: int) -> None:
    """A recursion error would be a crash chosen by the agent; what reads nests deeper than what writes."""
    for body in (b"[" * depth, b"[" * depth + b"]" * depth):
        assert canonical_body(JSON, body) == body


@given(st.binary(max_size=200))
def test_any_bytes_have_a_digest(body: bytes) -> None:
    """No body raises."""
    assert len(digest(body)) == 16


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner))
)
def test_canonical_form_is_stable(value: object) -> None:
    """Canonicalising twice is canonicalising once."""
    import json

    once = canonical_body(JSON, json.dumps(value).encode())
    assert canonical_body(JSON, once) == once


@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON; charset=utf-8", "application/problem+json"]
)
def test_json_is_known_by_its_media_type(content_type: str) -> None:
    """Parameters and capitals do not matter."""
    assert is_json(content_type)
    assert not is_json("text/json-ish")


@given(st.text(alphabet='0123456789.eE-+ "ab', max_size=60).map(str.encode))
def test_looking_for_lossy_numbers_is_the_pattern_it_stands_for(text: bytes) -> None:
    assert _looks_lossy(text) == (re.search(rb"[0-9][.eE]|[0-9]{16}|-0", text) is not None)


@given(
    st.text(max_size=9),
    st.sampled_from(["GET", "POST"]),
    st.text(max_size=9),
    st.text(max_size=9),
    st.binary(max_size=60),
)
def test_digests_are_those_that_journals_hold(operation: str, method: str, target: str, kind: str, body: bytes) -> None:
    """A repeat after an upgrade has to be known for one."""

    def of(*parts: bytes) -> bytes:
        return blake2b(b"".join(len(part).to_bytes(8, "big") + part for part in parts), digest_size=16).digest()

    verb, raw, canonical = method.encode(), target.encode(), canonical_body(kind, body)
    media = kind.partition(";")[0].strip().lower().encode()
    assert digests(operation, method, target, kind, body)[:2] == (
        of(operation.encode(), verb, raw, canonical),
        of(verb, raw, media, canonical),
    )


@given(st.binary(max_size=60), st.sampled_from(["application/json", "text/plain; a=b", ""]))
def test_both_digests_at_once_are_the_two_digests(body: bytes, kind: str) -> None:
    both = digests("tool.hold", "POST", "/x?y", kind, body)
    assert action_namer("tool.hold", "POST", "/x?y", kind)(body) == (both.action, both.is_canonical)
    assert both[:2] == (action_digest("tool.hold", "POST", "/x?y", kind, body), fingerprint("POST", "/x?y", kind, body))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"a": 1, "a": 2}', "the key 'a' occurs twice in one object"),
        (b'{"a": 1, "\\u0061": 2}', "the key 'a' occurs twice"),
        (b'[{"b": {"x": 1.5, "y": 1e9, "x": 12345678901234567890}}]', "the key 'x' occurs twice"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
    ],
)
def test_json_that_readers_differ_on_is_found(text: bytes, why: str) -> None:
    assert why in (ambiguity(text) or "")
    assert not digests("o", "POST", "/", "application/json", text).is_canonical


@pytest.mark.parametrize(
    "text", [b"", b"nonsense", b'{"a": {"a": 1}, "b": [{"a": 2}]}', b'{"a": NaN}', b"\xff", b'{"A": 1, "a": 2}']
)
def test_json_that_readers_agree_on_and_what_is_none(text: bytes) -> None:
    assert ambiguity(text) is None


@given(st.recursive(st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner) | st.lists(inner)))
def test_what_a_writer_writes_is_not_ambiguous(value: object) -> None:
    assert ambiguity(json.dumps(value).encode()) is None
