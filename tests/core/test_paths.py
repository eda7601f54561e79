"""What is matched and what is sent are the same bytes; whatever could be read in two ways is refused."""

import re
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.paths import BadTarget, ToolTarget, split_target


@pytest.mark.parametrize(
    ("target", "tool", "rest"),
    [
        (b"/pay/v1/x", "pay", b"/v1/x"),
        (b"/pay", "pay", b"/"),
        (b"/pay/", "pay", b"/"),
        (b"/pay?a=1", "pay", b"/?a=1"),
        (b"/pay/a?", "pay", b"/a?"),
        (b"/pay//a//", "pay", b"//a//"),
        (b"/pay/a%2Fb%20c?q=%2e%2e/../&x=[1]&bad=%zz", "pay", b"/a%2Fb%20c?q=%2e%2e/../&x=[1]&bad=%zz"),
        (b"/pay/a.b/...x/..y/.well-known", "pay", b"/a.b/...x/..y/.well-known"),
        (b"/p%61y/x", "p%61y", b"/x"),
        (b"/pay/%252e%252e/x", "pay", b"/%252e%252e/x"),
    ],
)
def test_a_target_is_split_without_decoding(target: bytes, tool: str, rest: bytes) -> None:
    assert split_target(target) == ToolTarget(tool, rest)


@pytest.mark.parametrize(
    "target",
    [
        b"",
        b"/",
        b"//evil.example/x",
        b"*",
        b"pay/x",
        b"http://evil.example/pay/x",
        b"/?x=1",
        b"/pay/a#frag",
        b"/pay/a?x#frag",
        b"/pay/a\\..\\b",
        b"/pay/a\0b",
        b"/pay/a\tb",
        b"/pay/a b",
        b"/pay/caf\xc3\xa9",
        b"/pay/..",
        b"/pay/../admin",
        b"/pay/a/./b",
        b"/../pay/x",
        b"/%2e%2E/x",
        b"/pay/%2e",
        b"/pay/.%2E/admin",
        b"/pay/a%2f..%2Fadmin",
        b"/pay/a%5c..%5Cadmin",
        b"/pay/..;x=1/admin",
        b"/pay/..%3Bx=1/admin",
        b"/pay/%2e.%3b",
    ],
)
def test_a_target_that_can_be_read_in_two_ways_is_refused(target: bytes) -> None:
    refused = split_target(target)
    assert isinstance(refused, BadTarget)
    assert refused.detail.endswith(".")


@given(st.binary(max_size=60).map(lambda data: b"/" + data))
def test_what_is_accepted_comes_back_byte_for_byte(target: bytes) -> None:
    split = split_target(target)
    if isinstance(split, ToolTarget):
        assert b"/" + split.tool.encode() + split.rest in (
            target,
            b"/" + split.tool.encode() + b"/" + target[1 + len(split.tool) :],
        )


@given(
    st.lists(st.sampled_from([b"/", b"a", b"pay", b".", b"%2e", b"%", b";", b"?", b"#", b"\\", b"=", b"\xe9", b" "]))
)
def test_a_plain_target_is_split_as_any_other(words: list[bytes]) -> None:
    target = b"/" + b"".join(words)
    quick = split_target(target)
    with patch("gateway.core.paths._PLAIN", re.compile(rb"(?!)()")):
        assert split_target(target) == quick
