"""`seawall step resolve` beside a real gateway: both verdicts, and where there is nothing to resolve."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.operator import ANN, at_work
from tests.gateway.deployment import act

SEEN = ("--evidence", "seen in the console", "--by", "ann")


@pytest.mark.parametrize(("verdict", "state"), [("landed", "committed"), ("not_landed", "failed")])
async def test_a_step_in_doubt_is_what_the_person_found(tmp_path: Path, verdict: str, state: str) -> None:
    async with at_work(tmp_path) as ann:
        await ann.doubtful()
        told = await ann("step", "resolve", "r1", "1", "--as", verdict, *SEEN)
        assert told.strip() == f"r1 step 1 (warm): {state}; the run is preparing"
        await ann("step", "resolve", "r1", "1", "--as", verdict, *SEEN)
        run = await ann.json("trajectories", "show", "r1")
        assert run["steps"][0]["detail"] == f"{verdict.replace('_', ' ')}, says ann: seen in the console"


async def test_the_agent_of_a_step_that_a_person_found_done_is_told_so_and_does_it_no_second_time(
    tmp_path: Path,
) -> None:
    """Found by the simulation: its repeat was taken for a new call, or broke on the missing answer."""
    async with at_work(tmp_path) as ann:
        await ann.doubtful()
        await ann("step", "resolve", "r1", "1", "--as", "landed", *SEEN)
        sent = len(ann.origin.requests)
        again = await act(ann.running.agent, "warm")
        assert (again.status, again.get("seawall-settled"), again.get("seawall-step")) == (200, "landed", "1")
        assert again.json == {"settled": "landed", "detail": "landed, says ann: seen in the console"}
        assert len(ann.origin.requests) == sent


async def test_what_could_not_be_undone_is_undone_by_hand_or_tried_again(tmp_path: Path) -> None:
    async with at_work(tmp_path) as ann:
        await ann.corrupted()
        assert "committed; the run is frozen" in await ann("step", "resolve", "r1", "1", "--as", "landed", *SEEN)
        sent = len([request for request in ann.origin.requests if request.method == "DELETE"])
        await ann("trajectories", "release", "r1", *ANN)
        await ann.origin.wait(lambda: len([r for r in ann.origin.requests if r.method == "DELETE"]) > sent)
        other = await ann.corrupted("r2")
        assert "compensated" in await ann("step", "resolve", "r2", "1", "--as", "not_landed", *SEEN)
        await ann("incidents", "resolve", other, *ANN, "--release")
        assert "aborted_clean" in await ann("trajectories", "show", "r2")


async def test_what_leaves_nothing_to_resolve_is_refused(tmp_path: Path) -> None:
    async with at_work(tmp_path) as ann:
        await act(ann.running.agent, "provision")
        assert "leaves nothing to resolve" in await ann("step", "resolve", "r1", "1", "--as", "landed", *SEEN, code=4)
        assert "has no step 7" in await ann("step", "resolve", "r1", "7", "--as", "landed", *SEEN, code=4)
        assert "No run is called" in await ann("step", "resolve", "r9", "1", "--as", "landed", *SEEN, code=4)
        blank = ("--evidence", "  ", "--by", "ann")
        assert "`evidence` must say" in await ann("step", "resolve", "r1", "1", "--as", "landed", *blank, code=4)
        assert "--evidence" in await ann("step", "resolve", "r1", "1", "--as", "landed", "--by", "ann", code=2)
        assert "perhaps" in await ann("step", "resolve", "r1", "1", "--as", "perhaps", *SEEN, code=2)
