"""Hand-offs and claims through whole gateways: proof goes on, everything else is held and nothing is dispatched."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.clock import SystemClock
from gateway.core.claim import ClaimKey, Envelope, call_payload, sign
from tests.gateway.harness import Answered, Child, Serving, serving
from tests.origin import Origin

SECRET = "fleet-secret-of-32-bytes-kanarek"
MANIFEST = """
version: 1
claims:
  fleet: {secret: "${secret:fleet}", producers: ["*@*"], signs: true, ttl: 1m}
tools:
  ci:
    upstream: http://127.0.0.1:PORT
    operations: {run: {match: POST /runs, tier: reversible}}
  deploy:
    upstream: http://127.0.0.1:PORT
    operations:
      release: {match: POST /releases, tier: reversible, claim: {producers: ["tester@*"]}}
"""
BODY = b'{"version":"1.4"}'
JSON = ("Content-Type", "application/json")


def secrets(folder: Path) -> str:
    (folder / "secrets").mkdir(exist_ok=True)
    (folder / "secrets" / "fleet").write_text(SECRET)
    return str(folder / "secrets")


def made(**change: Any) -> str:
    """A claim of an agent elsewhere that has the key itself."""
    payload = change.pop("payload", call_payload("POST", b"/releases", BODY))
    key = change.pop("key", ClaimKey.of("fleet", SECRET.encode()))
    envelope = Envelope("ext#1", "", "", "tester@elsewhere", 5, "deploy.release", SystemClock().at())
    return sign(key, replace(envelope, **change), payload)


async def release(gateway: Serving, claim: str | None, *, run: str = "r1", body: bytes = BODY) -> Answered:
    headers = [JSON, *([("Seawall-Claim", claim)] if claim is not None else [])]
    return await gateway.agent.send("POST", "/deploy/releases", body, run=run, headers=headers)


OTHER = ClaimKey.of("fleet", b"another secret altogether")


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        (lambda: None, "missing"),
        (lambda: "rubbish", "malformed"),
        (lambda: made(key=OTHER), "wrong_key"),
        (lambda: made(payload=b"POST /releases\n{}"), "wrong_digest"),
        (lambda: made(issued_at=SystemClock().at() - 61_000), "expired"),
        (lambda: made(producer_id="mallory@elsewhere"), "wrong_producer"),
        (lambda: made(destination="ci.run"), "wrong_destination"),
    ],
)
async def test_without_proof_nothing_is_dispatched(
    tmp_path: Path, claim: Callable[[], str | None], reason: str
) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST, secrets=secrets(tmp_path)) as gateway:
        answer = await release(gateway, claim())
        assert (answer.status, answer.code, answer.json["route_status"]) == (403, "ERR_HOLD", "held")
        assert (answer.json["reason"], answer.json["dispatched"]) == (reason, "no")
        assert len(origin.requests) == 0
        (hold,) = (await gateway.operator.send("GET", "/api/v1/holds")).json["holds"]
        assert (hold["id"], hold["reason"], hold["trajectory"]) == (answer.json["hold"], reason, "r1")


async def test_proof_lets_the_call_go_and_ends_its_hold(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST, secrets=secrets(tmp_path)) as gateway:
        held = await release(gateway, None)
        claim = made()
        assert (await release(gateway, claim)).status == 200
        assert (await release(gateway, claim)).status == 200  # the same call: no replay
        assert b"seawall-claim" not in {name.lower() for name, _ in origin.requests[0].headers}
        replayed = await release(gateway, claim, run="r2")
        assert replayed.json["reason"] == "replayed"
        assert (
            await gateway.agent.send("POST", "/deploy/releases", b"{}", headers=[JSON, ("Seawall-Claim", claim)])
        ).json["reason"] == "wrong_digest"
        stale = await release(gateway, made(event_id="ext#0", session_epoch=4), run="r3")
        assert stale.json["reason"] == "stale_epoch"
        holds = (await gateway.operator.send("GET", "/api/v1/holds?all=true")).json["holds"]
        assert {one["id"]: one["route_status"] for one in holds}[held.json["hold"]] == "accepted"


async def test_a_person_lets_one_call_go(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST, secrets=secrets(tmp_path)) as gateway:
        held = (await release(gateway, None)).json["hold"]
        assert (await release(gateway, None)).json["hold"] == held  # asked again, held once

        def seawall(*arguments: str) -> str:
            result = CliRunner().invoke(main, [*arguments, "--control", gateway.gateway.control])
            assert result.exit_code == 0, result.output
            return result.stdout

        assert held in await asyncio.to_thread(seawall, "holds", "ls")
        told = await asyncio.to_thread(
            seawall, "holds", "release", held, "--reason", "called her", "--by", "ann", "--json"
        )
        assert json.loads(told)["route_status"] == "released"
        assert (await release(gateway, None)).status == 200
        assert (await release(gateway, None, body=b'{"version":"1.5"}')).code == "ERR_HOLD"
        assert len(origin.requests) == 1


async def test_what_a_run_hands_off_is_believed_by_the_agent_it_is_for(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST, secrets=secrets(tmp_path)) as gateway:
        agent = gateway.agent
        tester, deployer = [("Seawall-Agent", "tester")], [("Seawall-Agent", "deployer")]
        assert (await agent.send("POST", "/ci/runs", b"{}", run="t1", headers=[JSON, *tester])).status == 200
        order = {"destination": "deployer", "payload": {"tests": "pass"}, "step": 1}
        handed = await agent.send("POST", "/seawall/v1/trajectories/t1/handoffs", order, headers=tester)
        assert (handed.status, handed.json["effect_id"]) == (201, "t1/1")
        message = {"claim": handed.json["claim"], "payload": {"tests": "pass"}}
        believed = await agent.send("POST", "/seawall/v1/trajectories/d1/claims", message, headers=deployer)
        assert (believed.status, believed.json["route_status"]) == (200, "accepted")
        assert believed.json["producer_id"].startswith("tester@seawall-")
        lie = {**message, "payload": {"tests": "fail"}}
        held = await agent.send("POST", "/seawall/v1/trajectories/d1/claims", lie, headers=deployer)
        assert (held.status, held.code, held.json["reason"]) == (403, "ERR_HOLD", "wrong_digest")
        other = await agent.send(
            "POST", "/seawall/v1/trajectories/x1/claims", message, headers=[("Seawall-Agent", "x")]
        )
        assert other.json["reason"] == "wrong_destination"
        never = await agent.send("POST", "/seawall/v1/trajectories/t1/handoffs", {**order, "step": 2}, headers=tester)
        assert (never.code, never.json["reason"]) == ("ERR_HOLD", "no_effect")
        bad = await agent.send("POST", "/seawall/v1/trajectories/t1/handoffs", {"payload": 1, "x": 2}, headers=tester)
        assert bad.status == 422


async def test_a_quarantined_run_signs_nothing_and_is_not_believed_any_more(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST, secrets=secrets(tmp_path)) as gateway:
        tester = [("Seawall-Agent", "tester")]
        await gateway.agent.send("POST", "/ci/runs", b"{}", run="t1", headers=[JSON, *tester])
        order = {"destination": "deployer", "payload": "go"}
        handed = await gateway.agent.send("POST", "/seawall/v1/trajectories/t1/handoffs", order, headers=tester)
        contain = {"trajectory": "t1", "principal": "ann", "reason": "x"}
        await gateway.operator.send("POST", "/api/v1/quarantine", contain)
        refused = await gateway.agent.send("POST", "/seawall/v1/trajectories/t1/handoffs", order, headers=tester)
        assert refused.code == "ERR_QUARANTINED"
        message = {"claim": handed.json["claim"], "payload": "go"}
        held = await gateway.agent.send(
            "POST", "/seawall/v1/trajectories/d1/claims", message, headers=[("Seawall-Agent", "deployer")]
        )
        assert (held.code, held.json["reason"]) == ("ERR_HOLD", "quarantined")


async def test_a_claim_is_not_believed_again_after_a_restart(tmp_path: Path, make_child: Callable[..., Child]) -> None:
    async with Origin() as origin:
        child = make_child(tmp_path, origin.port, MANIFEST)
        headers = [JSON, ("Seawall-Claim", made())]
        agent = await child.start(SEAWALL_SECRET_FLEET=SECRET)
        assert (await agent.send("POST", "/deploy/releases", BODY, run="r1", headers=headers)).status == 200
        await child.kill()
        agent = await child.start(SEAWALL_SECRET_FLEET=SECRET)
        assert (await agent.send("POST", "/deploy/releases", BODY, run="r2", headers=headers)).json[
            "reason"
        ] == "replayed"
        assert len(origin.requests) == 1
        await child.terminate()


async def test_shadow_holds_nothing_and_tells(tmp_path: Path) -> None:
    folder = secrets(tmp_path)
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST, secrets=folder, shadow=True) as gateway:
        assert (await release(gateway, None)).status == 200
        (told,) = (await gateway.operator.send("GET", "/api/v1/rules")).json["decisions"]
        assert (told["rule"], told["effect"], told["is_shadow"]) == ("(claim)", "hold", True)
