"""A policy that gets worse fails the storm that is about it, and the failure names the number.

Each mutant changes one rule of the gateway, or one line of a manifest, in a way that a slip of the hand could. What must
come of it is a claim of a scenario that no longer holds: those claims to which `test_scenarios` holds the gateway as it is.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable
from typing import Any

import pytest

from gateway.core import admission, backoff, breaker
from gateway.core.admission import _FairQueue
from gateway.core.breaker import Breaker, State
from gateway.core.retry import RecentFailures, RetryBudget
from gateway.storm.scenario import load
from tests.storm.test_scenarios import worse

pytestmark = pytest.mark.timeout(180)
Mutant = Callable[[pytest.MonkeyPatch], None]


def _canaries_in_swarms(patch: pytest.MonkeyPatch) -> None:
    refusal = Breaker._refusal

    def never_half_open(self: Breaker, now: float) -> Any:
        return None if self.state is State.HALF_OPEN else refusal(self, now)

    patch.setattr(Breaker, "_refusal", never_half_open)


def _first_come_first_served(patch: pytest.MonkeyPatch) -> None:
    def offer(self: _FairQueue, agent: Any) -> None:
        agent.version = next(self._versions)
        heapq.heappush(self._offers, (0, next(iter(agent.tickets)), agent.version, agent))

    patch.setattr(_FairQueue, "_offer", offer)


RULES: dict[str, tuple[Mutant, str, str]] = {
    "the budget is never spent": (
        lambda patch: patch.setattr(RetryBudget, "charge", lambda self, now: True),
        "outage",
        "budget_only.during.amplification <= 1.1",
    ),
    "repeats of agents are taken for new calls": (
        lambda patch: patch.setattr(RecentFailures, "is_repeat", lambda self, action, now: False),
        "outage",
        "budget_only.during.amplification <= 1.1",
    ),
    "the breaker never opens": (
        lambda patch: patch.setattr(Breaker, "_trip_cause", lambda self: None),
        "outage",
        "seawall.during.attempts <= 100",
    ),
    "half-open lets everybody through": (_canaries_in_swarms, "trip", "seawall.canaries_at_once <= 1"),
    "the cooldown does not grow": (
        lambda patch: patch.setattr(breaker, "_GROWING", frozenset()),
        "trip",
        "seawall.canaries == 5",
    ),
    "backoff has no jitter": (
        lambda patch: patch.setattr(
            backoff, "full_jitter", lambda attempt, base_s, cap_s, u: min(cap_s, base_s * 2.0 ** (attempt - 1))
        ),
        "herd",
        "full_jitter.repeats.peak_per_s.ms2 <= 2500",
    ),
    "who asks more often gets more": (_first_come_first_served, "fairness", "seawall.groups.keen.goodput_per_s >= 29"),
    "the queue has no bound": (
        lambda patch: patch.setattr(
            admission.Admission, "refusal", lambda self, is_ours, now, deadline, has_token: None
        ),
        "hysteresis",
        "seawall.p99_ms <= 300",
    ),
}


@pytest.mark.parametrize("mutant", RULES)
def test_a_rule_that_gets_worse_fails_the_claim_about_it(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, name, claim = RULES[mutant]
    change(monkeypatch)
    failed = worse(load(name))
    assert any(f"FAILS  {claim} " in verdict for verdict in failed), failed


SETTINGS = [
    ("trip", "max_cooldown: 8s", "max_cooldown: 60s", "seawall.recovery_s <= 8 + 8 * 0.020"),
    ("collapse", "concurrency: 32", "concurrency: 512", "seawall.max_queue <= 64"),
    ("throttled", "rate: {calls: 50, per: 1s}", "rate: {calls: 500, per: 1s}", "seawall.amplification <= 0.7"),
    (
        "flapping",
        "cooldown: 500ms, max_cooldown: 4s",
        "cooldown: 20ms, max_cooldown: 20ms",
        "seawall.during.failed <= 100",
    ),
    ("flapping", "consecutive: 3", "consecutive: 30", "seawall.during.failed <= 100"),
    ("replicas", "consecutive: 3", "consecutive: 30", "seawall.during.attempts <= 8 * 9"),
]


@pytest.mark.parametrize(("name", "before", "after", "claim"), SETTINGS)
def test_a_setting_that_gets_worse_fails_the_claim_about_it(name: str, before: str, after: str, claim: str) -> None:
    scenario = load(name)
    assert scenario.manifest.count(before) == 1
    failed = worse(dataclasses.replace(scenario, manifest=scenario.manifest.replace(before, after)))
    assert any(f"FAILS  {claim} " in verdict for verdict in failed), failed
