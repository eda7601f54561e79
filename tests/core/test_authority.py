"""Hosts are compared as text in one form, and a URL in disguise is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.authority import (
    AbsoluteTarget,
    Authority,
    HostPattern,
    absolute_target,
    parse_authority,
    parse_host_pattern,
)
from gateway.core.paths import BadTarget


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (b"api.example", "api.example", None),
        (b"API.Example.", "api.example", None),
        (b"api.example:8443", "api.example", 8443),
        (b"api.example:", "api.example", None),
        (b"127.0.0.1:80", "127.0.0.1", 80),
        (b"[::1]:80", "::1", 80),
        (b"[0:0::0:1]", "::1", None),
        (b"my_tool", "my_tool", None),
        (b"xn--bcher-kva.example", "xn--bcher-kva.example", None),
    ],
)
def test_an_authority_is_read(text: bytes, host: str, port: int | None) -> None:
    assert parse_authority(text) == Authority(host, port)


@pytest.mark.parametrize(
    "text",
    [
        b"", b":80", b"a b", b"user@api.example", b"api.example:0", b"api.example:65536", b"api.example:x", b"::1",
        b"[::1", b"[zz]", b"b\xc3\xbccher.example", b"a..b", b"a/b", b"a?b", b"a#b", b"a\\b", b"a%20b", b"-a", b"a" * 254,
        b"[::1%eth0]", b"api.example:80:80",
    ],
)  # fmt: skip
def test_what_is_none_is_refused(text: bytes) -> None:
    assert isinstance(parse_authority(text), BadTarget)


def test_a_whole_url_keeps_path_and_query_byte_for_byte() -> None:
    read = absolute_target(b"HTTP://API.example/a%2Fb//c?q=%2e%2e/../&x=[1]")
    assert read == AbsoluteTarget("http", "api.example", 80, b"/a%2Fb//c?q=%2e%2e/../&x=[1]")


@pytest.mark.parametrize(
    ("target", "rest", "port"),
    [(b"http://a", b"/", 80), (b"https://a?x", b"/?x", 443), (b"https://a:1/", b"/", 1)],
)
def test_what_a_url_leaves_out_is_filled_in(target: bytes, rest: bytes, port: int) -> None:
    read = absolute_target(target)
    assert isinstance(read, AbsoluteTarget)
    assert (read.rest, read.port) == (rest, port)


@pytest.mark.parametrize("target", [b"/a", b"*", b"a:443", b"a", b""])
def test_other_forms_are_not_absolute(target: bytes) -> None:
    assert absolute_target(target) is None


@pytest.mark.parametrize(
    "target",
    [b"ftp://a/", b"http:///a", b"http://u@a/", b"http://a/../b", b"http://a/%2e%2e/b", b"http://a/b#f", b"http://a/ b",
     b"http://a\\b/", b"http://a/\xff"],
)  # fmt: skip
def test_a_url_that_can_be_read_in_two_ways_is_refused(target: bytes) -> None:
    assert isinstance(absolute_target(target), BadTarget)


@given(st.binary(max_size=60))
def test_no_bytes_are_an_exception(data: bytes) -> None:
    parse_authority(data)
    absolute_target(b"http://" + data)


@pytest.mark.parametrize(
    ("pattern", "host", "port", "is_covered"),
    [
        ("api.example", "api.example", 443, True),
        ("api.example", "api.example", 80, True),
        ("api.example", "api.example", 8443, False),
        ("api.example:8443", "api.example", 8443, True),
        ("api.example:8443", "api.example", 443, False),
        ("api.example", "x.api.example", 443, False),
        ("*.api.example", "x.api.example", 443, True),
        ("*.api.example", "y.x.api.example", 443, True),
        ("*.api.example", "api.example", 443, False),
        ("*.api.example", "evilapi.example", 443, False),
        ("*.api.example:1", "x.api.example", 1, True),
    ],
)
def test_a_pattern_covers_what_it_says(pattern: str, host: str, port: int, is_covered: bool) -> None:
    assert parse_host_pattern(pattern).covers(host, port) is is_covered


@pytest.mark.parametrize("text", ["", "*", "*.com", "*.1.2.3.4", "a.*.b", "https://a", "a/b", "*.", "a@b", "ü.example"])
def test_a_pattern_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_host_pattern(text)


def test_patterns_are_shown_as_written() -> None:
    for text in ("api.example", "*.api.example:8443", "[::1]:80"):
        assert str(parse_host_pattern(text)) == text
    assert parse_host_pattern("A.example.") == HostPattern("a.example")
