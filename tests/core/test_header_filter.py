"""What an agent may say to a tool, and what the gateway says in its place."""

from __future__ import annotations

import pytest

from gateway.core.header_filter import FORWARDED_FIELDS, ForwardedMode, HeaderSettings, Seen, forwarded, header_filter
from gateway.core.headers import OURS_IN_REQUESTS
from gateway.core.message import Headers

SEEN = Seen("192.0.2.1", b"gateway:8080", b"http", b"seawall-1")
LIE: Headers = ((b"Forwarded", b"for=10.0.0.1"), (b"X-Forwarded-For", b"10.0.0.1"), (b"X-Forwarded-Proto", b"https"))


def names(headers: Headers) -> list[bytes]:
    return [name for name, _ in headers]


def through(settings: HeaderSettings | None, headers: Headers, mode: ForwardedMode = ForwardedMode.DROP) -> Headers:
    apply = header_filter(settings, mode)
    assert apply is not None
    return apply(headers, SEEN)


@pytest.mark.parametrize("mode", [ForwardedMode.DROP, ForwardedMode.PASS])
@pytest.mark.parametrize("settings", [None, HeaderSettings()])
def test_a_tool_that_asks_for_nothing_pays_nothing(settings: HeaderSettings | None, mode: ForwardedMode) -> None:
    assert header_filter(settings, mode) is None


def test_only_what_is_listed_passes_whatever_its_case() -> None:
    headers = ((b"X-A", b"1"), (b"x-a", b"2"), (b"X-B", b"3"), (b"ACCEPT", b"4"), (b"Cookie", b"5"), (b"x-ab", b"6"))
    assert names(through(HeaderSettings(allow=("x-a", "Accept")), headers)) == [b"X-A", b"x-a", b"ACCEPT"]
    assert names(through(HeaderSettings(allow=("X-*",), deny=("x-ab",)), headers)) == [b"X-A", b"x-a", b"X-B"]
    assert b"Cookie" not in names(through(HeaderSettings(deny=("cookie",)), headers))
    assert through(HeaderSettings(deny=("*",)), headers) == ()


def test_what_a_call_means_nothing_without_always_passes() -> None:
    headers = tuple((name, b"1") for name in (b"Content-Type", b"traceparent", b"Via", b"Sec-WebSocket-Key"))
    assert through(HeaderSettings(allow=("x-a",), deny=("*",)), headers) == headers


def test_connection_stays_so_that_what_it_names_can_go() -> None:
    headers = ((b"Connection", b"x-a"), (b"X-A", b"1"))
    assert through(HeaderSettings(allow=("x-a",)), headers) == headers
    assert b"connection" in OURS_IN_REQUESTS


def test_the_agents_word_is_replaced_by_what_was_seen() -> None:
    assert through(None, (*LIE, (b"X-A", b"1")), ForwardedMode.REPLACE) == (
        (b"X-A", b"1"),
        (b"Forwarded", b'for=192.0.2.1;by=_seawall-1;proto=http;host="gateway:8080"'),
        (b"X-Forwarded-For", b"192.0.2.1"),
        (b"X-Forwarded-Host", b"gateway:8080"),
        (b"X-Forwarded-Proto", b"http"),
    )


def test_a_trusted_proxys_word_stands_before_ours() -> None:
    appended = through(None, LIE, ForwardedMode.APPEND)
    assert appended[:3] == LIE
    assert names(appended[3:]) == [b"Forwarded", b"X-Forwarded-For", b"X-Forwarded-Host"]


@pytest.mark.parametrize(
    ("seen", "element"),
    [
        (Seen("2001:db8::1", b"a", b"https", b"g"), b'for="[2001:db8::1]";by=_g;proto=https;host=a'),
        (Seen("fe80::1%eth0", b"a", b"http", b"g"), b'for="[fe80::1]";by=_g;proto=http;host=a'),
        (Seen("", b"", b"http", b"g"), b"for=unknown;by=_g;proto=http"),
        (Seen("", b'a"b\\c', b"http", b"g"), b'for=unknown;by=_g;proto=http;host="abc"'),
    ],
)
def test_a_forwarded_element_is_well_formed(seen: Seen, element: bytes) -> None:
    """RFC 7239 sections 4 and 6."""
    assert forwarded(seen, set())[0] == (b"Forwarded", element)


def test_the_list_is_in_lower_case() -> None:
    assert all(name == name.lower() for name in FORWARDED_FIELDS)


def test_what_is_denied_is_so_in_either_spelling() -> None:
    """To many servers `X_Secret` is `X-Secret`."""
    headers = ((b"X_Secret", b"1"), (b"x-secret", b"2"), (b"X_Forwarded_For", b"3"))
    assert names(through(HeaderSettings(deny=("x-secret",)), headers)) == [b"X_Forwarded_For"]
    assert names(through(HeaderSettings(deny=("X_Sec*",)), headers)) == [b"X_Forwarded_For"]
    assert b"X_Forwarded_For" not in names(through(None, headers, ForwardedMode.REPLACE))
