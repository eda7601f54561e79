"""Rules through the whole gateway: denied, held for a person, and only watched in shadow."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from click.testing import CliRunner

from gateway.cli import main
from tests.gateway.harness import MANIFEST, serving
from tests.origin import Answer, Origin

RULES = """
approvals:
  board: {approvers: [ann]}
rules:
  no-cash: {effect: deny, when: "request.json.kind == 'cash'", tools: [pay], tiers: [compensable], detail: No cash.}
  big: {effect: hold, when: "request.json.amount > 100", tools: [pay], tiers: [compensable], approval: board}
  odd: {effect: deny, when: "request.json.amount % 2 == 1", tools: [pay], tiers: [compensable], shadow: true}
"""


def sorted_labels(line: str) -> tuple[str, ...]:
    return tuple(sorted(line.replace("{", ",").replace("}", ",").split(",")))


async def test_rules_deny_hold_and_watch(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST + RULES) as gateway:
        origin.on("POST /holds", Answer(201, b'{"id": "h1"}'))
        agent = gateway.agent
        denied = await agent.send("POST", "/pay/holds", {"kind": "cash", "amount": 2}, run="r1")
        assert (denied.status, denied.code, denied.json["rule"]) == (403, "ERR_POLICY_DENIED", "no-cash")
        assert "No cash." in denied.json["detail"]
        held = await agent.send("POST", "/pay/holds", {"kind": "card", "amount": 200}, run="r1")
        assert (held.status, held.code) == (202, "HELD_FOR_APPROVAL")
        assert len(origin.requests) == 0
        voted = await gateway.operator.send(
            "POST", f"/api/v1/approvals/{held.json['approval']}/approve", {"principal": "ann", "reason": "fine"}
        )
        assert voted.status == 200
        assert (await agent.send("POST", "/pay/holds", {"kind": "card", "amount": 200}, run="r1")).status == 201
        assert (await agent.send("POST", "/pay/holds", {"kind": "card", "amount": 7}, run="r1")).status == 201
        report = await asyncio.to_thread(
            CliRunner().invoke, main, ["rules", "report", "--json", "--control", gateway.gateway.control]
        )
        told = {(row["rule"], row["is_shadow"]): row["times"] for row in json.loads(report.stdout)["decisions"]}
        assert told == {("no-cash", False): 1, ("big", False): 2, ("odd", True): 1}
        page = (await gateway.operator.send("GET", "/metrics")).body.decode()
        for line in (
            'gateway_rules_total{effect="deny",is_shadow="false",rule="no-cash"} 1.0',
            'gateway_rules_total{effect="hold",is_shadow="false",rule="big"} 2.0',
            'gateway_rules_total{effect="deny",is_shadow="true",rule="odd"} 1.0',
        ):
            assert sorted_labels(line) in {sorted_labels(one) for one in page.splitlines()}, page


async def test_a_gateway_in_shadow_acts_on_nothing_and_tells_afterwards(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST + RULES, shadow=True) as gateway:
        origin.on("POST /holds", Answer(201, b'{"id": "h1"}'))
        for body in ({"kind": "cash", "amount": 2}, {"kind": "card", "amount": 200}):
            assert (await gateway.agent.send("POST", "/pay/holds", body, run="r1")).status == 201
        report = await asyncio.to_thread(
            CliRunner().invoke, main, ["rules", "report", "--shadow", "--control", gateway.gateway.control]
        )
        assert "no-cash\twould deny\tpay.hold\t1" in report.stdout
        assert "big\twould hold\tpay.hold\t1" in report.stdout
        assert "shadow" in report.stderr
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST + RULES) as gateway:
        told = (await gateway.operator.send("GET", "/api/v1/rules")).json
        assert {row["rule"] for row in told["decisions"]} == {"no-cash", "big"}  # counts outlive the process


async def test_a_hold_on_a_read_is_asked_about_like_any_other(tmp_path: Path) -> None:
    rules = "rules: {reading: {effect: hold, tools: [plain], tiers: [read]}}\n"
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST + rules) as gateway:
        origin.on("GET /secret", Answer(200, b"x"))
        held = await gateway.agent.send("GET", "/plain/secret", run="r1")
        assert held.status == 202
        await gateway.operator.send(
            "POST", f"/api/v1/approvals/{held.json['approval']}/approve", {"principal": "ann", "reason": "fine"}
        )
        assert (await gateway.agent.send("GET", "/plain/secret", run="r1")).body == b"x"
        assert (await gateway.agent.send("GET", "/plain/other", run="r1")).status == 202
