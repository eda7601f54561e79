"""A value fills its hole and nothing more."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.cel import NAMES
from gateway.config.request import Names, compile_request
from gateway.core.expression import ExpressionError
from gateway.core.manifest import RequestSettings
from gateway.core.tool import BoundRequest, RequestTemplate

ENV = {"key": "k 1", "step": 2, "response": {"json": {"id": "pi_1", "n": 7, "list": [1], "nil": None, "big": 2.0**60}}}


def compiled(settings: RequestSettings) -> tuple[RequestTemplate | None, list[str]]:
    found: list[str] = []
    result = compile_request(
        settings,
        "pay",
        Names(NAMES, {}),
        lambda path, message, hint: found.append(f"{'.'.join(map(str, path))}: {message} ({hint})"),
    )
    return (None if result is None else result[0]), found


def bind(line: str, env: dict[str, object] | None = None, **more: object) -> BoundRequest:
    template, found = compiled(RequestSettings(request=line, **more))  # type: ignore[arg-type]
    assert template is not None, found
    return template.bind(ENV if env is None else env)


def problems(line: str, **more: object) -> str:
    template, found = compiled(RequestSettings(request=line, **more))  # type: ignore[arg-type]
    assert template is None
    return "\n".join(found)


def test_a_compensator_is_bound() -> None:
    """The design's own example."""
    bound = bind("POST /v1/payment_intents/${response.json.id}/cancel")
    assert bound == BoundRequest("pay", "POST", "/v1/payment_intents/pi_1/cancel")


def test_values_are_encoded_where_they_stand() -> None:
    """Path, query in the line, query mapping, form."""
    bound = bind("POST /a/${key}.json?x=${key}&y=1", query={"z w": "&${key}="})
    assert bound.target == "/a/k%201.json?x=k%201&y=1&z%20w=%26k%201%3D"
    form = bind("POST /", form={"a b": "${key}&"})
    assert form.body == "a+b=k+1%26"
    assert form.headers == (("Content-Type", "application/x-www-form-urlencoded"),)


def test_json_keeps_the_type_of_a_lone_expression() -> None:
    """`amount: "7"` and `amount: 7` are not the same to a payment tool."""
    bound = bind(
        "POST /",
        json={
            "n": "${response.json.n}",
            "t": "n=${response.json.n}",
            "l": ["${response.json.list}", None, 1.5],
            "z": "${response.json.nil}",
        },
    )
    assert orjson.loads(bound.body or "") == {"n": 7, "t": "n=7", "l": [[1], None, 1.5], "z": None}
    assert bound.headers == (("Content-Type", "application/json"),)


def test_a_content_type_of_ones_own_wins() -> None:
    """In any case of letters."""
    bound = bind("POST /", body="${key}", headers={"content-type": "text/csv"})
    assert (bound.headers, bound.body) == ((("content-type", "text/csv"),), "k 1")


@pytest.mark.parametrize(
    "line",
    [
        "POST /a/${response.json.nil}",
        "POST /a/${response.json.missing}",
        "POST /a/${response.json.list}",
        "POST /a/${response.json.big}",
        "POST /a?x=${response.json.nil}",
        "POST /${trajectory}",
    ],
)
def test_a_value_that_is_not_there_is_an_error_and_not_a_guess(line: str) -> None:
    """`DELETE /things/` deletes another thing than `DELETE /things/7`."""
    with pytest.raises(ExpressionError):
        bind(line)


@pytest.mark.parametrize("value", ["", ".", "..", "a/b", "a\\b", "a\x00", "a\nb", "\ud800"])
def test_a_value_cannot_change_the_path(value: str) -> None:
    """A tool's answer is not trusted to choose which path the gateway calls."""
    with pytest.raises(ExpressionError):
        bind("DELETE /a/${key}", {"key": value})


def test_dots_made_of_two_parts_are_refused() -> None:
    """Half from the template, half from the value."""
    with pytest.raises(ExpressionError):
        bind("DELETE /a/.${key}", {"key": "."})
    with pytest.raises(ExpressionError):
        bind("DELETE /a/${key}${key}", {"key": "."})


@pytest.mark.parametrize("value", ["a\r\nX: 1", "a\nb", "a\x00", "\x7f"])
def test_a_value_cannot_begin_another_header(value: str) -> None:
    """Header injection through a tool's answer."""
    with pytest.raises(ExpressionError, match="line break"):
        bind("POST /", {"key": value}, headers={"X": "a${key}"})


def test_secrets_stay_placeholders_and_values_cannot_pose_as_one() -> None:
    """A bound request is journaled; and a tool that answers `${secret:other}` must not be sent that secret."""
    bound = bind("POST /", headers={"Authorization": "Bearer ${secret:pay}"})
    assert bound.headers == (("Authorization", "Bearer ${secret:pay}"),)
    with pytest.raises(ExpressionError, match="placeholder"):
        bind("POST /", {"key": "${secret:pay}"}, headers={"X": "${key}"})
    with pytest.raises(ExpressionError, match="placeholder"):
        bind("POST /", {"key": "$", "step": "{secret:pay}"}, headers={"X": "${key}${step}"})


@pytest.mark.parametrize(
    ("line", "more", "part"),
    [
        ("post /", {}, "request is METHOD"),
        ("POST", {}, "request is METHOD"),
        ("POST a", {}, "request is METHOD"),
        ("${key} /", {}, "request is METHOD"),
        ("POST /a b", {}, "percent-encoded"),
        ("POST /é", {}, "percent-encoded"),
        ("POST /a#b", {}, "percent-encoded"),
        ("POST /a//b", {}, "empty segment"),
        ("POST /../b", {}, "`..`"),
        ("POST /%2e%2E/b", {}, "`..`"),
        ("POST /${", {}, "no closing"),
        ("POST /${secret:x}", {}, "only in `credentials`"),
        ("POST /", {"query": {"a": "${secret:x}"}}, "query.a: a secret may stand only"),
        ("POST /", {"json": {"a": ["${secret:x}"]}}, "json.a.0: a secret may stand only"),
        ("POST /", {"form": {"a": "${secret:x}"}}, "form.a: a secret may stand only"),
        ("POST /", {"body": "${secret:x}"}, "body: a secret may stand only"),
        ("POST /", {"headers": {"a b": "x"}}, "headers.a b: not a header name"),
        ("POST /", {"headers": {"Host": "x"}}, "set by the gateway"),
        ("POST /", {"headers": {"A": "x\ny"}}, "line breaks"),
        ("POST /", {"headers": {"A": "1", "a": "2"}}, "set twice"),
        ("POST /", {"headers": {"A": "$${secret:x}"}}, "cannot be sent"),
        ("POST /", {"json": {}, "form": {}}, "exclude each other"),
        ("POST /", {"json": {"${key}": 1}}, "a key is literal"),
        ("POST /", {"json": "${kye}"}, "did you mean `key`?"),
    ],
)
def test_what_cannot_be_bound_is_found_at_load(line: str, more: dict[str, object], part: str) -> None:
    """With the place below the request's own mapping."""
    assert part in problems(line, **more)


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_value_changes_the_shape_of_a_request(path_value: str, query_value: str) -> None:
    """Same number of segments, same parameters, values as they were: or an error."""
    env = {"key": path_value, "step": query_value}
    try:
        target = bind("POST /a/${key}/z?p=${step}&q=1", env).target
    except ExpressionError:
        return
    path, _, query = target.partition("?")
    segments = path.split("/")
    assert [segments[1], segments[3], len(segments)] == ["a", "z", 4]
    assert unquote(segments[2]) == path_value
    assert segments[2] not in (".", "..", "")
    assert parse_qsl(query, keep_blank_values=True) == [("p", query_value), ("q", "1")]
    assert target.isascii()
    assert " " not in target
