"""What must have been true for the demo to count: one check for each promise.

Every check rests on what the agent was answered, what arrived at the tools' doors, the gateway's runs API, or the tool
servers' own state. The gateway's log is for the viewer only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.demo.relay import Sight
from gateway.demo.snapshot import Snapshot, differences

__all__ = [
    "AMOUNT_CENTS",
    "FREE_CLUSTER",
    "TAKEN_CLUSTER",
    "WORKSPACE",
    "Act",
    "Check",
    "as_ordered",
    "failing_checks",
    "succeeding_checks",
]

WORKSPACE = "acme-workspace"
TAKEN_CLUSTER, FREE_CLUSTER = "production", "acme"
AMOUNT_CENTS = 4200
UNDONE_IN_ORDER = (
    ("payments", r"POST /v1/payment_intents/[^/]+/cancel"),
    ("storage", rf"DELETE /{WORKSPACE}/config\.json"),
    ("storage", rf"DELETE /{WORKSPACE}"),
    ("volumes", r"DELETE /2015-02-01/file-systems/[^/]+"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One promise, whether it was kept, and what was found where that helps."""

    claim: str
    holds: bool
    found: str = ""


@dataclass(slots=True, kw_only=True)
class Act:
    """What was seen during one run: the agent's records, what arrived at the tools, and how it ended."""

    run: str
    records: list[Mapping[str, Any]] = field(default_factory=list)
    sights: list[Sight] = field(default_factory=list)
    undone: list[Sight] = field(default_factory=list)
    exit_code: int = -1
    state: str = ""
    steps: list[Mapping[str, Any]] = field(default_factory=list)

    def answers(self, step: str) -> list[Mapping[str, Any]]:
        """Return the answers that the agent got to a step, in order."""
        return [record for record in self.records if record.get("event") == "answer" and record.get("step") == step]

    def arrived(self, method: str, path: str) -> list[Sight]:
        """Return the requests with this method and path that reached a tool."""
        return [s for s in self.sights if s.what == "request" and s.method == method and re.fullmatch(path, s.path)]


def failing_checks(act: Act, before: Snapshot, after: Snapshot) -> list[Check]:
    """Judge the run that failed and was undone."""
    card, holds, cluster = (act.answers(step) for step in ("check the card", "hold the money", "start the cluster"))
    cuts = [sight for sight in act.sights if sight.what == "cut"]
    refusals = [answer for answer in holds if answer.get("code") == "ERR_CIRCUIT_OPEN"]
    undone = [(sight.tool, f"{sight.method} {sight.path}") for sight in act.undone if sight.what == "request"]
    left = differences(before, after)
    return [
        Check(
            claim="a cut connection was repeated by the gateway, and the agent never knew",
            holds=len(cuts) == 1 and _statuses(card) == [200],
            found=f"{len(cuts)} cuts, answers {_statuses(card)}",
        ),
        Check(
            claim="the breaker opened and refused at once, saying when to come back",
            holds=any(a.get("dispatched") == "no" and _is_positive(a.get("retry_after_ms")) for a in refusals),
            found=f"answers {[(a.get('status'), a.get('code')) for a in holds]}",
        ),
        Check(
            claim="the tool healed, and the money was held exactly once",
            holds=_statuses(holds)[-1:] == [200] and len(act.arrived("POST", "/v1/payment_intents")) == 1,
            found=f"answers {_statuses(holds)}, arrived {len(act.arrived('POST', '/v1/payment_intents'))} times",
        ),
        _keys_check("in the failed run", act),
        Check(
            claim="the run failed at its cluster, for good",
            holds=_statuses(cluster) == [409] and act.exit_code == 1,
            found=f"answers {_statuses(cluster)}, exit code {act.exit_code}",
        ),
        Check(claim="the run ended cleanly aborted", holds=act.state == "aborted_clean", found=act.state),
        Check(
            claim="its effects were undone in reverse order, each once",
            holds=_is_in_order(undone),
            found="; ".join(f"{tool} {line}" for tool, line in undone) or "nothing was undone",
        ),
        Check(
            claim="the tool servers say that the world is as before",
            holds=not left and len(after.released) == len(before.released) + 1,
            found="; ".join(left) or f"{len(after.released) - len(before.released)} holds released",
        ),
    ]


def succeeding_checks(act: Act, before: Snapshot, after: Snapshot) -> list[Check]:
    """Judge the run that succeeded and was committed."""
    statuses = [record.get("status") for record in act.records if record.get("event") == "answer"]
    captures = act.arrived("POST", r"/v1/payment_intents/[^/]+/capture")
    found = differences(before, after)
    return [
        Check(
            claim="every step of the second run succeeded at once",
            holds=len(statuses) == 8 and all(isinstance(s, int) and s < 300 for s in statuses) and act.exit_code == 0,
            found=f"answers {statuses}, exit code {act.exit_code}",
        ),
        _keys_check("in the second run", act),
        Check(claim="the run is committed", holds=act.state == "succeeded", found=act.state),
        Check(
            claim="the money was taken exactly once, by a call sent once",
            holds=list(_added(before.taken, after.taken).values()) == [AMOUNT_CENTS] and len(captures) == 1,
            found=f"taken {_added(before.taken, after.taken)}, sent {len(captures)} times",
        ),
        Check(
            claim="the tool servers hold what the run made, and nothing else has changed",
            holds=_is_as_ordered(before, after),
            found="; ".join(found) or "nothing is new",
        ),
    ]


def as_ordered(before: Snapshot) -> Snapshot:
    """Return the world as the second run should leave it; ids that the tools choose are made up."""
    return replace(
        before,
        volumes={**before.volumes, "(new)": f"{WORKSPACE}-volume"},
        names=before.names | {WORKSPACE},
        files={**before.files, f"{WORKSPACE}/config.json": "(new)"},
        clusters=before.clusters | {FREE_CLUSTER},
        taken={**before.taken, "(new)": AMOUNT_CENTS},
    )


def _keys_check(when: str, act: Act) -> Check:
    """Every write to payments carried a key, none twice, and each is the key of a step in the gateway's own record."""
    writes = [s for s in act.sights if s.what == "request" and s.tool == "payments" and s.method == "POST"]
    keys = [sight.key for sight in writes]
    recorded = {step.get("key") for step in act.steps}
    return Check(
        claim=f"each payment {when} carried the idempotency key of its step",
        holds=bool(keys) and None not in keys and len(set(keys)) == len(keys) and set(keys) <= recorded,
        found=f"keys seen {keys}, keys recorded {sorted(map(str, recorded))}",
    )


def _is_in_order(undone: list[tuple[str, str]]) -> bool:
    return len(undone) == len(UNDONE_IN_ORDER) and all(
        tool == expected_tool and re.fullmatch(pattern, line) is not None
        for (tool, line), (expected_tool, pattern) in zip(undone, UNDONE_IN_ORDER, strict=True)
    )


def _is_as_ordered(before: Snapshot, after: Snapshot) -> bool:
    new_volumes = _added(before.volumes, after.volumes)
    new_files = _added(before.files, after.files)
    return (
        list(new_volumes.values()) == [f"{WORKSPACE}-volume"]
        and after.names - before.names == {WORKSPACE}
        and list(new_files) == [f"{WORKSPACE}/config.json"]
        and all(volume in content for volume in new_volumes for content in new_files.values())
        and after.clusters - before.clusters == {FREE_CLUSTER}
        and after.holds == before.holds
        and not [line for line in differences(before, after) if line.endswith(("gone", "changed"))]
    )


def _added(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in after.items() if name not in before}


def _statuses(answers: list[Mapping[str, Any]]) -> list[Any]:
    return [answer.get("status") for answer in answers]


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and value > 0
