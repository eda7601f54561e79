"""The life of a gateway: start, readiness, reload, dying tools, drain, and what survives."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.app import Gateway
from gateway.config.errors import ConfigError
from gateway.core.server import ServerSettings
from gateway.journal import JournalLocked
from gateway.journal.lock import FolderLock
from tests.gateway.harness import MANIFEST, Child, serving, write_manifest
from tests.origin import Answer, Drop, Origin

MakeChild = Callable[..., Child]
JSON = ((b"Content-Type", b"application/json"),)


async def test_a_dying_tool_is_left_alone_and_found_healed_by_one_canary(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        origin.on("GET /x", *[Drop()] * 3, Answer(200, b"well"))
        await running.agent.send("GET", "/plain/x")
        before = len(origin.requests)
        refused = await running.agent.send("GET", "/plain/x")
        assert (refused.status, refused.code) == (503, "ERR_CIRCUIT_OPEN")
        assert refused.json["dispatched"] == "no"
        assert 0 < refused.json["retry_after_ms"] <= 200
        assert int(refused["Retry-After"]) == 1
        assert len(origin.requests) == before, "a refusal costs the tool nothing"
        async with asyncio.timeout(5):
            while (await running.agent.send("GET", "/plain/x")).status != 200:
                pass
        assert len(origin.requests) == before + 1
        metrics = (await running.operator.send("GET", "/metrics")).body.decode()
        assert "gateway_breaker_transitions_total{" in metrics


async def test_a_dead_tool_costs_its_own_domain_only(tmp_path: Path) -> None:
    """Invariant 8."""
    text = MANIFEST + "  other:\n    upstream: http://127.0.0.1:PORT\n"
    async with Origin() as origin, serving(tmp_path, origin.port, text) as running:
        hold = asyncio.Event()
        origin.on("GET /hang", Answer(200, hold=hold))
        hanging = [asyncio.create_task(running.agent.send("GET", "/plain/hang")) for _ in range(20)]
        await origin.received(7)
        answers = [await running.agent.send("GET", "/other/fine") for _ in range(20)]
        assert {answer.status for answer in answers} == {200}
        hold.set()
        await asyncio.gather(*hanging)


async def test_a_full_domain_refuses_what_it_cannot_queue(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        hold = asyncio.Event()
        origin.on("GET /hang", Answer(200, hold=hold))
        calls = [asyncio.create_task(running.agent.send("GET", f"/plain/hang?{n}")) for n in range(40)]
        async with asyncio.timeout(5):
            while sum(call.done() for call in calls) < 40 - 7 - 16:
                await asyncio.wait([call for call in calls if not call.done()], return_when=asyncio.FIRST_COMPLETED)
        refused = [call.result() for call in calls if call.done()]
        assert {answer.code for answer in refused} == {"ERR_BULKHEAD_FULL"}
        hold.set()
        answers = await asyncio.gather(*calls)
        assert sum(answer.status == 200 for answer in answers) == 7 + 16


async def test_an_open_breaker_is_still_open_after_a_restart(tmp_path: Path) -> None:
    text = MANIFEST.replace("cooldown: 200ms, max_cooldown: 1s", "cooldown: 60s, max_cooldown: 60s")
    async with Origin() as origin:
        origin.on("GET /x", *[Drop()] * 6)
        async with serving(tmp_path, origin.port, text) as running:
            await running.agent.send("GET", "/plain/x")
            assert (await running.agent.send("GET", "/plain/x")).code == "ERR_CIRCUIT_OPEN"
        async with serving(tmp_path, origin.port, text) as running:
            refused = await running.agent.send("GET", "/plain/x")
            assert refused.code == "ERR_CIRCUIT_OPEN"
            assert 0 < refused.json["retry_after_ms"] <= 60_000


async def test_health_readiness_and_figures(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        assert (await running.operator.send("GET", "/healthz")).status == 200
        assert (await running.operator.send("GET", "/readyz")).json == {"status": "ready"}
        await running.agent.send("POST", "/pay/holds", {"n": 1}, run="r1")
        for path in ("breakers", "domains", "journal", "manifest", "status", "openapi.json"):
            assert (await running.operator.send("GET", f"/api/v1/{path}")).status == 200
        metrics = (await running.operator.send("GET", "/metrics")).body.decode()
        assert 'gateway_calls_total{domain="saas",outcome="success",tier="compensable",tool="pay"} 1.0' in metrics
        assert (await running.operator.send("GET", "/api/v1/trajectories/none")).status == 404
        assert (await running.operator.send("GET", "/api/v1/trajectories?state=odd")).status == 422
        tricked = await running.operator.send(
            "POST", "/api/v1/trajectories/r1/abort", {"reason": "x"}, headers=[("Origin", "http://evil.example")]
        )
        assert tricked.status == 403


async def test_a_reload_swaps_what_changed_and_leaves_calls_in_flight_alone(tmp_path: Path) -> None:
    """docker/mcp-gateway#383, openclaw/openclaw#138694: reload forgot state or dropped healthy servers."""
    async with Origin() as origin, Origin() as elsewhere, serving(tmp_path, origin.port) as running:
        hold = asyncio.Event()
        origin.on("GET /slow", Answer(200, b"old", hold=hold))
        slow = asyncio.create_task(running.agent.send("GET", "/plain/slow"))
        await origin.received()
        before = running.gateway.catalog()
        text = MANIFEST.replace("PORT", str(origin.port))
        head, tail = text.rsplit("upstream:", 1)
        write_manifest(tmp_path, 0, head + "upstream:" + tail.replace(str(origin.port), str(elsewhere.port)))
        assert await running.gateway.reload()
        after = running.gateway.catalog()
        assert after.tools["pay"] is before.tools["pay"]
        assert after.tools["plain"] is not before.tools["plain"]
        await running.agent.send("GET", "/plain/new")
        assert len(elsewhere.requests) == 1
        hold.set()
        assert (await slow).body == b"old"


async def test_a_bad_manifest_leaves_the_running_one_in_force_and_says_so(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        (tmp_path / "manifest.yaml").write_text(MANIFEST.replace("tier: pivot", "tier: pivott", 1).replace("PORT", "1"))
        assert not await running.gateway.reload()
        assert (await running.agent.send("GET", "/plain/x")).status == 200
        told = (await running.operator.send("GET", "/api/v1/manifest")).json["reload_problem"]
        assert "manifest.yaml:" in told
        assert "did you mean" in told.lower()


async def test_a_changed_file_is_taken_by_itself(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, watch=True) as running:
        write_manifest(tmp_path, origin.port, MANIFEST + "  late:\n    upstream: http://127.0.0.1:PORT\n")
        async with asyncio.timeout(20):
            while (await running.agent.send("GET", "/late/x")).status != 200:
                await asyncio.sleep(0.02)


async def test_a_second_gateway_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port):
        second = Gateway(
            ServerSettings(
                manifest=str(tmp_path / "manifest.yaml"), data=str(tmp_path / "data"), listen="127.0.0.1:0",
                control="127.0.0.1:0", watch=False,
            )
        )  # fmt: skip
        with pytest.raises(JournalLocked):
            await second.start()


async def test_a_gateway_started_while_the_killed_one_still_holds_its_folder_starts_all_the_same(
    tmp_path: Path,
) -> None:
    """The lock goes with the process, and a killed process goes when the system has time for it."""
    (tmp_path / "data").mkdir()
    lock = FolderLock.take(tmp_path / "data" / "journal.lock")
    async with Origin() as origin:
        gateway = Child(tmp_path, origin.port)
        starting = asyncio.create_task(gateway.start())
        async with asyncio.timeout(30):
            while '"event":"locked"' not in _log_of(tmp_path):
                await asyncio.sleep(0.005)
        lock.release()
        agent = await starting
        assert (await agent.send("GET", "/plain/x")).status == 200
        await gateway.terminate()


def _log_of(folder: Path) -> str:
    log = folder / "gateway.log"
    return log.read_text() if log.exists() else ""


async def test_a_gateway_with_a_bad_manifest_does_not_start_and_leaves_no_lock(tmp_path: Path) -> None:
    async with Origin() as origin:
        with pytest.raises(ConfigError):
            async with serving(tmp_path, origin.port, "version: 7\n"):
                pass
        async with serving(tmp_path, origin.port) as running:
            assert (await running.agent.send("GET", "/plain/x")).status == 200


async def test_sigterm_lets_calls_in_flight_finish_and_refuses_new_ones(tmp_path: Path, make_child: MakeChild) -> None:
    async with Origin() as origin:
        hold = asyncio.Event()
        origin.on("POST /holds", Answer(201, b'{"id": "h1"}', JSON, hold=hold))
        child = make_child(tmp_path, origin.port)
        agent = await child.start()
        call = asyncio.create_task(agent.send("POST", "/pay/holds", {"n": 1}, run="r1"))
        await origin.completed()
        assert child.process is not None
        child.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(5):
            while True:
                try:
                    await agent.send("GET", "/plain/x")
                except (OSError, asyncio.IncompleteReadError):
                    break
        hold.set()
        assert (await call).status == 201
        assert await child.terminate() == 0


async def test_a_call_that_outlasts_the_drain_is_in_doubt(tmp_path: Path) -> None:
    async with Origin(honours_keys=True) as origin:
        hold = asyncio.Event()
        origin.on("POST /holds", Answer(201, b'{"id": "h1"}', JSON, hold=hold), Answer(201, b'{"id": "h1"}', JSON))
        async with serving(tmp_path, origin.port, drain=0.1) as running:
            call = asyncio.create_task(running.agent.send("POST", "/pay/holds", {"n": 1}, run="r1"))
            await origin.completed()
        hold.set()
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await call
        async with serving(tmp_path, origin.port) as running:
            shown = (await running.agent.send("GET", "/seawall/v1/trajectories/r1")).json
            assert [step["state"] for step in shown["steps"]] == ["in_doubt"]
            again = await running.agent.send("POST", "/pay/holds", {"n": 1}, run="r1")
            assert again.status == 201
            assert origin.ledger.total == 1


async def test_sighup_loads_the_manifest_again(tmp_path: Path, make_child: MakeChild) -> None:
    async with Origin() as origin:
        child = make_child(tmp_path, origin.port)
        agent = await child.start(SEAWALL_WATCH="false")
        write_manifest(tmp_path, origin.port, MANIFEST + "  late:\n    upstream: http://127.0.0.1:PORT\n")
        assert child.process is not None
        child.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(10):
            while (await agent.send("GET", "/late/x")).status != 200:
                pass
        assert await child.terminate() == 0


async def test_no_secret_is_in_any_output(tmp_path: Path, make_child: MakeChild) -> None:
    """Invariant 10, with canaries in every place a secret may come from."""
    canary, theirs = "canary-4f1d9c2a7b", "agents-own-77aa"
    text = MANIFEST.replace(
        "    idempotency: {header: Idempotency-Key, window: 1h}\n",
        "    idempotency: {header: Idempotency-Key, window: 1h}\n"
        '    credentials: {header: Authorization, value: "Bearer ${secret:pay}"}\n',
    )
    async with Origin() as origin:
        origin.on("POST /holds", Answer(201, b'{"id": "h1"}', JSON), Drop())
        child = make_child(tmp_path, origin.port, text)
        agent = await child.start(SEAWALL_SECRET_PAY=canary, SEAWALL_TELEMETRY_LOG_LEVEL="debug")
        await agent.send("POST", "/pay/holds", {"n": 1}, run="r1", headers=[("Authorization", f"Bearer {theirs}")])
        await agent.send("POST", "/pay/holds", {"n": 2}, run="r1")
        shown = [
            (await child.operator.send("GET", path)).body.decode()
            for path in ("/metrics", "/api/v1/manifest", "/api/v1/trajectories/r1", "/api/v1/status")
        ]
        await agent.send("POST", "/seawall/v1/trajectories/r1/abort")
        assert await child.terminate() == 0
        assert origin.requests[0].values(b"authorization") == [f"Bearer {canary}".encode()]
        everything = "".join(shown) + (tmp_path / "gateway.log").read_text()
        everything += "".join(
            path.read_bytes().decode("latin-1") for path in (tmp_path / "data").rglob("*") if path.is_file()
        )
        assert canary not in everything
        assert theirs not in everything


async def test_a_full_disk_stops_writes_and_loses_nothing(tmp_path: Path, make_child: MakeChild) -> None:
    async with Origin() as origin:
        origin.default = Answer(201, b'{"id": "h"}', JSON)
        child = make_child(tmp_path, origin.port, file_limit=400_000)
        agent = await child.start(SEAWALL_TELEMETRY_LOG_LEVEL="error")
        landed = 0
        for number in range(3000):
            effects = origin.ledger.total
            answer = await agent.send("POST", "/pay/holds", {"n": number, "pad": "x" * 2000}, run="r1")
            if answer.status == 201:
                landed += 1
            elif answer.code == "ERR_JOURNAL_UNAVAILABLE":
                break
            else:
                assert answer.code == "ERR_OUTCOME_UNKNOWN", "the intent was written, the outcome could not be"
        assert answer.code == "ERR_JOURNAL_UNAVAILABLE"
        assert origin.ledger.total == effects, "what cannot be journaled does not leave"
        assert max(origin.ledger.by_key().values()) == 1
        assert (await agent.send("GET", "/plain/x")).status == 201, "reads go on"
        assert (await child.operator.send("GET", "/readyz")).status == 503
        await child.kill()
        child.file_limit = None
        agent = await child.start()
        shown = json.loads((await agent.send("GET", "/seawall/v1/trajectories/r1")).body)
        committed = [step for step in shown["steps"] if step["state"] == "committed"]
        assert len(committed) >= landed
        assert await child.terminate() == 0
