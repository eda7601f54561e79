"""The manifest that the demo runs on is the one in config/, moved to the demo's ports and changed in nothing else."""

import pytest
import yaml

from gateway.demo.sidecar import SOURCE_ROOT, demo_manifest, gateway_environment
from gateway.demo.world import TOOLS, World, authorization


def test_each_tool_is_moved_to_its_port_and_nothing_else_changes() -> None:
    original = yaml.safe_load((SOURCE_ROOT / "config" / "demo.yaml").read_text())
    moved = yaml.safe_load(demo_manifest({tool: 20_000 + number for number, tool in enumerate(TOOLS)}))
    assert [moved["tools"][tool]["upstream"] for tool in TOOLS] == [f"http://127.0.0.1:{20_000 + n}" for n in range(4)]
    for tool in TOOLS:
        moved["tools"][tool]["upstream"] = original["tools"][tool]["upstream"]
    assert moved == original


def test_the_manifest_holds_no_credential_and_the_gateway_gets_those_that_the_read_back_uses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another credential would be another account, and the read-back would prove nothing. The user's settings stay out."""
    monkeypatch.setenv("SEAWALL_LISTEN", "0.0.0.0:80")
    manifest, environment = demo_manifest({}), gateway_environment()
    tools = yaml.safe_load(manifest)["tools"]
    assert {tool: tools[tool]["credentials"]["value"] for tool in TOOLS} == {
        "payments": "Bearer ${secret:payments}",
        "volumes": "${secret:volumes}",
        "storage": "${secret:storage}",
        "clusters": "${secret:clusters}",
    }
    assert "Bearer " + environment["SEAWALL_SECRET_PAYMENTS"] == authorization("payments")
    for tool in ("volumes", "storage", "clusters"):
        assert environment[f"SEAWALL_SECRET_{tool.upper()}"] == authorization(tool)
    assert "SEAWALL_LISTEN" not in environment


async def test_answers_that_compensators_are_bound_from_say_that_they_are_json(world: World) -> None:
    """`response.json` is null unless the tool's Content-Type says JSON; then nothing could be undone."""
    seen: list[str] = []
    card = await world.furnish()
    session = world._session
    assert session is not None
    hold = {"amount": "1", "currency": "eur", "payment_method": card, "capture_method": "manual", "confirm": "true"}
    for tool, path, body in (
        ("payments", "/v1/payment_intents", {"data": hold}),
        ("volumes", "/2015-02-01/file-systems", {"json": {"CreationToken": "t"}}),
    ):
        url = f"http://127.0.0.1:{world.port(tool)}{path}"
        async with session.post(url, headers={"Authorization": authorization(tool)}, **body) as response:  # type: ignore[arg-type]
            seen.append(response.content_type)
    assert seen == ["application/json"] * 2
