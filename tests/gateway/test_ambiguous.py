"""JSON that a tool may read otherwise than the rules about it is not sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.harness import serving
from tests.origin import Origin

JSON = [("Content-Type", "application/json")]
TWICE = b'{"amount": 5, "to": {"id": 1}, "amount": 50000.0}'


@pytest.mark.parametrize(
    "body", [TWICE, b'{"a": [{"b": 1, "\\u0062": 2}]}', TWICE[:-1] + b', "x": "' + b"y" * 400_000 + b'"}']
)
async def test_a_declared_operation_takes_each_key_once(tmp_path: Path, body: bytes) -> None:
    """Whichever of the two values a gate looked at, the tool may use the other; the large one is on disk by then."""
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        refused = await running.agent.send("POST", "/pay/holds", body, headers=JSON, run="r")
        assert (refused.status, refused.code) == (400, "ERR_INVALID_ARGUMENTS")
        assert "occurs twice in one object. Nothing was sent; send each key once." in refused.json["detail"]
        assert refused.json["dispatched"] == "no"
        assert origin.requests == []
        run = await running.agent.send("GET", "/seawall/v1/trajectories/r")
        assert run.status == 404 or run.json["steps"] == []


async def test_what_the_gateway_does_not_decide_on_passes_as_it_is(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        assert (await running.agent.send("POST", "/plain/x", TWICE, headers=JSON)).status == 200
        assert (
            await running.agent.send("POST", "/pay/holds", TWICE, headers=[("Content-Type", "text/plain")])
        ).status == 200
        assert [one.body for one in origin.requests] == [TWICE, TWICE]
