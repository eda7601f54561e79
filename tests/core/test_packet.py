"""What the published schema accepts is what the gateway accepts, and the seed's own packets are packets."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import jsonschema
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.schema import packet_schemas
from gateway.core.packet import (
    ResultPacket,
    TaskPacket,
    TaskResult,
    budget_of_packet,
    is_overdue,
    overdue_at,
    packet_digest,
    read_packet,
    read_result,
    result_of_run,
)
from gateway.core.records import (
    Record,
    StepInDoubt,
    StepIntended,
    TaskAccepted,
    TaskEnded,
    TrajectoryCommitted,
    TrajectoryFrozen,
    TrajectoryOpened,
    UnwindingStarted,
    UsageReported,
)
from gateway.core.trajectory import Trajectory, fold

SEED: dict[str, Any] = {
    "task_id": "lightning:script:2026-07-12-01",
    "idempotency_key": "lightning:script:2026-07-12-01",
    "stage": "stage_script",
    "parent_task_id": "lightning:pipeline:2026-07-12",
    "inputs": {"topic_ref": "niche-finder://slug/123"},
    "budget_caps": {"max_usd": 0.50, "max_cache_read_tokens": 250000},
    "deadline_ms": 600000,
    "retry_count": 0,
    "max_retries": 3,
}
RESULT: dict[str, Any] = {
    "task_id": "lightning:script:2026-07-12-01",
    "status": "done",
    "artifact_ref": "projects/lightning-01/script.md",
    "cost_usd": 0.11,
    "duration_ms": 4200,
    "next_stage_hint": "stage_script_qc",
    "error": None,
}


def is_valid(name: str, value: Any) -> bool:
    schema = packet_schemas()[name]
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def test_the_seeds_packets_are_packets() -> None:
    packet = read_packet(SEED)
    assert isinstance(packet, TaskPacket)
    assert budget_of_packet(packet) == {"usd": 0.5, "tokens": 250_000, "seconds": 600, "retries": 3}
    assert is_valid("task_packet", SEED)
    fields = set(packet_schemas()["result_packet"]["properties"])
    assert RESULT.keys() <= fields
    assert is_valid("task_result", {key: RESULT[key] for key in ("status", "artifact_ref", "next_stage_hint", "error")})


WRONG: list[dict[str, Any]] = [
    {}, {**SEED, "task_id": 7}, {**SEED, "budget_caps": {"max_usd": -1}}, {**SEED, "budget_caps": {"max_eur": 1}},
    {**SEED, "budget_caps": 5}, {**SEED, "deadline_ms": 0}, {**SEED, "deadline_ms": "5s"}, {**SEED, "retry_count": -1},
    {**SEED, "retry_count": 1.5}, {**SEED, "retry_count": None}, {**SEED, "max_retries": "3"}, {**SEED, "inputs": []},
    {**SEED, "on_abandon": "x"}, {**SEED, "stage": 5}, {**SEED, "idempotency_key": ""}, {**SEED, "surprise": 1},
    {**SEED, "stage": "x" * 129},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_packet_is_refused_by_schema_and_gateway_alike(wrong: dict[str, Any]) -> None:
    assert isinstance(read_packet(wrong), list)
    assert not is_valid("task_packet", wrong)


def test_all_that_is_wrong_is_said_at_once() -> None:
    problems = read_packet({"task_id": " ", "deadline_ms": -1, "x": 1, "budget_caps": {"max_usd": "y"}})
    assert isinstance(problems, list)
    assert len(problems) == 4


JUNK = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-5, 5) | st.text(max_size=3)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys((*SEED, "x"), JUNK)))
def test_the_gateway_accepts_nothing_that_the_schema_does_not(value: dict[str, Any]) -> None:
    if isinstance(read_packet(value), TaskPacket):
        assert is_valid("task_packet", {k: v for k, v in value.items() if not (k == "budget_caps" and not v)})


@pytest.mark.parametrize("wrong", [
    {}, {"status": "ok"}, {"status": "done", "artifacts": "x"}, {"status": "done", "artifacts": [1]},
    {"status": "done", "cost_usd": -1}, {"status": "done", "error": 5}, {"status": "done", "y": 1},
])  # fmt: skip
def test_what_is_no_result_is_refused(wrong: dict[str, Any]) -> None:
    assert isinstance(read_result(wrong), list)
    assert not is_valid("task_result", wrong)
    assert isinstance(read_result({"status": "done", "artifacts": ["a"]}), TaskResult)


def test_a_packet_is_told_from_another_and_not_from_itself() -> None:
    one, other = read_packet(SEED), read_packet(dict(reversed(SEED.items())))
    changed = read_packet({**SEED, "inputs": {"topic_ref": "x"}})
    assert isinstance(one, TaskPacket)
    assert isinstance(other, TaskPacket)
    assert isinstance(changed, TaskPacket)
    assert packet_digest(one) == packet_digest(other) != packet_digest(changed)


def task(*records: Record, at: int = 1_000) -> Trajectory:
    packet = read_packet(SEED)
    assert isinstance(packet, TaskPacket)
    opened: list[Record] = [
        TrajectoryOpened(agent="ann", budget=budget_of_packet(packet)), TaskAccepted(task=asdict(packet), digest="d"),
    ]  # fmt: skip
    return fold("t", [(record, at) for record in [*opened, *records]])


def status(state: Trajectory, at: int = 2_000) -> str:
    packet = result_of_run(state, at)
    assert is_valid("result_packet", orjson.loads(orjson.dumps(asdict(packet))))
    return packet.status


def test_how_a_task_stands_follows_from_its_run() -> None:
    assert status(task()) == "running"
    assert status(task(TrajectoryCommitted())) == "done"
    assert status(task(UnwindingStarted(reason="x"))) == "failed"
    assert status(task(TrajectoryFrozen(incident="X", detail="y"))) == "escalate"
    ended = TaskEnded(result={"status": "needs_retry", "error": "flaky"})
    assert status(task(ended, UnwindingStarted(reason="flaky"))) == "needs_retry"


def test_what_runs_for_twice_its_time_needs_recovery() -> None:
    assert status(task(), at=1_000 + 1_200_000) == "running"
    assert status(task(), at=1_000 + 1_200_001) == "needs_recovery"
    step = StepIntended(
        step=1, tool="t", operation="o", tier="reversible", action="aa", fingerprint="", occurrence=1, key="k",
        method="POST", target="/")  # fmt: skip
    assert status(task(step, StepInDoubt(step=1, fault="overdue", detail="x"))) == "needs_recovery"


def test_the_result_packet_has_what_was_spent_and_how_long_it_took() -> None:
    done = TaskEnded(result={"status": "done", "artifact_ref": RESULT["artifact_ref"], "next_stage_hint": "qc"})
    state = task(UsageReported(values={"usd": 0.04}), UsageReported(values={"usd": 0.07, "tokens": 9}), done)
    packet = result_of_run(state, 5_200)
    assert isinstance(packet, ResultPacket)
    assert (packet.cost_usd, packet.tokens, packet.duration_ms) == (0.11, 9, 4200)
    assert (packet.artifact_ref, packet.next_stage_hint, packet.error) == (RESULT["artifact_ref"], "qc", None)
    assert (packet.retries_left, packet.parent_task_id) == (3, SEED["parent_task_id"])


def test_a_task_begins_to_be_overdue_at_twice_its_deadline() -> None:
    state = Trajectory(id="t", opened_at=1000, task={"deadline_ms": 250.0})
    at = overdue_at(state)
    assert at == 1500
    assert not is_overdue(state, at)
    assert is_overdue(state, at + 1)
    assert overdue_at(Trajectory(id="t", opened_at=1000, task={})) is None
    assert overdue_at(Trajectory(id="t", opened_at=1000, task={"deadline_ms": 1e308})) is not None
