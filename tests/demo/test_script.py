"""The agent against the real tool servers, with nothing of ours in between: it does what it should and undoes nothing."""

from pathlib import Path
from typing import Any

from gateway.demo.checks import Act, failing_checks, succeeding_checks
from gateway.demo.script import AgentProcess
from gateway.demo.world import TOOLS, World
from tests.demo.plain_proxy import plain_proxy

STEPS = [
    "check the card",
    "create a volume",
    "reserve the name",
    "write the configuration",
    "hold the money",
    "start the cluster",
    "take the money",
    "look at the payment",
]


async def performed(world: World, card: str, cluster: str, folder: Path) -> tuple[list[dict[str, Any]], int]:
    async with plain_proxy({tool: world.port(tool) for tool in TOOLS}) as base_url:
        task = {"card": card, "workspace": "acme-workspace", "cluster": cluster}
        agent = AgentProcess(base_url, {"X-Run": "1"}, task, folder / "agent.log")
        records = []
        async for record in agent.records():
            records.append(record)
            if record["event"] == "step":
                agent.go()
        return records, await agent.end()


async def test_a_run_on_its_own_fails_half_way_and_its_leftovers_are_detected(world: World, tmp_path: Path) -> None:
    """Without the gateway the world stays changed, and the demo's checks must say so: they are no decoration."""
    card = await world.furnish()
    before = await world.look()
    records, exit_code = await performed(world, card, "production", tmp_path)
    assert [record["step"] for record in records if record["event"] == "step"] == STEPS[:6]
    assert exit_code == 1
    assert records[-1] == {
        "event": "gave_up",
        "reason": "start the cluster: 409 Cluster already exists with name: production",
    }

    after = await world.look()
    act = Act(run="alone", records=list(records), exit_code=exit_code, state="aborted_clean")
    verdicts = {check.claim: check for check in failing_checks(act, before, after)}
    proof = verdicts["the tool servers say that the world is as before"]
    assert not proof.holds
    for leftover in ("volume fs-", "name acme-workspace", "file acme-workspace/config.json", "hold pi_"):
        assert leftover in proof.found
    assert not verdicts["its effects were undone in reverse order, each once"].holds
    assert verdicts["the run failed at its cluster, for good"].holds


async def test_a_run_with_a_free_name_makes_exactly_what_it_should(world: World, tmp_path: Path) -> None:
    """The second act's read-back accepts the real thing."""
    card = await world.furnish()
    before = await world.look()
    records, exit_code = await performed(world, card, "acme", tmp_path)
    assert [record["step"] for record in records if record["event"] == "step"] == STEPS
    assert (records[-1], exit_code) == ({"event": "done"}, 0)

    after = await world.look()
    act = Act(run="alone", records=list(records), exit_code=exit_code, state="succeeded")
    verdicts = {check.claim: check.holds for check in succeeding_checks(act, before, after)}
    assert verdicts["every step of the second run succeeded at once"]
    assert verdicts["the tool servers hold what the run made, and nothing else has changed"]
    assert after.rows()["money taken"] == "42.00 EUR"


async def test_an_agent_that_is_closed_half_way_is_gone(world: World, tmp_path: Path) -> None:
    """Ctrl-C between two steps."""
    async with plain_proxy({tool: world.port(tool) for tool in TOOLS}) as base_url:
        agent = AgentProcess(base_url, {}, {"card": "pm_1", "workspace": "w", "cluster": "c"}, tmp_path / "agent.log")
        async for _ in agent.records():
            break
        await agent.close()
        await agent.close()
        assert await agent.end() == -9
