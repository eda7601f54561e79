"""A call that waits for people: held in words a model understands, and in the protocol's own where the client knows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.gateway.harness import Serving, serving
from tests.mcp.rig import Ledger, Raw, ledger, message_of, problem_of, result_of
from tests.mcp.test_gateway import MODERN, manifest, modern_headers

HELD = """    operations:
      charge: {match: CALL charge, tier: pivot, approval: required}
      balance: {match: CALL balance, tier: read}
"""
RUN = [("Seawall-Trajectory", "r1")]


async def decide(on: Serving, name: str, verdict: str) -> None:
    answer = await on.operator.send(
        "POST", f"/api/v1/approvals/{name}/{verdict}", {"principal": "ann", "reason": "because"}
    )
    assert answer.status == 200, answer.body


async def test_a_held_call_tells_the_model_how_to_ask_and_is_sent_once_granted(tmp_path: Path) -> None:
    """No error: a result that names the approval, a tool to ask with, and the identical call in the end."""
    async with ledger() as server, serving(tmp_path, 0, manifest(server.url, HELD)) as on:
        client = Raw(on.agent)
        await client.initialize()
        names = [tool["name"] for tool in result_of(await client.post("tools/list"))["tools"]]
        assert names[-1] == "seawall__approval"
        held = await client.call("charge", {"amount": 1}, headers=RUN)
        assert (held["isError"], held["structuredContent"]["code"]) == (False, "HELD_FOR_APPROVAL")
        assert server.effects == []
        name = held["structuredContent"]["approval"]
        asked = await client.call("seawall__approval", {"approval": name})
        assert asked["structuredContent"]["state"] == "pending"
        await decide(on, name, "approve")
        asked = await client.call("seawall__approval", {"approval": name, "wait_s": 5})
        assert asked["structuredContent"]["state"] == "granted"
        done = await client.call("charge", {"amount": 1}, headers=RUN)
        assert done["structuredContent"] == {"id": 1}
        assert len(server.effects) == 1
        unknown = problem_of(await client.call("seawall__approval", {"approval": "none"}))
        assert unknown["code"] == "ERR_UNKNOWN_APPROVAL"


async def test_a_rejected_call_is_a_refusal(tmp_path: Path) -> None:
    """And never reaches the server."""
    async with ledger() as server, serving(tmp_path, 0, manifest(server.url, HELD)) as on:
        client = Raw(on.agent)
        await client.initialize()
        held = await client.call("charge", {"amount": 1}, headers=RUN)
        await decide(on, held["structuredContent"]["approval"], "reject")
        assert problem_of(await client.call("charge", {"amount": 1}, headers=RUN))["code"] == "ERR_PIVOT_GATE"
        assert server.effects == []


async def waiting(client: Raw, server: Ledger, capabilities: dict[str, Any]) -> dict[str, Any]:
    meta = {**MODERN, "io.modelcontextprotocol/clientCapabilities": capabilities}
    params = {"name": "charge", "arguments": {"amount": 1}, "_meta": meta}
    result = message_of(await client.post("tools/call", params, [*modern_headers("tools/call", "charge"), *RUN]))[
        "result"
    ]
    assert server.effects == []
    return {"params": params, "result": result}


async def test_a_client_that_can_ask_its_user_is_told_by_the_protocol(tmp_path: Path) -> None:
    """`input_required`, then the same call with the user's yes: one operation, whatever the rounds (SEP-2322)."""
    async with ledger() as server, serving(tmp_path, 0, manifest(server.url, HELD)) as on:
        client = Raw(on.agent)
        held = await waiting(client, server, {"elicitation": {}})
        assert held["result"]["resultType"] == "input_required"
        assert held["result"]["inputRequests"]["approval"]["method"] == "elicitation/create"
        await decide(on, held["result"]["_meta"]["dev.seawall/held"]["approval"], "approve")
        state = {"requestState": held["result"]["requestState"], "inputResponses": {"approval": {"action": "accept"}}}
        headers = [*modern_headers("tools/call", "charge"), *RUN]
        done = message_of(await client.post("tools/call", held["params"] | state, headers))["result"]
        assert (done["resultType"], done["structuredContent"]) == ("complete", {"id": 1})
        assert len(server.effects) == 1


async def test_a_user_who_does_not_want_to_wait_ends_the_rounds(tmp_path: Path) -> None:
    """The model then reads what a client reads that cannot be asked at all."""
    async with ledger() as server, serving(tmp_path, 0, manifest(server.url, HELD)) as on:
        client = Raw(on.agent)
        held = await waiting(client, server, {"elicitation": {}})
        state = {"requestState": held["result"]["requestState"], "inputResponses": {"approval": {"action": "decline"}}}
        headers = [*modern_headers("tools/call", "charge"), *RUN]
        told = message_of(await client.post("tools/call", held["params"] | state, headers))["result"]
        assert told["structuredContent"]["code"] == "HELD_FOR_APPROVAL"
        plain = await waiting(client, server, {})
        assert plain["result"]["structuredContent"]["code"] == "HELD_FOR_APPROVAL"
