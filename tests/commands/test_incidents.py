"""`seawall incidents` beside a real gateway: looked after, shown, released, closed."""

from __future__ import annotations

from pathlib import Path

from tests.commands.operator import ANN, at_work


async def test_looking_after_it_is_noted_once_with_who_and_changes_nothing_else(tmp_path: Path) -> None:
    async with at_work(tmp_path) as ann:
        name = await ann.corrupted()
        assert "acknowledged" in await ann("incidents", "ack", name, "--by", "ann")
        await ann("incidents", "ack", name, "--by", "ann", "--reason", "again")
        (row,) = (await ann.json("incidents", "ls"))["incidents"]
        assert (row["state"], row["acknowledged_by"], row["class"]) == ("acknowledged", "ann", "COMPENSATION_CORRUPTED")
        assert "frozen" in await ann("trajectories", "ls")


async def test_what_becomes_of_the_run_has_to_be_said_and_only_one_thing(tmp_path: Path) -> None:
    async with at_work(tmp_path) as ann:
        name = await ann.corrupted()
        for flags in ((), ("--release", "--close")):
            assert "either --release or --close" in await ann("incidents", "resolve", name, *ANN, *flags, code=2)


async def test_closing_ends_the_run_as_it_is_and_shows_what_is_left(tmp_path: Path) -> None:
    async with at_work(tmp_path) as ann:
        name = await ann.corrupted()
        sent = [request.path for request in ann.origin.requests if request.path.startswith("/instances")]
        assert "resolved" in await ann("incidents", "resolve", name, *ANN, "--close")
        assert "NOT undone: step 1 (cloud.provision)" in await ann("incidents", "show", name)
        assert (await ann.json("incidents", "show", name))["resolved_by"] == "ann"
        assert "closed" in await ann("trajectories", "show", "r1")
        now = [request.path for request in ann.origin.requests if request.path.startswith("/instances")]
        assert now == sent, "closing sends nothing"
        assert "resolved" in await ann("incidents", "resolve", name, *ANN, "--close"), "saying it again changes nothing"
        assert "was resolved by ann" in await ann("incidents", "ack", name, "--by", "bob", code=4)


async def test_a_run_goes_on_only_where_it_can(tmp_path: Path) -> None:
    async with at_work(tmp_path) as ann:
        name = await ann.corrupted()
        refused = await ann("incidents", "resolve", name, *ANN, "--release", "preparing", code=4)
        assert "can only go on as compensating" in refused
        refused = await ann("incidents", "resolve", name, *ANN, "--release", "backwards", code=4)
        assert "can only go on as compensating" in refused
        assert "resolved" in await ann("incidents", "resolve", name, *ANN, "--release", "compensating")


async def test_an_unknown_one_is_refused_with_where_to_look(tmp_path: Path) -> None:
    async with at_work(tmp_path) as ann:
        for verb, more in (("show", ()), ("ack", ("--by", "ann")), ("resolve", (*ANN, "--close"))):
            assert "`seawall incidents ls`" in await ann("incidents", verb, "r1~99", *more, code=4)
