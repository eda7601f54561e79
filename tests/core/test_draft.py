"""Drafts guess on the careful side: a write is a pivot, and undoing it is proposed, never assumed."""

from __future__ import annotations

import pytest

from gateway.core.draft import DraftOperation, DraftTool, Pair, guess, pairs_of_calls, pairs_of_requests, render, slug
from gateway.core.manifest import Tier


@pytest.mark.parametrize(
    ("method", "name", "path", "tier"),
    [
        ("GET", "listPets", "/pets", Tier.READ),
        ("HEAD", "", "/pets", Tier.READ),
        ("GET", "getRuns", "/runs/{id}", Tier.READ),
        ("GET", "triggerBuild", "/builds", Tier.PIVOT),
        ("GET", "", "/users/{id}/logout", Tier.PIVOT),
        ("POST", "createPet", "/pets", Tier.PIVOT),
        ("POST", "searchPets", "/pets/search", Tier.PIVOT),
        ("PUT", "putPet", "/pets/{id}", Tier.PIVOT),
        ("PATCH", "", "/pets/{id}", Tier.PIVOT),
        ("DELETE", "deletePet", "/pets/{id}", Tier.PIVOT),
        ("PROPFIND", "", "/x", Tier.PIVOT),
    ],
)
def test_only_a_safe_method_with_a_harmless_name_is_a_read(method: str, name: str, path: str, tier: Tier) -> None:
    guessed = guess(method, name, path)
    assert guessed.tier is tier
    assert guessed.reason.startswith("undecided" if tier is Tier.PIVOT else method)


def operations(*matches: str, identifier: str = "id") -> list[DraftOperation]:
    return [
        DraftOperation(name=slug(match), match=match, guess=guess(*match.split(" ")[:1], ""), identifier=identifier)
        for match in matches
    ]


@pytest.mark.parametrize(
    ("deed", "undo", "request_line"),
    [
        ("POST /pets", "DELETE /pets/{pet}", "DELETE /pets/${response.json.id}"),
        ("POST /a/{x}/pets", "DELETE /a/{other}/pets/{pet}", "DELETE /a/${params.x}/pets/${response.json.id}"),
        ("POST /holds", "POST /holds/{id}/cancel", "POST /holds/${response.json.id}/cancel"),
        ("POST /orders/{id}/hold", "POST /orders/{id}/release", "POST /orders/${params.id}/release"),
        ("POST /topics/{t}/subscribe", "DELETE /topics/{t}/unsubscribe", "DELETE /topics/${params.t}/unsubscribe"),
        ("PUT /stars/{id}", "DELETE /stars/{id}", "DELETE /stars/${params.id}"),
    ],
)
def test_a_deed_and_its_opposite_are_proposed_as_a_pair(deed: str, undo: str, request_line: str) -> None:
    (pair,) = pairs_of_requests(operations(deed, undo, "GET /other"))
    assert (pair.name, pair.undo, pair.request) == (slug(deed), slug(undo), request_line)


@pytest.mark.parametrize(
    "matches",
    [
        ("POST /pets", "DELETE /dogs/{id}"),
        ("POST /pets", "DELETE /pets/{id}/toys/{toy}"),
        ("POST /a/{x}/hold", "POST /b/{x}/release"),
        ("GET /pets", "DELETE /pets/{id}"),
        ("POST /pets", "GET /pets/{id}/cancel"),
        ("PATCH /pets/{id}", "DELETE /pets/{id}"),
    ],
)
def test_what_only_looks_alike_is_no_pair(matches: tuple[str, ...]) -> None:
    assert pairs_of_requests(operations(*matches)) == ()


def test_the_field_that_names_what_was_made_is_used() -> None:
    (pair,) = pairs_of_requests(operations("POST /pets", "DELETE /pets/{pet}", identifier="pet_id"))
    assert pair.request == "DELETE /pets/${response.json.pet_id}"


def test_calls_that_have_names_alone_are_paired_by_them() -> None:
    names = ["create_entities", "delete_entities", "lockDoor", "unlockDoor", "read_graph", "create_x"]
    assert {(name, undo) for name, undo, _ in pairs_of_calls(names)} == {
        ("create_entities", "delete_entities"),
        ("lockDoor", "unlockDoor"),
    }


def test_names_are_made_fit_and_different() -> None:
    assert slug("createPet") == "create_pet"
    assert slug("GET /v1/{id}/HTTPThing") == "get_v_1_id_http_thing"
    assert slug("createPet", ["create_pet"]) == "create_pet_2"
    assert slug("") == "operation"
    assert len(slug("a" * 100, ["a" * 60])) <= 63


def test_a_draft_says_why_beside_each_line_and_nothing_can_break_out_of_a_comment() -> None:
    one, other = operations("POST /pets", "DELETE /pets/{id}")
    tool = DraftTool(
        name="pets",
        where=("upstream: https://pets.example",),
        operations=(one, other),
        pairs=(Pair(one.name, other.name, "DELETE /pets/${response.json.id}", "because\nevil: true"),),
        proposals=("credentials: x\ny: z",),
        notes=("a\nb",),
    )
    text = render(tool, "x\n  evil: true")
    assert not [line for line in text.splitlines() if line.strip().startswith(("evil", "y:", "b"))]
    assert '{match: "POST /pets", tier: pivot}  # undecided: POST changes something' in text
    assert "# PROPOSAL undone by delete_pets_id: because evil: true" in text
