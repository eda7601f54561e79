"""The pivot boundary through the whole gateway: gates, people, the outbox, finishing, and plans."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.config.tokens import TokenFile
from gateway.core.server import RunSettings
from gateway.core.tokens import Scope
from tests.gateway.deployment import DEPLOYMENT, JSON, act, act_all, scripted
from tests.gateway.harness import Answered, Child, Client, serving
from tests.origin import Answer, Drop, Origin

MakeChild = Callable[..., Child]


async def decide(operator: Client, name: str, verdict: str, who: str, reason: str = "looked at it") -> Answered:
    return await operator.send("POST", f"/api/v1/approvals/{name}/{verdict}", {"principal": who, "reason": reason})


async def poll(agent: Client, name: str, wait: int = 0) -> Answered:
    headers = [("Prefer", f"wait={wait}")] if wait else []
    return await agent.send("GET", f"/seawall/v1/approvals/{name}", headers=headers)


def paths(origin: Origin, *wanted: str) -> list[str]:
    return [f"{request.method} {request.path}" for request in origin.requests if request.path in wanted]


# --- people


async def test_a_pivot_is_held_until_two_of_three_have_approved_exactly_it_and_is_sent_once(tmp_path: Path) -> None:
    """N of M, the poll URL, and the click that comes twice (archestra-ai/archestra#5132)."""
    async with Origin() as origin, serving(tmp_path, origin.port, DEPLOYMENT) as running:
        scripted(origin)
        await act_all(running.agent, "provision")
        held = await act(running.agent, "pay", amount=100)
        assert (held.status, held.code, held.json["dispatched"]) == (202, "HELD_FOR_APPROVAL", "no")
        name = held.json["approval"]
        assert held["Location"] == f"/seawall/v1/approvals/{name}"
        assert (await act(running.agent, "pay", amount=100)).json["approval"] == name, "asking again asks nobody anew"
        shown = await running.operator.send("GET", f"/api/v1/approvals/{name}")
        assert shown.json["call"]["body"] == '{"amount": 100}'
        assert (await poll(running.agent, name)).status == 202
        first = await decide(running.operator, name, "approve", "ann")
        assert (await decide(running.operator, name, "approve", "ann")).json == first.json, "a double click counts once"
        assert first.json["state"] == "pending"
        stranger = await decide(running.operator, name, "approve", "mallory")
        assert (stranger.status, stranger.code) == (403, "ERR_POLICY_DENIED")
        assert (await decide(running.operator, name, "approve", "bob")).json["state"] == "granted"
        assert (await poll(running.agent, name)).json["state"] == "granted"
        other = await act(running.agent, "pay", amount=101)
        assert other.status == 202, "another amount is another call"
        assert other.json["approval"] != name
        assert paths(origin, "/payouts") == []
        sent = await act(running.agent, "pay", amount=100)
        assert sent.status == 200
        late = await decide(running.operator, name, "reject", "carl")
        assert (late.status, late.code) == (409, "ERR_ALREADY_DECIDED")
        again = await act(running.agent, "pay", amount=100)
        assert again["Seawall-Replayed"] == "true"
        assert paths(origin, "/payouts") == ["POST /payouts"]


async def test_a_call_that_prefers_to_wait_is_sent_by_itself_once_it_is_granted(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, DEPLOYMENT) as running:
        scripted(origin)
        waiting = asyncio.ensure_future(act(running.agent, "pay", wait=60))
        while not (listed := await running.operator.send("GET", "/api/v1/approvals")).json["approvals"]:
            await asyncio.sleep(0)
        name = listed.json["approvals"][0]["id"]
        await decide(running.operator, name, "approve", "ann")
        assert not waiting.done()
        await decide(running.operator, name, "approve", "carl")
        assert (await waiting).status == 200
        assert paths(origin, "/payouts") == ["POST /payouts"]


async def test_an_agent_that_leaves_while_it_waits_sends_nothing(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, DEPLOYMENT) as running:
        scripted(origin)
        waiting = asyncio.ensure_future(act(running.agent, "pay", wait=60))
        while not (listed := await running.operator.send("GET", "/api/v1/approvals")).json["approvals"]:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        while (await running.operator.send("GET", "/api/v1/status")).json["writes"]:
            await asyncio.sleep(0)
        name = listed.json["approvals"][0]["id"]
        await decide(running.operator, name, "approve", "ann")
        await decide(running.operator, name, "approve", "bob")
        assert (await poll(running.agent, name)).json["state"] == "granted"
        assert paths(origin, "/payouts") == []


async def test_one_rejection_denies_and_takes_back_an_approval_that_was_not_used(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, DEPLOYMENT) as running:
        scripted(origin)
        name = (await act(running.agent, "pay")).json["approval"]
        await decide(running.operator, name, "approve", "ann")
        await decide(running.operator, name, "approve", "bob")
        assert (await decide(running.operator, name, "reject", "bob", "wrong account")).json["state"] == "rejected"
        refused = await act(running.agent, "pay")
        assert (refused.status, refused.code) == (403, "ERR_PIVOT_GATE")
        assert "wrong account" in refused.json["detail"]
        assert paths(origin, "/payouts") == []


async def test_silence_is_a_no(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, DEPLOYMENT) as running:
        scripted(origin)
        refused = await act(running.agent, "rush", wait=60)
        assert (refused.status, refused.code) == (403, "ERR_PIVOT_GATE")
        assert refused.json["state"] == "expired"
        late = await decide(running.operator, refused.json["approval"], "approve", "ann")
        assert (late.status, late.json["state"]) == (409, "expired")
        assert (await act(running.agent, "rush")).code == "ERR_PIVOT_GATE"
        assert paths(origin, "/rush") == []


async def test_a_decision_outlives_a_kill_and_its_call_is_sent_exactly_once(
    tmp_path: Path, make_child: MakeChild
) -> None:
    """The decision is durable before it is answered; kill -9 comes between it and the effect."""
    async with Origin(honours_keys=True) as origin:
        scripted(origin)
        origin.on("POST /payouts", Answer(200, b"{}", JSON))
        child = make_child(tmp_path, origin.port, DEPLOYMENT)
        agent = await child.start()
        name = (await act(agent, "pay")).json["approval"]
        await decide(child.operator, name, "approve", "ann")
        await child.kill()
        agent = await child.start()
        assert (await poll(agent, name)).json["votes"][0]["principal"] == "ann"
        assert (await decide(child.operator, name, "approve", "bob")).json["state"] == "granted"
        await child.kill()
        agent = await child.start()
        assert (await act(agent, "pay")).status == 200
        await child.kill()
        agent = await child.start()
        assert (await act(agent, "pay"))["Seawall-Replayed"] == "true"
        assert (await poll(agent, name)).json["state"] == "used"
        assert sorted(origin.ledger.by_key().values()) == [1]


# --- machines


async def test_a_gate_over_the_run_and_a_verifier_must_both_say_yes(tmp_path: Path) -> None:
    """Evidence from the tools, not the agent's word; the verifier's no names its answer."""
    async with Origin() as origin, serving(tmp_path, origin.port, DEPLOYMENT) as running:
        scripted(origin)
        origin.on(
            "GET /status", Answer(200, b'{"state": "red"}', JSON), Answer(500), Answer(200, b'{"state": "green"}', JSON)
        )
        await act_all(running.agent, "provision")
        refused = await act(running.agent, "activate")
        assert (refused.status, refused.code) == (403, "ERR_PIVOT_GATE")
        problems = "; ".join(refused.json["problems"])
        assert "gate warm" in problems
        assert "gate green: ci answered 200, not as expected" in problems
        await act_all(running.agent, "warm")
        broken = await act(running.agent, "activate")
        assert "gate green" in broken.json["detail"], "a verifier that fails keeps the gate closed"
        assert "gate warm" not in broken.json["detail"]
        assert paths(origin, "/routes") == []
        assert (await act(running.agent, "activate")).status == 200
        assert paths(origin, "/routes") == ["POST /routes"]


async def test_a_pivot_is_refused_once_a_lease_of_the_run_is_over(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, DEPLOYMENT) as running:
        scripted(origin)
        origin.on("POST /locks", Answer(200, b'{"until": "2020-01-01T00:00:00Z"}', JSON))
        await act_all(running.agent, "lock")
        refused = await act(running.agent, "announce")
        assert (refused.status, refused.code) == (403, "ERR_PIVOT_GATE")
        assert "has run out" in refused.json["detail"]
        origin.on("POST /locks", Answer(200, b'{"until": "2999-01-01T00:00:00Z"}', JSON))
        await act_all(running.agent, "lock", run="r2")
        assert (await act(running.agent, "announce", run="r2")).status == 200
        origin.on("POST /locks", Answer(200, b'{"who": "knows"}', JSON))
        await act_all(running.agent, "lock", run="r3")
        assert "nobody knows" in (await act(running.agent, "announce", run="r3")).json["detail"]


# --- the outbox


async def test_the_double_pivot_trap_staged_notices_leave_in_order_once_the_pivot_has_committed(tmp_path: Path) -> None:
    """Seed 000: T5 waits in the outbox while T1, T2, T4' run, and leaves with T3."""
    async with Origin() as origin, serving(tmp_path, origin.port, DEPLOYMENT) as running:
        scripted(origin)
        await act_all(running.agent, "provision", "warm", "migrate")
        staged = await act(running.agent, "audit")
        assert (staged.status, staged.json["state"]) == (202, "staged")
        assert staged["Seawall-Staged"] == "true"
        assert (await act(running.agent, "notify", text="first")).json["step"] == 5
        assert (await act(running.agent, "notify", text="second")).json["step"] == 6
        assert (await act(running.agent, "audit")).json["step"] == staged.json["step"], "a repeat stages nothing new"
        assert paths(origin, "/audit", "/notices") == []
        await act_all(running.agent, "activate")
        done = await running.agent.send("POST", "/seawall/v1/trajectories/r1/commit")
        assert (done.status, done.json["state"]) == (200, "succeeded")
        assert paths(origin, "/audit", "/notices", "/routes") == [
            "POST /routes", "POST /audit", "POST /notices", "POST /notices"]  # fmt: skip
        bodies = [request.body for request in origin.requests if request.path == "/notices"]
        assert bodies == [b'{"text": "first"}', b'{"text": "second"}']
        keys = [request.key for request in origin.requests if request.path in ("/audit", "/notices")]
        assert len(set(keys)) == 3
        late = await act(running.agent, "audit")
        assert (late.status, late["Seawall-Replayed"]) == (200, "true"), "its answer can be had now"


async def test_what_was_staged_is_dropped_when_the_run_is_undone(tmp_path: Path) -> None:
    """Seed 000: if the migration fails at step 3, no wrong record of compliance is ever sent."""
    async with Origin() as origin, serving(tmp_path, origin.port, DEPLOYMENT) as running:
        scripted(origin)
        await act_all(running.agent, "provision", "audit")
        origin.on("POST /migrations", Answer(409, b'{"error": "schema deadlock"}', JSON))
        assert (await act(running.agent, "migrate")).status == 409
        undone = await running.agent.send("POST", "/seawall/v1/trajectories/r1/abort")
        assert undone.json["state"] == "aborted_clean"
        assert [(s["operation"], s["state"]) for s in undone.json["steps"]] == [
            ("provision", "compensated"), ("audit", "skipped"), ("migrate", "failed")]  # fmt: skip
        assert paths(origin, "/audit", "/instances/i1") == ["DELETE /instances/i1"]


async def test_a_second_pivot_that_is_not_staged_is_refused(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, DEPLOYMENT) as running:
        scripted(origin)
        await act_all(running.agent, "announce")
        for operation in ("announce", "audit"):
            refused = await act(running.agent, operation, other=True)
            assert (refused.status, refused.code) == (409, "ERR_PIVOT_ORDER"), operation
        assert (await act(running.agent, "register")).status == 200, "idempotent steps may follow"


async def test_a_released_notice_whose_answer_is_lost_is_settled_under_its_key_never_doubled(
    tmp_path: Path, make_child: MakeChild
) -> None:
    """kill -9 while a released notice is on its way: the ledger has it once."""
    async with Origin(honours_keys=True) as origin:
        scripted(origin)
        hold = asyncio.Event()
        origin.on("POST /audit", Drop(applies=True, hold=hold), Answer(200, b"{}", JSON))
        child = make_child(tmp_path, origin.port, DEPLOYMENT)
        agent = await child.start()
        await act_all(agent, "audit", "notify", "announce")
        await origin.wait(lambda: origin.ledger.total >= 1)
        await child.kill()
        hold.set()
        agent = await child.start()
        done = await agent.send("POST", "/seawall/v1/trajectories/r1/commit")
        while done.status == 202:
            done = await agent.send("POST", "/seawall/v1/trajectories/r1/commit")
        assert done.json["state"] == "succeeded", done.body
        assert set(origin.ledger.by_key().values()) == {1}
        assert paths(origin, "/audit", "/notices") == ["POST /audit", "POST /audit", "POST /notices"]


async def test_a_step_past_the_pivot_that_fails_is_tried_again_until_it_is_done(tmp_path: Path) -> None:
    """Compensators are retired, so forward is the only way: the agent's failed call goes on without it."""
    async with Origin() as origin, serving(tmp_path, origin.port, DEPLOYMENT) as running:
        scripted(origin)
        await act_all(running.agent, "provision", "announce")
        origin.on("PUT /catalog", Answer(429), Answer(429), Answer(200, b'{"done": true}', JSON))
        failed = await act(running.agent, "register")
        assert failed.status == 429
        done = await running.agent.send("POST", "/seawall/v1/trajectories/r1/commit")
        assert (done.status, done.json["state"]) == (200, "succeeded")
        steps = {step["operation"]: step for step in done.json["steps"]}
        assert steps["register"]["state"] == "committed"
        assert steps["provision"]["compensator"] is None, "retired"
        assert len(paths(origin, "/catalog")) == 3
        assert len({request.key for request in origin.requests if request.path == "/catalog"}) == 1


async def test_a_step_that_cannot_be_finished_stalls_the_run_and_can_be_tried_again_by_a_person(tmp_path: Path) -> None:
    async with (
        Origin() as origin,
        serving(tmp_path, origin.port, DEPLOYMENT, runs=RunSettings(finalize=0.001)) as running,
    ):
        scripted(origin)
        origin.on("POST /audit", Answer(403, b'{"error": "new auth scheme"}', JSON))
        await act_all(running.agent, "provision", "audit", "announce")
        stalled = await running.agent.send("POST", "/seawall/v1/trajectories/r1/commit")
        assert (stalled.status, stalled.code) == (423, "ERR_TRAJECTORY_FROZEN")
        shown = await running.agent.send("GET", "/seawall/v1/trajectories/r1")
        assert shown.json["incident"] == "POST_PIVOT_STALLED"
        incident = await running.operator.send("GET", f"/api/v1/incidents/{shown.json['incidents'][0]['id']}")
        assert incident.json["failed"]["answer"]["status"] == 403
        assert [one["operation"] for one in incident.json["unfinished"]] == ["audit"]
        assert incident.json["not_undone"] == []
        origin.on("POST /audit", Answer(200, b"{}", JSON))
        body = {"principal": "ann", "reason": "credential renewed"}
        unwind = await running.operator.send(
            "POST", "/api/v1/trajectories/r1/release", {**body, "to": "compensating"})  # fmt: skip
        assert (unwind.status, unwind.code) == (409, "ERR_PIVOT_ORDER")
        assert (await running.operator.send("POST", "/api/v1/trajectories/r1/release", body)).status == 200
        done = await running.agent.send("POST", "/seawall/v1/trajectories/r1/commit")
        assert done.json["state"] == "succeeded"


# --- plans


def plan_of(*steps: tuple[str, str, list[str]], enforce: bool = False) -> dict[str, Any]:
    told = [{"id": name, "operation": f"cloud.{operation}", "after": after} for name, operation, after in steps]
    return {"steps": told, "enforce": enforce}


SEED = (("t1", "provision", []), ("t2", "warm", ["t1"]), ("t3", "activate", ["t2"]), ("t4", "migrate", ["t1"]),
        ("t5", "audit", ["t3", "t4"]))  # fmt: skip


async def test_the_plan_of_seed_000_is_put_in_order_and_followed(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, DEPLOYMENT) as running:
        scripted(origin)
        url = "/seawall/v1/trajectories/r1/plan"
        answer = await running.agent.send("POST", url, plan_of(*SEED, enforce=True))
        assert answer.status == 200
        assert [one["id"] for one in answer.json["order"]] == ["t1", "t2", "t4", "t5", "t3"]
        assert answer.json["pivot"] == "t3"
        assert {one["id"]: one["by"] for one in answer.json["moved"]} == {"t3": 2, "t4": -1, "t5": -1}
        early = await act(running.agent, "activate")
        assert (early.status, early.code) == (409, "ERR_PIVOT_ORDER")
        assert early.json["due"] == ["t1", "t2", "t4", "t5"]
        assert "not in its plan" in (await act(running.agent, "lock")).json["detail"]
        await act_all(running.agent, "provision", "warm", "migrate", "audit", "activate")
        again = await running.agent.send("POST", url, plan_of(*SEED, enforce=True))
        assert again.status == 200, "the same plan again changes nothing"
        other = await running.agent.send("POST", url, plan_of(*SEED[:2], enforce=True))
        assert other.code == "ERR_ALREADY_DECIDED"


async def test_a_plan_without_a_safe_order_says_why(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, DEPLOYMENT) as running:
        url = "/seawall/v1/trajectories/r1/plan"
        two = await running.agent.send("POST", url, plan_of(("a", "announce", []), ("b", "activate", ["a"])))
        assert (two.status, two.code) == (409, "ERR_PIVOT_ORDER")
        assert "pivot: stage" in two.json["detail"]
        behind = await running.agent.send("POST", url, plan_of(("t3", "announce", []), ("t4", "migrate", ["t3"])))
        assert "not idempotent" in behind.json["problems"][0]
        unknown = await running.agent.send("POST", url, plan_of(("x", "fly", [])))
        assert (unknown.status, unknown.code) == (422, "ERR_INVALID_ARGUMENTS")
        assert "provision" in unknown.json["detail"], "the message offers what there is"


async def test_with_tokens_the_tokens_name_decides_whatever_the_body_says(tmp_path: Path) -> None:
    """verifywise-ai/verifywise#4078: an approval is worth what its signature is worth."""
    file = TokenFile(tmp_path / "tokens.json")
    scopes = {"bot": Scope.AGENT, "ann": Scope.OPERATOR, "mallory": Scope.OPERATOR, "eve": Scope.VIEWER}
    texts = {name: file.issue(scope, name, 0)[0] for name, scope in scopes.items()}
    tokens = str(tmp_path / "tokens.json")
    async with Origin() as origin, serving(tmp_path, origin.port, DEPLOYMENT, tokens=tokens) as running:
        scripted(origin)
        agent = [("Seawall-Agent-Token", texts["bot"])]

        async def pay() -> Answered:
            return await running.agent.send("POST", "/cloud/payouts", {"n": 1}, run="r1", headers=agent)

        async def say(who: str, principal: str) -> Answered:
            body = {"principal": principal, "reason": "x"}
            bearer = [("Authorization", f"Bearer {texts[who]}")]
            return await running.operator.send("POST", f"/api/v1/approvals/{name}/approve", body, headers=bearer)

        name = (await pay()).json["approval"]
        assert (await say("mallory", "ann")).code == "ERR_POLICY_DENIED"
        assert (await say("eve", "ann")).status == 403, "a viewer decides nothing"
        assert [vote["principal"] for vote in (await say("ann", "bob")).json["votes"]] == ["ann"]
        assert [vote["principal"] for vote in (await say("ann", "carl")).json["votes"]] == ["ann"]
        assert (await pay()).status == 202, "one person is not two"
        foreign = await running.agent.send("GET", f"/seawall/v1/approvals/{name}")
        assert foreign.status == 401
