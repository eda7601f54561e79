"""The fast road is the gateway's: its recordings are those of the stages, call by call, attempt by attempt, move by move.

So a change of a stage that the road does not follow fails here, by the name of the scenario and policy that shows it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gateway.storm.policy import catalog_of, manifest_for
from gateway.storm.recording import Recording
from gateway.storm.road import Road
from gateway.storm.scenario import OURS, PolicySettings, Scenario, load, shipped
from gateway.storm.virtual import simulate

pytestmark = pytest.mark.timeout(180)
VIRTUAL = [name for name in shipped() if "virtual" in load(name).engines]
PAIRS = [(name, policy) for name in VIRTUAL for policy in (OURS, *load(name).policies)]
# Long enough for every trouble to begin, and for all but the longest to end.
OTHERS_S = 16.0


def assert_same(fast: Recording, staged: Recording) -> None:
    for table in ("calls", "attempts", "moves"):
        ours, theirs = getattr(fast, table), getattr(staged, table)
        for column in type(ours).__slots__:
            assert list(getattr(ours, column)) == list(getattr(theirs, column)), f"{table}.{column}"


@pytest.mark.parametrize(("name", "policy"), PAIRS)
def test_the_road_and_the_stages_give_the_same_storm(name: str, policy: str) -> None:
    scenario = load(name)
    settings = scenario.policies.get(policy, PolicySettings())
    if policy != OURS or scenario.name == "pace":
        scenario = dataclasses.replace(scenario, seconds=min(scenario.seconds, OTHERS_S))
    assert_same(simulate(scenario, settings, 3), simulate(scenario, settings, 3, is_staged=True))


WRITES = """
name: writes
title: Calls that have an effect, retried under a key or not at all
seconds: 8s
engines: [virtual]
gateways: 2
manifest: |
  version: 1
  domains:
    money: {concurrency: 8, queue: 16, rate: {calls: 90}, timeouts: {connect: 300ms, first_byte: 500ms, total: 2s}}
  tools:
    keyed:
      upstream: http://127.0.0.1:9
      domain: money
      breaker: {window: 20, consecutive: 6, cooldown: 300ms, max_cooldown: 1s, ramp: true}
      retry: {attempts: 3, base: 40ms, cap: 200ms}
      idempotency: {header: Idempotency-Key, window: 1h}
      operations: {book: {match: POST /items, tier: compensable, compensator: DELETE /items/1}}
    plain:
      upstream: http://127.0.0.1:9
      domain: money
      breaker: {window: 20, consecutive: 6, cooldown: 300ms, max_cooldown: 1s, slow_after: 100ms}
      operations: {put: {match: POST /things, tier: compensable, compensator: DELETE /things/1}}
world: {keyed: {workers: 4, service: 30ms, spread: 0.5, smear: 5ms}, plain: {workers: 4, service: 60ms, limit: 30}}
load:
  - {tool: keyed, arrive: poisson, rate: 60, agents: 7, request: POST /items, insists: 3, pause: 200ms}
  - {tool: plain, arrive: loop, agents: 3, lanes: 2, request: POST /things, insists: 1, name: lender}
faults:
  - {tool: keyed, kind: KIND, start: 1s, end: 3s, share: 0.7}
  - {tool: plain, kind: slow, factor: 5, start: 2s, end: 4s}
"""


def writing(tmp_path: Path, kind: str) -> Scenario:
    path = tmp_path / "writes.yaml"
    path.write_text(WRITES.replace("KIND", kind))
    return load(str(path))


@pytest.mark.parametrize("kind", ["reset", "hang", "error", "down"])
@pytest.mark.parametrize("seed", [1, 2])
def test_writes_in_doubt_repeats_of_agents_and_queues_take_the_same_road(tmp_path: Path, kind: str, seed: int) -> None:
    """What the shipped scenarios do not have all at once: keys, doubts, a rate, a ramp, a shared breaker, two gateways."""
    scenario = writing(tmp_path, kind)
    fast = simulate(scenario, PolicySettings(), seed)
    assert_same(fast, simulate(scenario, PolicySettings(), seed, is_staged=True))
    words = set(fast.calls.outcome)
    assert "success" in words
    assert any(word.startswith("refused:") for word in words)
    assert kind == "down" or any(word.startswith("in_doubt:") for word in words)


def test_what_a_probe_can_settle_and_pivots_are_left_to_the_stages(tmp_path: Path) -> None:
    scenario = writing(tmp_path, "reset")
    assert Road.can_take(scenario, catalog_of(manifest_for(scenario, PolicySettings())))
    pivot = dataclasses.replace(
        scenario, manifest=scenario.manifest.replace("tier: compensable, compensator: DELETE /items/1", "tier: pivot")
    )
    assert not Road.can_take(pivot, catalog_of(manifest_for(pivot, PolicySettings())))
    assert len(simulate(pivot, PolicySettings(), 1).calls)
