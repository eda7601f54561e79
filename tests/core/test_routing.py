"""The matcher finds what a reader of the manifest would find, and refuses what two readers could read differently."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import routing
from gateway.core.manifest import ApprovalPolicy, Tier, TimeoutSettings
from gateway.core.routing import Matcher, PatternError, normalised_segments, parse_pattern
from gateway.core.tool import AmbiguousPath, Operation


def operation(name: str, tier: Tier = Tier.PIVOT) -> Operation:
    return Operation(name=name, tier=tier, timeouts=TimeoutSettings())


def matcher(*patterns: str, has_prefix: bool = False, tiers: dict[str, Tier] | None = None) -> Matcher:
    declared = [(parse_pattern(text), operation(text, (tiers or {}).get(text, Tier.PIVOT)), text) for text in patterns]
    read, write = operation("read", Tier.READ), operation("write", Tier.PIVOT if patterns else Tier.UNMANAGED)
    return Matcher(declared, (read, "r"), (write, "w"), has_prefix)


def test_literals_win_over_holes_from_left_to_right() -> None:
    """`/v1/things/search` is not the thing called "search"."""
    match = matcher("POST /v1/{a}/x", "POST /v1/things/{b}", "POST /v1/things/x")
    assert match("POST", "/v1/things/x").operation.name == "POST /v1/things/x"
    assert match("POST", "/v1/things/7").operation.name == "POST /v1/things/{b}"
    assert match("POST", "/v1/other/x").params == {"a": "other"}


def test_a_required_query_makes_a_pattern_more_specific() -> None:
    """EC2 names its operations in the query."""
    match = matcher("POST /", "POST /?Action=RunInstances")
    assert match("POST", "/?Action=RunInstances&Count=1").operation.name == "POST /?Action=RunInstances"
    assert match("POST", "/?Action=Other").operation.name == "POST /"


def test_an_operation_named_twice_in_a_query_is_refused() -> None:
    """Servers disagree on which of two equal parameters counts."""
    match = matcher("POST /?Action=Describe", tiers={"POST /?Action=Describe": Tier.READ})
    with pytest.raises(AmbiguousPath, match="more than once"):
        match("POST", "/?Action=Describe&Action=Terminate")


def test_of_two_patterns_that_fit_equally_the_more_careful_wins() -> None:
    """A pivot is not to be reached by adding a parameter that makes it look like a read."""
    match = matcher("POST /?a=1", "POST /?b=1", tiers={"POST /?a=1": Tier.READ})
    assert match("POST", "/?a=1&b=1").operation.name == "POST /?b=1"


def test_head_falls_back_to_get() -> None:
    """RFC 9110 section 9.3.2: HEAD is GET without the body, effects included."""
    match = matcher("GET /danger")
    assert match("HEAD", "/danger").operation.name == "GET /danger"
    assert match("HEAD", "/else").operation.name == "read"


def test_undeclared_calls_are_reads_or_writes_by_their_method() -> None:
    """An undeclared write of a managed tool is a pivot; methods are case-sensitive, so `get` is no GET."""
    match = matcher("POST /a")
    assert match("OPTIONS", "/z").operation.name == "read"
    assert match("DELETE", "/z").operation.tier is Tier.PIVOT
    assert match("get", "/z").operation.name == "write"
    assert matcher()("PUT", "/z").operation.tier is Tier.UNMANAGED


def test_segments_are_compared_decoded_and_bound_decoded() -> None:
    """`%70ayouts` is `payouts` to every server; a pivot must not hide behind it."""
    match = matcher("POST /v1/payouts", "POST /v1/{id}/x")
    assert match("POST", "/v1/%70ayouts").operation.name == "POST /v1/payouts"
    assert match("POST", "/v1/a%20b%C3%A9/x").params == {"id": "a bé"}


@pytest.mark.parametrize(
    "target",
    [
        "/v1/../payouts",
        "/v1/./payouts",
        "/v1/%2e%2E/payouts",
        "/..",
        "/v1/..%2fpayouts",
        "/v1%2Fpayouts",
        "/v1%5cpayouts",
        "/v1\\payouts",
        "//v1/payouts",
        "/v1//payouts",
        "/v1/pay%00outs",
        "/v1/pay%0aouts",
        "/v1/pay%7Fouts",
        "/v1/%zz",
        "/v1/pay outs",
        "/v1/payé",
        "/v1/#x",
        "/v1/..;/payouts",
        "/v1/..;x=1/payouts",
        "/v1/..%3b/payouts",
        "/v1/payouts/;x=1",
        "/v1/payouts/%3bx",
        "/;x/v1/payouts",
    ],
)
def test_a_path_that_servers_read_differently_is_refused(target: str) -> None:
    """A GET on such a path would pass as a read here and reach a declared pivot there."""
    with pytest.raises(AmbiguousPath):
        matcher("GET /v1/payouts")("GET", target)


CAREFUL = {"GET /v1/payouts": Tier.PIVOT, "POST /{v}/{id}": Tier.REVERSIBLE, "POST /v1/payouts": Tier.PIVOT}


@pytest.mark.parametrize(
    "path", ["/v1/Payouts", "/V1/payouts", "/v1/payouts;v=1", "/v1;v=1/payouts", "/v1/payouts%3bx", "/v1/payouts.json"]
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_a_path_that_lax_servers_take_for_a_more_careful_operation_is_refused(method: str, path: str) -> None:
    """Express and IIS know no capitals, Tomcat drops parameters, Rails takes an ending for a format."""
    with pytest.raises(AmbiguousPath, match=r"`\w+ /v1/payouts`, which asks for more care"):
        matcher(*CAREFUL, tiers=CAREFUL)(method, path)


def test_a_slash_behind_a_path_does_not_make_it_less_careful() -> None:
    """Rails and Express take no notice of it; to us it is an empty segment, which no hole takes."""
    match = matcher(*CAREFUL, tiers=CAREFUL)
    with pytest.raises(AmbiguousPath, match="asks for more care"):
        match("GET", "/v1/payouts/")
    assert match("POST", "/v1/payouts/").operation.tier is Tier.PIVOT
    with_slash = {"POST /v1/{id}/": Tier.REVERSIBLE, "POST /v1/payouts": Tier.PIVOT}
    with pytest.raises(AmbiguousPath, match="asks for more care"):
        matcher(*with_slash, tiers=with_slash)("POST", "/v1/payouts/")


def test_a_guard_is_not_got_around_by_a_hole_of_the_same_tier() -> None:
    guarded = replace(operation("payout"), approval=ApprovalPolicy.REQUIRED)
    declared = [(parse_pattern("POST /v1/{id}"), operation("other"), ""), (parse_pattern("POST /v1/x"), guarded, "")]
    match = Matcher(declared, (operation("read", Tier.READ), ""), (guarded, ""), has_prefix=False)
    assert match("POST", "/v1/x").operation is guarded
    assert match("POST", "/v1/y").operation.name == "other"
    with pytest.raises(AmbiguousPath, match="asks for more care"):
        match("POST", "/v1/X")


def test_a_lax_reading_that_asks_for_no_more_care_refuses_nothing() -> None:
    """Ids hold capitals, full stops and semicolons, and an operation may be declared in any spelling that the tool has."""
    tiers = {
        "GET /v1/{id}": Tier.READ,
        "GET /v1/things": Tier.READ,
        "POST /v1/{id}": Tier.PIVOT,
        "POST /v1/x": Tier.READ,
    }
    match = matcher(*tiers, tiers=tiers)
    for path in ("/v1/Things", "/v1/things;v=1", "/v1/report.pdf", "/v1/Ab;c"):
        assert match("GET", path).operation.name == "GET /v1/{id}"
    assert match("GET", "/v1/things/").operation.name == "read"
    assert match("POST", "/v1/X").operation.name == "POST /v1/{id}"
    spelt = {"GET /v1/{id}": Tier.READ, "GET /v1/pay": Tier.PIVOT, "GET /v1/Pay": Tier.READ}
    assert matcher(*spelt, tiers=spelt)("GET", "/v1/Pay").operation.name == "GET /v1/Pay"
    assert matcher(*CAREFUL, tiers=CAREFUL)("POST", "/v1/7.5").params == {"v": "v1", "id": "7.5"}


def test_an_unmanaged_tool_takes_any_path_unless_it_leaves_the_prefix() -> None:
    """S3 keys hold slashes of every kind; but a prefix is a fence."""
    assert matcher()("PUT", "/bucket/a%2Fb//../c").operation.name == "write"
    assert matcher(has_prefix=True)("PUT", "/a%2Fb").operation.name == "write"
    for climbing in ("/../admin", "/a/%2e%2e/%2e%2e/x", "/..%2fadmin"):
        with pytest.raises(AmbiguousPath):
            matcher(has_prefix=True)("PUT", climbing)


def test_a_hole_is_never_empty_and_its_value_is_utf_8() -> None:
    """A compensator would be bound to another path, or to a replacement character."""
    match = matcher("POST /v1/{id}")
    assert match("POST", "/v1/").operation.name == "write"
    with pytest.raises(AmbiguousPath, match="UTF-8"):
        match("POST", "/v1/%ff")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("post /x", "capitals"),
        ("POST", "begins with `/`"),
        ("POST x", "begins with `/`"),
        ("POST /{a}.json", "whole segment"),
        ("POST /{a}/{a}", "twice"),
        ("POST /a b", "percent-encoded"),
        ("POST /a//b", "empty segment"),
        ("POST /../b", "`..`"),
        ("POST /x?a", "key=value"),
        ("POST /x?a={b}", "literal"),
        ("POST /x?a=1&a=2", "twice"),
        ("POST /${key}", "no value is known"),
        ("", "capitals"),
        ("POST /é", "percent-encoded"),
    ],
)
def test_a_pattern_that_cannot_be_read_says_why(text: str, part: str) -> None:
    """The sentence is what the author of a manifest has to go by."""
    with pytest.raises(PatternError, match=part):
        parse_pattern(text)


SEGMENT = st.sampled_from(["a", "b", "c", "x%20y"])
PATTERN_SEGMENT = st.sampled_from(["a", "b", "c", "{}"])


@given(
    st.lists(st.lists(PATTERN_SEGMENT, min_size=1, max_size=4), min_size=1, max_size=12),
    st.lists(SEGMENT, min_size=1, max_size=4),
    st.sampled_from(["GET", "POST", "HEAD"]),
)
def test_it_agrees_with_a_naive_matcher(patterns: list[list[str]], segments: list[str], method: str) -> None:
    """The dictionary is only a faster way to do what is obvious."""
    texts = {
        "POST /" + "/".join(part if part != "{}" else f"{{p{i}}}" for i, part in enumerate(parts)) for parts in patterns
    }
    target = "/" + "/".join(segments)
    found = matcher(*sorted(texts))(method, target)
    fitting = [pattern for pattern in map(parse_pattern, texts) if _fits(pattern.segments, normalised_segments(target))]
    if method != "POST" or not fitting:
        assert found.operation.name == ("write" if method == "POST" else "read")
        return
    best = min(fitting, key=lambda pattern: tuple(segment is None for segment in pattern.segments))
    assert found.operation.name == best.source


def _fits(pattern: tuple[str | None, ...], segments: list[str]) -> bool:
    return len(pattern) == len(segments) and all(
        one in (None, other) for one, other in zip(pattern, segments, strict=True)
    )


@given(st.text(max_size=40), st.booleans())
def test_any_target_is_matched_or_refused(target: str, is_managed: bool) -> None:
    """Nothing else may come out of it, whatever bytes an agent sends."""
    match = matcher("GET /a/{b}", "POST /a?x=1") if is_managed else matcher(has_prefix=True)
    with contextlib.suppress(AmbiguousPath):
        assert match("GET", target).operation is not None


@given(st.text(alphabet="/.;%2eEfF5cCa~:", max_size=12))
def test_plain_paths_are_those_that_the_full_look_would_pass(path: str) -> None:
    """The short cut is only a short cut."""
    if routing._PLAIN.fullmatch(path):
        assert not routing._DOTS.search(path)
        assert not routing._UNCLEAR.search(path)


def test_a_query_that_could_replace_the_method_is_refused() -> None:
    """WordPress takes `_method` from the query of any request, so a read would be what it says."""
    match = matcher("GET /things/{id}", tiers={"GET /things/{id}": Tier.READ})
    for target in ("/things/7?_method=DELETE", "/other?a=1&%5Fmethod=DELETE", "/other?_HttpMethod=PATCH"):
        for method in ("GET", "HEAD", "POST"):
            with pytest.raises(
                AmbiguousPath, match=r"`_(method|HttpMethod)` could have the tool take the call for another"
            ):
                match(method, target)
    with pytest.raises(AmbiguousPath):
        matcher()("GET", "/x?_method=DELETE")
    assert match("GET", "/things/7?method=DELETE").operation.name == "GET /things/{id}"


def test_an_operation_whose_pattern_names_the_other_method_is_that_operation() -> None:
    """Salesforce takes a PATCH as a POST; with it written down, what is decided on is what is done."""
    match = matcher("POST /things/{id}?_HttpMethod=PATCH", "GET /things/{id}?_method=COUNT")
    assert match("POST", "/things/7?a=b&_HttpMethod=PATCH").operation.name == "POST /things/{id}?_HttpMethod=PATCH"
    assert match("HEAD", "/things/7?_method=COUNT").operation.name == "GET /things/{id}?_method=COUNT"
    for query in (
        "_HttpMethod=DELETE",
        "_HttpMethod=PATCH;_HttpMethod=DELETE",
        "_HttpMethod=PATCH&a=1;_HttpMethod=DELETE",
        "_HttpMethod=PATCH&_httpmethod=DELETE",
        "_HttpMethod=PATCH&_method=DELETE",
    ):
        with pytest.raises(AmbiguousPath):
            match("POST", f"/things/7?{query}")


def test_an_operation_may_allow_it_by_name() -> None:
    free = replace(operation("update"), overrides=frozenset({"_method"}))
    read = replace(operation("read", Tier.READ), overrides=frozenset({"_method"}))
    match = Matcher([(parse_pattern("POST /a"), free, "")], (read, ""), (operation("write"), ""), False)
    assert match("POST", "/a?_method=PUT").operation is free
    assert match("POST", "/a?.method=PUT").operation is free
    assert match("GET", "/b?_method=PUT").operation is read
    for target in ("/b?_method=PUT", "/a?_HttpMethod=PUT"):
        with pytest.raises(AmbiguousPath):
            match("POST", target)
