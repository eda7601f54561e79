"""The live engine: a storm of six seconds on real sockets and processes, and the same one in virtual time beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.retry import RetrySettings
from gateway.storm.generator import Alone
from gateway.storm.live import live_engine
from gateway.storm.recording import Recording
from gateway.storm.report import write_report
from gateway.storm.runner import run_storm
from gateway.storm.scenario import PolicySettings, Scenario, load
from tests.commands.test_storm import storm
from tests.origin import Answer, Origin

SHORT = """
name: short
title: A tool fails for a second and a half
seconds: 6s
manifest: |
  version: 1
  domains: {saas: {concurrency: 32, queue: 32, timeouts: {connect: 500ms, first_byte: 1s, total: 4s}}}
  tools:
    index:
      upstream: http://127.0.0.1:9
      domain: saas
      breaker: {consecutive: 3, cooldown: 300ms, max_cooldown: 600ms}
      retry: {attempts: 3, base: 50ms, cap: 500ms}
      operations: {item: {match: GET /items, tier: read}}
world: {index: {workers: 16, service: 5ms}}
load: [{tool: index, arrive: steady, rate: 60, agents: 8}]
faults: [{tool: index, kind: KIND, start: 1s, end: 2.5s}]
compare: [naive, no_jitter]
plots: [flow]
"""


def scenario(tmp_path: Path, kind: str) -> Scenario:
    path = tmp_path / "short.yaml"
    path.write_text(SHORT.replace("KIND", kind))
    return load(str(path))


@pytest.mark.timeout(240)
def test_both_engines_tell_the_same_story_of_one_scenario(tmp_path: Path) -> None:
    """Counts agree; latencies do not, since real time adds the gateway's work and that of the neighbours: wide bounds."""
    storm_of = scenario(tmp_path, "reset")
    virtual = run_storm(storm_of)
    live = run_storm(storm_of, engine_name="live", **live_engine())
    assert live.skipped == {"no_jitter": "a real gateway always has jitter and knows its agents"}
    for policy in ("seawall", "naive"):
        ours, theirs = live.figures[policy], virtual.figures[policy]
        assert ours["calls"] == theirs["calls"]
        assert 0.4 * theirs["goodput_share"] <= ours["goodput_share"] <= theirs["goodput_share"] + 0.1
    assert virtual.figures["naive"]["during"]["amplification"] == pytest.approx(4, abs=0.1)
    assert 2 <= live.figures["naive"]["during"]["amplification"] <= 5
    assert live.figures["seawall"]["during"]["attempts"] <= virtual.figures["seawall"]["during"]["attempts"] + 40
    assert live.figures["seawall"]["opens"] >= 1


CRASHES = """
name: crashing
title: A gateway that is killed under load
seconds: 8s
engines: [live]
manifest: |
  version: 1
  domains: {ledger: {concurrency: 64, queue: 64, timeouts: {connect: 1s, first_byte: 2s, total: 5s}}}
  tools:
    ledger:
      upstream: http://127.0.0.1:9
      domain: ledger
      breaker: {window: 1000, failure_ratio: 1, consecutive: 1000, cooldown: 1s}
      operations:
        book:
          match: POST /items
          tier: compensable
          compensator: {request: "DELETE /items?call=${request.query.call}"}
          probe:
            request: "GET /effects?call=${request.query.call}"
            landed: response.json.count > 0
            not_landed: response.json.count == 0
            delay: 1s
world: {ledger: {workers: 64, service: 50ms}}
load: [{tool: ledger, arrive: steady, rate: 40, agents: 8, request: POST /items, insists: 1000, pause: 250ms, end: 7s}]
faults: [{kind: kill, start: 1s, end: 6s, every: 1s}]
plots: [flow, back]
"""


@pytest.mark.timeout(240)
def test_a_gateway_killed_under_load_doubles_and_loses_nothing(tmp_path: Path) -> None:
    """The tool honours no key, so that its own ledger would show a second effect; two gateways, each with its journal."""
    path = tmp_path / "crashing.yaml"
    path.write_text(CRASHES.replace("seconds: 8s", "seconds: 8s\ngateways: 2"))
    run = run_storm(load(str(path)), engine_name="live", out=tmp_path / "out", **live_engine())
    figures = run.figures["seawall"]
    assert figures["kills"] >= 2
    assert figures["toll"] == {"effects": 279, "doubled": 0, "lost": 0, "unclaimed": 0}, figures["codes"]
    assert figures["succeeded"] == 279, figures["codes"]
    (again,) = (tmp_path / "out" / "events").iterdir()
    recording = Recording.read(again)
    assert len(recording.kills) == figures["kills"]
    assert {0, 1} == set(recording.kills.gateway)
    assert recording.toll["effects"] == 279
    pages = {page.name for page in write_report(tmp_path / "out").parent.iterdir()}
    assert {"crashing-back.png", "crashing-flow.png", "report.html"} <= pages


async def test_a_gateway_that_runs_already_is_stormed_from_outside(tmp_path: Path) -> None:
    """`--against`: here a tool of ours stands where somebody's gateway would."""
    path = tmp_path / "short.yaml"
    path.write_text(
        SHORT.replace("KIND", "reset").replace("seconds: 6s", "seconds: 1s").replace("1s, end: 2.5s", "0s, end: 1ms")
    )
    async with Origin() as origin:
        origin.default = Answer(200, b"{}")
        result = await _in_thread(
            "run", str(path), "--against", f"http://127.0.0.1:{origin.port}", "--min-goodput", "0.99"
        )
        assert result.exit_code == 0, result.output
        assert "left out  naive" in result.output
        assert all(request.target.startswith(b"/index/items?call=") for request in origin.requests)


async def _in_thread(*arguments: str):  # type: ignore[no-untyped-def]
    import asyncio

    return await asyncio.to_thread(storm, *arguments)


def test_a_client_alone_waits_as_its_policy_says() -> None:
    retry = RetrySettings(base=0.1, cap=0.3)
    assert [Alone(retry, "none", 1, 1).wait_s(attempt, 0.5) for attempt in (1, 2, 3)] == pytest.approx([0.1, 0.2, 0.3])
    assert Alone(retry, "zero", 1, 1).wait_s(3, 0.5) == 0
    assert Alone(retry, "full", 1, 1).wait_s(1, 0.5) == pytest.approx(0.05)


def test_a_policy_that_only_lacks_a_part_needs_a_gateway() -> None:
    can_run = live_engine()["can_run"]
    assert can_run(PolicySettings(without=("budget",))) is None
    assert can_run(PolicySettings(jitter="none")) is not None
    assert can_run(PolicySettings(jitter="none", without=("breaker", "budget", "bulkhead"))) is None
    assert "runs already" in live_engine("http://127.0.0.1:1")["can_run"](PolicySettings(without=("budget",)))


HANGING = """
name: hanging
title: A tool hangs with 256 agents on it, beside a local one
seconds: 9s
manifest: |
  version: 1
  domains:
    external: {concurrency: 16, queue: 32, reserved: 0, timeouts: {connect: 1s, first_byte: 3s, total: 6s}}
    local: {concurrency: 64, queue: 64, timeouts: {connect: 1s, first_byte: 3s, total: 6s}}
  tools:
    search: {upstream: "http://127.0.0.1:9", domain: external, retry: {attempts: 1},
             operations: {item: {match: GET /items, tier: read}}}
    files: {upstream: "http://127.0.0.1:10", domain: local, retry: {attempts: 1},
             operations: {item: {match: GET /items, tier: read}}}
world: {search: {workers: 1000, service: 10ms}, files: {workers: 1000, service: 0.8ms}}
load:
  - {tool: search, arrive: herd, agents: 256, name: searcher, start: 2s}
  - {tool: search, arrive: herd, agents: 64, name: helper, start: 2.1s}
  - {tool: files, arrive: steady, rate: 30, agents: 30, name: editor}
faults: [{tool: search, kind: hang, start: 2s, end: 5s}]
policies:
  shared:
    one_domain: true
    admission: {concurrency: 300, reserved: 0, queue: 100000}
    without: [breaker]
  bulkhead_alone:
    without: [breaker]
plots: [flow]
"""


@pytest.mark.timeout(240)
def test_a_hanging_tool_of_256_agents_leaves_local_tools_alone_on_real_sockets(tmp_path: Path) -> None:
    """The worked example of seed 000: one pool of 300 slots starves in 200 ms; domains of 16 and 64 do not. Wide bounds."""
    path = tmp_path / "hanging.yaml"
    path.write_text(HANGING)
    run = run_storm(load(str(path)), engine_name="live", **live_engine())
    local = {name: figures["during"]["tools"]["files"] for name, figures in run.figures.items()}
    assert local["shared"]["p99_ms"] >= 1500, "a shared pool has to starve, else this shows nothing"
    for policy in ("seawall", "bulkhead_alone"):
        assert local[policy]["goodput_share"] >= 0.97, local
        assert local[policy]["p99_ms"] <= 0.5 * local["shared"]["p99_ms"], local
        assert run.figures[policy]["during"]["tools"]["search"]["attempts"] <= 2 * 48, "16 slots and a queue of 32"
        assert run.figures[policy]["during"]["refused"] >= 200
