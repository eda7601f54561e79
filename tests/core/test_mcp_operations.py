"""HTTP operations as MCP tools."""

import json
from typing import Any

import pytest

from gateway.core.manifest import Tier
from gateway.core.mcp_operations import BadArguments, built, described, result_of
from gateway.core.tool import CallForm
from tests.builders import operation_of, tool_of


def test_an_operation_describes_itself() -> None:
    """Holes are required arguments; a schema of the manifest replaces the made one."""
    get = operation_of("look", Tier.READ, source="GET /orders/{id}", description="Look.")
    pay = operation_of("pay", Tier.PIVOT, source="POST /pay", input={"type": "object", "required": ["amount"]})
    made_up = operation_of("undeclared", Tier.PIVOT, is_declared=False)
    look, paid = described(tool_of("shop", pay, get, made_up))
    assert (look.name, look.value["description"]) == ("look", "Look.")
    assert look.schema["required"] == ["id"]  # type: ignore[index]
    assert look.value["annotations"]["readOnlyHint"] is True  # type: ignore[index]
    assert paid.schema == {"type": "object", "required": ["amount"]}
    assert paid.value["annotations"]["destructiveHint"] is True  # type: ignore[index]


@pytest.mark.parametrize(
    ("source", "arguments", "target", "body"),
    [
        ("GET /orders/{id}", {"id": "a b", "page": 2, "tags": ["x", "y"]}, "/orders/a%20b?page=2&tags=x&tags=y", None),
        ("POST /orders/{kind}", {"kind": "k", "n": 1.5}, "/orders/k", {"n": 1.5}),
        ("DELETE /orders/{id}", {"id": 7}, "/orders/7", None),
        ("POST /search?mode=fast", {"q": "x"}, "/search?mode=fast", {"q": "x"}),
        ("GET /flags", {"on": True}, "/flags?on=true", None),
    ],
)
def test_arguments_make_a_request(source: str, arguments: dict[str, Any], target: str, body: object) -> None:
    """Each goes where HTTP has its place for it."""
    made = built(operation_of(source=source), arguments)
    assert made[:2] == (source.split()[0], target)
    assert (None if made[3] is None else json.loads(made[3])) == body


@pytest.mark.parametrize("value", ["", "..", "a/b", "a\nb", None, {"x": 1}])
def test_what_does_not_fit_into_a_path_is_refused(value: object) -> None:
    """A hole is one segment and stays one."""
    with pytest.raises(BadArguments):
        built(operation_of(source="DELETE /orders/{id}"), {"id": value})
    with pytest.raises(BadArguments):
        built(operation_of(source="DELETE /orders/{id}"), {})


def test_an_answer_is_text_and_structure() -> None:
    """JSON objects are both; a failure says so; the rest is bounded."""
    ok = json.loads(result_of(200, "application/json", b'{"id":1}'))
    assert (ok["structuredContent"], ok["isError"]) == ({"id": 1}, False)
    assert "structuredContent" not in json.loads(result_of(200, "application/json", b"[1]"))
    bad = json.loads(result_of(404, "text/plain", b""))
    assert (bad["content"][0]["text"], bad["isError"]) == ("HTTP 404", True)
    long = json.loads(result_of(200, "text/plain", b"x" * (2 << 20)))
    assert "cut off" in long["content"][0]["text"]


@pytest.mark.parametrize(
    ("source", "form", "arguments", "target", "headers", "body"),
    [
        ("POST /a", {"query": {"dry"}}, {"dry": True, "n": 1}, "/a?dry=true", {}, '{"n":1}'),
        ("GET /a", {"joined": {"f"}}, {"f": ["x", "y"], "g": ["1", "2"]}, "/a?f=x%2Cy&g=1&g=2", {}, None),
        ("GET /a", {"headers": {"X-A": "X-A"}}, {"X-A": "b c"}, "/a", {"X-A": "b c"}, None),
        ("POST /a", {"is_form": True}, {"a": "x", "m": {"k": {"l": [1, 2]}}}, "/a", {}, "a=x&m[k][l][0]=1&m[k][l][1]=2"),
        ("PUT /a", {"body": "body"}, {"body": [1, 2]}, "/a", {}, "[1,2]"),
        ("PUT /a", {"body": "body"}, {}, "/a", {}, None),
        ("DELETE /a", {"query": {"why"}}, {"why": "é"}, "/a?why=%C3%A9", {}, None),
    ],
)  # fmt: skip
def test_arguments_go_where_the_document_says(
    source: str, form: dict[str, Any], arguments: dict[str, Any], target: str, headers: dict[str, str], body: str | None
) -> None:
    """Query, header, form, or the whole body."""
    made = built(operation_of(source=source, form=CallForm(**form)), arguments)
    sent = {name.decode(): value.decode() for name, value in made[2] if name != b"Content-Type"}
    assert (made[1], sent) == (target, headers)
    assert (None if made[3] is None else made[3].decode()) == body
    kinds = [value for name, value in made[2] if name == b"Content-Type"]
    kind = b"application/x-www-form-urlencoded" if form.get("is_form") else b"application/json"
    assert kinds == ([] if body is None else [kind])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "'n' is missing"),
        ({"n": "7"}, "'n' must be of the type integer"),
        ({"n": 7.5}, "integer"),
        ({"n": float("inf")}, "integer"),
        ({"n": True}, "integer"),
        ({"n": 7, "s": {}}, "string"),
        ({"n": 7, "l": "x"}, "array"),
        ({"n": 7, "o": []}, "object"),
        ({"n": 7, "b": 1}, "boolean"),
        ({"n": 7, "z": 1}, "null"),
        ({"n": 7, "f": "1"}, "number"),
        ({"n": 7, "X-A": "a\r\nb"}, "header"),
    ],
)
def test_arguments_are_held_to_what_their_schema_says_of_them(arguments: dict[str, Any], why: str) -> None:
    """Nothing is sent; the sentence names the argument."""
    kinds = {"n": "integer", "s": "string", "l": "array", "o": "object", "b": "boolean", "z": "null", "f": "number"}
    schema = {"properties": {name: {"type": kind} for name, kind in kinds.items()}, "required": ["n"]}
    operation = operation_of(source="POST /a", input=schema, form=CallForm(headers={"X-A": "X-A"}))
    with pytest.raises(BadArguments, match=why):
        built(operation, arguments)
    built(operation, {"n": 7.0, "s": "x", "l": [], "o": {}, "b": False, "z": None, "f": 1, "more": 1})
