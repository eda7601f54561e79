"""The agent must be an ordinary client: decent about repeats, ignorant of the gateway, deaf to nothing it is told."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.demo import agent

AGENT = Path(agent.__file__)


async def run_against(
    answers: list[web.Response], *arguments: str
) -> tuple[list[dict[str, Any]], list[web.Request], int]:
    """Run the agent against canned answers; the last one is repeated."""
    seen = []

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        seen.append(request)
        canned = answers[min(len(seen), len(answers)) - 1]
        return web.Response(status=canned.status, headers=canned.headers, body=canned.body)

    application = web.Application()
    application.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-IS", str(AGENT), f"--base-url=http://127.0.0.1:{runner.addresses[0][1]}", *arguments),
            *("--card=pm_1", "--workspace=w", "--cluster=c"),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        assert process.returncode is not None
        return [json.loads(line) for line in out.splitlines()], seen, process.returncode
    finally:
        await runner.cleanup()


def of(status: int, **headers: str) -> web.Response:
    return web.json_response({"id": "pi_1", "code": "SOME"}, status=status, headers=dict(headers))


def test_it_knows_nothing_of_the_gateway() -> None:
    """The demo's point: any HTTP client will do. Not a word, a header or a path of ours stands in its source."""
    source = AGENT.read_text().lower()
    assert "seawall" not in source
    assert "gateway" not in source
    assert "trajector" not in source


def test_it_runs_on_the_standard_library_alone() -> None:
    """`-IS` leaves it nothing else."""
    done = subprocess.run([sys.executable, "-IS", str(AGENT), "--help"], capture_output=True, check=True)
    assert b"--base-url" in done.stdout


async def test_it_sends_its_configured_headers_with_every_call() -> None:
    """That is how a run gets its name without the agent's knowing."""
    _, seen, code = await run_against([of(200)], "--header=X-Run: one", "--header=X-Other:two")
    assert code == 0
    assert len(seen) == 8
    assert {(request.headers["X-Run"], request.headers["X-Other"]) for request in seen} == {("one", "two")}


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_it_repeats_what_may_be_repeated_after_the_wait_it_was_told(status: int) -> None:
    """Retry-After is honoured."""
    records, seen, code = await run_against([of(status, **{"Retry-After": "0.01"}), of(200)])
    assert code == 0
    assert len(seen) == 9
    first = next(record for record in records if record["event"] == "answer")
    assert (first["status"], first["wait_s"], first["code"]) == (status, 0.01, "SOME")


async def test_it_gives_up_at_any_other_error() -> None:
    """A conflict is no reason to insist."""
    records, seen, code = await run_against([of(409)])
    assert (len(seen), code) == (1, 1)
    assert records[-1]["event"] == "gave_up"


async def test_it_does_not_repeat_when_told_not_to() -> None:
    """`x-should-retry: false` is how a gateway tells client libraries that a repeat is unsafe."""
    _, seen, code = await run_against([of(503, **{"x-should-retry": "false"})])
    assert (len(seen), code) == (1, 1)


async def test_it_stops_insisting_after_a_bounded_number_of_attempts() -> None:
    """A tool that never comes back ends the run."""
    _, seen, code = await run_against([of(503, **{"Retry-After": "0"})])
    assert (len(seen), code) == (agent.MAX_ATTEMPTS, 1)
