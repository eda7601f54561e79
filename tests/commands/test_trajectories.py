"""`seawall trajectories` beside a real gateway: listed, undone, stopped, let go, ended."""

from __future__ import annotations

from pathlib import Path

from tests.commands.operator import ANN, at_work
from tests.gateway.deployment import act


async def test_runs_are_listed_by_state_and_number(tmp_path: Path) -> None:
    async with at_work(tmp_path) as ann:
        for run in ("r1", "r2", "r3"):
            await act(ann.running.agent, "warm", run)
        await ann("trajectories", "freeze", "r2", *ANN)
        assert [
            line.split("\t")[0] for line in (await ann("trajectories", "ls", "--state", "frozen")).splitlines()
        ] == ["r2"]
        assert len((await ann.json("trajectories", "ls", "--limit", "2"))["trajectories"]) == 2
        assert "preparing" in await ann("trajectories", "ls", "--state", "frosty", code=4), "the states are named"


async def test_a_run_is_undone_with_a_reason_and_shown_with_its_steps(tmp_path: Path) -> None:
    async with at_work(tmp_path) as ann:
        await act(ann.running.agent, "provision")
        await act(ann.running.agent, "warm")
        assert "--reason" in await ann("trajectories", "abort", "r1", code=2)
        await ann("trajectories", "abort", "r1", "--reason", "wrong region")
        shown = await ann("trajectories", "show", "r1")
        assert "r1: aborted_clean" in shown
        assert "1\tcloud.provision\tcompensable\tcompensated" in shown
        assert "left in the world: step 2 (warm)" in shown


async def test_a_frozen_run_takes_nothing_until_it_is_released_where_it_stopped(tmp_path: Path) -> None:
    async with at_work(tmp_path) as ann:
        await act(ann.running.agent, "provision")
        assert "frozen (OPERATOR_FREEZE)" in await ann("trajectories", "freeze", "r1", *ANN)
        await ann("trajectories", "freeze", "r1", *ANN)
        assert (await act(ann.running.agent, "warm")).code == "ERR_TRAJECTORY_FROZEN"
        refused = await ann("trajectories", "release", "r1", "--to", "finalizing", *ANN, code=4)
        assert "can only go on as preparing or compensating" in refused
        assert "preparing" in await ann("trajectories", "release", "r1", *ANN)
        assert (await act(ann.running.agent, "warm")).status == 200
        await ann("trajectories", "freeze", "r1", *ANN)
        await ann("trajectories", "release", "r1", "--to", "compensating", *ANN)
        await ann.origin.wait(lambda: any(request.method == "DELETE" for request in ann.origin.requests))


async def test_a_closed_run_stays_as_it_is_and_only_a_frozen_one_is_closed(tmp_path: Path) -> None:
    async with at_work(tmp_path) as ann:
        await act(ann.running.agent, "provision")
        assert "not frozen" in await ann("trajectories", "close", "r1", *ANN, code=4)
        assert "not frozen" in await ann("trajectories", "release", "r1", *ANN, code=4)
        await ann("trajectories", "freeze", "r1", *ANN)
        assert "closed" in await ann("trajectories", "close", "r1", *ANN)
        assert "closed" in await ann("trajectories", "close", "r1", *ANN)
        assert "over" in await ann("trajectories", "freeze", "r1", *ANN, code=4)
        assert (await act(ann.running.agent, "warm")).code == "ERR_TRAJECTORY_CLOSED"
        assert not [request for request in ann.origin.requests if request.method == "DELETE"]


async def test_an_unknown_run_is_refused(tmp_path: Path) -> None:
    async with at_work(tmp_path) as ann:
        for verb in ("freeze", "release", "close"):
            assert "No run is called 'nobody'" in await ann("trajectories", verb, "nobody", *ANN, code=4)
