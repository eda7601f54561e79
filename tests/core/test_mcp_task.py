"""Tasks: what clients see of them, whose they are, and what bounds them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.mcp_session import Client
from gateway.core.mcp_task import (
    EXTENSION,
    Status,
    Task,
    Tasks,
    as_tasks,
    asked_ttl,
    can_take_tasks,
)

ANA = Client(agent="ana", version="2025-11-25")
BOB = Client(agent="bob", version="2025-11-25")
MODERN = Client(agent="ana", version="2026-07-28", is_modern=True, capabilities={"extensions": {EXTENSION: {}}})


def task(number: int = 0, client: Client = ANA, **settings: Any) -> Task:
    known: dict[str, Any] = {
        "id": f"t{number}", "slot": number, "client": client, "endpoint": "", "params": "{}", "headers": (),
        "created_at": 1_000, "updated_at": 1_000, "ttl_ms": 60_000,
    }  # fmt: skip
    return Task(**{**known, **settings})


def test_what_is_over_stays_as_it_is() -> None:
    """A late answer does not bring a cancelled task back."""
    one = task()
    assert one.tell(Status.CANCELLED, 2_000, "cancelled")
    assert not one.finish(result="{}", is_tool_error=False, at=3_000)
    assert (one.status, one.result, one.updated_at) == (Status.CANCELLED, None, 2_000)


def test_each_era_sees_it_in_its_own_words() -> None:
    one = task()
    assert one.legacy_view() == {
        "taskId": "t0", "status": "working", "createdAt": "1970-01-01T00:00:01.000Z",
        "lastUpdatedAt": "1970-01-01T00:00:01.000Z", "ttl": 60_000, "pollInterval": 1_000,
    }  # fmt: skip
    one.finish(result='{"isError":true,"content":[{"type":"text","text":"no"}]}', is_tool_error=True, at=2_000)
    assert (one.legacy_view()["status"], one.legacy_view()["statusMessage"]) == ("failed", "no")
    seen = json.loads(one.modern_view(one.result))
    assert (seen["status"], seen["result"]["isError"], seen["ttlMs"]) == ("completed", True, 60_000)
    broken = task()
    broken.finish(error='{"code":-32603,"message":"gone"}', is_tool_error=False, at=2_000)
    seen = json.loads(broken.modern_view(None))
    assert (seen["status"], seen["error"]["code"], seen["statusMessage"]) == ("failed", -32603, "gone")


def test_it_waits_for_input_until_each_question_is_answered() -> None:
    one = task()
    one.ask("a", '{"method":"elicitation/create"}', 2_000)
    one.ask("b", '{"method":"sampling/createMessage"}', 2_000)
    assert json.loads(one.modern_view(None))["inputRequests"]["a"] == {"method": "elicitation/create"}
    one.answered("a", 3_000)
    assert one.is_paused
    one.answered("b", 4_000)
    one.answered("b", 4_000)
    assert one.status is Status.WORKING


def test_a_restart_brings_it_back_and_has_it_ask_anew() -> None:
    """What it asked is asked again by the call that is made again."""
    one = task(client=MODERN, headers=(("Seawall-Trajectory", "r1"),), params='{"name":"x"}')
    one.ask("a", "{}", 2_000)
    again = Task.loaded(0, one.dumped(100))
    assert (again.id, again.client, again.params, again.headers) == (one.id, MODERN, one.params, one.headers)
    assert (again.status, again.questions) == (Status.WORKING, {})
    one.finish(result='{"a":"' + "x" * 200 + '"}', is_tool_error=False, at=3_000)
    assert Task.loaded(0, one.dumped(100)).result is None
    assert Task.loaded(0, one.dumped(1_000)).result == one.result


def test_an_agent_knows_its_own_tasks_alone() -> None:
    tasks = Tasks()
    for number, client in enumerate((ANA, BOB, ANA)):
        tasks.add(task(number, client))
    assert [one.id for one in tasks.listed(ANA)] == ["t2", "t0"]
    assert tasks.of("t1", ANA) is None
    assert tasks.of("t1", BOB) is not None
    assert tasks.of("t0", Client(agent="ana", is_proven=True, version="2025-11-25")) is None
    assert tasks.of(7, ANA) is None


def test_tasks_are_bounded_in_number_and_by_agent() -> None:
    """No agent fills the table, and a slot is used again."""
    tasks = Tasks(limit=3, agent_limit=2)
    for client in (ANA, ANA):
        slot = tasks.take_slot(client)
        assert slot is not None
        tasks.add(task(slot, client))
    assert tasks.take_slot(ANA) is None
    assert tasks.take_slot(BOB) == 2
    assert tasks.take_slot(BOB) is None
    tasks.drop(tasks.listed(ANA)[0])
    assert tasks.take_slot(BOB) == 1


def test_what_is_stale_goes() -> None:
    """Its time is over, or results take too much room; the latest result stays whatever it takes."""
    tasks = Tasks(results_bytes=10)
    for number in range(3):
        tasks.add(task(number))
        tasks.all()[number].finish(result=f'"{"x" * 8}"', is_tool_error=False, at=2_000 + number)
    assert [one.id for one in tasks.stale(3_000)] == ["t0", "t1"]
    assert {one.id for one in tasks.stale(61_000)} == {"t0", "t1", "t2"}
    waiting = Tasks()
    waiting.add(task())
    assert waiting.stale(3_000) == []


@pytest.mark.parametrize(
    ("params", "client", "ttl"),
    [
        ({"task": {"ttl": 60_000}}, ANA, 60_000),
        ({"task": {}}, ANA, 3_600_000),
        ({"task": {"ttl": None}}, ANA, 3_600_000),
        ({"task": {"ttl": float("nan")}}, ANA, 3_600_000),
        ({"task": {"ttl": 1}}, ANA, 10_000),
        ({"task": {"ttl": 10**12}}, ANA, 86_400_000),
        ({"task": 7}, ANA, None),
        ({}, ANA, None),
        ({"task": {}}, MODERN, None),
        ({"task": {}}, Client(version="2025-06-18"), None),
    ],
)
def test_a_client_of_2025_11_25_says_which_calls_are_tasks(params: Any, client: Client, ttl: int | None) -> None:
    assert asked_ttl(params, client) == ttl


def test_a_stateless_client_says_that_it_takes_tasks() -> None:
    assert can_take_tasks(MODERN)
    assert not can_take_tasks(ANA)
    assert not can_take_tasks(Client(version="2026-07-28", is_modern=True, capabilities={"extensions": []}))


def test_every_tool_may_be_a_task_for_those_who_go_by_that() -> None:
    """And nothing else of the listing changes."""
    listing = '{"tools":[{"name":"a","n":1.10},{"execution":{"taskSupport":"required","x":1},"name":"b"}],"y":2}'
    seen = as_tasks(listing, ANA)
    assert '"name":"a","n":1.10,"execution":{"taskSupport":"optional"}' in seen
    assert '{"execution":{"taskSupport":"optional","x":1},"name":"b"}' in seen
    assert as_tasks(listing, MODERN) == listing
    assert as_tasks('{"tools":[]}', ANA) == '{"tools":[]}'
    assert as_tasks('{"tools":7}', ANA) == '{"tools":7}'
