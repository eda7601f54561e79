"""Every shipped scenario in virtual time, held to its own claims: a policy that gets worse fails here by name.

The claims stand in `loadtests/scenarios/*.yaml`, beside what they are about.
"""

from __future__ import annotations

import pytest

from gateway.storm.runner import run_storm
from gateway.storm.scenario import Scenario, load, shipped

pytestmark = pytest.mark.timeout(300)
VIRTUAL = [name for name in shipped() if "virtual" in load(name).engines]
# Policies of others take most of the time and prove nothing about ours; `make storm` runs them.
NEEDED = {"collapse": ("jitter_only",), "flapping": ("hermes",), "outage": ("naive", "budget_only")}


def worse(scenario: Scenario) -> list[str]:
    """Return the claims of a scenario that do not hold, each with its numbers."""
    run = run_storm(scenario, policies=NEEDED.get(scenario.name))
    assert not run.problems
    return [str(verdict) for verdict in run.verdicts if not verdict.holds]


@pytest.mark.parametrize("name", VIRTUAL)
def test_the_claims_of_a_scenario_hold(name: str) -> None:
    scenario = load(name)
    assert scenario.name == name
    assert scenario.holds, "a scenario that claims nothing shows nothing"
    failed = worse(scenario)
    assert not failed, f"the storm `{name}` got worse: " + "; ".join(failed)


def test_all_scenarios_of_the_lab_are_there() -> None:
    assert {
        "herd", "collapse", "hysteresis", "trip", "outage", "bulkhead", "fairness", "flapping", "throttled", "replicas",
        "ceiling", "crashes", "metastable",
    } <= set(shipped())  # fmt: skip
