"""An operator at the command line beside a real gateway with the deployment of seed 000."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from gateway.cli import main
from gateway.core.server import RunSettings
from tests.gateway.deployment import DEPLOYMENT, JSON, act, scripted
from tests.gateway.harness import Serving, serving
from tests.origin import Answer, Hang, Origin

__all__ = ["Operator", "at_work"]

ANN = ("--by", "ann", "--reason", "looked at it")


class Operator:
    """`await ann("incidents", "ls")` runs a command and returns what it printed; `code` is its exit code."""

    def __init__(self, running: Serving, origin: Origin) -> None:
        self.running, self.origin = running, origin

    async def __call__(self, *arguments: str, code: int = 0) -> str:
        result = await asyncio.to_thread(
            CliRunner().invoke, main, [*arguments, "--control", self.running.gateway.control]
        )
        assert result.exit_code == code, result.output
        return result.output

    async def json(self, *arguments: str) -> Any:
        return json.loads(await self(*arguments, "--json"))

    async def held(self, run: str = "r1", **body: Any) -> str:
        """Have an agent ask for a payout; return the name of its approval."""
        return str((await act(self.running.agent, "pay", run, **body)).json["approval"])

    async def corrupted(self, run: str = "r1") -> str:
        """Freeze a run whose undoing is refused for good; return its incident's name."""
        await act(self.running.agent, "provision", run)
        self.origin.on("DELETE /instances/i1", Answer(409, b'{"error": "instance is locked"}', JSON))
        await self.running.agent.send("POST", f"/seawall/v1/trajectories/{run}/abort", {"reason": "no more"})
        return str((await self.json("incidents", "ls"))["incidents"][-1]["id"])

    async def doubtful(self, run: str = "r1") -> None:
        """Leave the first step of a run in doubt."""
        self.origin.on("POST /warm", Hang())
        assert (await act(self.running.agent, "warm", run)).code == "ERR_OUTCOME_UNKNOWN"


@contextlib.asynccontextmanager
async def at_work(folder: Path) -> AsyncIterator[Operator]:
    text = DEPLOYMENT.replace("first_byte: 2s", "first_byte: 300ms").replace(
        "idempotency: {header: Idempotency-Key, window: 1h}\n    operations", "operations"
    )
    async with Origin() as origin, serving(folder, origin.port, text, runs=RunSettings()) as running:
        scripted(origin)
        yield Operator(running, origin)
