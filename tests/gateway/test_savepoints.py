"""Savepoints and rewinding, through the whole gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.harness import Serving, serving
from tests.origin import Answer, Origin

JSON = ((b"Content-Type", b"application/json"),)
RUN = "/seawall/v1/trajectories/r1"


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    async with Origin() as made:
        made.on("POST /holds", *(Answer(201, b'{"id": "h%d"}' % n, JSON) for n in range(1, 9)))
        yield made


async def hold(running: Serving, number: int, stage: str | None = None) -> Any:
    headers = [] if stage is None else [("Seawall-Stage", stage)]
    return await running.agent.send("POST", "/pay/holds", {"n": number}, run="r1", headers=headers)


def cancels(origin: Origin) -> list[str]:
    return [request.path for request in origin.requests if request.path.endswith("/cancel")]


async def test_a_rewind_undoes_what_came_after_the_savepoint_and_the_run_goes_on(
    tmp_path: Path, origin: Origin
) -> None:
    async with serving(tmp_path, origin.port) as running:
        await hold(running, 1)
        taken = await running.agent.send("POST", f"{RUN}/savepoints", {"name": "prepared"})
        assert (taken.status, taken.json["savepoint"]) == (201, "prepared")
        await hold(running, 2)
        await hold(running, 3)
        rewound = await running.agent.send("POST", f"{RUN}/rewind", {"to": "prepared", "reason": "a dead end"})
        assert (rewound.status, rewound.json["state"]) == (200, "preparing")
        assert cancels(origin) == ["/holds/h3/cancel", "/holds/h2/cancel"]
        again = await hold(running, 2)
        assert again.json == {"id": "h4"}, "the same action after a rewind is a new step under a new key"
        undone = await running.agent.send("POST", f"{RUN}/abort")
        assert undone.json["state"] == "aborted_clean"
        assert cancels(origin)[2:] == ["/holds/h4/cancel", "/holds/h1/cancel"]


async def test_a_new_stage_takes_its_own_savepoint(tmp_path: Path, origin: Origin) -> None:
    async with serving(tmp_path, origin.port) as running:
        await hold(running, 1, "provision")
        await hold(running, 2, "deploy")
        await hold(running, 3, "deploy")
        run = (await running.agent.send("GET", RUN)).json
        assert run["savepoints"] == ["provision", "deploy"]
        await running.agent.send("POST", f"{RUN}/rewind", {"to": "deploy"})
        assert cancels(origin) == ["/holds/h3/cancel", "/holds/h2/cancel"]
        await running.agent.send("POST", f"{RUN}/rewind", {"to": "provision"})
        assert cancels(origin)[2:] == ["/holds/h1/cancel"]
        assert (await running.agent.send("GET", RUN)).json["savepoints"] == ["provision"]


async def test_a_rewind_past_the_pivot_or_to_nowhere_is_refused(tmp_path: Path, origin: Origin) -> None:
    async with serving(tmp_path, origin.port) as running:
        await hold(running, 1)
        nowhere = await running.agent.send("POST", f"{RUN}/rewind", {"to": "prepard"})
        assert (nowhere.status, nowhere.code) == (422, "ERR_INVALID_ARGUMENTS")
        await running.agent.send("POST", f"{RUN}/savepoints", {"name": "before"})
        await running.agent.send("POST", "/pay/payouts", {"n": 1}, run="r1")
        past = await running.agent.send("POST", f"{RUN}/rewind", {"to": "before"})
        assert (past.status, past.code) == (409, "ERR_PIVOT_ORDER")
        late = await running.agent.send("POST", f"{RUN}/savepoints", {"name": "after"})
        assert late.code == "ERR_PIVOT_ORDER"
        assert cancels(origin) == []


@pytest.mark.parametrize("body", [{}, {"to": 7}, {"to": None}])
async def test_a_rewind_without_a_place_changes_nothing(tmp_path: Path, origin: Origin, body: Any) -> None:
    async with serving(tmp_path, origin.port) as running:
        await hold(running, 1)
        assert (await running.agent.send("POST", f"{RUN}/rewind", body)).code == "ERR_INVALID_ARGUMENTS"
        assert cancels(origin) == []


async def test_with_on_stuck_continue_the_rest_is_undone_before_the_run_freezes(tmp_path: Path, origin: Origin) -> None:
    origin.on("POST /holds/h2/cancel", Answer(409, b'{"error": "settled already"}', JSON))
    async with serving(tmp_path, origin.port) as running:
        opened = await running.agent.send("POST", "/seawall/v1/trajectories", {"id": "r1", "on_stuck": "continue"})
        assert opened.json["on_stuck"] == "continue"
        for number in range(3):
            await hold(running, number)
        await running.agent.send("POST", f"{RUN}/abort")
        run = (await running.agent.send("GET", RUN)).json
        assert (run["state"], run["incident"]) == ("frozen", "COMPENSATION_CORRUPTED")
        assert [step["state"] for step in run["steps"]] == ["compensated", "compensation_failed", "compensated"]
        assert cancels(origin) == ["/holds/h3/cancel", "/holds/h2/cancel", "/holds/h1/cancel"]


async def test_by_default_nothing_is_undone_past_a_stuck_step(tmp_path: Path, origin: Origin) -> None:
    origin.on("POST /holds/h2/cancel", Answer(409, b"{}", JSON))
    async with serving(tmp_path, origin.port) as running:
        for number in range(3):
            await hold(running, number)
        await running.agent.send("POST", f"{RUN}/abort")
        assert cancels(origin) == ["/holds/h3/cancel", "/holds/h2/cancel"]
