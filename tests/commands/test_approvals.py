"""`seawall approvals` beside a real gateway: every verb, every state, and what does not count."""

from __future__ import annotations

from pathlib import Path

from tests.commands.operator import ANN, at_work
from tests.gateway.deployment import act


async def test_an_approval_is_listed_by_its_state_from_asked_to_used(tmp_path: Path) -> None:
    async with at_work(tmp_path) as ann:
        name = await ann.held()
        assert f"{name}\tpending\tcloud.pay" in await ann("approvals", "ls")
        assert "1 of 2 (ann)" in await ann("approvals", "approve", name, *ANN)
        assert "1 of 2 (ann)" in await ann("approvals", "approve", name, *ANN), "a double click is one vote"
        assert "granted" in await ann("approvals", "approve", name, "--by", "bob", "--reason", "fine")
        assert await ann("approvals", "ls") == ""
        assert name in await ann("approvals", "ls", "--state", "granted")
        assert (await act(ann.running.agent, "pay")).status == 200
        assert name in await ann("approvals", "ls", "--state", "all")
        (used,) = (await ann.json("approvals", "ls", "--state", "used"))["approvals"]
        assert [(vote["principal"], vote["reason"]) for vote in used["votes"]] == [
            ("ann", "looked at it"),
            ("bob", "fine"),
        ]
        await ann("approvals", "reject", name, "--by", "carl", "--reason", "too late", code=4)


async def test_one_no_denies_and_takes_an_unused_yes_back(tmp_path: Path) -> None:
    async with at_work(tmp_path) as ann:
        name = await ann.held()
        await ann("approvals", "approve", name, *ANN)
        await ann("approvals", "approve", name, "--by", "bob", "--reason", "fine")
        assert "rejected" in await ann("approvals", "reject", name, "--by", "bob", "--reason", "on second thought")
        assert name in await ann("approvals", "ls", "--state", "rejected")
        assert (await act(ann.running.agent, "pay")).code == "ERR_PIVOT_GATE"
        assert "is rejected" in await ann("approvals", "approve", name, "--by", "carl", "--reason", "fine", code=4)
        assert "rejected" in await ann("approvals", "approve", name, *ANN), (
            "the same vote again: nothing more than shown"
        )


async def test_it_shows_exactly_what_is_asked_for(tmp_path: Path) -> None:
    async with at_work(tmp_path) as ann:
        name = await ann.held(amount=5)
        shown = await ann("approvals", "show", name)
        assert f"POST http://127.0.0.1:{ann.origin.port}/payouts" in shown
        assert '{"amount": 5}' in shown
        assert "may decide: ann, bob, carl" in shown
        assert (await ann.json("approvals", "show", name))["call"]["body"] == '{"amount": 5}'


async def test_who_may_not_decide_and_what_nobody_asked_for_is_refused_with_the_next_step(tmp_path: Path) -> None:
    async with at_work(tmp_path) as ann:
        name = await ann.held()
        assert "ask ann, bob, carl" in await ann("approvals", "approve", name, "--by", "eve", "--reason", "x", code=4)
        for verb in ("show", "approve", "reject"):
            more = () if verb == "show" else ANN
            assert "`seawall approvals ls`" in await ann("approvals", verb, "r1~99", *more, code=4)
        assert "--reason" in await ann("approvals", "approve", name, "--by", "ann", code=2)
        assert (await act(ann.running.agent, "pay")).status == 202, "still undecided"


async def test_a_frozen_runs_approval_can_be_rejected_and_not_given(tmp_path: Path) -> None:
    async with at_work(tmp_path) as ann:
        name = await ann.held()
        await ann("trajectories", "freeze", "r1", *ANN)
        assert "Release it first" in await ann("approvals", "approve", name, *ANN, code=4)
        assert "rejected" in await ann("approvals", "reject", name, *ANN)
