"""Names, hints and pins."""

import json

import pytest

from gateway.core.manifest import Tier
from gateway.core.mcp_tools import (
    CALL,
    CallMatcher,
    Definition,
    Pins,
    called,
    definitions,
    joined,
    operation_of,
    parted,
    target_of,
    tier_of,
)
from gateway.core.tool import AmbiguousPath
from tests.builders import operation_of as make_operation
from tests.builders import tool_of


@pytest.mark.parametrize("name", ["git_commit", "a/b", "größe", "a__b", "?x=1", ".."])
def test_any_name_survives_a_target_and_a_prefix(name: str) -> None:
    """Whatever a server calls its tools."""
    assert called(target_of(name)) == name
    assert target_of(name).isascii()
    assert parted(joined("my_server", name), ["my", "my_server"]) == ("my_server", name)


def test_names_of_no_server_are_known() -> None:
    """Rather nothing than the wrong one."""
    assert parted("git_commit", ["git"]) is None
    assert parted("a__b__c", ["a", "a__b"]) == ("a__b", "c")


@pytest.mark.parametrize(
    ("hints", "tier"),
    [
        (None, Tier.PIVOT),
        ({}, Tier.PIVOT),
        ({"readOnlyHint": True}, Tier.READ),
        ({"readOnlyHint": True, "destructiveHint": True}, Tier.PIVOT),
        ({"readOnlyHint": "true"}, Tier.PIVOT),
        ({"destructiveHint": False, "idempotentHint": True}, Tier.PIVOT),
    ],
)
def test_hints_may_only_make_a_read(hints: object, tier: Tier) -> None:
    """Everything else they promise could not be undone if they were wrong."""
    assert tier_of(hints) is tier


def test_the_manifest_wins_over_hints() -> None:
    """What an operator has written down is not a claim."""
    declared = make_operation("hold", Tier.COMPENSABLE)
    other = make_operation("undeclared", Tier.PIVOT, is_declared=False)
    tool = tool_of("t", declared, match=CallMatcher({"hold": (declared, "why")}, (other, "why not")))
    lying = Definition("hold", {"annotations": {"readOnlyHint": True}})
    assert operation_of(tool, "hold", lying) is declared
    assert operation_of(tool, "look", Definition("look", {"annotations": {"readOnlyHint": True}})).tier is Tier.READ
    assert operation_of(tool, "x", None).tier is Tier.PIVOT
    assert tool.match(CALL, "/hold").reason == "why"
    with pytest.raises(AmbiguousPath):
        tool.match("POST", "/hold")


def test_listings_are_read() -> None:
    """What has no name is nothing; what is no list is an error."""
    found = definitions('{"tools":[{"name":"a"},{"x":1},7,{"name":""}]}')
    assert [one.name for one in found] == ["a"]
    with pytest.raises(ValueError, match="no tools"):
        definitions("{}")


def tool(description: str, **more: object) -> Definition:
    return Definition("t", {"name": "t", "description": description, **more})


def test_a_changed_definition_is_held_until_it_is_accepted() -> None:
    """New tools are pinned at sight; icons and the like are no definition."""
    pins = Pins("s")
    assert pins.see([tool("a")])
    assert not pins.see([tool("a", icons=[])])
    assert pins.see([tool("b", inputSchema={"n": 10**30})])
    (change,) = pins.changes()
    assert change.view()["changed"] == ["description", "inputSchema"]
    assert Pins.loaded("s", pins.dumped()) == pins
    assert pins.accept(["other"]) == []
    assert pins.accept() == ["t"]
    assert pins.held == {}
    assert not pins.see([tool("b", inputSchema={"n": 10**30})])


def test_a_change_that_is_taken_back_is_no_longer_held() -> None:
    """The definition that was agreed to is there again."""
    pins = Pins("s")
    pins.see([tool("a")])
    pins.see([tool("b")])
    assert "t" in pins.held
    pins.see([tool("a")])
    assert pins.held == {}


def test_digests_do_not_depend_on_order() -> None:
    """Two spellings of one definition are one."""
    one = Definition("t", json.loads('{"description":"a","inputSchema":{"x":1,"y":2}}'))
    other = Definition("t", json.loads('{"inputSchema":{"y":2,"x":1},"description":"a"}'))
    assert one.digest == other.digest
    assert one.digest != tool("b").digest
