"""Stopping a process for real, and telling others to."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.core.tool import Suspension
from gateway.workers.quarantine import Subject
from gateway.workers.suspender import SIGNATURE, Suspender
from tests.config.manifests import complaint, load, write
from tests.fakes import FakeClock

SUBJECT = Subject("r1", "mallory", {"cell": "c7"}, "q1")


def hook(folder: Path, text: str) -> dict[str, Suspension]:
    path = write(folder, m=f"suspend:\n  it: {text}\n")
    return dict(load(path, SEAWALL_SECRET_HOOK="s3cret-canary").suspensions)


class Heard:
    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.status = 200
        self.url = ""


@pytest.fixture
async def heard() -> AsyncIterator[Heard]:
    told = Heard()

    async def handle(request: web.Request) -> web.Response:
        told.requests.append((request.method, request.path, dict(request.headers), await request.read()))
        return web.Response(status=told.status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    told.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield told
    await runner.cleanup()


async def stop(hooks: dict[str, Suspension], *, account: Path = Path("/nowhere"), subject: Subject = SUBJECT) -> str:
    return await Suspender(lambda: hooks, FakeClock(), account).suspend()["it"](subject)


async def go_on(hooks: dict[str, Suspension], account: Path = Path("/nowhere")) -> str:
    return await Suspender(lambda: hooks, FakeClock(), account).resume()["it"](SUBJECT)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_a_process_is_stopped_and_goes_on(tmp_path: Path) -> None:
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(60)")
    try:
        (tmp_path / "mallory.pid").write_text(f"{child.pid}\n")
        hooks = hook(tmp_path, f'{{kind: signal, path: "{tmp_path}/${{trajectory.agent}}.pid"}}')
        assert await stop(hooks) == f"SIGSTOP to {child.pid}"
        async with asyncio.timeout(5):
            while state_of(child.pid) != "T":
                await asyncio.sleep(0.01)
        assert await go_on(hooks) == f"SIGCONT to {child.pid}"
        async with asyncio.timeout(5):
            while state_of(child.pid) == "T":
                await asyncio.sleep(0.01)
        killing = hook(tmp_path, f'{{kind: signal, signal: KILL, path: "{tmp_path}/mallory.pid"}}')
        await stop(killing)
        assert await child.wait() == -signal.SIGKILL
        assert Suspender(lambda: killing, FakeClock()).resume() == {}
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def test_a_cgroup_is_frozen_and_thawed(tmp_path: Path) -> None:
    (tmp_path / "c7").mkdir()
    file = tmp_path / "c7" / "cgroup.freeze"
    file.write_text("0")
    hooks = hook(tmp_path, f'{{kind: cgroup, path: "{tmp_path}/${{trajectory.labels.cell}}/cgroup.freeze"}}')
    assert await stop(hooks) == "frozen"
    assert file.read_text() == "1"
    assert await go_on(hooks) == "thawed"
    assert file.read_text() == "0"


async def test_a_path_that_is_not_there_is_a_problem_and_makes_no_file(tmp_path: Path) -> None:
    hooks = hook(tmp_path, f'{{kind: cgroup, path: "{tmp_path}/none/cgroup.freeze"}}')
    with pytest.raises(FileNotFoundError):
        await stop(hooks)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("cell", ["../x", "a/b", "..", "", "a b"])
async def test_a_label_cannot_lead_a_path_elsewhere(tmp_path: Path, cell: str) -> None:
    """Labels are the agent's own word."""
    hooks = hook(tmp_path, f'{{kind: cgroup, path: "{tmp_path}/${{trajectory.labels.cell}}/cgroup.freeze"}}')
    with pytest.raises(ValueError, match="no plain word"):
        await stop(hooks, subject=Subject("r1", "mallory", {"cell": cell}, "q1"))


async def test_a_file_without_a_process_number_signals_nobody(tmp_path: Path) -> None:
    for text in ("", "-1", "1", "x"):
        (tmp_path / "p").write_text(text)
        with pytest.raises(RuntimeError, match="no process number"):
            await stop(hook(tmp_path, f'{{kind: signal, path: "{tmp_path}/p"}}'))


async def test_a_webhook_is_told_and_can_check_who_tells(tmp_path: Path, heard: Heard) -> None:
    hooks = hook(tmp_path, f'{{kind: webhook, url: "{heard.url}/stop", secret: "${{secret:hook}}"}}')
    assert await stop(hooks) == "answered 200"
    await go_on(hooks)
    (method, path, headers, body), (_, _, _, lifted) = heard.requests
    assert (method, path) == ("POST", "/stop")
    told: dict[str, Any] = json.loads(body)
    assert told == {"event": "quarantined", "quarantine": "q1", "trajectory": "r1", "agent": "mallory",
                    "labels": {"cell": "c7"}}  # fmt: skip
    assert json.loads(lifted)["event"] == "lifted"
    at, digest = (part.partition("=")[2] for part in headers[SIGNATURE].split(","))
    assert digest == hmac.new(b"s3cret-canary", at.encode() + b"." + body, hashlib.sha256).hexdigest()
    heard.status = 500
    with pytest.raises(RuntimeError, match="it answered 500"):
        await stop(hooks)


async def test_a_pod_is_labelled_and_the_label_is_taken_off_again(tmp_path: Path, heard: Heard) -> None:
    (tmp_path / "token").write_text("the-pods-own-token\n")
    hooks = hook(
        tmp_path, f'{{kind: kubernetes, url: "{heard.url}", namespace: agents, pod: "${{trajectory.agent}}-0"}}'
    )
    await stop(hooks, account=tmp_path)
    await go_on(hooks, tmp_path)
    (method, path, headers, body), (_, _, _, off) = heard.requests
    assert (method, path) == ("PATCH", "/api/v1/namespaces/agents/pods/mallory-0")
    assert headers["Content-Type"] == "application/merge-patch+json"
    assert headers["Authorization"] == "Bearer the-pods-own-token"
    assert json.loads(body) == {"metadata": {"labels": {"seawall.dev/quarantined": "true"}}}
    assert json.loads(off) == {"metadata": {"labels": {"seawall.dev/quarantined": None}}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{kind: cgroup}", "`it` needs `path`"),
        ("{kind: kubernetes, pod: x}", "`it` needs `namespace`"),
        ("{kind: webhook, url: 'ftp://x'}", "`url` is not a URL"),
        ("{kind: cgroup, path: '/x/${request.path}'}", "only `trajectory` is known here"),
        ("{kind: cgroup, path: '/x/${secret:hook}'}", "only `trajectory` is known here"),
        ("{kind: fire}", "must be one of `cgroup`"),
    ],
)
def test_a_bad_hook_is_named(tmp_path: Path, text: str, said: str) -> None:
    assert said in complaint(write(tmp_path, m=f"suspend:\n  it: {text}\n"), SEAWALL_SECRET_HOOK="x")
