"""Terminal escalation through the whole gateway: frozen at once, told out of band, decided by a person."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from gateway.cli import main
from tests.gateway.deployment import DEPLOYMENT, JSON, act, act_all, scripted
from tests.gateway.harness import Child, Client, Serving, serving
from tests.origin import Answer, Origin, Received

MakeChild = Callable[..., Child]
ANN = {"principal": "ann", "reason": "on it"}


async def corrupted(agent: Client, origin: Origin) -> None:
    """A run whose undoing is refused for good after its last step was undone."""
    await act_all(agent, "provision", "migrate")
    origin.on("DELETE /instances/i1", Answer(409, b'{"error": "instance is locked"}', JSON))
    answer = await agent.send("POST", "/seawall/v1/trajectories/r1/abort", {"reason": "migration failed"})
    assert (answer.status, answer.code) == (423, "ERR_TRAJECTORY_FROZEN")


def told(origin: Origin, path: str) -> list[Received]:
    return [request for request in origin.requests if request.path == path and request.is_complete]


async def hooks(origin: Origin, count: int) -> list[Any]:
    await origin.wait(lambda: len(told(origin, "/hook")) >= count)
    return [json.loads(request.body) for request in told(origin, "/hook")]


async def only_incident(operator: Client) -> str:
    (row,) = (await operator.send("GET", "/api/v1/incidents")).json["incidents"]
    return str(row["id"])


async def test_a_refused_compensator_freezes_the_run_and_the_incident_has_all_a_person_needs(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, DEPLOYMENT) as running:
        scripted(origin)
        await corrupted(running.agent, origin)
        name = await only_incident(running.operator)
        one = (await running.operator.send("GET", f"/api/v1/incidents/{name}")).json
        assert (one["class"], one["state"], one["run_state"]) == ("COMPENSATION_CORRUPTED", "open", "frozen")
        assert one["failed"]["call"] == {
            "tool": "cloud", "operation": "undo provision", "method": "DELETE", "target": "/instances/i1"}  # fmt: skip
        assert one["failed"]["answer"]["status"] == 409
        assert "instance is locked" in one["failed"]["answer"]["detail"]
        assert one["journal_position"] > 5
        assert [step["operation"] for step in one["undone"]] == ["migrate"]
        assert [step["operation"] for step in one["not_undone"]] == ["provision"]
        (leak,) = one["leaks"]
        assert (leak["what"], leak["amount"], leak["per_s"]) == ("16 H100 instances", 5.5, 60.0)
        assert any("step resolve r1 1" in command for command in one["next"])
        refused = await act(running.agent, "warm")
        assert (refused.status, refused.code) == (423, "ERR_TRAJECTORY_FROZEN")


async def test_an_incident_is_raised_at_every_sink_signed_and_with_its_event_id(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, DEPLOYMENT) as running:
        scripted(origin)
        await corrupted(running.agent, origin)
        name = await only_incident(running.operator)
        (opened,) = await hooks(origin, 1)
        assert (opened["event"], opened["event_id"], opened["incident"]["id"]) == ("incident.opened", name, name)
        assert opened["cursor"] == opened["incident"]["journal_position"]
        (hook,) = told(origin, "/hook")
        (seconds,), (signature,) = hook.values(b"webhook-timestamp"), hook.values(b"webhook-signature")
        signed = b"%b.%b.%b" % (name.encode(), seconds, hook.body)
        digest = hmac.digest(b"whsec_canary", signed, hashlib.sha256)
        assert signature == b"v1," + base64.b64encode(digest)
        assert hook.values(b"webhook-id") == [name.encode()]
        await origin.wait(lambda: bool(told(origin, "/v2/enqueue") and told(origin, "/api/v2/alerts")))
        page = json.loads(told(origin, "/v2/enqueue")[0].body)
        assert (page["routing_key"], page["event_action"], page["dedup_key"]) == ("routing", "trigger", name)
        assert page["payload"]["severity"] == "critical"
        (alert,) = json.loads(told(origin, "/api/v2/alerts")[0].body)
        assert alert["labels"]["class"] == "COMPENSATION_CORRUPTED"
        await running.operator.send("POST", f"/api/v1/incidents/{name}/ack", ANN)
        assert [one["event"] for one in await hooks(origin, 2)] == ["incident.opened", "incident.acknowledged"]
        body = {**ANN, "close": True}
        assert (await running.operator.send("POST", f"/api/v1/incidents/{name}/resolve", body)).status == 200
        assert (await hooks(origin, 3))[-1]["event"] == "incident.resolved"
        await origin.wait(lambda: len(told(origin, "/v2/enqueue")) == 3)
        actions = [json.loads(request.body)["event_action"] for request in told(origin, "/v2/enqueue")]
        assert actions == ["trigger", "acknowledge", "resolve"]


async def test_a_sink_that_is_down_is_told_later_and_holds_up_no_other(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, DEPLOYMENT) as running:
        scripted(origin)
        origin.on("POST /v2/enqueue", Answer(503), Answer(202, b"{}", JSON))
        await corrupted(running.agent, origin)
        assert len(await hooks(origin, 1)) == 1
        await origin.wait(lambda: len(told(origin, "/v2/enqueue")) == 2)
        events = [json.loads(request.body)["dedup_key"] for request in told(origin, "/v2/enqueue")]
        assert len(set(events)) == 1
        assert len(told(origin, "/hook")) == 1, "who has taken it is not told again"


async def test_a_kill_between_raising_and_recording_raises_the_same_event_again(
    tmp_path: Path, make_child: MakeChild
) -> None:
    """At least once, from the journal; the event id lets the receiver tell."""
    async with Origin() as origin:
        scripted(origin)
        hold = asyncio.Event()
        origin.on("POST /hook", Answer(204, hold=hold), Answer(204))
        child = make_child(tmp_path, origin.port, DEPLOYMENT)
        agent = await child.start()
        await corrupted(agent, origin)
        await hooks(origin, 1)
        await child.kill()
        hold.set()
        agent = await child.start()
        first, second = await hooks(origin, 2)
        assert first["event_id"] == second["event_id"]
        assert first["cursor"] == second["cursor"]
        assert (await agent.send("GET", "/seawall/v1/trajectories/r1")).json["state"] == "frozen"
        body = {**ANN, "close": True}
        await child.operator.send("POST", f"/api/v1/incidents/{first['event_id']}/resolve", body)
        assert (await hooks(origin, 3))[-1]["event"] == "incident.resolved"
        await child.terminate()
        await child.start()
        shown = await child.operator.send("GET", "/api/v1/trajectories/r1")
        assert shown.json["state"] == "closed"
        assert len(told(origin, "/hook")) == 3, "what was taken and recorded is not told again"


async def test_a_person_undoes_by_hand_says_so_and_lets_the_run_end_clean(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, DEPLOYMENT) as running:
        scripted(origin)
        await corrupted(running.agent, origin)
        url = "/api/v1/trajectories/r1"
        body = {"principal": "ann", "as": "not_landed", "evidence": "deleted in the console, ticket 7"}
        answer = await running.operator.send("POST", f"{url}/steps/1/resolve", body)
        assert answer.json["steps"][0]["state"] == "compensated"
        again = await running.operator.send("POST", f"{url}/steps/1/resolve", body)
        assert again.json["changed_at"] == answer.json["changed_at"], "saying it twice changes nothing"
        await running.operator.send("POST", f"{url}/release", ANN)
        undone = await running.agent.send("POST", "/seawall/v1/trajectories/r1/abort")
        assert (undone.json["state"], undone.json["residue"]) == ("aborted_clean", [])
        refused = await running.operator.send("POST", f"{url}/release", ANN)
        assert (refused.status, refused.code) == (409, "ERR_ALREADY_DECIDED")


async def test_release_tries_the_refused_compensator_again_under_its_own_key(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, DEPLOYMENT) as running:
        scripted(origin)
        await corrupted(running.agent, origin)
        origin.on("DELETE /instances/i1", Answer(204))
        await running.operator.send("POST", "/api/v1/trajectories/r1/release", ANN)
        undone = await running.agent.send("POST", "/seawall/v1/trajectories/r1/abort")
        assert undone.json["state"] == "aborted_clean"
        keys = [request.key for request in origin.requests if request.path == "/instances/i1"]
        assert len(keys) == 2
        assert len(set(keys)) == 1


async def test_an_operator_freezes_a_run_at_once_and_nothing_more_is_sent(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, DEPLOYMENT) as running:
        scripted(origin)
        await act_all(running.agent, "provision")
        frozen = await running.operator.send("POST", "/api/v1/trajectories/r1/freeze", ANN)
        assert (frozen.json["state"], frozen.json["incident"]) == ("frozen", "OPERATOR_FREEZE")
        assert (await act(running.agent, "warm")).code == "ERR_TRAJECTORY_FROZEN"
        assert (await running.agent.send("POST", "/seawall/v1/trajectories/r1/abort")).code == "ERR_TRAJECTORY_FROZEN"
        nobody = await running.operator.send("POST", "/api/v1/trajectories/r1/release", {"reason": "x"})
        assert nobody.status == 422, "a decision without a name is none"
        await running.operator.send("POST", "/api/v1/trajectories/r1/release", ANN)
        assert (await act(running.agent, "warm")).status == 200


def seawall(running: Serving, *arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, [*arguments, "--control", running.gateway.control])
    assert result.exit_code == code, result.output
    return result.output


async def test_the_command_line_takes_an_operator_through_an_incident(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, DEPLOYMENT) as running:
        scripted(origin)
        await corrupted(running.agent, origin)
        name = await only_incident(running.operator)

        async def run(*arguments: str, code: int = 0) -> str:
            return await asyncio.to_thread(seawall, running, *arguments, code=code)

        assert "COMPENSATION_CORRUPTED" in await run("incidents", "ls")
        shown = await run("incidents", "show", name)
        for said in ("DELETE /instances/i1", "instance is locked", "NOT undone: step 1", "16 H100 instances"):
            assert said in shown
        assert "acknowledged" in await run("incidents", "ack", name, "--by", "ann")
        assert "compensated" in await run(
            "step", "resolve", "r1", "1", "--as", "not_landed", "--evidence", "deleted by hand", "--by", "ann")  # fmt: skip
        assert "resolved" in await run("incidents", "resolve", name, "--release", "--reason", "done", "--by", "ann")
        assert (await run("incidents", "ls")).strip() == ""
        await act_all(running.agent, "warm", run="r2")
        args = ("--reason", "look", "--by", "ann")
        assert "OPERATOR_FREEZE" in await run("trajectories", "freeze", "r2", *args)
        assert "preparing" in await run("trajectories", "release", "r2", *args)
        await run("trajectories", "freeze", "r2", *args)
        assert "closed" in await run("trajectories", "close", "r2", *args)
        await run("trajectories", "release", "r2", *args, code=4)
        held = (await act(running.agent, "pay", run="r3")).json["approval"]
        assert "0 of 2" in await run("approvals", "ls")
        assert '{"n": 1}' in await run("approvals", "show", held)
        assert "1 of 2" in await run("approvals", "approve", held, "--by", "ann", "--reason", "fine")
        assert "rejected" in await run("approvals", "reject", held, "--by", "bob", "--reason", "not fine")
