"""Which tool a URL means: by host and port, then by the longest path; never by a guess."""

from __future__ import annotations

import pytest

from gateway.core.authority import AbsoluteTarget, absolute_target, parse_host_pattern
from gateway.core.hosts import Found, HostIndex, Several, Unknown
from gateway.core.tool import ToolSpec, Upstream
from tests.builders import tool_of


def tool(name: str, scheme: str, host: str, port: int, prefix: str = "", hosts: tuple[str, ...] = ()) -> ToolSpec:
    patterns = tuple(parse_host_pattern(text) for text in hosts)
    return tool_of(name, upstream=Upstream(scheme, host, port, prefix), hosts=patterns)


INDEX = HostIndex(
    [
        tool("plain", "http", "plain.example", 80),
        tool("pay", "https", "API.pay.example", 443, hosts=("pay.test:8080",)),
        tool("v1", "https", "shared.example", 443, "/v1"),
        tool("v2", "https", "shared.example", 443, "/v2"),
        tool("all", "https", "shared.example", 443),
        tool("one", "http", "127.0.0.1", 9000),
        tool("two", "http", "127.0.0.1", 9000),
        tool("s3", "https", "s3.example", 443, hosts=("*.s3.example",)),
        tool("special", "https", "special.s3.example", 443),
        tool("server", "stdio", "plain.example", 0),
    ]
)


def find(url: str) -> Found | Several | Unknown:
    target = absolute_target(url.encode())
    assert isinstance(target, AbsoluteTarget)
    return INDEX.find(target)


@pytest.mark.parametrize(
    ("url", "name", "rest"),
    [
        ("http://plain.example/a?b", "plain", b"/a?b"),
        ("https://api.pay.example/a", "pay", b"/a"),
        ("http://api.pay.example/a", "pay", b"/a"),
        ("http://pay.test:8080/a", "pay", b"/a"),
        ("https://shared.example/v1/x", "v1", b"/x"),
        ("https://shared.example/v1", "v1", b"/"),
        ("https://shared.example/v1?x=/v2", "v1", b"/?x=/v2"),
        ("https://shared.example/v2/v1", "v2", b"/v1"),
        ("https://shared.example/v10", "all", b"/v10"),
        ("https://b.s3.example/k", "s3", b"/k"),
        ("https://a.b.s3.example/k", "s3", b"/k"),
        ("https://special.s3.example/k", "special", b"/k"),
    ],
)
def test_a_url_means_one_tool(url: str, name: str, rest: bytes) -> None:
    found = find(url)
    assert isinstance(found, Found)
    assert (found.tool.name, found.rest) == (name, rest)


@pytest.mark.parametrize(
    "url",
    [
        "https://plain.example/a",
        "http://plain.example:8080/",
        "https://api.pay.example:8443/",
        "http://pay.test/",
        "https://pay.example/",
        "http://evil.example/",
    ],
)
def test_no_call_is_made_less_safe_and_no_host_is_guessed(url: str) -> None:
    """https:// where the tool has http alone: the answer could not be what the client was promised."""
    assert find(url) == Unknown()


def test_equal_tools_are_both_named() -> None:
    assert find("http://127.0.0.1:9000/x") == Several(("one", "two"))


def test_a_path_under_no_prefix_is_no_tools() -> None:
    index = HostIndex([tool("v1", "https", "shared.example", 443, "/v1")])
    target = absolute_target(b"https://shared.example/v3")
    assert isinstance(target, AbsoluteTarget)
    assert index.find(target) == Unknown(("/v1",))
    assert index.at("shared.example", 443)
