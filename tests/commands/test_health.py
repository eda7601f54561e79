"""The health check: one question, one exit code, over TCP or a Unix socket."""

from __future__ import annotations

import asyncio
from pathlib import Path

from click.testing import CliRunner, Result

from gateway.cli import main
from tests.gateway.harness import Client, serving


async def ask(*arguments: str) -> Result:
    """Run the command beside the gateway it asks."""
    return await asyncio.to_thread(CliRunner().invoke, main, ["health", *arguments])


async def test_a_well_gateway_is_0_and_a_missing_one_3(tmp_path: Path) -> None:
    """An orchestrator reads the exit code alone."""
    async with serving(tmp_path, 9) as running:
        control = running.gateway.control
        for question, answer in (("--alive", "alive\n"), ("--ready", "ready\n")):
            told = await ask(question, "--control", control)
            assert (told.exit_code, told.output) == (0, answer)
    told = await ask("--control", control)
    assert told.exit_code == 3
    assert "no gateway answers" in told.output


async def test_a_gateway_that_is_not_ready_is_4(tmp_path: Path) -> None:
    """Alive, but calls are not welcome: a probe must tell the two apart."""
    async with serving(tmp_path, 9) as running:
        running.gateway._not_ready = "shutting down"
        told = await ask("--control", running.gateway.control)
        assert told.exit_code == 4
        assert (await ask("--alive", "--control", running.gateway.control)).exit_code == 0


async def test_a_control_plane_on_a_unix_socket_is_asked_like_any_other(tmp_path: Path) -> None:
    """In a pod the agent shares loopback with us; a socket in a folder that it does not mount keeps it out."""
    control = f"unix:{tmp_path}/control.sock"
    async with serving(tmp_path, 9, control=control):
        told = await ask("--control", control)
        assert (told.exit_code, told.output) == (0, "ready\n")
    assert (await ask("--control", f"unix:{tmp_path}/gone.sock")).exit_code == 3


async def test_the_metrics_port_serves_health_and_metrics_and_nothing_else(tmp_path: Path) -> None:
    """It may be reached from other machines, so that it must not show or change a run."""
    async with serving(tmp_path, 9, metrics="127.0.0.1:0") as running:
        client = Client(running.gateway.metrics)
        assert [(await client.send("GET", path)).status for path in ("/healthz", "/readyz", "/metrics")] == [200] * 3
        assert b"gateway_build_info" in (await client.send("GET", "/metrics")).body
        for path in ("/api/v1/trajectories", "/api/v1/status", "/api/v1/openapi.json", "/"):
            assert (await client.send("GET", path)).status == 404
