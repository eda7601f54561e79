"""What may be guessed of an MCP tool, and what is left to a person."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.draft import DraftTool, render
from gateway.core.draft_calls import drafted, guess_call
from gateway.core.manifest import Tier
from gateway.core.mcp_tools import Definition


def tool(name: str, takes: tuple[str, ...] = (), gives: tuple[str, ...] = (), **more: Any) -> Definition:
    value: dict[str, Any] = {"name": name, "inputSchema": schema(takes), **more}
    if gives:
        value["outputSchema"] = schema(gives)
    return Definition(name, value)


def schema(names: tuple[str, ...]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": list(names)}


@pytest.mark.parametrize(
    ("name", "hints", "tier", "why"),
    [
        ("get_status", {"readOnlyHint": True}, Tier.READ, "readOnlyHint"),
        ("list_runs", {"readOnlyHint": True, "destructiveHint": False}, Tier.READ, "readOnlyHint"),
        ("git_reset", {"readOnlyHint": True}, Tier.PIVOT, "its name says `reset`"),
        ("sendMail", {"readOnlyHint": True}, Tier.PIVOT, "its name says `send`"),
        ("get_run", {"readOnlyHint": True}, Tier.READ, "readOnlyHint"),
        ("look", {"readOnlyHint": True, "destructiveHint": True}, Tier.PIVOT, "at once"),
        ("look", {"readOnlyHint": "yes"}, Tier.PIVOT, "no hints"),
        ("search_notes", {}, Tier.PIVOT, "sounds like a read"),
        ("charge", {"destructiveHint": False}, Tier.PIVOT, "only adds"),
        ("charge", {"destructiveHint": True, "idempotentHint": True}, Tier.PIVOT, "gone for good"),
        ("charge", {"idempotentHint": True}, Tier.PIVOT, "idempotent: true"),
        ("charge", None, Tier.PIVOT, "no hints"),
        ("", {}, Tier.PIVOT, "no hints"),
    ],
)
def test_hints_only_make_more_careful(name: str, hints: Any, tier: Tier, why: str) -> None:
    """The one that makes a read is believed as it is without a manifest, and less than the name."""
    guess = guess_call(name, hints)
    assert guess.tier is tier
    assert why in guess.reason


def pair_of(*definitions: Definition) -> Any:
    (pair,) = drafted(definitions)[1]
    return pair


def test_what_undoes_gets_its_arguments_from_what_was_done() -> None:
    """By the same name: first from what was given, then from what was answered; an id from the answer's."""
    pair = pair_of(tool("create_order", ("shop",), ("order",)), tool("delete_order", ("shop", "order")))
    assert pair.arguments == (
        ("shop", "${request.json.shop}"),
        ("order", "${response.json.structuredContent.order}"),
    )
    pair = pair_of(tool("hold", (), ("id", "state")), tool("release", ("holdId",)))
    assert pair.arguments == (("holdId", "${response.json.structuredContent.id}"),)
    pair = pair_of(tool("lock", ("the-door",)), tool("unlock", ("the-door",)))
    assert pair.arguments == (("the-door", "${request.json['the-door']}"),)
    assert pair_of(tool("start"), tool("stop")).arguments == ()


def test_members_of_a_list_are_bound_where_the_name_says_which() -> None:
    """`entityNames` is the name of each of `entities`."""
    items = {"type": "object", "properties": {"name": {"type": "string"}, "kind": {"type": "string"}}}
    made = tool("create_entities")
    made.value["inputSchema"]["properties"]["entities"] = {"type": "array", "items": items}  # type: ignore[index]
    pair = pair_of(made, tool("delete_entities", ("entityNames",)))
    assert pair.arguments == (("entityNames", "${request.json.entities.map(one, one.name)}"),)


def test_an_argument_that_comes_from_nowhere_is_left_to_a_person() -> None:
    """A compensator with a made-up argument would undo something else."""
    definitions = (tool("create_note", ("text",)), tool("delete_note", ("note",)))
    pair = pair_of(*definitions)
    assert pair.request == ""
    assert "`note`" in pair.reason
    operations, pairs, _ = drafted(definitions)
    text = render(DraftTool(name="x", where=("mcp: {url: 'http://x'}",), operations=operations, pairs=pairs), "x")
    assert "# PROPOSAL undone by delete_note" in text
    assert "compensator" not in text


def test_what_a_manifest_cannot_name_is_left_out_and_said() -> None:
    """And two names that look alike stay two operations."""
    operations, _, notes = drafted([tool("a b"), tool(" a"), tool("a\n"), tool("a${b}"), tool("a-b"), tool("a b")])
    assert [(one.name, one.match) for one in operations] == [("a_b", "CALL a b"), ("a_b_2", "CALL a-b")]
    assert len(notes) == 4


def test_a_read_is_not_undone() -> None:
    assert drafted([tool("open_x", annotations={"readOnlyHint": True}), tool("close_x")])[1] == ()
