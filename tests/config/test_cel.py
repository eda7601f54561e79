"""Expressions are checked at load and never tell a value."""

from __future__ import annotations

import pytest

from gateway.config.cel import (
    FUNCTIONS,
    CelExpression,
    ExpressionProblem,
    _looked_at,
    compile_condition,
    compile_expression,
    text_of,
)
from gateway.core.expression import ExpressionError

ENV = {
    "request": {"params": {"id": "7"}, "json": {"n": 1}},
    "response": {"json": {"id": "x", "secret": "S3CRET"}},
    "key": "k",
}


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("response.json.id", "x"),
        ("params.id", "7"),
        ("key == 'k'", True),
        ("request.json.n + 1", 2),
        ("[1, 2].exists(x, x == 2)", True),
        ("'a' in response.json", False),
        ("{'a': key}['a']", "k"),
        ("'}'", "}"),
    ],
)
def test_expressions_are_evaluated(source: str, value: object) -> None:
    """Plain paths in Python, the rest in CEL."""
    assert compile_expression(source)(ENV) == value


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("response.", "not a CEL expression"),
        ("respons.json", "did you mean `response`?"),
        ("foo(key)", "unknown function `foo`"),
        ("key.startWith('a')", "did you mean `startsWith`?"),
        ("[1].exists(x, y == x)", "unknown name `y`"),
        ("", "not a CEL"),
        ("1 + " * 1000 + "1", "longer than"),
        ("(" * 500, "not a CEL"),
    ],
)
def test_what_cannot_work_is_found_at_load(source: str, part: str) -> None:
    """Not when a run fails at night and its compensator does not compile."""
    with pytest.raises(ExpressionProblem) as caught:
        compile_expression(source)
    assert part in f"{caught.value} {caught.value.hint}"


def test_the_longest_allowed_expression_does_not_end_the_process() -> None:
    """Unbounded ones overflow the library's stack from about 40 KB on: the process dies with a segmentation fault."""
    assert compile_expression("1" + "+1" * 999)({}) == 1000


def test_a_name_that_is_known_only_later_says_so() -> None:
    """The hint saves a search."""
    with pytest.raises(ExpressionProblem, match="`response` is not known here: because"):
        compile_expression("response.x", frozenset({"key"}), {"response": "because"})


@pytest.mark.parametrize(
    "source",
    [
        "response.json.missing",
        "response.json.secret.x",
        "response.json.secret + 1",
        "int(response.json.secret)",
        "response.json.id.matches(response.json.secret + '[')",
        "[1][7]",
        "1 / 0",
        "trajectory",
        "response.json[response.json.secret]",
        "{'S': 1}[response.json.secret]",
        "9223372036854775807 + request.json.n",
    ],
)
def test_a_failure_names_the_expression_and_no_value(source: str) -> None:
    """Messages are logged and journaled."""
    with pytest.raises(ExpressionError) as caught:
        compile_expression(source)(ENV)
    assert "S3CRET" not in str(caught.value)
    assert source in str(caught.value)


def test_a_condition_is_true_or_false_and_nothing_else() -> None:
    """A postcondition that yields a text would hold by accident."""
    assert compile_condition("response.json.id == 'x'")(ENV) is True
    with pytest.raises(ExpressionError, match="neither true nor false"):
        compile_condition("response.json.id")(ENV)


def test_integers_of_any_length_keep_their_digits_on_a_plain_path() -> None:
    """CEL's integers end at 64 bits."""
    number = 123456789012345678901234567890
    assert compile_expression("response.json.id")({"response": {"json": {"id": number}}}) == number


def test_text_of_refuses_what_has_no_one_text() -> None:
    """`null` in a path would address another thing."""
    assert [text_of(value, "x") for value in ("a", 1, True, 1.5, 10.0)] == ["a", "1", "true", "1.5", "10"]
    for value in (None, [], {}, b"x", 2.0**53, float("nan"), float("inf")):
        with pytest.raises(ExpressionError):
            text_of(value, "x")


def test_every_listed_function_exists() -> None:
    """The list is what load-time checking goes by."""
    calls = {
        "size": "size('a')",
        "int": "int('1')",
        "uint": "uint('1')",
        "double": "double('1')",
        "string": "string(1)",
        "bytes": "bytes('a')",
        "timestamp": "timestamp('2020-01-01T00:00:00Z')",
        "duration": "duration('1s')",
        "type": "type({}) == type({})",
    }
    for name in FUNCTIONS:
        source = calls.get(name) or (
            f"timestamp('2020-01-01T00:00:00Z').{name}()" if name.startswith("get") else f"'a'.{name}('a')"
        )
        compile_expression(source)({})


def test_an_expression_prints_its_source() -> None:
    """And nothing else."""
    assert repr(compile_expression(" key ")) == "CelExpression('key')"
    assert isinstance(compile_expression("key"), CelExpression)


@pytest.mark.parametrize(
    ("source", "members"),
    [
        ("request.json.a == request.json.b", {"json"}),
        ("request.method == 'GET' && has(request.json.x)", {"method", "json"}),
        ("request . json . a == 1", {"json"}),
        ("request['json'].a == 1", None),
        ("size(request) > 0", None),
        ("request.matches('x')", None),
        ("xrequest.json == 1 || request.path == 'request.text'", {"path"}),
        ("[1].exists(request, request > 0)", None),
    ],
)
def test_only_the_members_that_an_expression_looks_at_are_made(source: str, members: set[str] | None) -> None:
    """The rest would be taken over by the library for nothing."""
    assert _looked_at(source, "request") == members


def test_a_member_that_is_not_there_is_still_missing() -> None:
    env = {"request": {"json": {"a": 1}}}
    assert compile_expression("has(request.json.b) || request.json.a == 1")(env) is True
    assert compile_expression("has(request.text) || request.json.a == 1")(env) is True
    with pytest.raises(ExpressionError, match="missing"):
        compile_expression("request.text == 'x' || request.json.a == 2")(env)
