"""Real clients, set up as docs/clients tells: no code but theirs, and everything the gateway promises holds for them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from gateway.config.tokens import TokenFile
from gateway.core.server import ForwardSettings
from gateway.core.tokens import Scope
from gateway.demo.world import World
from gateway.ingress.certificates import Authority
from tests.clients.pages import DOCS, GATEWAY, Section, manifest_of, run, sections
from tests.gateway.harness import Serving, serving
from tests.origin import Answer, Origin

JSON = ((b"Content-Type", b"application/json"),)
SHOPS = [section for page in ("requests", "httpx", "aiohttp", "curl") for section in sections(page)]


def settings_for(folder: Path) -> dict[str, Any]:
    """An authority is there, as the operator's part of the page says."""
    Authority.create(folder / "ca", at=time.time_ns() // 1_000_000, days=1, name="test")
    return {"forward": ForwardSettings(intercept=True, ca=str(folder / "ca"))}


async def undo_last(running: Serving) -> str:
    """Abort the run that changed last; return its name."""
    runs = (await running.operator.send("GET", "/api/v1/trajectories")).json["trajectories"]
    writing = [one for one in runs if one["records"] > 1]
    answer = await running.operator.send("POST", f"/api/v1/trajectories/{writing[0]['id']}/abort", {"reason": "test"})
    assert answer.json["state"] == "aborted_clean", answer.json
    return str(writing[0]["id"])


@pytest.mark.parametrize("section", SHOPS, ids=[section.id for section in SHOPS])
async def test_a_client_works_as_its_page_says(tmp_path: Path, section: Section) -> None:
    settings = settings_for(tmp_path)
    replacements: dict[str, str] = {}
    if "Token" in section.heading:
        file = TokenFile(tmp_path / "tokens.json")
        replacements["TOKEN"] = file.issue(Scope.AGENT, "agent", 0)[0]
        operator = file.issue(Scope.OPERATOR, "op", 0)[0]
        settings["tokens"] = str(tmp_path / "tokens.json")
    if section.heading == "Unix socket":
        settings["listen"] = f"unix:{tmp_path / 'agents.sock'}"
    text = manifest_of("README").replace("9000", "PORT")
    async with Origin() as origin, serving(tmp_path, origin.port, text, **settings) as running:
        origin.on("POST /orders", Answer(201, b'{"id": "o1"}', JSON))
        if section.heading != "Unix socket":
            replacements[GATEWAY] = f"{running.agent.host}:{running.agent.port}"
        printed = await run(section, tmp_path, replacements, {})
        assert "o1" in printed
        (request,) = origin.requests
        assert request.method == "POST"
        assert request.values(b"host") == [origin.authority.encode()]
        for header in (b"proxy-authorization", b"authorization", b"seawall-agent-token", b"proxy-connection"):
            assert request.values(header) == []
        if "Token" in section.heading:
            assert replacements["TOKEN"].encode() not in request.head
            running.operator.fields = [("Authorization", f"Bearer {operator}")]
        name = await undo_last(running)
        assert name == "order-7" or name.startswith("auto-")
        assert origin.requests[-1].head.startswith(b"DELETE /orders/o1 ")


def test_every_page_is_run() -> None:
    """Those of MCP clients are run by tests/mcp/test_pages.py."""
    mcp = {"desktop", "fastmcp", "langgraph", "openai-agents", "python-sdk", "typescript-sdk"}
    ours = {"README", "boto3", *(section.page for section in SHOPS)}
    assert {path.stem for path in DOCS.glob("*.md")} == ours | mcp


async def test_boto3_works_as_its_page_says_against_an_s3_server(tmp_path: Path) -> None:
    """moto, in a process of its own; what it holds is asked of it directly."""
    world = World(tmp_path)
    try:
        await world.start()
        text = manifest_of("boto3").replace("5000", str(world.port("storage")))
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}
        for section in sections("boto3"):
            folder = tmp_path / section.heading.replace(" ", "-")
            folder.mkdir()
            async with serving(folder, 0, text, **settings_for(folder)) as running:
                replacements = {GATEWAY: f"{running.agent.host}:{running.agent.port}"}
                assert "two pounds" in await run(section, folder, replacements, keys)
                assert (await world.look()).files == {"orders/tea": "two pounds"}
                await undo_last(running)
                assert (await world.look()).names == frozenset(), "undone in reverse: the object, then its bucket"
    finally:
        await world.stop()


PAYMENTS = """
version: 1
tools:
  payments:
    upstream: http://127.0.0.1:5000
    hosts: [api.stripe.com]
    credentials: {header: Authorization, value: Bearer sk_test_seawall_demo}
    operations:
      hold:
        match: POST /v1/payment_intents
        tier: compensable
        compensator: POST /v1/payment_intents/${response.json.id}/cancel
"""

AGENT = """
import requests
for url in ("http://api.stripe.com", "https://api.stripe.com"):
    with requests.Session() as session:
        made = session.post(f"{url}/v1/payment_intents", data={"amount": 500, "currency": "eur"})
        assert made.ok, made.text
        print(made.json()["id"], made.headers["Seawall-Step"])
"""


async def test_an_agent_that_knows_only_the_vendors_address_is_undone_at_the_vendor(tmp_path: Path) -> None:
    """localstripe speaks Stripe's API; the agent has no credential of it, and no code for us."""
    world = World(tmp_path)
    try:
        await world.start()
        text = PAYMENTS.replace("5000", str(world.port("payments")))
        async with serving(tmp_path, 0, text, **settings_for(tmp_path)) as running:
            setup = (
                "seawall ca show --ca ca --bundle > bundle.pem\n"
                f"export HTTP_PROXY=http://{GATEWAY} HTTPS_PROXY=http://{GATEWAY} REQUESTS_CA_BUNDLE=bundle.pem\n"
            )
            section = Section("agent", "payments", (("sh", setup), ("python", AGENT)))
            printed = await run(section, tmp_path, {GATEWAY: f"{running.agent.host}:{running.agent.port}"}, {})
            ids = [line.split()[0] for line in printed.splitlines()]
            assert [line.split()[1] for line in printed.splitlines()] == ["1", "2"], "one run, by whichever way"
            for identifier in ids:
                assert (await world.call("payments", "GET", f"/v1/payment_intents/{identifier}"))[
                    "status"
                ] != "canceled"
            await undo_last(running)
            for identifier in ids:
                assert (await world.call("payments", "GET", f"/v1/payment_intents/{identifier}"))[
                    "status"
                ] == "canceled"
    finally:
        await world.stop()
