"""HTTP operations as MCP tools."""

import json
from typing import Any

import pytest

from gateway.core.manifest import Tier
from gateway.core.mcp_operations import BadArguments, built, described, result_of
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
